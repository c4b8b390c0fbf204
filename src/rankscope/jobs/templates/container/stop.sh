#!/bin/sh
# Stop the container and remove it. What is in /reports is kept; a container with runs elsewhere stays, unless --force.
. "$(dirname "$0")/common.sh"
if [ "$ENGINE" = apptainer ]; then
  exec apptainer instance stop "$CONTAINER"
fi
if [ "${1:-}" != --force ]; then
  # -xdev: only the container's own file system, which is removed with it
  runs=$("$ENGINE" exec "$CONTAINER" find / -xdev -name rankscope.json 2>/dev/null) || true
  if [ -n "$runs" ]; then
    echo "these runs would be lost with the container:" >&2
    printf '%s\n' "$runs" | while read -r run; do
      echo "  copy it: $ENGINE cp $CONTAINER:${run%/rankscope.json} $reports/; or ./stop.sh --force" >&2
    done
    exit 1
  fi
fi
exec "$ENGINE" rm --force "$CONTAINER"
