#!/bin/bash
## Traces the first rank of the first two nodes (8 ranks).
SCRIPT_NAME=$(basename "$2")
STEM="${SCRIPT_NAME%%.*}"

NODES=`wc -l < $PBS_NODEFILE`

BASE=/lus/project/profiles
STAMP=$(date +%F_%H%M%S)
OUT=${BASE}/nsys_n${NODES}_${STAMP}/${STEM}
RUN_ID=nsys_n${NODES}_${STAMP}

mkdir -p ${OUT}
NSYS_OPTS=" -o ${OUT}/${RUN_ID}_%q{PMI_RANK} --stats=true --show-output=true "

PROFRANK=0
RANKCUTOFF=8

if [[ $PALS_LOCAL_RANKID -eq $PROFRANK ]] && [[ $PMI_RANK -lt $RANKCUTOFF ]]; then
  echo "Tracing rank ${PMI_RANK}"
  nsys profile $NSYS_OPTS "$@"
else
  "$@"
fi
