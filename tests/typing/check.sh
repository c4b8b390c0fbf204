#!/usr/bin/env bash
# The public interface as a user's type checker sees it: mypy --strict and pyright on the scripts beside this file.
# pyright comes from npm into .venv/js, since its package on PyPI downloads node.
set -euo pipefail
cd "$(dirname "$0")/../.."
.venv/bin/mypy --strict --disallow-any-expr tests/typing/user_script.py
.venv/bin/mypy --strict tests/typing/mistakes.py
tools=$PWD/.venv/js
if ! command -v npm >/dev/null || ! command -v node >/dev/null; then
  echo "typing: pyright needs node and npm, which are missing. Install them: apt-get install nodejs npm" >&2
  exit 1
fi
if [ ! -x "$tools/node_modules/.bin/pyright" ]; then
  npm install --silent --no-audit --no-fund --prefix "$tools" pyright@1 >/dev/null
fi
"$tools/node_modules/.bin/pyright" --project tests/typing --pythonpath .venv/bin/python
