#!/bin/bash
DIR=/lus/project/ncu
#KERNEL=ampere_sgemm
KERNEL=regex:gemm
NCU_OPTS_DETAILED=" --set detailed -k ${KERNEL} -o ${DIR}/gemm_%q{PMI_RANK} "
NCU_OPTS_FULL=" --set full -k ${KERNEL} -o ${DIR}/gemm_%q{PMI_RANK} "

PROFRANK=0
RANKCUTOFF=4

if [[ $PALS_LOCAL_RANKID -eq $PROFRANK ]] && [[ $PMI_RANK -lt $RANKCUTOFF ]]; then
  ncu $NCU_OPTS_DETAILED "$@"
else
  "$@"
fi
