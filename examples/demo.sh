#!/bin/sh
# The main job on small real traces: four ranks of a sequence-parallel loop in which rank 2 is slow.
set -eu
cd "$(dirname "$0")/.."
run=demo/seqpar
rm -rf demo
mkdir -p demo
cp -r tests/data/seqpar-gloo4-slow2 "$run"

say() { printf '\n$ %s\n' "$*"; "$@"; }
say rankscope stats "$run"
say rankscope stats "$run" -r ops --top 5
say rankscope doctor "$run"
say rankscope query "$run" "SELECT rank, count(*) AS kernels, sum(dur_ns) / 1e6 AS ms FROM gpu GROUP BY rank ORDER BY rank"
cat <<END

Rank 2 computes 77 ms while the others compute 0.06 ms and wait for it: that is the slow rank.
Your turn: rankscope stats YOUR_TRACES    (a folder with one torch.profiler trace per rank)
END
