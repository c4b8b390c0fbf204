#!/usr/bin/env bash
# What the tests of remote machines and of shell scripts need: Debian's sshd, rsync and shellcheck. Without root (or
# apt-get) nothing is installed, and those tests skip with a reason. Running it again does nothing.
set -euo pipefail
packages=()
command -v /usr/sbin/sshd >/dev/null || packages+=(openssh-server)
command -v ssh >/dev/null || packages+=(openssh-client)
command -v rsync >/dev/null || packages+=(rsync)
command -v shellcheck >/dev/null || packages+=(shellcheck)
if [ "${#packages[@]}" -eq 0 ]; then exit 0; fi
if [ "$(id -u)" -ne 0 ] || ! command -v apt-get >/dev/null; then
  echo "install-remote: not root, or no apt-get: without ${packages[*]} their tests skip" >&2
  exit 0
fi
export DEBIAN_FRONTEND=noninteractive
if ! { apt-get update -qq && apt-get install -y -qq --no-install-recommends "${packages[@]}"; } >/dev/null 2>&1; then
  echo "install-remote: apt-get could not install ${packages[*]}: their tests skip" >&2
fi
