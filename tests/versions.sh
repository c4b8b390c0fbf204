#!/usr/bin/env bash
# The quick tests of reading and answering with the oldest or the newest Python, duckdb and numpy that are supported,
# in an environment of their own: what make test installs is only one of many.
#   tests/versions.sh oldest|newest [PYTHON]
set -euo pipefail
cd "$(dirname "$0")/.."

which=${1:?oldest or newest}
case $which in
  oldest) python=${2:-python3.10} constraints=(--constraint tests/requirements-oldest.txt) ;;
  newest) python=${2:-$(compgen -c python3. | grep -xE 'python3\.[0-9]+' | sort -t. -k2 -n | tail -1)} constraints=() ;;
  *) echo "versions.sh: oldest or newest, not $which" >&2 && exit 2 ;;
esac
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"$python" -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet --disable-pip-version-check --editable '.[dev]' --editable ./bench "${constraints[@]}"
"$folder/venv/bin/python" -c 'import sys, duckdb, numpy
print("Python", sys.version.split()[0], "duckdb", duckdb.__version__, "numpy", numpy.__version__)'
"$folder/venv/bin/python" -m pytest -q -n 2 --dist loadfile -m "not slow" --basetemp "$folder/tests" \
  tests/analysis tests/readers tests/store tests/views tests/viewer/test_server.py
