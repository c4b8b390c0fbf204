#!/bin/sh
# Stop the container. The reports are kept.
. "$(dirname "$0")/common.sh"
if [ "$ENGINE" = apptainer ]; then
  exec apptainer instance stop "$CONTAINER"
fi
exec "$ENGINE" rm --force "$CONTAINER"
