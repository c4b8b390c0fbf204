#!/usr/bin/env bash
if [ "${ENABLE_NSYS:-0}" -eq 1 ]; then
    NSYS_ARGS="--trace=cuda,cublas,nvtx --kill none -c cudaProfilerApi -f true"
    export PROFILE_CMD="nsys profile $NSYS_ARGS -o logs/$SLURM_JOB_ID/r$SLURM_PROCID"
fi
exec "$@"
