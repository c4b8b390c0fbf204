#!/bin/sh
# The command rankscope: Python without the job's PYTHON variables (-E), which are the job's alone. The console script
# beside this file names the interpreter. It is started as it is where rankscope itself is found by such a variable.
self=$0
if [ -L "$self" ]; then self=$(readlink -f "$self"); fi
IFS= read -r python <"$self-python"
python=${python#"#!"}
alone=${PYTHONHOME:+no}${PYTHONUSERBASE:+no}${RANKSCOPE_PLAN:+no} # a plan: it is part of a captured job
IFS=:
for folder in $PYTHONPATH; do
  if [ -f "$folder/rankscope/cli/__init__.py" ]; then alone=no; fi
done
if [ -n "$PYTHONEXECUTABLE" ]; then # -E does not cover it; rankscope.cli.run hands it on
  export RANKSCOPE_PYTHONEXECUTABLE="$PYTHONEXECUTABLE"
  unset PYTHONEXECUTABLE
fi
case $alone${python##*/} in
python*) exec "$python" -E "$self-python" "$@" ;;
*) exec "$self-python" "$@" ;;
esac
