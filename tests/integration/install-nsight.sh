#!/usr/bin/env bash
# install-nsight.sh DEST: a real nsys and ncu for the tests, with no GPU and no system-wide install: DEST/bin/{nsys,ncu}.
# They come from Debian's non-free packages, through this machine's own apt mirror. Where that cannot be done nothing is
# installed, one line says why, and the tests that need them skip. Running it again does nothing.
# NVIDIA's licence does not allow to pass them on: DEST is in .venv, which git ignores.
set -uo pipefail
dest=${1:?usage: install-nsight.sh DEST}
if [ -x "$dest/bin/nsys" ] && "$dest/bin/nsys" --version >/dev/null 2>&1; then exit 0; fi
skip() {
  echo "install-nsight: $1: the tests with a real nsys or ncu skip" >&2
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
packages=(nsight-systems nsight-systems-target libssh-4 nsight-compute nsight-compute-target)
(cd "$work/debs" && "${apt[@]}" download "${packages[@]}") >>"$work/log" 2>&1 || skip "the mirror has not all of ${packages[*]}"
mkdir -p "$dest" && dest=$(cd "$dest" && pwd -P) || skip "cannot write $dest"
for deb in "$work"/debs/*.deb; do dpkg-deb -x "$deb" "$dest" || skip "cannot unpack $(basename "$deb")"; done

# Debian puts apart what nsys expects side by side: the importer, the modules of `nsys stats`, ncu_report.
libraries=$dest/usr/lib/$triplet/nsight-systems
ln -sfn ../../nsight-systems/$host "$libraries/$host"
mkdir -p "$dest/usr/lib/nsight-systems/$host/python/lib" "$libraries/$target/python/packages/nsys_recipe/third_party"
cp "$dest"/usr/lib/python3/dist-packages/{nsysstats,gpustats}.py "$dest/usr/lib/nsight-systems/$host/python/lib/"
mkdir -p "$dest/usr/lib/nsight-compute/extras/python"
cp "$dest"/usr/lib/python3/dist-packages/*ncu_report* "$dest/usr/lib/nsight-compute/extras/python/"

# The programs find their libraries by themselves; the profiled program finds nsys's only with this variable.
mkdir -p "$dest/bin"
ln -sfn "usr/lib/nsight-systems/$host" "$dest/$host"
cat >"$dest/bin/nsys" <<WRAPPER
#!/bin/sh
LD_LIBRARY_PATH="$libraries/$target\${LD_LIBRARY_PATH:+:\$LD_LIBRARY_PATH}" exec "$dest/usr/bin/nsys" "\$@"
WRAPPER
cat >"$dest/bin/ncu" <<WRAPPER
#!/bin/sh
exec "$dest/usr/bin/ncu" "\$@"
WRAPPER
chmod +x "$dest/bin/nsys" "$dest/bin/ncu"
"$dest/bin/nsys" --version >/dev/null 2>&1 || { rm -f "$dest/bin/nsys"; skip "nsys does not start here"; }
