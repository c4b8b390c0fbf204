#!/bin/sh
# A tour on this machine, in under a minute: four ranks train on CPUs, and one of them is slow. `rankscope profile`
# captures the unchanged program, `stats` names the rank and the reason, `report` writes demo/report.html. Where there is
# a browser, demo/viewer.png is a picture of the timeline.
set -eu
cd "$(dirname "$0")/.."
rm -rf demo
mkdir -p demo

export OMP_NUM_THREADS=1 # torchrun would say that it sets it
say() { printf '\n$ %s\n' "$*"; "$@"; }

cat <<END
Four ranks of data-parallel training over gloo (examples/slow_rank.py). One of
them has a problem. The program is not changed; rankscope profile stands in
front of its command.
END
say rankscope profile --ranks all -o demo/run torchrun --nproc-per-node 4 examples/slow_rank.py
say rankscope stats demo/run
say rankscope report demo/run -o demo/report.html
if browser=$(command -v chromium-headless-shell || command -v chromium || command -v chromium-browser || command -v google-chrome); then
  python examples/viewer_picture.py "$browser" demo/run demo/viewer.png
fi
cat <<END

Open demo/report.html in a browser: its first screen shows the slow rank and what
to do. rankscope view demo/run shows the timeline. The same with the problem
solved, and what that changed:

  rankscope profile --ranks all -o demo/fixed \\
    torchrun --nproc-per-node 4 examples/slow_rank.py --fixed
  rankscope diff demo/run demo/fixed

Your own training: rankscope profile torchrun --nproc-per-node 4 train.py
END
