"""More ranks than have a row each: all groups are on the first screen, and the rank to blame is seen."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from rankscope.viewer.run_map import _machines
from rankscope_bench.synthetic.cluster_trace import write_job
from rankscope_bench.synthetic.job import Fault, Job
from viewer_server import Screen, Viewer, serve, stop

pytestmark = pytest.mark.slow

CULPRIT = 21
ROWS = (
    "window.rankscope.timeline.layout().rows.flatMap((row) => "
    "row.type === 'ranks' ? [row.label] : row.type === 'rank' ? [row.rank] : [])"
)
GROUP = (
    "(n) => window.rankscope.timeline.layout().rows.find((row) => row.type === 'ranks' && row.number === n).y"
)


@pytest.fixture(scope="module")
def viewer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Viewer]:
    """Data-parallel ranks on five machines: there is no other group."""
    folder = tmp_path_factory.mktemp("many") / "run"
    fault = Fault("compute", (CULPRIT,), 8_000_000)
    write_job(Job(data=40, layers=1, steps=2, faults=(fault,)), folder, balanced=False)
    viewer = serve(folder)
    yield viewer
    stop(viewer)


def test_groups_are_machines_where_there_are_no_others(viewer: Viewer) -> None:
    grid = viewer.ask("grid")[1]
    assert grid["ranks"] == list(range(40)) and grid["title"] == "groups 5"
    (level,) = grid["levels"]
    assert [(each["from"], each["to"]) for each in level] == [(at, at + 8) for at in range(0, 40, 8)]
    assert [each["label"] for each in level] == [f"node{at}" for at in range(5)]


def test_all_groups_and_the_culprit_are_on_the_first_screen(viewer: Viewer, screen: Screen) -> None:
    page = screen.open(viewer.url).page
    assert f"Rank {CULPRIT}" in page.inner_text("#verdict h1")
    rows = page.evaluate(ROWS)
    nodes = [f"node{at}" for at in range(5)]
    assert rows[0] == CULPRIT and rows[-5:] == nodes and len(set(rows)) == len(rows)
    map = page.locator(".overview").evaluate("(e) => [e.scrollHeight, e.clientHeight]")
    assert map[0] <= map[1]  # nothing is below its edge
    # A group expands by a click, and folds again by a key; the Back button does not count it as a place.
    screen.press("Home")
    assert page.evaluate(ROWS) == nodes
    box = page.locator("#canvas").bounding_box()
    page.mouse.click(box["x"] + 100, box["y"] + 26 + page.evaluate(GROUP, 2) + 13)
    screen.settle()
    assert page.evaluate(ROWS) == [*nodes[:3], *range(16, 24), *nodes[3:]]
    assert "2%3Aranks" in screen.link()
    page.mouse.move(box["x"] + 100, box["y"] + 26 + page.evaluate(GROUP, 2) + 13)
    screen.press("o")
    assert page.evaluate(ROWS) == nodes
    # By keyboard alone.
    page.locator("#twin button", has_text="node4, 8 ranks").focus()
    page.keyboard.press("Enter")
    screen.settle()
    assert page.evaluate(ROWS) == [*nodes, *range(32, 40)]
    # A rank that is expanded stands before the groups.
    page.evaluate("window.rankscope.reveal(3)")
    screen.settle()
    assert page.evaluate(ROWS)[0] == 3 and 3 not in page.evaluate(ROWS)[1:]


def test_ranks_whose_machines_are_not_known_are_grouped_by_number() -> None:
    unknown = SimpleNamespace(hosts={}, ranks=list(range(70)))
    labels = _machines(unknown)  # type: ignore[arg-type]
    assert [*dict.fromkeys(labels.values())] == ["0–31", "32–63", "64–69"] and len(labels) == 70
    unknown.ranks = list(range(32))
    assert _machines(unknown) == {}  # type: ignore[arg-type]
