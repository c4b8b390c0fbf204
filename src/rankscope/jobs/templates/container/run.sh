#!/bin/sh
# Start the container in the background, with the reports' folder mounted at /reports; ./exec.sh runs commands in it.
. "$(dirname "$0")/common.sh"
if is_running; then
  echo "$CONTAINER is running already; ./stop.sh ends it" >&2
  exit 1
fi
if [ "$ENGINE" = apptainer ]; then
  set -- --bind "$reports:/reports"
  if [ "$GPUS" != none ]; then set -- "$@" --nv; fi
  exec apptainer instance start "$@" "$sif" "$CONTAINER"
fi
set -- --detach --name "$CONTAINER" --shm-size "$SHM_SIZE" --volume "$reports:/reports"
case $ENGINE-$GPUS in
  *-none) ;;
  podman-*) set -- "$@" --device "nvidia.com/gpu=$GPUS" ;;
  *) set -- "$@" --gpus "$GPUS" ;;
esac
# Counters (ncu, nsys --gpu-metrics-device) are for administrators only, unless the host's driver is configured otherwise.
if [ "$COUNTERS" = 1 ]; then set -- "$@" --cap-add SYS_ADMIN; fi
"$ENGINE" run "$@" "$full_name" sleep infinity
echo "Write reports to /reports: it is $reports here. What is written elsewhere in the container is lost with ./stop.sh" >&2
