#!/usr/bin/env bash
# ncu on a CUDA machine that has nothing but torch and ncu: OUT=/some/folder tests/gpu/ncu.sh
# One rank under ncu: by name, by steps, a name that matches nothing; the kernels of a list; passes of each set.
set -uo pipefail
cd "$(dirname "$0")/../.."
export PYTHONPATH=$PWD/src PYTHONUNBUFFERED=1
R=(timeout 100 python3 -m rankscope)
B=(python3 -m rankscope bench seqpar -it 4 -wit 2 -s 4608 -d 9216)
W=$(mktemp -d)
log=$OUT/ncu.log
say() { echo "== $*" | tee -a "$log"; }
go() { say "${*: -1}"; "${@:1:$#-1}" >>"$log" 2>&1; echo "rc $?" | tee -a "$log"; }

# a torch trace of the same loop first: what the list of kernels comes from
for p in bfloat16 float32; do
  go "${R[@]}" profile -o "$W/torch-$p" --after 0s --for 60s "${B[@]}" -p $p "torch trace, $p"
  cp "$W/torch-$p"/rank-00000.pt.trace.json.gz "$OUT/torch-$p.rank-00000.pt.trace.json.gz"
done
go "${R[@]}" profile --tool ncu -n "${B[@]}" -p bfloat16 "dry run"
go "${R[@]}" profile --tool ncu -o "$W/none" -k no_such_kernel "${B[@]}" -p bfloat16 "a -k that matches nothing"
cat "$W"/none/rank-00000.rankscope.json >>"$log"
# the list is by hand here: `rankscope ncu RUN --kernels-out FILE` makes it where the store's libraries are
for p in bfloat16 float32; do
  python3 - "$W/torch-$p/rank-00000.pt.trace.json.gz" "$W/kernels-$p.json" <<'P'
import collections, gzip, json, sys
totals = collections.defaultdict(lambda: [0, 0])
for event in json.loads(gzip.open(sys.argv[1]).read())["traceEvents"]:
    if event.get("cat") == "kernel" and "nccl" not in event["name"]:
        args = event["args"]
        key = (event["name"], tuple(args["grid"]), tuple(args["block"]))
        totals[key][0] += 1
        totals[key][1] += round(event["dur"] * 1000)
top = sorted(totals.items(), key=lambda item: -item[1][1])[:3]
kernels = [
    {"name": name, "grid": list(grid), "block": list(block), "calls": calls, "total_ns": total}
    for (name, grid, block), (calls, total) in top
]
json.dump({"format": 1, "run": sys.argv[1], "kernels": kernels}, open(sys.argv[2], "w"), indent=1)
print(json.dumps(kernels, indent=1))
P
  cp "$W/kernels-$p.json" "$OUT/"
  go "${R[@]}" ncu --kernels "$W/kernels-$p.json" -n -- "${B[@]}" -p $p "rankscope ncu --kernels -n, $p"
  go "${R[@]}" ncu --kernels "$W/kernels-$p.json" -o "$W/ncu-$p" -- "${B[@]}" -p $p "rankscope ncu --kernels, $p"
  cp "$W/ncu-$p"/rank-00000.ncu-rep "$OUT/seqpar-$p.rank-00000.ncu-rep"
  cat "$W/ncu-$p"/rank-00000.rankscope.json >>"$log"
done
# how often a kernel is run for each set (tools.NCU_PASSES), and steps by cudaProfilerStart
for s in roofline detailed full; do
  go "${R[@]}" profile --tool ncu -o "$W/set-$s" --set $s -c 2 "${B[@]}" -p bfloat16 "--set $s"
done
go "${R[@]}" profile --tool ncu -o "$W/steps" --steps 3:4 -c 4 python3 examples/gpt_train.py --steps 8 --layers 2 --dim 256 \
  --heads 4 --length 256 --batch 2 --vocabulary 8192 "--steps 3:4 of an unchanged script"
cat "$W"/steps/rank-00000.rankscope.json >>"$log"
grep -a "profiled\|refused\|clock" "$log" | sort | uniq -c
ls -la "$OUT"
