#!/bin/bash
DIR=/lus/project/ncu
# One of these:
#NCU_OPTS_FULL=" --set full -o ${DIR}/full_%q{PMI_RANK} "
NCU_OPTS_DETAILED=" --set detailed -o ${DIR}/detailed_%q{PMI_RANK} "
NCU_OPTS_ROOFLINE=" --set roofline -k regex:gemm -o ${DIR}/roofline_%q{PMI_RANK} "
RANKCUTOFF=4

if [[ $PALS_LOCAL_RANKID -eq 0 ]] && [[ $PMI_RANK -lt $RANKCUTOFF ]]; then
  ncu $NCU_OPTS_FULL "$@"
else
  "$@"
fi
