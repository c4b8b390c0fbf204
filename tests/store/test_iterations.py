"""The folders of torchtitan's windows are one run, with a cycle for each."""

from __future__ import annotations

from pathlib import Path

import pytest

from conftest import slice_event, write_kineto
from rankscope.store.discover import Folders
from rankscope.timeline.reading import ingest
from rankscope.timeline.run import Run


@pytest.mark.parametrize("given", [".", "profiling", "profiling/traces"])
def test_windows_of_torchtitan(tmp_path: Path, given: str) -> None:
    for window in (5, 10):
        folder = tmp_path / "profiling" / "traces" / f"iteration_{window}"
        folder.mkdir(parents=True)
        for rank in range(2):
            step = slice_event(f"ProfilerStep#{window - 1}", 1000.0 * window, 50.0, cat="user_annotation")
            write_kineto(folder / f"rank{rank}_trace.json", [step, slice_event("op", 1000.0 * window, 5.0)])
    run = Run(ingest([Folders().meant(tmp_path / given)]))
    rows = run.rows("SELECT rank, step FROM steps ORDER BY ALL")
    assert rows == [(0, 4), (0, 9), (1, 4), (1, 9)]


def test_other_folders(tmp_path: Path) -> None:
    (tmp_path / "iteration_x").mkdir()
    (tmp_path / "iteration_5").touch()
    assert Folders().meant(tmp_path) == tmp_path
