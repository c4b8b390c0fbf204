"""Faults planted in simulated jobs: the rank that is slow must be found, with its cause."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from rankscope.analysis import REPORTS
from rankscope.analysis.core.scope import Scope
from rankscope.bench.synthetic.cluster import Fault, Job, simulate, step_ns
from rankscope.bench.synthetic.cluster_trace import write_traces
from rankscope.store.ingest import ingest
from rankscope.store.run import Run

JOBS = {
    "data parallel": Job(data=4, seed=1),
    "data and tensor parallel": Job(data=2, tensor=2, seed=2, offset_ns=2_000_000),
}
CAUSES = {
    "compute": "compute",
    "throttle": "compute",
    "host": "host",
    "copy": "copy",
    "dataloader": "dataloader",
}


@pytest.mark.parametrize("layout", JOBS)
@pytest.mark.parametrize("kind", CAUSES)
def test_the_slow_rank_and_its_cause(layout: str, kind: str, tmp_path: Path) -> None:
    job = replace(JOBS[layout], faults=(Fault(kind, ranks=(1,), ns=3_000_000),))
    runs = simulate(job)
    assert step_ns(runs) - step_ns(simulate(job.healthy())) > 2_000_000, "the fault costs time"
    write_traces(job, runs, tmp_path)
    result = REPORTS["stragglers"].analyse(Run(ingest([tmp_path])), Scope(), None)
    assert result.findings[0].severity in ("warning", "critical")
    assert result.findings[0].ranks == (1,)
    assert result.rows[0]["rank"] == 1 and result.rows[0]["cause"] == CAUSES[kind]


@pytest.mark.parametrize("layout", JOBS)
def test_a_healthy_job_raises_no_alarm(layout: str, tmp_path: Path) -> None:
    write_traces(JOBS[layout], simulate(JOBS[layout]), tmp_path)
    result = REPORTS["stragglers"].analyse(Run(ingest([tmp_path])), Scope(), None)
    assert {finding.severity for finding in result.findings} <= {"ok", "info"}


def test_a_job_is_the_same_with_the_same_seed() -> None:
    first, second = (simulate(JOBS["data parallel"]) for _ in range(2))
    assert [run.steps for run in first] == [run.steps for run in second]
    assert [run.steps for run in first] != [run.steps for run in simulate(Job(data=4, seed=9))]


def test_a_pipeline_runs_to_its_end() -> None:
    job = Job(stages=2, data=2, steps=3)
    runs = simulate(job)
    assert all(len(run.steps) == 3 and all(work.end > work.start for work in run.works) for run in runs)
