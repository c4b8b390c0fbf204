"""Faults planted in simulated jobs: the rank that is slow must be found, with its cause."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from rankscope.analysis.core.result import PROBLEMS, Finding
from rankscope.analysis.core.scope import Scope
from rankscope.analysis.faults.words import findings_of
from rankscope.timeline.reading import ingest
from rankscope.timeline.run import Run
from rankscope_bench.synthetic.cluster import Fault, Job, simulate, step_ns
from rankscope_bench.synthetic.cluster_trace import write_traces

pytestmark = pytest.mark.slow

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
    finding = _only_fault(tmp_path)
    assert finding.severity in PROBLEMS and finding.subject == "rank 1"
    assert finding.ranks == (1,) and cause(finding) == CAUSES[kind]


def ask(job: Job, folder: Path) -> Finding:
    write_traces(job, simulate(job), folder)
    return _only_fault(folder)


def _only_fault(folder: Path) -> Finding:
    (finding,) = findings_of(Run(ingest([folder])), Scope())
    return finding


def cause(finding: Finding) -> object:
    fact = finding.fact("cause")
    return fact.value if fact else None


def test_a_slow_link_is_told_by_the_sibling_groups(tmp_path: Path) -> None:
    job = Job(data=2, tensor=2, steps=4, seed=3, faults=(Fault("link", ranks=(3,), ns=2_000_000),))
    finding = ask(job, tmp_path)
    assert finding.subject.startswith("group") and 3 in finding.ranks and cause(finding) == "link"
    assert len(finding.ranks) <= 2


def test_a_slow_node_is_named(tmp_path: Path) -> None:
    job = Job(data=6, steps=4, seed=4, ranks_per_node=2, faults=(Fault("throttle", (2, 3), 1_500_000),))
    finding = ask(job, tmp_path)
    assert finding.ranks == (2, 3) and finding.subject == "node node1"
    assert cause(finding) == "compute"


def test_half_of_the_ranks_are_a_slow_node(tmp_path: Path) -> None:
    """Noise as measured in real jobs: the ranks' pauses are as long as the fault, so that no rank stands out alone."""
    job = Job(data=8, steps=8, layers=2, kernels=1, seed=6, ranks_per_node=4, measured=True)
    job = replace(job, faults=(Fault("host", (0, 1, 2, 3), 300_000),))
    write_traces(job, simulate(job), tmp_path)
    finding = findings_of(Run(ingest([tmp_path])), Scope())[
        0
    ]  # in step 4 all are late, without the fault too
    assert finding.ranks == (0, 1, 2, 3) and finding.subject == "node node0"
    assert cause(finding) == "host"


def test_imbalance_that_moves_names_no_rank(tmp_path: Path) -> None:
    job = Job(data=4, steps=8, seed=5, faults=(Fault("moving", (0, 1, 2, 3), 2_000_000),))
    finding = ask(job, tmp_path)
    assert finding.severity in PROBLEMS and finding.fact("turns") is not None


def test_the_rank_in_front_of_a_pipeline_is_blamed(tmp_path: Path) -> None:
    """The second stage waits in its receive, which has no known waits."""
    job = Job(data=2, stages=2, steps=4, seed=6, faults=(Fault("dataloader", (1,), 5_000_000),))
    finding = ask(job, tmp_path)
    assert finding.ranks == (1,) and cause(finding) == "dataloader"
    assert finding.cost_ns is not None


def test_the_annotation_around_a_late_host_is_named(tmp_path: Path) -> None:
    fault = Fault("host", ranks=(0,), ns=4_000_000, annotated=True)
    finding = ask(Job(data=2, steps=4, seed=7, faults=(fault,)), tmp_path)
    assert finding.ranks == (0,) and cause(finding) == "host"
    assert "extra_work" in finding.title


def test_a_checkpoint_in_every_fourth_step(tmp_path: Path) -> None:
    finding = ask(Job(data=4, steps=8, seed=1, faults=(Fault("checkpoint", (2,), 1_000_000),)), tmp_path)
    assert (finding.severity, finding.ranks, cause(finding)) == ("warning", (2,), "host")
    assert len(finding.steps) == 2


@pytest.mark.thorough
@pytest.mark.parametrize("layout", JOBS)
def test_a_healthy_job_raises_no_alarm(layout: str, tmp_path: Path) -> None:
    write_traces(JOBS[layout], simulate(JOBS[layout]), tmp_path)
    faults = findings_of(Run(ingest([tmp_path])), Scope())
    assert not {finding.severity for finding in faults} & {*PROBLEMS}


def test_a_job_is_the_same_with_the_same_seed() -> None:
    first, second = (simulate(JOBS["data parallel"]) for _ in range(2))
    assert [run.steps for run in first] == [run.steps for run in second]
    assert [run.steps for run in first] != [run.steps for run in simulate(Job(data=4, seed=9))]


def test_a_pipeline_runs_to_its_end() -> None:
    job = Job(stages=2, data=2, steps=3)
    runs = simulate(job)
    assert all(
        len(run.steps) == 3 and all(work.end > work.start for work in run.works if work.stream)
        for run in runs
    )
