# shellcheck shell=sh
# Shared by the other scripts, which source it: the settings of .env, and the differences between the engines.
# shellcheck disable=SC2034,SC2153 # .env sets the variables, and the scripts that source this file use them
set -eu
cd "$(dirname "$0")"
# shellcheck source=/dev/null
. ./.env

case $ENGINE in
  docker | podman | apptainer) ;;
  *)
    echo "ENGINE=$ENGINE in .env is not one of docker, podman, apptainer" >&2
    exit 2
    ;;
esac
if ! command -v "$ENGINE" >/dev/null; then
  echo "$ENGINE is not on PATH; install it, or change ENGINE in .env" >&2
  exit 1
fi
# REGISTRY may be empty, or end in a slash; IMAGE is the name without it.
REGISTRY=${REGISTRY%/}
full_name=${REGISTRY:+$REGISTRY/}$IMAGE:$TAG
sif=$IMAGE-$TAG.sif
mkdir -p "$REPORTS"
reports=$(cd "$REPORTS" && pwd)

is_running() {
  if [ "$ENGINE" = apptainer ]; then
    apptainer instance list "$CONTAINER" | grep -q "$CONTAINER"
  else
    "$ENGINE" container inspect "$CONTAINER" >/dev/null 2>&1
  fi
}
