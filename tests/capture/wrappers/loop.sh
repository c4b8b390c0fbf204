#!/bin/bash
# The first rank of each node of four GPUs.
PROFILED=0
for r in 0 4 8 12; do
  if [ "$PMI_RANK" -eq "$r" ]; then
    PROFILED=1
    exec nsys profile -t cuda,nvtx -o "$SCRATCH/r_%q{PMI_RANK}" "$@"
  fi
done
exec "$@"
