#!/bin/sh
# Test all of it: build, start, profile the example inside, stop. The reports are kept in REPORTS.
. "$(dirname "$0")/common.sh"
./build.sh
./run.sh
code=0
./exec.sh rankscope-demo --tool "$TOOL" "$@" || code=$?
./stop.sh
if [ "$code" -ne 0 ]; then
  echo "the example ended with exit code $code" >&2
  exit "$code"
fi
echo "Reports: $reports"
