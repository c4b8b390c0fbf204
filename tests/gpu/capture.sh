#!/usr/bin/env bash
# Capture on a CUDA machine that has nothing but torch: OUT=/some/folder tests/gpu/capture.sh
# An unchanged GPT script, plain and under torchrun; SIGTERM in mid-capture; stacks and memory; what the traces hold.
set -uo pipefail
cd "$(dirname "$0")/../.."
export PYTHONPATH=$PWD/src PYTHONUNBUFFERED=1
R=(python3 -m rankscope profile)
G="examples/gpt_train.py"
"${R[@]}" -v -o /tmp/a --steps 10:12 --record-shapes python3 "$G" --steps 40 >"$OUT"/a.log 2>&1
echo "a rc $?"
tail -6 "$OUT"/a.log
cp /tmp/a/rank-00000.rankscope.json "$OUT"/a.manifest.json
"${R[@]}" -v -o /tmp/s --steps 5:6 --record-shapes python3 -m torch.distributed.run --nproc-per-node 1 \
  "$G" --steps 12 --layers 2 --dim 256 --heads 4 --length 256 --batch 2 --vocabulary 8192 >"$OUT"/s.log 2>&1
echo "s rc $?"
tail -5 "$OUT"/s.log
cp /tmp/s/rank-00000.pt.trace.json.gz "$OUT"/gpt-h200-small.pt.trace.json.gz
cp /tmp/s/rank-00000.rankscope.json "$OUT"/gpt-h200-small.rankscope.json
"${R[@]}" -o /tmp/t --steps 3:100000 python3 "$G" --steps 100000 >/tmp/t.out 2>"$OUT"/t.log &
P=$!
until grep -q "step 30" /tmp/t.out || ! kill -0 $P 2>/dev/null; do sleep 0.5; done
kill -TERM $P
wait $P
echo "term rc $? (143 expected)"
tail -4 "$OUT"/t.log
"${R[@]}" -v -o /tmp/w --steps 10:12 --with-stack --profile-memory python3 "$G" --steps 20 2>&1 | tail -4
python3 - <<'P'
import glob, gzip, json
for path in sorted(glob.glob("/tmp/[astw]/*.gz")):
    events = json.loads(gzip.open(path).read())["traceEvents"]
    kernels = sum(event.get("cat") == "kernel" for event in events)
    steps = sorted({event["name"] for event in events if str(event.get("name")).startswith("ProfilerStep")})
    print(path, len(events), "events,", kernels, "kernels,", steps[:3])
P
