#!/bin/sh
# Run a command in the running container: ./exec.sh rankscope-demo
. "$(dirname "$0")/common.sh"
if [ $# -eq 0 ]; then set -- sh; fi
if ! is_running; then
  echo "$CONTAINER is not running; start it with ./run.sh" >&2
  exit 1
fi
if [ "$ENGINE" = apptainer ]; then
  exec apptainer exec "instance://$CONTAINER" "$@"
fi
if [ -t 0 ]; then
  exec "$ENGINE" exec --interactive --tty "$CONTAINER" "$@"
fi
exec "$ENGINE" exec --interactive "$CONTAINER" "$@"
