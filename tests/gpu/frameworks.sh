#!/usr/bin/env bash
# Frameworks on a CUDA machine with torch, transformers and Lightning: OUT=/some/folder LIB=… NSYS=… tests/gpu/frameworks.sh
# Each unchanged script plainly, under nsys and under `rankscope ncu --top 3`. LIB is a folder with rankscope's
# libraries (duckdb, isal). NSYS may have no importer: its .qdstrm files come back to be converted elsewhere.
set -uo pipefail
cd "$(dirname "$0")/../.."
export PYTHONPATH=$PWD/src:$LIB PYTHONUNBUFFERED=1 PATH=$(dirname "$NSYS"):$PATH TOKENIZERS_PARALLELISM=false
R=(python3 -m rankscope)
T=tests/gpu/train_frameworks.py
W=$(mktemp -d)
for framework in ${FRAMEWORKS:-hf lightning fsdp2 ddp}; do
  job=(python3 $T $framework)
  [ $framework = ddp ] && job=(python3 -m torch.distributed.run --nproc-per-node 2 $T ddp)
  for tool in torch nsys; do
    echo "== $framework $tool"
    log=$W/$framework-$tool.log
    timeout 120 "${R[@]}" profile --tool $tool -o "$W/$framework-$tool" "${job[@]}" >"$log" 2>&1
    echo "rc $?"
    grep -a "rankscope:\|Next\|Error" "$log"
  done
  "${R[@]}" stats "$W/$framework-torch" 2>&1 | head -4
  echo "== $framework ncu"
  log=$W/$framework-ncu.log
  timeout 150 "${R[@]}" ncu "$W/$framework-torch" --top 3 -o "$W/$framework-ncu" -- "${job[@]}" >"$log" 2>&1
  echo "rc $?"
  grep -av "Warning\|warn" "$log" | tail -25
  rm -rf "$W"/*/.rankscope
  tar -C "$W" -czf "$OUT/$framework.tar.gz" $(cd "$W" && ls -d $framework-*)
done
ls -la "$OUT"
