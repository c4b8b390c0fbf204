#!/bin/sh
# Build, start, profile the example inside, stop: does all of it work here? The reports stay in REPORTS.
. "$(dirname "$0")/common.sh"
./build.sh
./run.sh
code=0
./exec.sh rankscope-demo "$@" || code=$?
./stop.sh
if [ "$code" -ne 0 ]; then
  echo "the example ended with $code" >&2
  exit "$code"
fi
echo "Reports: $reports"
