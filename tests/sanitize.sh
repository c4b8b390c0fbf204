#!/bin/sh
# Build the C parts with AddressSanitizer and UndefinedBehaviorSanitizer in a copy of the package, and use them:
#
#   tests/sanitize.sh [PYTEST-ARGUMENT...]       run the tests that use them, or those given
#   tests/sanitize.sh fuzz TARGET [OPTION...]    tests/fuzz/run.py, guided by the coverage of the C parts (needs clang)
#
# Python is not built so: its own leaks are not looked for, and the library of the sanitizer must be loaded first.
set -eu
cd "$(dirname "$0")/.."
python=$PWD/.venv/bin/python
copy=$(mktemp -d)
trap 'rm -rf "$copy"' EXIT
cp -R src/rankscope "$copy"
if [ "${1-}" = fuzz ]; then
  shift
  set -- tests/fuzz/run.py "$@"
  export CC=clang
  sanitizers="address,undefined,fuzzer-no-link -fsanitize-trap=undefined"
  preload=$("$python" -c "import atheris; print(atheris.path())")/asan_with_fuzzer.so
else
  [ $# -gt 0 ] || set -- tests/readers/test_native_scan.py tests/readers/test_kineto_exact.py \
    tests/readers/test_pickled_tree.py tests/readers/test_sqlite_pages.py tests/readers/test_nsys_pages.py \
    tests/readers/test_xplane.py tests/readers/test_native_limits.py tests/timeline/test_nesting.py \
    tests/timeline/test_linking.py tests/analysis/test_intervals.py tests/analysis/test_graph.py tests/store/test_parquet_writer.py tests/fuzz
  set -- -m pytest -q -p no:cacheprovider "$@"
  sanitizers="address,undefined -fno-sanitize-recover=all"
  # DuckDB throws C++ exceptions: libasan looks for their library when it is loaded.
  preload="$("${CC:-cc}" -print-file-name=libasan.so) $("${CC:-cc}" -print-file-name=libstdc++.so)"
fi
RANKSCOPE_CFLAGS="-O1 -g -U_FORTIFY_SOURCE -fno-omit-frame-pointer -fsanitize=$sanitizers" "$python" hatch_build.py "$copy/rankscope/native"
# Python's own allocator would hide reads beyond a block.
export LD_PRELOAD="$preload" ASAN_OPTIONS=detect_leaks=0 PYTHONMALLOC=malloc PYTHONPATH="$copy"
"$python" -c "from rankscope import native; assert native.functions.__file__.startswith('$copy')"
"$python" "$@"
