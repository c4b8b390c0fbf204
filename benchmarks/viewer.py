"""The viewer: time to the first picture, tiles over a scripted session, frames in a real browser.

    python benchmarks/viewer.py tiles              64 ranks of 470,000 slices each (30 M), tiles and memory
    python benchmarks/viewer.py first RUN...       from the command to the map of a stored run
    python benchmarks/viewer.py frames [RUN...]    zooming and panning in Chromium: 30 M slices, then stored runs
    python benchmarks/viewer.py ... --before DIR   the same with the package of another checkout, and the ratios to it

The 30 M slices are written as the viewer's own arrays (derived/) into the store of a small synthetic run: what is
measured is serving and drawing, not reading. A frame is the time from a change of the window until both canvases have
their pixels, in software rendering; at least the 16.7 ms of the screen.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np

from measure import Cost
from rankscope.timeline.reading import ingest
from rankscope.timeline.run import Run
from rankscope.viewer.lanes import Lanes, build_pyramid, save_lanes
from rankscope_bench.synthetic import Plan, write

FOLDER_OF_RUNS = Path(__file__).parents[1] / ".bench"
TEST_DATA = Path(__file__).parents[1] / "tests" / "data"
RANKS, SLICES_PER_RANK, LANES_PER_RANK = 64, 470_000, 12
REQUESTS = 2_000


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=("tiles", "first", "frames"))
    parser.add_argument("runs", nargs="*", type=Path, metavar="RUN")
    parser.add_argument("--before", type=Path, metavar="DIR", help="a checkout of the version before")
    args = parser.parse_args()
    made = [] if args.what == "first" else [thirty_million()]
    for run in [*made, *args.runs]:
        figures = MEASURES[args.what](run, None)
        before = MEASURES[args.what](run, args.before) if args.before else {}
        print(f"{args.what} of {run.name}:")
        for name, value in figures.items():
            ratio = f", {before[name] / value:.1f}x as fast as before ({before[name]:.3g})" if before else ""
            print(f"  {name}: {value:.3g}{ratio}")


class Viewer:
    """`rankscope view` as a user starts it, asked over one connection."""

    def __init__(self, run: Path, checkout: Path | None = None) -> None:
        """`checkout`: whose package serves; ours where it is None."""
        self.started = time.perf_counter()
        source = (checkout or Path(__file__).parents[1]) / "src"
        command = [sys.executable, "-m", "rankscope", "view", str(run), "--no-open"]
        if run.is_relative_to(TEST_DATA):  # nothing is written there
            command += ["--cache", str(FOLDER_OF_RUNS / "view-store")]
        os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # an installed package has its bytecode
        self.process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env={
                **os.environ,
                "PYTHONPATH": os.pathsep.join(
                    [str(source), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
                ),
                "PYTHONPYCACHEPREFIX": str(FOLDER_OF_RUNS / "pycache"),
            },
        )
        assert self.process.stdout is not None
        self.url = self.process.stdout.readline().strip()
        parts = urlsplit(self.url)
        self.token = parts.query.removeprefix("token=")
        self.connection = http.client.HTTPConnection(parts.netloc, timeout=120)

    def get(self, route: str) -> bytes:
        self.connection.request("GET", f"/api/{route}{'&' if '?' in route else '?'}token={self.token}")
        return self.connection.getresponse().read()

    def ready(self) -> dict[str, Any]:
        while json.loads(self.get("state"))["state"] == "reading":
            time.sleep(0.01)
        answer: dict[str, Any] = json.loads(self.get("run"))
        return answer

    def memory(self) -> int:
        fields = Path(f"/proc/{self.process.pid}/status").read_text().split("\n")
        return int(next(line.split()[1] for line in fields if line.startswith("VmRSS"))) * 1024

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait()

    def cpu(self) -> float:
        """Seconds of the server so far, and of the processes it has started and waited for."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")


RANKS_AT_A_TIME = 32
"""As the page asks for the map."""


def look(path: Path, checkout: Path | None = None) -> tuple[Cost, Cost]:
    """Server start included, up to the bytes that the first ranks are drawn from, and up to those of all ranks."""
    viewer = Viewer(path, checkout)
    try:
        run = viewer.ready()
        window = f"begin={run['begin_ns']}&end={run['end_ns']}&width=1200"
        costs = []
        for first in range(0, len(run["ranks"]), RANKS_AT_A_TIME):
            ranks = ",".join(map(str, run["ranks"][first : first + RANKS_AT_A_TIME]))
            viewer.get(f"overview?{window}&ranks={ranks}")
            costs.append(Cost(time.perf_counter() - viewer.started, viewer.cpu(), viewer.memory()))
        return costs[0], costs[-1]
    finally:
        viewer.stop()


def first_picture(path: Path, checkout: Path | None) -> dict[str, float]:
    """The least of three."""
    looks = [look(path, checkout) for _ in range(3)]
    return {
        "first ranks, CPU seconds": min(first.cpu_seconds for first, _ in looks),
        "whole map, seconds": min(whole.seconds for _, whole in looks),
        "whole map, CPU seconds": min(whole.cpu_seconds for _, whole in looks),
        "GB": max(whole.peak_bytes for _, whole in looks) / 1e9,
    }


def thirty_million() -> Path:
    folder = FOLDER_OF_RUNS / "view-64"
    if (folder / "made").exists():
        return folder
    shutil.rmtree(folder, ignore_errors=True)
    write(Plan(ranks=RANKS, events_per_rank=1_300, steps=3), folder)
    opened = Run(ingest([folder]))
    generator = np.random.default_rng(0)
    for entry in opened.timelines:
        save_lanes(opened, entry, _lanes(generator))
    (folder / "made").touch()
    return folder


