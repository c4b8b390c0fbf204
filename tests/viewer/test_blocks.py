"""The block map's route, on the real snapshot."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from conftest import DATA
from viewer_server import Viewer, serve, stop


@pytest.fixture(scope="module")
def snapshot() -> Iterator[Viewer]:
    viewer = serve(DATA / "memory")
    yield viewer
    stop(viewer)


@pytest.mark.slow
def test_the_block_map(snapshot: Viewer) -> None:
    assert snapshot.ask("blocks", rank=0) == (200, {"devices": [0]})
    status, whole = snapshot.ask("blocks", rank=0, device=0, columns=50, rows=20)
    assert status == 200 and (whole["width"], whole["height"], whole["allocations"]) == (50, 20, 5561)
    assert {len(column) for column in whole["columns"].values()} == {1000}
    assert whole["reserved_bytes"] == 7_948_206_080 and whole["lines"][0] == "gpt.py(30): <module>"
    first = whole["largest"][0]
    assert first["bytes"] == 131_072_000
    assert whole["stacks"][str(first["stack"])]["line"] == "gpt.py(30): <module>"
    middle = (whole["begin"] + whole["end"]) // 2
    _, half = snapshot.ask("blocks", rank=0, device=0, begin=middle, end=whole["end"], columns=10**9, rows=-3)
    assert (half["begin"], half["width"], half["height"]) == (middle, 1000, 1)
    assert snapshot.ask("blocks", rank=0, device=7)[0] == 400
    assert snapshot.ask("blocks", rank="x")[0] == 400


@pytest.mark.slow
def test_a_snapshot_alone_has_a_time_axis(snapshot: Viewer) -> None:
    _, run = snapshot.ask("run")
    assert (run["begin_ns"], run["end_ns"]) == (0, 8_403_663_000)
