"""What a finding is about is on the screen when its scene is shown, and no two words are written over each other."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from conftest import DATA
from viewer_server import OVERLAPS, Screen, Viewer, serve, stop

pytestmark = pytest.mark.slow

# Of the scene's slices on expanded ranks, the first: whether its row is between the axis and the lower edge.
EVIDENCE = """async () => {
  const { AXIS, trackKey } = await import('/js/layout.js');
  const { scene, timeline } = window.rankscope, { rows } = timeline.layout();
  const slice = scene.slices.find((one) => scene.ranks.includes(one.rank));
  if (!slice) return 'no slices';
  const key = trackKey(slice.rank, slice);
  const row = rows.find((one) => one.type === 'track' && trackKey(one.rank, one.track) === key);
  if (!row) return 'folded';
  const top = row.y - timeline.box.scrollTop;
  return top >= 0 && top < timeline.box.clientHeight - AXIS ? 'shown' : 'off screen';
}"""
DATASETS = ["demo/run", "ddp-gloo4", "hf-trainer-h200", "seqpar-gloo4-slow2", "gpt-h200"]
MORE = [
    "batched-p2p-h200", "captured-h200", "gpt-graph-h200", "clocks-h200-free", "seqpar-gloo4", "seqpar-nccl1-bf16",
]  # fmt: skip


@pytest.mark.parametrize(
    "name", [*DATASETS, *(pytest.param(name, marks=pytest.mark.thorough) for name in MORE)]
)
def test_every_scene_shows_its_evidence(
    tmp_path: Path, screen: Screen, dataset: Callable[[str], Path], name: str
) -> None:
    shutil.copytree(dataset(name), tmp_path / name)
    viewer = serve(tmp_path / name)
    page = screen.open(viewer.url).page
    count = page.evaluate("window.rankscope.findings.length")
    assert page.evaluate(OVERLAPS) == []
    page.keyboard.press("Home")  # a run with limits alone opens there
    for number in range(1, count + 1):
        page.keyboard.press("n")
        # Said when its tracks are there and unfolded.
        screen.until(f"document.querySelector('#spoken').textContent.startsWith('finding {number} of ')")
        screen.settle()
        assert page.evaluate(OVERLAPS) == [], f"finding {number}"
        assert page.evaluate(EVIDENCE) in ("shown", "no slices"), f"finding {number}"
    stop(viewer)


def test_an_idle_gap_has_a_bracket_with_its_reason(tmp_path: Path, screen: Screen) -> None:
    shutil.copytree(DATA / "hf-trainer-h200", tmp_path / "run")
    viewer = serve(tmp_path / "run")
    page = screen.open(viewer.url).page
    at = page.evaluate("window.rankscope.findings.findIndex(({ report }) => report === 'idle')")
    page.evaluate(f"window.rankscope.showFinding({at})")
    screen.settle()
    texts = page.evaluate("window.rankscope.timeline.labels.boxes.map((box) => box.text)")
    assert "2.09 ms idle: host bound before aten::gather" in texts
    stop(viewer)


def test_a_slow_host_has_a_colour_and_its_victims_are_on_the_first_screen(
    dataset: Callable[[str], Path], screen: Screen
) -> None:
    viewer = serve(dataset("ordinary/slow-data"))
    page = screen.open(viewer.url).page
    assert page.inner_text("#late-key") == "slow rank's own time"
    colours = page.evaluate("""async () => {
      const { GUTTER, RIGHT } = await import('/js/layout.js');
      const { overview: { canvas, rowHeight }, run } = window.rankscope, ratio = devicePixelRatio;
      const x = (ns) => GUTTER + ns / run.end_ns * (canvas.clientWidth - GUTTER - RIGHT);
      const g = canvas.getContext('2d'), y = (rank) => 16 + (rank + 0.4) * rowHeight;
      const at = (ns, rank) => [...g.getImageData(x(ns) * ratio, y(rank) * ratio, 1, 1).data].join();
      return [at(run.steps[1].start_ns + 8e6, 1), at(run.end_ns - 1e8, 1), at(run.end_ns - 1e8, 0)];
    }""")
    assert colours == [
        "233,161,139,255",
        "234,238,242,255",
        "234,238,242,255",
    ]  # late, idle after the steps, idle
    rows = page.evaluate("window.rankscope.timeline.layout().rows")
    (thread,) = [row for row in rows if row["type"] == "track" and row["track"]["rows"] > 5]
    assert 2 <= thread["lanes"] < thread["track"]["rows"]
    victim = next(row for row in rows if row["type"] == "rank" and row["rank"] != 1)
    assert victim["y"] + victim["height"] < page.evaluate("window.rankscope.timeline.box.clientHeight") - 26
    # A click on words, or on their bar, selects what they name; another all_reduce is waiting at the same time.
    words = page.evaluate("""() => window.rankscope.timeline.labels.boxes.filter((box) => box.slice).map((box) => (
      { text: box.text, x: box.x, width: box.width, y: box.y + 6, id: box.slice.tile.id[box.slice.at] }))""")
    box = page.locator("#canvas").bounding_box()
    assert words[0]["text"] == "all_reduce #3 waits 17.3 ms for rank 1"
    for x in (words[0]["x"] + 20, words[0]["x"] + words[0]["width"] + 60):
        page.mouse.click(box["x"] + x, box["y"] + words[0]["y"])
        assert screen.view()["slice"]["id"] == words[0]["id"]
        page.keyboard.press("Escape")
    # Deeper calls have rows when one zooms in.
    screen.press(*"wwwwww")
    row = next(
        row
        for row in page.evaluate("window.rankscope.timeline.layout().rows")
        if row.get("track") == thread["track"]
    )
    assert row["lanes"] != thread["lanes"]
    page.click("#tab-kernels")
    page.wait_for_selector("#panel td:has-text('linear')")
    page.click("#tab-sql")
    page.click("#panel button:has-text('Run')")
    page.wait_for_selector("#panel td:has-text('aten::')")
    stop(viewer)


def test_the_late_rank_is_named_beside_its_shares(slow2: Viewer, screen: Screen) -> None:
    boxes = screen.open(slow2.url).page.evaluate("window.rankscope.timeline.labels.boxes")
    (arrival,) = [box for box in boxes if "arrives" in box["text"]]
    (shares,) = [box for box in boxes if box["text"].startswith("compute")]
    assert arrival["y"] == shares["y"] and shares["x"] + shares["width"] < arrival["x"]
