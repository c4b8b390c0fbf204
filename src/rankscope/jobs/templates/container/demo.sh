#!/bin/sh
# rankscope-demo [options of rankscope profile]: profile the training of a small language model, two ranks on this
# machine, and print the tables. --tool none, as the first option: train it without a profiler.
set -eu
output=${RANKSCOPE_DEMO_OUTPUT:-/reports/demo}
example=${RANKSCOPE_DEMO_SCRIPT:-/opt/rankscope/lm_example.py}
ranks=${RANKSCOPE_DEMO_RANKS:-2}
if [ "${1:-} ${2:-}" = "--tool none" ]; then
  exec torchrun --standalone --nproc-per-node "$ranks" "$example"
fi
exec rankscope profile --ranks all -f -o "$output" --stats "$@" -- \
  torchrun --standalone --nproc-per-node "$ranks" "$example"
