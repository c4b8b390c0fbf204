#!/bin/sh
# rankscope-demo [options of rankscope profile]: profile the training of a small language model, two ranks on this machine.
set -eu
output=${RANKSCOPE_DEMO_OUTPUT:-/reports/demo}
example=${RANKSCOPE_DEMO_SCRIPT:-/opt/rankscope/lm_example.py}
ranks=${RANKSCOPE_DEMO_RANKS:-2}
exec rankscope profile --ranks all -f -o "$output" "$@" -- \
  torchrun --standalone --nproc-per-node "$ranks" "$example"
