#!/usr/bin/env bash
# The launchers that the integration tests start: OpenMPI, MPICH and Slurm. Without root (or apt-get) nothing is
# installed, and the tests that need them skip with a reason. Running it again does nothing.
set -euo pipefail
packages=()
command -v mpirun.openmpi >/dev/null || packages+=(openmpi-bin)
command -v mpiexec.hydra >/dev/null || packages+=(mpich)
command -v srun >/dev/null || packages+=(slurm-wlm slurm-wlm-torque)
command -v munged >/dev/null || packages+=(munge)
command -v shellcheck >/dev/null || packages+=(shellcheck)
if [ "${#packages[@]}" -eq 0 ]; then exit 0; fi
if [ "$(id -u)" -ne 0 ] || ! command -v apt-get >/dev/null; then
  echo "install-launchers: not root, or no apt-get: without ${packages[*]} their tests skip" >&2
  exit 0
fi
export DEBIAN_FRONTEND=noninteractive
if ! { apt-get update -qq && apt-get install -y -qq --no-install-recommends "${packages[@]}"; } >/dev/null 2>&1; then
  echo "install-launchers: apt-get could not install ${packages[*]}: their tests skip" >&2
fi
