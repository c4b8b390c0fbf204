"""One folder, many writers, no locks."""

import json
import threading
from pathlib import Path

import pytest

from rankscope.capture.run_folder import (
    claim_rank,
    expand,
    open_run,
    rank_manifests,
    remove_if_empty,
)
from rankscope.errors import CaptureError
from rankscope.files import create_json


def manifest(rank: int = 0, job: str = "a", restart: int = 0) -> dict[str, object]:
    return {
        "rank": rank,
        "job": job,
        "restart": restart,
        "pid": 1,
        "host": "h",
        "windows": [],
        "state": "running",
    }


def test_exactly_one_of_many_writers_is_first(tmp_path: Path) -> None:
    first: list[bool] = []
    writers = [
        threading.Thread(target=lambda: first.append(create_json(tmp_path / "x.json", {"job": "a"})))
        for _ in range(8)
    ]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert sorted(first) == [False] * 7 + [True]
    assert [path.name for path in tmp_path.iterdir()] == ["x.json"]


def test_another_job_gets_another_folder_and_force_replaces_it(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    assert open_run(folder, {"job": "a"}, force=False) == (folder, True)
    assert open_run(folder, {"job": "a"}, force=False) == (folder, False)
    claim_rank(
        folder,
        {**manifest(), "windows": [{"file": "rank-00000.pt.trace.json.gz", "state": "whole"}]},
        force=False,
    )
    (folder / "rank-00000.pt.trace.json.gz").write_text("old")
    for table in ("profiler_list.dat", "profiler_list-1-of-2.dat", "profiler_ds.txt"):
        (folder / table).write_text("of `rankscope.profile` in the code")
    (folder / "mine.txt").write_text("the user's")
    assert open_run(folder, {"job": "b"}, force=False) == (tmp_path / "run-2", True)
    assert open_run(folder, {"job": "c"}, force=False) == (tmp_path / "run-3", True)
    assert open_run(folder, {"job": "b"}, force=False) == (tmp_path / "run-2", False), "all ranks agree"
    open_run(folder, {"job": "b"}, force=True)
    assert sorted(path.name for path in folder.iterdir()) == ["mine.txt", "rankscope.json"]
    assert json.loads((folder / "rankscope.json").read_text())["job"] == "b"


def test_nothing_is_removed_through_a_link_or_because_of_an_odd_manifest(tmp_path: Path) -> None:
    folder, elsewhere = tmp_path / "run", tmp_path / "elsewhere"
    open_run(folder, {"job": "a"}, force=False)
    elsewhere.mkdir()
    (elsewhere / "rank-00000.ring").write_text("of another run")
    (folder / "telemetry").symlink_to(elsewhere)
    for rank, windows in enumerate((7, [7], [{"file": 7}], [{"file": "../elsewhere/rank-00000.ring"}])):
        (folder / f"rank-{rank:05d}.rankscope.json").write_text(
            json.dumps({"rank": rank, "windows": windows})
        )
    open_run(folder, {"job": "b"}, force=True)
    assert sorted(path.name for path in folder.iterdir()) == ["rankscope.json", "telemetry"]
    assert [path.name for path in elsewhere.iterdir()] == ["rank-00000.ring"]


def test_a_rank_is_captured_once_but_a_restart_takes_over_what_failed(tmp_path: Path) -> None:
    claim_rank(tmp_path, manifest(), force=False)
    with pytest.raises(CaptureError, match="captured already"):
        claim_rank(tmp_path, manifest(), force=False)
    claim_rank(tmp_path, manifest(restart=1), force=False)
    claim_rank(tmp_path, {**manifest(restart=1), "state": "done"}, force=True)
    claim_rank(tmp_path, manifest(restart=1), force=False)  # that one left nothing
    assert next(rank_manifests(tmp_path))["restart"] == 1


def test_a_folder_that_cannot_be_written_says_why(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(CaptureError, match="cannot write the run folder") as caught:
        open_run(tmp_path / "file" / "run", {"job": "a"}, force=False)
    assert "-o DIR" in caught.value.hint


def test_environment_names(tmp_path: Path) -> None:
    assert expand("runs/%q{A}-%q{B}", {"A": "1", "B": "x"}) == "runs/1-x"
    with pytest.raises(CaptureError, match="names C, which is not set"):
        expand("%q{C}", {})


def test_only_an_empty_run_folder_is_taken_back(tmp_path: Path) -> None:
    open_run(tmp_path / "a", {"job": "a"}, force=False)
    open_run(tmp_path / "b", {"job": "a"}, force=False)
    (tmp_path / "b" / "other").write_text("")
    for name in ("a", "b", "c"):
        remove_if_empty(tmp_path / name)
    assert [path.name for path in tmp_path.iterdir()] == ["b"]
