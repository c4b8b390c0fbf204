# shellcheck shell=sh
# What the other scripts share: the settings of .env, and the three engines' different words. Not run by itself.
# shellcheck disable=SC2034,SC2153 # the scripts that read this one use its variables, and .env sets them
set -eu
cd "$(dirname "$0")"
# shellcheck source=/dev/null
. ./.env

case $ENGINE in
  docker | podman | apptainer) ;;
  *)
    echo "ENGINE=$ENGINE in .env is none of docker, podman, apptainer" >&2
    exit 2
    ;;
esac
if ! command -v "$ENGINE" >/dev/null; then
  echo "$ENGINE is not on the PATH; install it, or change ENGINE in .env" >&2
  exit 1
fi
# REGISTRY may be empty; IMAGE is the name without it.
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
