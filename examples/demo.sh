#!/bin/sh
# A tour on this machine, in under two minutes: two gloo ranks run the mini-benchmark under `rankscope profile`,
# then tables and demo/report.html show where the time went.
set -eu
cd "$(dirname "$0")/.."
rm -rf demo
mkdir -p demo

say() { printf '\n$ %s\n' "$*"; "$@"; }

if python -c 'import torch' 2>/dev/null; then
  cat <<END
Two ranks of tensor- and sequence-parallel training on this machine's CPUs, over
gloo: ALLGATHER -> matmul1 -> matmul2 -> REDUCE_SCATTER, repeated.
rankscope profile is put in front of the command; the program is not changed.
END
  say rankscope profile --ranks all --record-shapes -o demo/run \
    rankscope bench seqpar --nproc 2 -s 256 -d 512
else
  echo "torch is not installed (tests/requirements-torch.txt): using recorded traces of four ranks."
  cp -r tests/data/seqpar-gloo4-slow2 demo/run
fi
say rankscope stats demo/run -r breakdown
say rankscope stats demo/run -r annotations --by rank
say rankscope stats demo/run -r ops --top 5
say rankscope doctor demo/run
say rankscope report demo/run -o demo/report.html
cat <<END

demo/report.html has all of it, with charts: open it in any browser.
How to read it: compute is the matmuls, exposed comm is the time in collectives
without compute beside it, idle is the rest. A rank whose ALLGATHER or
REDUCE_SCATTER takes longer than the other's arrived first and waited.

Your turn:
  rankscope profile torchrun --nproc-per-node 4 train.py
                                     capture your own training, unchanged
  rankscope stats RUN                then see where its time went
  rankscope report RUN -o r.html     one HTML file: findings, charts, tables
  rankscope bench seqpar --help      this benchmark on your GPUs
  python examples/plain_loop.py      profiling from inside the code
END
