"""What a finding is about is on the screen when its scene is shown, and no two words are written over each other."""

from __future__ import annotations

import shutil
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
DATASETS = ["slow-job/run", "ddp-gloo4", "hf-trainer-h200", "seqpar-gloo4-slow2", "gpt-h200"]
MORE = [
    "batched-p2p-h200", "captured-h200", "gpt-graph-h200", "clocks-h200-free", "seqpar-gloo4", "seqpar-nccl1-bf16",
]  # fmt: skip


@pytest.mark.parametrize(
    "name", [*DATASETS, *(pytest.param(name, marks=pytest.mark.thorough) for name in MORE)]
)
def test_every_scene_shows_its_evidence(tmp_path: Path, screen: Screen, name: str) -> None:
    shutil.copytree(DATA / name, tmp_path / name)
    viewer = serve(tmp_path / name)
    page = screen.open(viewer.url).page
    count = page.evaluate("window.rankscope.findings.length")
    for number in range(max(count, 1)):
        screen.settle()
        assert page.evaluate(OVERLAPS) == [], f"finding {number}"
        assert page.evaluate(EVIDENCE) in ("shown", "no slices"), f"finding {number}"
        page.keyboard.press("n")
        # Said when its tracks are there and unfolded.
        words = f"finding {(number + 1) % count + 1} of " if count else "no findings"
        screen.until(f"document.querySelector('#spoken').textContent.startsWith('{words}')")
    stop(viewer)


def test_an_idle_gap_has_a_bracket_with_its_reason(tmp_path: Path, screen: Screen) -> None:
    shutil.copytree(DATA / "hf-trainer-h200", tmp_path / "run")
    viewer = serve(tmp_path / "run")
    page = screen.open(viewer.url).page
    texts = page.evaluate("window.rankscope.timeline.labels.boxes.map((box) => box.text)")
    assert "2.09 ms idle: host bound before aten::gather" in texts
    stop(viewer)


def test_the_late_rank_is_named_beside_its_shares(slow2: Viewer, screen: Screen) -> None:
    boxes = screen.open(slow2.url).page.evaluate("window.rankscope.timeline.labels.boxes")
    (arrival,) = [box for box in boxes if "arrives" in box["text"]]
    (shares,) = [box for box in boxes if box["text"].startswith("compute")]
    assert arrival["y"] == shares["y"] and shares["x"] + shares["width"] < arrival["x"]
