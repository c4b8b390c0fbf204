#!/bin/bash
TOOL_DIR=/opt/nsight/bin
args=(
    --trace=cuda,nvtx       # what matters
    --sample=none
    --python-sampling=true
)
args+=(--delay 330 --duration 50)
if [ "$SLURM_LOCALID" == "0" ]; then
    EXTRAS="--enable efa_metrics"
fi
case "$SLURM_PROCID" in
    0|8)
        ${TOOL_DIR}/nsys profile "${args[@]}" $EXTRAS --session-new=r$SLURM_PROCID --output reports/r${SLURM_PROCID} "$@" ;;
    *) "$@" ;;
esac
