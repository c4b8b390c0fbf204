#!/usr/bin/env bash
set -euo pipefail
rank="${OMPI_COMM_WORLD_RANK:-$SLURM_PROCID}"
[[ -z "${REPORT+x}" ]] && REPORT=report
[[ -z "${PROFILE+x}" ]] && PROFILE=0

if [[ "$PROFILE" -ne 0 && "$rank" -eq 0 ]]; then
  exec nsys profile --trace=mpi,nvtx,cuda --force-overwrite=true -e NSYS_MPI_STORE_TEAMS_PER_RANK=1 -o "$REPORT" "$@"
else
  exec "$@"
fi
