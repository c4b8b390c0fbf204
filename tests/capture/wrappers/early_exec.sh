#!/bin/bash
if [ -z "$SLURM_PROCID" ]; then
  echo "not under srun" >&2
  exit 1
fi
if [ "$SLURM_PROCID" -ne 0 ] && [ "$SLURM_PROCID" -ne 4 ]; then
  exec "$@"
fi
nsys profile -w true -t cuda,nvtx,osrt -s cpu \
     --cudabacktrace=true \
     -c cudaProfilerApi --capture-range-end=stop --kill none \
     -x true -f true -o "${SCRATCH}/nsys/%h_%p" "$@"
