#!/usr/bin/env bash
# The browser that tests/browser opens reports in: Debian's chromium. Without root (or apt-get) nothing is installed, and
# those tests skip with a reason. Running it again does nothing.
set -euo pipefail
if command -v chromium >/dev/null; then exit 0; fi
if [ "$(id -u)" -ne 0 ] || ! command -v apt-get >/dev/null; then
  echo "install-chromium: not root, or no apt-get: without chromium the browser tests skip" >&2
  exit 0
fi
export DEBIAN_FRONTEND=noninteractive
if ! { apt-get update -qq && apt-get install -y -qq --no-install-recommends chromium fonts-dejavu-core; } >/dev/null 2>&1; then
  echo "install-chromium: apt-get could not install chromium: the browser tests skip" >&2
fi
