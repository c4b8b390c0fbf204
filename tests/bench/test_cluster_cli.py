"""rankscope bench cluster: options, the truth file, and that the planted answers are found in what it writes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rankscope.analysis import REPORTS
from rankscope.analysis.core.scope import Scope
from rankscope.bench.synthetic.cluster import Fault, Job, simulate
from rankscope.bench.synthetic.cluster_trace import write_job, write_traces
from rankscope.cli import main
from rankscope.timeline.reading import ingest
from rankscope.timeline.run import Run

SMALL = ("--steps", "3", "--layers", "2", "--events", "600")


def run(*options: str | Path) -> int:
    return main(["bench", "cluster", *map(str, options)])


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
