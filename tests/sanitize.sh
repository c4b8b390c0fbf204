#!/bin/sh
# Build the C parts with AddressSanitizer and UndefinedBehaviorSanitizer in a copy of the package, and run the tests that
# use them, or those given. Python is not built so: its own leaks are not looked for, and libasan must be loaded first.
set -eu
cd "$(dirname "$0")/.."
python=$PWD/.venv/bin/python
compiler=${CC:-cc}
copy=$(mktemp -d)
trap 'rm -rf "$copy"' EXIT
cp -R src/rankscope "$copy"
RANKSCOPE_CFLAGS="-O1 -g -fno-omit-frame-pointer -fsanitize=address,undefined -fno-sanitize-recover=all" \
  "$python" hatch_build.py "$copy/rankscope/native"
[ $# -gt 0 ] || set -- tests/readers tests/store/test_parquet_writer.py tests/fuzz
# DuckDB throws C++ exceptions: libasan looks for their library when it is loaded. Python's own allocator would hide
# reads beyond a block.
LD_PRELOAD="$("$compiler" -print-file-name=libasan.so) $("$compiler" -print-file-name=libstdc++.so)"
export LD_PRELOAD ASAN_OPTIONS=detect_leaks=0 UBSAN_OPTIONS=print_stacktrace=1 PYTHONMALLOC=malloc PYTHONPATH="$copy"
"$python" -c "from rankscope import native; assert native.functions.__file__.startswith('$copy')"
"$python" -m pytest -q -p no:cacheprovider "$@"
