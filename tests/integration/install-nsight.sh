#!/usr/bin/env bash
# install-nsight.sh DEST nsys|ncu: a real nsys or ncu for the tests, with no GPU and no system-wide install: DEST/bin.
# It comes from Debian's non-free packages, through this machine's own apt mirror. Where that cannot be done nothing is
# installed, one line says why, and the tests that need it skip. Running it again does nothing.
# NVIDIA's licence does not allow to pass them on: DEST is in .venv, which git ignores.
set -uo pipefail
dest=${1:?usage: install-nsight.sh DEST nsys|ncu} tool=${2:?usage: install-nsight.sh DEST nsys|ncu}
if [ -x "$dest/bin/$tool" ] && "$dest/bin/$tool" --version >/dev/null 2>&1; then exit 0; fi
skip() {
  echo "install-nsight: $1: the tests with a real $tool skip" >&2
  exit 0
}
case $(uname -m) in
  x86_64) triplet=x86_64-linux-gnu host=host-linux-x64 target=target-linux-x64 ;;
  aarch64) triplet=aarch64-linux-gnu host=host-linux-armv8 target=target-linux-sbsa-armv8 ;;
  *) skip "there is no package for $(uname -m)" ;;
esac
for program in apt-get dpkg-deb; do command -v $program >/dev/null || skip "no $program"; done
mirror=$(sed -n 's/^URIs: *//p' /etc/apt/sources.list.d/*.sources 2>/dev/null | grep -v security | head -n 1)
mirror=${mirror:-$(sed -n 's/^deb \(\[[^]]*\] \)\?\(http[^ ]*debian[^ ]*\) .*/\2/p' /etc/apt/sources.list 2>/dev/null |
  grep -v security | head -n 1)}
[ -n "$mirror" ] || skip "no Debian mirror in this machine's apt sources"

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$work"/{lists/partial,cache/archives/partial,debs}
echo "deb [trusted=yes] $mirror trixie main non-free" >"$work/sources.list"
apt=(apt-get -qq -o Dir::Etc::sourcelist="$work/sources.list" -o Dir::Etc::sourceparts=- -o Dir::State::lists="$work/lists"
  -o Dir::Cache="$work/cache" -o Debug::NoLocking=1 -o Acquire::http::Timeout=20 -o Acquire::Retries=1)
[ "$(id -u)" -ne 0 ] || apt+=(-o APT::Sandbox::User=root)
"${apt[@]}" update >"$work/log" 2>&1 || skip "the mirror does not answer"
case $tool in
  nsys) packages=(nsight-systems nsight-systems-target libssh-4) ;;
  ncu) packages=(nsight-compute nsight-compute-target) ;;
  *) skip "there is no tool $tool" ;;
esac
(cd "$work/debs" && "${apt[@]}" download "${packages[@]}") >>"$work/log" 2>&1 || skip "the mirror has not all of ${packages[*]}"
mkdir -p "$dest" && dest=$(cd "$dest" && pwd -P) || skip "cannot write $dest"
for deb in "$work"/debs/*.deb; do dpkg-deb -x "$deb" "$dest" || skip "cannot unpack $(basename "$deb")"; done

# Debian puts apart what the tools expect side by side: the importer, the modules of `nsys stats`, ncu_report.
mkdir -p "$dest/bin"
if [ "$tool" = ncu ]; then
  mkdir -p "$dest/usr/lib/nsight-compute/extras/python"
  cp "$dest"/usr/lib/python3/dist-packages/*ncu_report* "$dest/usr/lib/nsight-compute/extras/python/"
  variables=
else
  libraries=$dest/usr/lib/$triplet/nsight-systems
  ln -sfn ../../nsight-systems/$host "$libraries/$host"
  mkdir -p "$dest/usr/lib/nsight-systems/$host/python/lib" "$libraries/$target/python/packages/nsys_recipe/third_party"
  cp "$dest"/usr/lib/python3/dist-packages/{nsysstats,gpustats}.py "$dest/usr/lib/nsight-systems/$host/python/lib/"
  ln -sfn "usr/lib/nsight-systems/$host" "$dest/$host"
  # nsys finds its libraries by itself; the profiled program finds them only with this variable.
  variables="LD_LIBRARY_PATH=\"$libraries/$target\${LD_LIBRARY_PATH:+:\$LD_LIBRARY_PATH}\" "
fi
printf '#!/bin/sh\n%sexec "%s" "$@"\n' "$variables" "$dest/usr/bin/$tool" >"$dest/bin/$tool"
chmod +x "$dest/bin/$tool"
"$dest/bin/$tool" --version >/dev/null 2>&1 || { rm -f "$dest/bin/$tool"; skip "$tool does not start here"; }
