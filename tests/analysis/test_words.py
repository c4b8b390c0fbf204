"""What is said of a fault, and the first sentence about a run: planted answers, and what holds for every finding."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

import pytest

from analysis.finding_properties import violations
from conftest import DATA
from rankscope.analysis.core.result import PROBLEMS, SEVERITIES, Finding
from rankscope.analysis.core.scope import Scope
from rankscope.analysis.findings import collect, findings
from rankscope.analysis.summary import summary
from rankscope.timeline.reading import ingest
from rankscope.timeline.run import Run
from rankscope.units import format_pair
from rankscope_bench.synthetic.cluster import Fault, Job, simulate
from rankscope_bench.synthetic.cluster_trace import write_traces

MS = 1_000_000
ALL = (0, 1, 2, 3)
JOB = Job(data=4, layers=2, kernels=2, steps=6, seed=3)
LONG = replace(JOB, steps=12)
PIPELINE = Job(
    data=2, stages=4, schedule="1f1b", p2p="batched", micro_batches=4, norm_ns=40_000, layers=1, steps=3, seed=3
)  # fmt: skip
NODES = Job(data=4, tensor=8, layers=1, kernels=2, steps=4, seed=3)


class In(Fault):
    """In these steps only."""

    steps: tuple[int, ...] = ()

    def in_step(self, step: int) -> int:
        return self.ns * (step in self.steps)


def in_steps(ranks: Iterable[int], ns: int, *steps: int) -> Fault:
    fault = In("host", tuple(ranks), ns)
    object.__setattr__(fault, "steps", steps)
    return fault


def simulated(folder: Path, job: Job, *faults: Fault) -> Run:
    job = replace(job, faults=faults)
    write_traces(job, simulate(job), folder)
    return Run(ingest([folder]))


SAID: dict[str, tuple[Job, tuple[Fault, ...], str, str, str]] = {
    "a rank": (
        JOB, (Fault("compute", (2,), 3 * MS),), r"Rank 2 costs (3\.0|2\.9)\d ms per step \(\d+ %\); ", "rank 2", "",
    ),
    "two of one cause": (
        JOB, (Fault("compute", (0, 2), 3 * MS),),
        r"Ranks 0,2 cost .+ \(\d+ %\); rank \d, like the others: ", "ranks 0,2", "",
    ),
    "two causes": (
        JOB, (Fault("compute", (0,), 3 * MS), Fault("host", (2,), 3 * MS)),
        r"Ranks 0,2 cost .+; each for a different reason$", "ranks 0,2", "",
    ),
    "all of them": (
        JOB,
        (Fault("compute", (0, 1), 6 * MS), Fault("host", (2,), 6 * MS), Fault("dataloader", (3,), 6 * MS)),
        r"All 4 ranks, each in a different place, cost .+; each for a different reason$", "all 4 ranks", "",
    ),
    "in some steps": (
        LONG, (in_steps([2], 6 * MS, 1, 5, 6, 9),), r"Rank 2 costs .+, in steps 1,5-6,9; ", "rank 2", "1,5,6,9",
    ),
    "a slow step": (
        LONG, (in_steps(ALL, 6 * MS, 7),),
        r"Step 7 takes 6\.\d+ ms longer on all ranks: \d+ µs per step \(\d+ %\); ", "step 7", "7",
    ),
    "in turn": (
        JOB, (Fault("moving", ALL, 4 * MS),),
        r"A different rank is late in each step: .+; for example rank \d: ", "each rank in turn", "",
    ),
    "lengths": (
        JOB, (Fault("lengths", ALL, 4 * MS),),
        r"The work of the ranks differs from step to step: ", "each rank in turn", "",
    ),
    "a link": (
        replace(JOB, tensor=2), (Fault("link", (3,), 3 * MS),),
        r"The link of rank 3 \(groups .+\) costs ", "groups ", "",
    ),
    "a stage": (
        replace(PIPELINE, stage_layers=(1, 1, 2, 1)), (), r"Stage 2 \(ranks .+\) costs ", "stage 2", "",
    ),
    "a node": (
        NODES, (Fault("throttle", tuple(range(8, 16)), 6 * MS),),
        r"Node \S+ \(ranks 8-15\) costs .+; its GPU is slow: ", "node ", "",
    ),
}  # fmt: skip


def check(found: Iterable[Finding], run: Run) -> None:
    """What holds for the findings of every run."""
    listed, step_ns = [*found], summary(run, Scope()).facts["mean_step_ns"]
    kinds = [each.kind for each in listed]
    assert kinds == sorted(kinds, key=lambda kind: kind == "limit"), "limits are listed last"
    for each in listed:
        assert (each.kind == "limit") is (each.severity == "limit")
        assert each.cost_ns is None or 0 <= each.cost_ns <= step_ns
        assert (
            each.title[0] != each.title[0].lower()
            or each.title.startswith(each.names)
            or each.title[0].isdigit()
        )
        if each.kind == "fault":
            assert each.subject and each.ranks and each.cost_ns and each.cost_pct
            assert f"({each.cost_pct:.0f} %)" in each.title
    together = sum(each.cost_ns or 0 for each in listed if each.kind == "fault")
    assert together <= step_ns * 1.000001
    rows = findings(run, Scope()).rows
    assert [row["title"] for row in rows] == [each.title for each in listed]


@pytest.mark.slow
@pytest.mark.parametrize("name", SAID)
def test_what_is_said_of_a_fault(tmp_path: Path, name: str) -> None:
    job, planted, title, subject, steps = SAID[name]
    run = simulated(tmp_path, job, *planted)
    found = collect(run, Scope())
    faults = [each for each in found if each.kind == "fault"]
    assert re.match(title, faults[0].title), faults[0].title
    assert faults[0].subject.startswith(subject)
    assert ",".join(map(str, faults[0].steps)) == steps
    assert summary(run, Scope()).facts["verdict"] == f"{faults[0].title}."
    check(found, run)
    assert violations(run) == []


@pytest.mark.slow
def test_a_fault_of_one_step_is_no_critical_problem(tmp_path: Path) -> None:
    (fault, *_) = collect(simulated(tmp_path, replace(JOB, steps=3), in_steps([2], 30 * MS, 1)), Scope())
    assert (fault.severity, fault.steps) == ("warning", (1,))


@pytest.mark.slow
def test_where_all_are_alike_it_says_so(tmp_path: Path) -> None:
    run = simulated(tmp_path, JOB)
    facts = summary(run, Scope()).facts
    assert not [each for each in collect(run, Scope()) if each.severity in PROBLEMS]
    assert re.fullmatch(
        r"No fault found: the 4 ranks are alike\.( Largest limit: [a-z].+, up to [\d.]+ of [\d.]+ ms\.)?",
        facts["verdict"],
    )
    check(collect(run, Scope()), run)


@pytest.mark.slow
def test_who_was_not_recorded_is_not_called_alike(tmp_path: Path) -> None:
    write_traces(job := replace(JOB, data=16, steps=3), simulate(job), tmp_path)
    for rank, path in enumerate(sorted(tmp_path.glob("*.json.gz"))):
        if rank not in (3, 5):
            path.unlink()
    said = summary(Run(ingest([tmp_path])), Scope()).facts["verdict"]
    assert said.startswith("No fault found among the 2 of 16 ranks recorded.")


def test_one_rank_has_its_steps_to_compare_with(tmp_path: Path) -> None:
    run = simulated(tmp_path, replace(JOB, data=1))
    assert summary(run, Scope()).facts["verdict"].startswith("No fault found: the steps are alike.")
    one = summary(run, Scope(steps=(3, 3))).facts["verdict"]
    assert one.startswith("Nothing to compare with: one rank, one step.")


@pytest.mark.slow
def test_ranks_without_peers_are_not_called_alike(tmp_path: Path) -> None:
    said = summary(simulated(tmp_path, replace(PIPELINE, data=1)), Scope()).facts["verdict"]
    assert said.startswith("No fault found; not every rank has others that do the same work.")


@pytest.mark.parametrize("name", ["seqpar-gloo4", "ddp-gloo4", "seqpar-gloo4-slow2", "gpt-h200"])
def test_recorded_runs(open_real: Callable[[Path], Run], name: str) -> None:
    run = open_real(DATA / name)
    check(collect(run, Scope()), run)
    said = summary(run, Scope()).facts["verdict"]
    assert said.startswith("Rank 2 costs 10.6 ms per step (62 %); " if "slow2" in name else "No fault found")


def test_a_name_keeps_its_case_within_a_sentence() -> None:
    def said(title: str, *names: str) -> str:
        return Finding("limit", title, names=names).uncapitalised

    assert said("Data loading") == "data loading"
    assert said("GPU idle") == "GPU idle"
    assert said("Kernel_of_ours faster", "Kernel_of_ours") == "Kernel_of_ours faster"
    assert SEVERITIES.index("limit") < SEVERITIES.index("info")


def test_a_part_has_the_unit_of_its_whole() -> None:
    assert format_pair(8_000_000, 27_900_000) == "8.0 of 27.9 ms"
    assert format_pair(35_000, 27_900_000) == "0.04 of 27.90 ms"
    assert format_pair(12, 700) == "12 of 700 ns"
