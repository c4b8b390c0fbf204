#!/usr/bin/env bash
# The page's modules: types by tsc, behaviour by node's own test runner. Without npm it says so and passes.
set -euo pipefail
cd "$(dirname "$0")/../.."
tools=$PWD/.venv/js
if ! command -v npm >/dev/null || ! command -v node >/dev/null; then
  echo "check-js: npm or node is missing: the viewer's modules are not checked" >&2
  exit 0
fi
if [ ! -x "$tools/node_modules/.bin/tsc" ]; then
  if ! npm install --silent --no-audit --no-fund --prefix "$tools" typescript@5 >/dev/null 2>&1; then
    echo "check-js: npm could not install typescript: the viewer's modules are not checked" >&2
    exit 0
  fi
fi
"$tools/node_modules/.bin/tsc" --project tests/viewer/tsconfig.json
node --test tests/viewer/js/ >"$tools/test.log" 2>&1 || { cat "$tools/test.log"; exit 1; }
echo "viewer: tsc and $(sed -n 's/^# pass //p' "$tools/test.log") JavaScript tests passed"
