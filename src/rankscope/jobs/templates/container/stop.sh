#!/bin/sh
# End the container. The reports stay.
. "$(dirname "$0")/common.sh"
if [ "$ENGINE" = apptainer ]; then
  exec apptainer instance stop "$CONTAINER"
fi
exec "$ENGINE" rm --force "$CONTAINER"
