#!/usr/bin/env bash
# enroot, also under pyxis (srun --container-image): containers that are started with RANKSCOPE set get rankscope.
# Nothing is installed in the image. Once, where all nodes see it:
#     pip install --no-deps --target /opt/rankscope rankscope rankscope-autoload
# Then copy this file, executable, to /etc/enroot/hooks.d/50-rankscope.sh on the nodes, or for one user to
# ~/.config/enroot/hooks.d/50-rankscope.sh
set -eu
folder=/opt/rankscope

if [ -z "${RANKSCOPE-}" ]; then
    exit 0
fi
if [ ! -d "${folder}" ]; then
    echo "rankscope: not captured, the job goes on: there is no ${folder} on $(uname -n)" >&2
    exit 0
fi
path="$(sed -n 's/^PYTHONPATH=//p' "${ENROOT_ENVIRON}" | tail -n1)"
printf '%s %s none x-create=dir,bind,ro,nosuid,nodev,private\n' "${folder}" "${folder}" >> "${ENROOT_MOUNTS}"
printf 'PYTHONPATH=%s\nRANKSCOPE=%s\n' "${folder}${path:+:${path}}" "${RANKSCOPE}" >> "${ENROOT_ENVIRON}"
