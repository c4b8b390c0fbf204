#!/usr/bin/env bash
# Checks the viewer's modules: types with tsc, behaviour with node's test runner. Fails when it cannot run;
# RANKSCOPE_SKIP_JS=1 skips it.
set -euo pipefail
cd "$(dirname "$0")/../.."
tools=$PWD/.venv/js
fail() {
  printf 'check-js: %s\n  %s\n  %s, or set RANKSCOPE_SKIP_JS=1 to skip this check.\n' "$1" "$2" "$3" >&2
  exit 1
}
if [ "${RANKSCOPE_SKIP_JS:-}" = 1 ]; then
  echo "check-js: skipped (RANKSCOPE_SKIP_JS=1)"
  exit 0
fi
for program in node npm; do
  if ! command -v $program >/dev/null && [ "$(id -u)" -eq 0 ] && command -v apt-get >/dev/null; then
    echo "check-js: installing outside .venv, with apt-get: nodejs npm"
    { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends nodejs npm; } \
      >/dev/null 2>&1 || true
  fi
  command -v $program >/dev/null || fail "cannot find $program" \
    "The viewer's JavaScript is checked with node, and npm installs TypeScript." "Install nodejs and npm"
done
if [ ! -x "$tools/node_modules/.bin/tsc" ] || [ ! -e "$tools/node_modules/axe-core" ]; then
  npm install --silent --no-audit --no-fund --prefix "$tools" typescript@5 axe-core@4 >/dev/null 2>&1 ||
    fail "npm could not install typescript and axe-core" "The types of the viewer's JavaScript are checked with tsc, its pages with axe." \
      "Check npm's registry (npm ping)"
fi
"$tools/node_modules/.bin/tsc" --project tests/viewer/tsconfig.json
node --test tests/viewer/js/ >"$tools/test.log" 2>&1 || { cat "$tools/test.log"; exit 1; }
echo "viewer: tsc and $(sed -n 's/^# pass //p' "$tools/test.log") JavaScript tests passed"
