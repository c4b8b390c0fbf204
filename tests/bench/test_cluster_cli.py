"""rankscope bench cluster: options, the truth file, and that the planted answers are found in what it writes."""

from __future__ import annotations

import errno
import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from rankscope.analysis import REPORTS
from rankscope.analysis.core.scope import Scope
from rankscope.cli import main
from rankscope.errors import StoreError
from rankscope.timeline.reading import ingest
from rankscope.timeline.run import Run
from rankscope_bench.synthetic.cluster import Fault, Job, simulate
from rankscope_bench.synthetic.cluster_trace import RankTrace, write_job, write_traces
from rankscope_bench.synthetic.host import RankRun

SMALL = ("--steps", "3", "--layers", "2", "--events", "600")


def run(*options: str | Path) -> int:
    return main(["bench", "cluster", *map(str, options)])


@pytest.mark.slow
def test_it_writes_the_events_that_were_asked_for_and_the_truth(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "run"
    options = ("--data", "2", "--tensor", "2", "--node", "2", "--offset", "3", "--drift", "20")
    assert run(*options, *SMALL, "--fault", "throttle:node1:2", "-o", folder) == 0
    truth = json.loads((folder / "truth.json").read_text())
    assert truth["layout"] == {"pp": 1, "dp": 2, "tp": 2}
    assert truth["late_ranks"] == [2, 3] and truth["nodes"] == ["node0", "node0", "node1", "node1"]
    files = sorted(folder.glob("rank-*.json"))
    events = [len(json.loads(file.read_text())["traceEvents"]) for file in files]
    assert events == truth["events"] and 600 <= min(events) < 700
    assert "Wrote 4 files of" in capsys.readouterr().out


@pytest.mark.parametrize(
    "options",
    [("--data", "0"), ("--fault", "compute:9:1"), ("--fault", "moving:1:1"), ("--fault", "compute:x:1")],
)
def test_what_is_wrong_exits_2_and_writes_nothing(options: tuple[str, str], tmp_path: Path) -> None:
    assert run(*options, *SMALL, "-o", tmp_path / "run") == 2
    assert not (tmp_path / "run").exists()


def test_the_folder_is_needed_and_must_be_empty(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(*SMALL) == 2
    (tmp_path / "file").touch()
    assert run(*SMALL, "-o", tmp_path) == 1
    assert "is not empty" in capsys.readouterr().err


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.slow
def test_several_processes_write_the_same_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "rankscope_bench.synthetic.cluster_trace._WORKS_AT_A_TIME", 100
    )  # several forks a file
    job = Job(data=2, stages=2, steps=3, layers=1, seed=4, faults=(Fault("compute", (1,), 1_000_000),))
    progress: list[int] = []
    truth = write_job(job, tmp_path / "forked", progress.append, processes=3)
    assert truth == write_job(job, tmp_path / "alone")
    assert contents(tmp_path / "forked") == contents(tmp_path / "alone")
    assert sum(progress) == sum(path.stat().st_size for path in (tmp_path / "forked").glob("rank-*"))


@pytest.mark.parametrize("how", ["raises", "is killed"])
def test_what_a_process_cannot_write_is_an_error(
    how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def events(trace: RankTrace, run: RankRun) -> Iterator[str]:
        if how == "is killed":
            os.kill(os.getpid(), signal.SIGKILL)
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(RankTrace, "events", events)
    with pytest.raises((OSError, StoreError), match=r"No space left|ended with status -9"):
        write_job(Job(data=2, steps=1, layers=1), tmp_path / "run", processes=2)


def test_the_size_is_said_before_more_than_a_gigabyte_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def stop(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("rankscope_bench.synthetic.cluster_trace.write_job", stop)
    assert run("--data", "32", "--events", "6e5", "-o", tmp_path / "run") == 130
    assert f"about 4.45 GB will be written to {tmp_path / 'run'}" in capsys.readouterr().err
    assert run(*SMALL, "-o", tmp_path / "run") == 130
    assert "will be written" not in capsys.readouterr().err


@pytest.mark.slow
def test_written_as_it_goes_it_is_the_same_job(tmp_path: Path) -> None:
    job = Job(data=2, steps=2, layers=1, seed=4, drift_ppb=20_000, offset_ns=1_000_000)
    write_job(job, tmp_path / "goes")
    write_traces(job, simulate(job), tmp_path / "whole")
    answers = [
        REPORTS[name].analyse(Run(ingest([tmp_path / how])), Scope(), None).rows
        for how in ("goes", "whole")
        for name in ("collectives", "clocks")
    ]
    assert answers[:2] == answers[2:] and all(answers)


@pytest.mark.slow
def test_clocks_and_the_slow_rank_are_found(tmp_path: Path) -> None:
    job = Job(
        data=2, tensor=2, stages=2, steps=4, layers=1, norm_ns=40_000, seed=4, drift_ppb=20_000, offset_ns=3_000_000,
        faults=(Fault("compute", (5,), 4_000_000),),
    )  # fmt: skip
    truth = write_job(job, tmp_path)
    found = Run(ingest([tmp_path]))
    assert REPORTS["stragglers"].analyse(found, Scope(), None).rows[0]["rank"] == 5
    rows = sorted(REPORTS["clocks"].analyse(found, Scope(), None).rows, key=lambda row: row["rank"])
    for row, clock in zip(rows, truth["clocks"], strict=True):
        assert abs(row["offset_ns"] - clock["offset_ns"]) <= (row["error_ns"] or 0) + 5
