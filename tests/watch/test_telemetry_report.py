"""`stats -r telemetry`: figures of each rank, alarms of the whole ring; with traces beside it, and alone."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from conftest import DATA
from rankscope.analysis.core.scope import Scope
from rankscope.analysis.health.telemetry import telemetry, telemetry_in
from rankscope.cli import main
from rankscope.timeline.run import open_run
from rankscope.watch.alarms import COMPUTE, HOST, SLOW_RANK, SPIKE
from rankscope.watch.judge import alarms_over
from simulated_telemetry import Fault, Job, write_rings
from simulated_telemetry import telemetry as simulated


@pytest.fixture
def alone(tmp_path: Path) -> Path:
    job = Job(4, steps=120)
    run = tmp_path / "alone"
    write_rings(run, job, simulated(job, Fault(SLOW_RANK, HOST, (3,), 60, 0.3)), phases=("ended",) * 4)
    return run


def test_figures_and_alarms(alone: Path) -> None:
    result = telemetry_in(alone)
    assert result.window == "steps 6:120 of the telemetry"
    (finding,) = result.findings
    assert finding.ranks == (3,) and finding.title.startswith("Rank 3 is slow: ")
    assert [fact.value for fact in finding.facts if fact.quantity == "cause"] == ["host"]
    slow, other = result.rows[3], result.rows[0]
    assert slow["excess_pct"] > 5 > abs(other["excess_pct"])
    assert slow["own_ns"] > other["own_ns"] and slow["wait_ns"] < other["wait_ns"]
    assert (slow["last_step"], slow["records"], slow["phase"], slow["node"]) == (120, 120, "ended", "node0")
    assert slow["optimizer_ns"] is None
    assert len(telemetry_in(alone, {1}).rows) == 1


def test_alarms_that_are_over_are_kept(tmp_path: Path) -> None:
    job = Job(4, steps=300)
    table = simulated(job, Fault(SPIKE, COMPUTE, (1,), 122, 5.0))
    lost = 0.3 * job.step_ns
    for field in ("own_ns", "cpu_ns", "step_ns"):
        table[field][160:200, 2 if field != "step_ns" else slice(None)] += lost
    past = alarms_over(table)
    assert [(one.alarm.kind, one.alarm.ranks, one.is_open) for one in past] == [
        (SPIKE, (1,), False),
        (SLOW_RANK, (2,), False),
    ]
    assert past[0].alarm.since_step == 123
    assert abs((past[1].alarm.since_step or 0) - 161) <= 2 and 190 <= past[1].last_step <= 215
    write_rings(tmp_path, job, table, phases=("ended",) * 4, capacity=512)
    titles = {finding.severity: finding.title for finding in telemetry_in(tmp_path).findings}
    assert [*titles] == ["info"] and titles["info"].endswith(f", until step {past[1].last_step}")


def test_a_short_job_tells_its_suspicion(tmp_path: Path) -> None:
    """All of it takes four seconds."""
    job = Job(4, steps=200, step_ns=20e6)
    table = simulated(job, Fault(SLOW_RANK, HOST, (2,), 0, 0.3))
    write_rings(tmp_path, job, table, phases=("ended",) * 4)
    (finding,) = telemetry_in(tmp_path).findings
    assert (finding.severity, finding.ranks) == ("info", (2,))
    assert finding.title.endswith(", since step 6, for less than 10 s")


def test_stats_of_a_folder_with_telemetry_only(alone: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["stats", str(alone)]) == 0
    captured = capsys.readouterr()
    assert "holds telemetry and no trace" in captured.err and "Rank 3 is slow" in captured.out
    assert main(["stats", str(alone), "-r", "telemetry", "--format", "json", "--fail-on", "warning"]) == 3
    assert len(json.loads(capsys.readouterr().out)["rows"]) == 4
    assert main(["stats", str(alone), "-r", "kernels"]) == 1
    assert "Telemetry has these: telemetry, hang." in capsys.readouterr().err


@pytest.mark.slow
def test_beside_traces(alone: Path, tmp_path: Path) -> None:
    run = tmp_path / "both"
    shutil.copytree(DATA / "ddp-gloo4", run)
    assert "rankscope profile --watch" in telemetry(open_run([run]), Scope()).notes[0]
    shutil.copytree(alone / "telemetry", run / "telemetry")
    assert telemetry(open_run([run]), Scope()).findings[0].ranks == (3,)


def test_missing_ranks_and_overwritten_steps(alone: Path, tmp_path: Path) -> None:
    (alone / "telemetry" / "rank-00001.ring").unlink()
    job = Job(2, steps=120)
    write_rings(tmp_path, job, simulated(job), capacity=64)
    assert "no telemetry of rank 1" in telemetry_in(alone).notes
    assert telemetry_in(tmp_path).notes[0].startswith("56 earlier steps")
