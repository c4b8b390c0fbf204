#!/bin/sh
# Push the image. Log in first: ./login.sh
. "$(dirname "$0")/common.sh"
if [ -z "$REGISTRY" ]; then
  echo "REGISTRY in .env is empty: set it to the registry to push to" >&2
  exit 2
fi
if [ "$ENGINE" = apptainer ]; then
  exec apptainer push "$sif" "oras://$full_name"
fi
exec "$ENGINE" push "$full_name"
