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
# `rankscope ncu RUN --kernels-out FILE` makes the list where the store's libraries are; here the standard library does
for p in bfloat16 float32; do
  go python3 tests/gpu/hot_list.py "$W/torch-$p/rank-00000.pt.trace.json.gz" 3 "$W/kernels-$p.json" "the list, $p"
  cp "$W/kernels-$p.json" "$OUT/"
  go "${R[@]}" ncu --kernels "$W/kernels-$p.json" -n -- "${B[@]}" -p $p "rankscope profile --tool ncu --kernels -n, $p"
  go "${R[@]}" ncu --kernels "$W/kernels-$p.json" -o "$W/ncu-$p" -- "${B[@]}" -p $p "rankscope profile --tool ncu --kernels, $p"
  cp "$W/ncu-$p"/rank-00000.ncu-rep "$OUT/seqpar-$p.rank-00000.ncu-rep"
  cat "$W/ncu-$p"/rank-00000.rankscope.json >>"$log"
done
# an unchanged training script: steps, forward and backward, many sizes of one function; then what ncu met
G=(python3 examples/gpt_train.py --steps 8 --layers 4 --dim 512 --heads 8 --length 512 --batch 4 --vocabulary 8192)
go "${R[@]}" profile -o "$W/torch-gpt" "${G[@]}" "torch trace, gpt"
go python3 tests/gpu/hot_list.py "$W/torch-gpt/rank-00000.pt.trace.json.gz" 5 "$W/kernels-gpt.json" "the list, gpt"
go timeout 300 python3 -m rankscope profile --tool ncu --kernels "$W/kernels-gpt.json" --top 5 -o "$W/ncu-gpt" -- "${G[@]}" "rankscope ncu, gpt"
cp "$W"/ncu-gpt/*.ncu-rep "$W"/ncu-gpt/*.json "$W"/torch-gpt/*.json.gz "$OUT/"
# how often a kernel is run for each set (tools.NCU_PASSES), and steps by cudaProfilerStart
for s in roofline detailed full; do
  go "${R[@]}" profile --tool ncu -o "$W/set-$s" --set $s -c 2 "${B[@]}" -p bfloat16 "--set $s"
done
go "${R[@]}" profile --tool ncu -o "$W/steps" --steps 3:4 -c 4 python3 examples/gpt_train.py --steps 8 --layers 2 --dim 256 \
  --heads 4 --length 256 --batch 2 --vocabulary 8192 "--steps 3:4 of an unchanged script"
cat "$W"/steps/rank-00000.rankscope.json >>"$log"
grep -a "profile\|measured\|expected\|refused\|clock" "$log" | sort | uniq -c
ls -la "$OUT"
