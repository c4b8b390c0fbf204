#! /bin/bash
mkdir -p reports
export CUDA_VISIBLE_DEVICES=$OMPI_COMM_WORLD_LOCAL_RANK
ncu --clock-control none --set=basic --section PmSampling --section "regex:Speed.*" \
    --replay-mode application --csv --launch-skip 2 -c 10 -f \
    -o "./reports/rank_$OMPI_COMM_WORLD_RANK" "$@" || true
