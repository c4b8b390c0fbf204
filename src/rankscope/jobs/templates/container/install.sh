#!/bin/sh
# Runs inside the image while it is built, as root. Its options are variables: WITH_NSYS, WITH_MPI, WITH_EFA,
# WITH_NCCL_TESTS (1 or 0), EFA_VERSION, NCCL_TESTS_VERSION.
set -eu

fail() {
  echo "install.sh: $1" >&2
  exit 1
}

check_choices() {
  if [ "${WITH_EFA:-0}" = 1 ] && [ "${WITH_MPI:-0}" != 1 ]; then
    fail "WITH_EFA=1 needs WITH_MPI=1: the EFA plug-in is used through MPI"
  fi
  if [ "${WITH_NCCL_TESTS:-0}" = 1 ] && [ "${WITH_EFA:-0}" != 1 ]; then
    fail "WITH_NCCL_TESTS=1 needs WITH_EFA=1: the tests measure the network that EFA provides"
  fi
  command -v python3 >/dev/null || fail "the base image has no python3; choose a base with Python and torch"
}

packages() {
  apt-get update
  DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends "$@"
}

install_nsys() {
  if command -v nsys >/dev/null; then return; fi # NVIDIA's PyTorch images have it
  # shellcheck source=/dev/null
  . /etc/os-release
  [ "$ID" = ubuntu ] || fail "nsys is installed from NVIDIA's repository for Ubuntu, and this is $ID; set WITH_NSYS=0"
  packages ca-certificates curl
  release=ubuntu$(echo "$VERSION_ID" | tr -d .)
  repository=https://developer.download.nvidia.com/devtools/repos/$release/$(dpkg --print-architecture)
  key=/usr/share/keyrings/nvidia-devtools.asc
  curl -fsSL "$repository/nvidia.pub" -o "$key"
  echo "deb [signed-by=$key] $repository/ /" >/etc/apt/sources.list.d/nvidia-devtools.list
  packages nsight-systems-cli
}

install_mpi() {
  # MPIJobs reach their workers by ssh.
  packages openmpi-bin libopenmpi-dev openssh-server openssh-client
  configure_ssh
}

# What mpirun and the MPI operator need of ssh. In both files the first value of a setting counts, so ours come first.
configure_ssh() {
  # Workers are new hosts with every job, and the operator mounts ~/.ssh read-only.
  put_first /etc/ssh/ssh_config "Host *
    StrictHostKeyChecking no
    UserKnownHostsFile /dev/null
    LogLevel ERROR"
  # The folder of the mounted keys may be written by everyone. sshd does not pass the image's variables on, and orted
  # needs these (the last in NVIDIA's images).
  variables="PATH=$PATH${LD_LIBRARY_PATH:+ LD_LIBRARY_PATH=$LD_LIBRARY_PATH}${OPAL_PREFIX:+ OPAL_PREFIX=$OPAL_PREFIX}"
  put_first /etc/ssh/sshd_config "StrictModes no
SetEnv $variables"
  mkdir -p /run/sshd
  ssh-keygen -A
}

put_first() {
  if grep -q '^# rankscope$' "$1"; then return; fi # a base that was built by this script
  printf '# rankscope\n%s\n\n' "$2" | cat - "$1" >"$1.new"
  mv "$1.new" "$1"
}

install_efa() {
  packages ca-certificates curl
  folder=$(mktemp -d)
  curl -fsSL "https://efa-installer.amazonaws.com/aws-efa-installer-${EFA_VERSION:-latest}.tar.gz" |
    tar -xz -C "$folder"
  # The driver is the host's; the container needs only the libraries.
  (cd "$folder/aws-efa-installer" && ./efa_installer.sh -y --skip-kmod --skip-limit-conf --no-verify)
  rm -rf "$folder"
}

install_nccl_tests() {
  packages git make g++
  git clone --depth 1 --branch "${NCCL_TESTS_VERSION:-v2.13.10}" https://github.com/NVIDIA/nccl-tests /opt/nccl-tests
  make -C /opt/nccl-tests MPI=1 MPI_HOME=/opt/amazon/openmpi
}

install_rankscope() {
  # Into Python's own folder: it is found without variables, which a command over ssh does not have.
  export PIP_BREAK_SYSTEM_PACKAGES=1 # Debian's pip asks for it; an image is not shared with a distribution's programs
  python3 -m pip install --no-cache-dir --no-deps --no-index --force-reinstall /opt/rankscope/wheel/*.whl ||
    fail "pip cannot install rankscope: $(python3 --version 2>&1), and 3.10 or later is needed"
  # Capturing needs only Python; reading traces needs these.
  python3 -m pip install --no-cache-dir duckdb numpy isal 'backports.zstd; python_version < "3.14"' ||
    echo "install.sh: without duckdb, numpy, isal and backports.zstd this image captures but cannot show tables" >&2
  # A login's PATH has /usr/local/bin, and may lack the folder of this Python.
  program=$(python3 -c 'import sysconfig; print(sysconfig.get_path("scripts"))')/rankscope
  if [ "$program" != /usr/local/bin/rankscope ]; then ln -sf "$program" /usr/local/bin/rankscope; fi
  cp /opt/rankscope/demo.sh /usr/local/bin/rankscope-demo
  chmod 755 /usr/local/bin/rankscope-demo
}

check_choices
if [ "${WITH_NSYS:-1}" = 1 ]; then install_nsys; fi
if [ "${WITH_MPI:-0}" = 1 ]; then install_mpi; fi
if [ "${WITH_EFA:-0}" = 1 ]; then install_efa; fi
if [ "${WITH_NCCL_TESTS:-0}" = 1 ]; then install_nccl_tests; fi
install_rankscope
rm -rf /var/lib/apt/lists/*