def _lanes(generator: np.random.Generator) -> Lanes:
    """Rows of slices back to back: one track, LANES_PER_RANK rows."""
    each = SLICES_PER_RANK // LANES_PER_RANK
    duration = generator.integers(100, 60_000, (LANES_PER_RANK, each))
    start = np.cumsum(duration + generator.integers(0, 3_000, duration.shape), axis=1) - duration
    first = np.arange(LANES_PER_RANK) * each
    rows = np.column_stack([np.full(LANES_PER_RANK, 1), np.arange(LANES_PER_RANK), first, first + each])
    count = duration.size
    return Lanes(
        start=start.reshape(-1).astype(np.int64),
        duration=duration.reshape(-1).astype(np.int64),
        id=np.arange(count, dtype=np.int64),
        name=generator.integers(0, 500, count).astype(np.int32),
        kind=generator.integers(0, 9, count).astype(np.uint8),
        names=[f"kernel_{number}" for number in range(500)],
        lanes=rows.astype(np.int64),
        levels=build_pyramid(duration.reshape(-1)),
    )


def tiles(path: Path, checkout: Path | None) -> dict[str, float]:
    """Zoom in, pan about, zoom out, over all ranks: what a page asks, one request after another."""
    viewer = Viewer(path, checkout)
    ranks = viewer.ready()["ranks"]
    chance = random.Random(1)
    span = 1_250_000_000
    seconds = []
    rank = 0
    for number in range(REQUESTS):
        level = chance.choice([20, 19, 18, 16, 14, 12, 10])
        index = chance.randrange(max(1, span // (1024 << level)))
        rank = chance.choice(ranks) if number % 4 == 0 else rank
        before = time.perf_counter()
        viewer.get(f"tile?rank={rank}&segment=0&track=1&level={level}&index={index}")
        seconds.append(time.perf_counter() - before)
    memory = viewer.memory()
    viewer.stop()
    cuts = statistics.quantiles(seconds, n=100)
    return {
        "p50 ms": 1e3 * cuts[49],
        "p95 ms": 1e3 * cuts[94],
        "p99 ms": 1e3 * cuts[98],
        "slowest ms": 1e3 * max(seconds),
        "GB": memory / 1e9,
    }


PASSES = 4
"""A frame counts as its fastest of so many: others use this machine, too."""
# Eight ranks are expanded, then the window is zoomed and panned by keys' steps: first to load tiles, then timed.
FRAMES = """async ([count, passes, lanes]) => {
  const app = window.rankscope, { run, store } = app;
  const canvases = ['overview', 'canvas'].map((id) => document.getElementById(id));
  const frame = () => new Promise((done) => requestAnimationFrame(() => done()));
  const settled = async () => {
    for (let calm = 0; calm < 5; calm = app.timeline.tiles.busy ? 0 : calm + 1) {
      await new Promise((done) => setTimeout(done, 50));
    }
  };
  store.set({ open: app.ranks.slice(0, 8), begin: run.begin_ns, end: run.end_ns, folds: [] });
  await settled();
  // The arrays that were written for this run have more rows than its tables say.
  const known = [...app.timeline.tracks.values()].flat();
  for (const track of known) if (lanes && track.track === 1) track.rows = lanes;
  app.timeline.scrollTo(app.ranks[0], { segment: 0, track: 1 });
  await settled();
  const windows = [];
  let [begin, end] = [run.begin_ns, run.end_ns];
  for (let step = 0; step < count; step++) {
    const middle = begin + (end - begin) * 0.4, turn = step % 20;
    const factor = turn < 8 ? 0.75 : turn < 16 ? 1 : 1.7, by = turn < 16 ? 0.08 * (end - begin) : 0;
    [begin, end] = [middle - (middle - begin) * factor + by, middle + (end - middle) * factor + by];
    windows.push([begin, end]);
  }
  const times = new Array(windows.length).fill(Infinity);
  for (let pass = 0; pass <= passes; pass++) { // the first loads the tiles
    for (const [at, [from, to]] of windows.entries()) {
      const start = performance.now();
      app.show(from, to);
      await frame(); // the page draws in its own callback of this frame
      for (const canvas of canvases) canvas.getContext('2d').getImageData(0, 0, 1, 1); // waits for the pixels
      if (pass) times[at] = Math.min(times[at], performance.now() - start);
    }
    await settled();
  }
  return times;
}"""


def frames(path: Path, checkout: Path | None) -> dict[str, float]:
    from playwright.sync_api import sync_playwright

    viewer = Viewer(path, checkout)
    viewer.ready()
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path="/usr/bin/chromium", args=["--no-sandbox", "--disable-gpu"]
        )
        page = browser.new_page(viewport={"width": 1440, "height": 900})
        page.goto(viewer.url)
        page.wait_for_selector("body[data-ready=true]", timeout=300_000)
        times = sorted(
            page.evaluate(FRAMES, [120, PASSES, LANES_PER_RANK if path == thirty_million() else 0])
        )
        browser.close()
    viewer.stop()
    return {
        "p50 ms": times[len(times) // 2],
        "p95 ms": times[int(0.95 * len(times))],
        "slowest ms": times[-1],
    }


MEASURES: dict[str, Callable[[Path, Path | None], dict[str, float]]] = {
    "tiles": tiles,
    "first": first_picture,
    "frames": frames,
}

if __name__ == "__main__":
    main()
