#!/usr/bin/env bash
# Installs the Debian packages that tests need outside .venv: launchers, sshd, rsync, shellcheck, a browser, node, shells.
# It prints their names first. Without root or apt-get it installs nothing and says which tests skip; the check of the
# viewer's JavaScript (tests/viewer/check-js.sh) then fails unless node and npm are there. Running it again does nothing.
set -euo pipefail
packages=()
need() { command -v "$1" >/dev/null || packages+=("${@:2}"); }
need mpirun.openmpi openmpi-bin
need mpiexec.hydra mpich
need srun slurm-wlm slurm-wlm-torque
need munged munge
need /usr/sbin/sshd openssh-server
need ssh openssh-client
need rsync rsync
need shellcheck shellcheck
# Debian's headless shell takes two fifths less CPU time for a test than the whole browser; Ubuntu has no package of it.
browser=chromium
if grep -qs '^ID=debian' /etc/os-release; then browser=chromium-headless-shell; fi
need $browser $browser fonts-dejavu-core
need node nodejs
need npm npm
need zsh zsh
need fish fish
if [ "${#packages[@]}" -eq 0 ]; then exit 0; fi
if [ "$(id -u)" -ne 0 ] || ! command -v apt-get >/dev/null; then
  echo "install-packages: not root, or no apt-get: not installed, tests that need them skip: ${packages[*]}" >&2
  exit 0
fi
echo "install-packages: installing outside .venv, with apt-get: ${packages[*]}"
export DEBIAN_FRONTEND=noninteractive
if ! { apt-get update -qq && apt-get install -y -qq --no-install-recommends "${packages[@]}"; } >/dev/null 2>&1; then
  echo "install-packages: apt-get failed: not installed, tests that need them skip: ${packages[*]}" >&2
fi
