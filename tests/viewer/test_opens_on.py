"""What a page opens on: a recording without a timeline on what it is, a single rank on its host."""

from __future__ import annotations

import pickle
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from conftest import DATA
from flight_dumps import dump, op
from viewer_server import Screen, serve, stop

pytestmark = pytest.mark.slow

Dataset = Callable[[str], Path]


def snapshot(folder: Path, dataset: Dataset) -> None:
    shutil.copy(DATA / "leak-h200" / "snapshot_rank0.pickle.xz", folder)


def ncu(folder: Path, dataset: Dataset) -> None:
    shutil.copy(dataset("ncu") / "gemm_bf16.raw.csv", folder)


def flight(folder: Path, dataset: Dataset) -> None:
    waits = dump([op("0", 5, state="completed"), op("0", 6, state="started")], {"0": [0, 1]})
    for rank, content in {0: waits, 1: dump([op("0", 5, state="completed")], {"0": [0, 1]})}.items():
        (folder / f"_dump_{rank}").write_bytes(pickle.dumps(content, 2))


@pytest.mark.parametrize(
    ("make", "tab", "panel", "verdict"),
    [
        (snapshot, "memory", "Allocated at the peak", "8 blocks of 16.8 MB from mix.py(9) were never freed"),
        (ncu, "roofline", "peaks of NVIDIA H200", "No trace, but 1 Nsight Compute report"),
        (flight, "reports", "Missing ranks", "Rank 1 holds up the job"),
    ],
)
def test_what_is_not_a_timeline_opens_on_what_it_is(
    make: Callable[[Path, Dataset], None],
    tab: str,
    panel: str,
    verdict: str,
    tmp_path: Path,
    dataset: Dataset,
    screen: Screen,
) -> None:
    make(tmp_path, dataset)
    viewer = serve(tmp_path)
    page = screen.open(viewer.url).page
    assert screen.view()["tab"] == tab and panel in screen.panel()
    assert verdict in page.inner_text("#verdict")
    assert not page.locator("#canvas").is_visible() and page.locator("#panel").bounding_box()["height"] > 600
    stop(viewer)


def test_a_single_rank_opens_with_its_host_and_a_limit_is_not_an_alarm(screen: Screen) -> None:
    viewer = serve(DATA / "gpt-h200")
    page = screen.open(viewer.url).page
    groups = "window.rankscope.timeline.layout().rows.filter((row) => row.type === 'track').map((row) => row.group)"
    assert "host" in page.evaluate(groups)
    figures = page.locator("#verdict .kpi span").all_inner_texts()
    assert "idle" in figures and "waiting" not in figures and "transfer" not in figures
    severity = "window.rankscope.findings[window.rankscope.store.view.finding].severity"
    alarm = "window.rankscope.blame === window.rankscope.palette.text.bad"
    assert screen.view()["finding"] == -1 and "No fault found" in page.inner_text("#verdict")
    screen.press("p")
    assert page.evaluate(severity) == "limit" and not page.evaluate(alarm)
    assert "host" in page.evaluate(groups)
    screen.press("Home")
    assert screen.view()["open"] == [0]
    stop(viewer)
