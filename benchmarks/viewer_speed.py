"""The viewer: time to the first picture, tiles over a scripted session, frames in a real browser.

    python benchmarks/viewer_speed.py               64 ranks of 470,000 slices each (30 M), tiles and memory
    python benchmarks/viewer_speed.py --first RUN   from the command to the map of an ingested run
    python benchmarks/viewer_speed.py --frames      400 full lanes of 1,500 pixels in headless chromium

The 30 M slices are written as the viewer's own arrays (lod/) into the store of a small synthetic run: what is
measured is serving, not reading.
"""

from __future__ import annotations

import argparse
import http.client
import json
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

from rankscope.bench.synthetic import Plan, write
from rankscope.store.ingest import ingest
from rankscope.store.run import Run
from rankscope.viewer.lanes import FOLDER, Lanes, _save
from rankscope.viewer.level_of_detail import build_pyramid

FOLDER_OF_RUNS = Path(__file__).parents[1] / ".bench"
TEST_DATA = Path(__file__).parents[1] / "tests" / "data"
RANKS, SLICES_PER_RANK, LANES_PER_RANK = 64, 470_000, 12
REQUESTS = 2_000


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--first", type=Path, metavar="RUN")
    parser.add_argument("--frames", action="store_true")
    args = parser.parse_args()
    if args.first:
        first_picture(args.first)
    elif args.frames:
        frames()
    else:
        tiles()


class Viewer:
    """`rankscope view` as a user starts it, asked over one connection."""

    def __init__(self, run: Path) -> None:
        self.started = time.perf_counter()
        command = [sys.executable, "-m", "rankscope", "view", str(run), "--no-open"]
        if run.is_relative_to(TEST_DATA):  # nothing is written there
            command += ["--cache", str(FOLDER_OF_RUNS / "view-store")]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
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


def first_picture(path: Path) -> None:
    """Server start included, up to the bytes the map is drawn from."""
    for attempt in ("first look (arrays are made)", "again"):
        viewer = Viewer(path)
        run = viewer.ready()
        viewer.get(f"overview?begin={run['begin_ns']}&end={run['end_ns']}&width=1200")
        print(
            f"{attempt}: {time.perf_counter() - viewer.started:.2f} s to the map, {viewer.memory() / 1e9:.2f} GB"
        )
        viewer.stop()


def thirty_million() -> Path:
    folder = FOLDER_OF_RUNS / "view-64"
    if (folder / "made").exists():
        return folder
    shutil.rmtree(folder, ignore_errors=True)
    write(Plan(ranks=RANKS, events_per_rank=1_300, steps=3), folder)
    opened = Run(ingest([folder]))
    generator = np.random.default_rng(0)
    for entry in opened.timelines:
        _save(_lanes(generator), opened.store / entry.folder / FOLDER)
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


def tiles() -> None:
    """Zoom in, pan about, zoom out, over all ranks: what a page asks, one request after another."""
    viewer = Viewer(thirty_million())
    viewer.ready()
    chance = random.Random(1)
    span = 1_250_000_000
    seconds = []
    rank = 0
    for number in range(REQUESTS):
        level = chance.choice([20, 19, 18, 16, 14, 12, 10])
        index = chance.randrange(max(1, span // (1024 << level)))
        rank = chance.randrange(RANKS) if number % 4 == 0 else rank
        before = time.perf_counter()
        viewer.get(f"tile?rank={rank}&segment=0&track=1&level={level}&index={index}")
        seconds.append(time.perf_counter() - before)
    cuts = statistics.quantiles(seconds, n=100)
    print(
        f"{REQUESTS} tiles of {RANKS * SLICES_PER_RANK / 1e6:.0f} M slices in {RANKS} ranks: "
        f"p50 {1e3 * cuts[49]:.1f} ms, p95 {1e3 * cuts[94]:.1f} ms, p99 {1e3 * cuts[98]:.1f} ms, "
        f"slowest {1e3 * max(seconds):.0f} ms; "
        f"server {viewer.memory() / 1e9:.2f} GB"
    )
    viewer.stop()


FRAMES = """async () => {
  const { paint } = await import('/js/raster.js');
  const app = window.rankscope, lanes = 400, width = 1500, per = 1500;
  const n = lanes * per, start = new Float64Array(n), duration = new Float64Array(n), row = new Uint16Array(n);
  for (let i = 0; i < n; i++) { start[i] = (i % per) * 10; duration[i] = 8; row[i] = Math.floor(i / per); }
  const kind = new Uint8Array(n).map((_, i) => i % 9), name = new Uint32Array(n).map((_, i) => i);
  const tile = { start, duration, row, kind, name };
  const canvas = document.createElement('canvas'); canvas.width = width; canvas.height = lanes * 2;
  const g = canvas.getContext('2d'); g.imageSmoothingEnabled = false;
  const times = [];
  for (let frame = 0; frame < 60; frame++) {
    const before = performance.now();
    const image = new ImageData(width, lanes);
    paint(new Uint32Array(image.data.buffer), width, lanes, [tile], frame, 10, app.palette);
    g.drawImage(app.picture(image), 0, 0, width, lanes, 0, 0, width, lanes * 2);
    g.getImageData(0, 0, 1, 1);
    times.push(performance.now() - before);
    await new Promise(requestAnimationFrame);
  }
  return times.sort((a, b) => a - b);
}"""


def frames() -> None:
    from playwright.sync_api import sync_playwright

    viewer = Viewer(TEST_DATA / "ddp-gloo4")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path="/usr/bin/chromium", args=["--no-sandbox"])
        page = browser.new_page()
        page.goto(viewer.url)
        page.wait_for_selector("body[data-ready=true]", timeout=60_000)
        times = page.evaluate(FRAMES)
        browser.close()
    viewer.stop()
    pick: Callable[[float], float] = lambda share: times[int(share * (len(times) - 1))]  # noqa: E731
    print(
        f"400 full lanes of 1,500 px, software rendering: p50 {pick(0.5):.1f} ms, p95 {pick(0.95):.1f} ms a frame"
    )


if __name__ == "__main__":
    main()
