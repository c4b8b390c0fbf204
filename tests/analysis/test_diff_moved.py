"""diff: the headline names what changed the step time, and what else differs between the runs is named."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from conftest import DATA, kernel_event, open_trace, slice_event, write_kineto
from rankscope.analysis.core.result import Finding, Result
from rankscope.analysis.core.scope import Scope
from rankscope.analysis.diff.compare import Rules, compare
from rankscope.analysis.diff.moved import Moved, _in_other, moved
from rankscope.analysis.diff.samples import STEP, Measure, Samples
from rankscope.analysis.diff.two_runs import COLUMNS, by_unit, diff, shown_rows
from rankscope.analysis.faults.axes import Replays
from rankscope.timeline.reading import ingest
from rankscope.timeline.run import Run
from rankscope_bench.synthetic.cluster import Fault, Job, simulate, step_ns
from rankscope_bench.synthetic.cluster_trace import write_traces

MS = 1_000_000
JOB = Job(data=4, layers=2, kernels=2, steps=6, seed=3)
NOISE = (0.0, 0.1, 0.2, 0.1, 0.0, 0.2)

Runs = Callable[[Job], Run]


class In(Fault):
    """In this step only."""

    step: int = 0

    def in_step(self, step: int) -> int:
        return self.ns * (step == self.step)


def with_faults(*faults: Fault) -> Job:
    return replace(JOB, faults=faults)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    """The run of a job, simulated once."""
    known: dict[str, Run] = {}

    def run_of(job: Job) -> Run:
        if repr(job) not in known:
            folder = tmp_path_factory.mktemp("moved")
            write_traces(job, simulate(job), folder)
            known[repr(job)] = Run(ingest([folder]))
        return known[repr(job)]

    return run_of


def what_moved(base: Run, new: Run, change_ns: float = 1.0, least: float = 0.02) -> Moved:
    steps = range(JOB.steps)
    answer = moved(base, new, Scope(), (steps, steps), change_ns, least)
    assert isinstance(answer, Moved)
    return answer


def of_step(result: Result) -> Finding:
    """The finding about the step time; what had been predicted stands before it."""
    return next(finding for finding in result.findings if finding.fact("change_pct"))


# What is planted


PLANTED = [
    pytest.param([Fault("compute", (2,), 6 * MS)], ["compute on rank 2"], id="one rank"),
    pytest.param([Fault("compute", (0, 1, 2, 3), 6 * MS)], ["compute on all ranks"], id="all ranks"),
    pytest.param([Fault("compute", (1, 3), 6 * MS)], ["compute on ranks 1,3"], id="two ranks hide each other"),
    pytest.param([Fault("host", (1,), 5 * MS)], ["host time on rank 1"], id="a pause"),
    pytest.param([Fault("copy", (3,), 4 * MS)], ["copies on rank 3"], id="copies"),
    pytest.param([Fault("dataloader", (0,), 8 * MS)], ["data loading on rank 0"], id="data loading"),
    pytest.param([Fault("link", (1,), 5 * MS)], ["transfers"], id="links"),
    pytest.param(
        [Fault("compute", (2,), 4 * MS), Fault("host", (2,), 6 * MS)],
        ["host time on rank 2", "compute on rank 2"],
        id="two causes",
    ),
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(("faults", "subjects"), PLANTED)
def test_what_is_planted_in_one_run_is_what_moved(
    faults: list[Fault], subjects: list[str], runs: Runs
) -> None:
    job = with_faults(*faults)
    base, new = runs(JOB), runs(job)
    truth = step_ns(simulate(job)) - step_ns(simulate(JOB))
    slower, faster = what_moved(base, new, truth), what_moved(new, base, -truth)
    for answer, sign in ((slower, 1), (faster, -1)):
        assert {part.subject for part in answer.parts} == set(subjects)
        assert sum(part.moved_ns for part in answer.parts) == pytest.approx(sign * truth, rel=0.03)
        verb = "add" if sign > 0 else "save"
        assert all(f" {verb}" in part.words for part in answer.parts)


def test_the_headline_names_the_new_kernel(runs: Runs) -> None:
    slow = runs(with_faults(Fault("compute", (2,), 6 * MS)))
    slower, faster = (of_step(diff(*pair, Scope())) for pair in ((runs(JOB), slow), (slow, runs(JOB))))
    assert slower.title.endswith("compute on rank 2 adds 5.96 ms, most in reduce_kernel, which is new")
    assert slower.ranks == (2,) and slower.hint.endswith("-r ops --by source --ranks 2")
    fact = slower.fact("moved_ns")
    assert fact is not None and fact.subject == "compute on rank 2" and fact.ranks == (2,)
    assert fact.value == pytest.approx(6 * MS, rel=0.03)
    assert faster.title.endswith("compute on rank 2 saves 5.96 ms, most in reduce_kernel, which is gone")
    assert faster.ranks == () and not faster.hint


def test_what_is_longer_in_one_step_is_of_that_step(runs: Runs) -> None:
    fault = In("host", (1,), 20 * MS)
    object.__setattr__(fault, "step", 4)
    (part,) = what_moved(runs(JOB), runs(with_faults(fault))).parts
    assert part.ranks == (1,) and part.steps == (4,)
    assert part.moved_ns == pytest.approx(20 * MS / 6, rel=0.05)


def test_what_others_hide_is_said(runs: Runs) -> None:
    """Rank 1 is slower too, and nobody waits for it."""
    slow = runs(with_faults(Fault("compute", (2,), 6 * MS), Fault("host", (1,), 3 * MS)))
    answer = what_moved(runs(JOB), slow)
    assert [part.subject for part in answer.parts] == ["compute on rank 2"]
    (hidden,) = answer.hidden
    assert hidden.subject == "host time on rank 1" and hidden.moved_ns < 0.5 * MS < 2 * MS < hidden.alone_ns
    assert [fact.subject for fact in answer.facts if fact.quantity == "hidden_ns"] == [hidden.subject]


@pytest.mark.slow
def test_the_headline_names_the_rank_that_computes_longer(open_real: Callable[[Path], Run]) -> None:
    base, new = open_real(DATA / "seqpar-gloo4"), open_real(DATA / "seqpar-gloo4-slow2")
    slower, faster = (of_step(diff(*runs, Scope())) for runs in ((base, new), (new, base)))
    assert slower.title.startswith(
        "A step takes 13.5 ms longer (4.7x slower): compute on rank 2 adds 10.6 ms"
    )
    assert slower.ranks == (2,) and "NEW -r ops --by source --ranks 2" in slower.hint
    assert faster.title.startswith("A step takes 13.5 ms less (4.7x faster): compute on rank 2 saves 10.6 ms")


# What must hold of any two runs


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
def test_the_parts_add_up_to_the_difference_of_the_replays(seed: int, runs: Runs) -> None:
    source = random.Random(seed)
    jobs = [
        with_faults(
            *(
                Fault(kind, (source.randrange(4),), source.randrange(1, 6) * MS)
                for kind in source.sample(("compute", "host", "copy", "dataloader"), 2)
            )
        )
        for _ in range(2)
    ]
    base, new = map(runs, jobs)
    answer = what_moved(base, new, least=0.0)
    sides = [Replays(run, Scope().in_run(run)) for run in (base, new)]
    before, after = (side.before_ns / side.steps for side in sides)
    assert answer.moved_ns == pytest.approx(after - before, abs=0.01 * after)
    back = what_moved(new, base, least=0.0)
    assert back.moved_ns == pytest.approx(-answer.moved_ns, abs=1)


def test_a_run_against_itself_says_nothing(runs: Runs) -> None:
    answer = what_moved(runs(JOB), runs(JOB), least=0.0)
    assert (answer.parts, answer.hidden, answer.rest_ns) == ((), (), 0)
    result = diff(runs(JOB), runs(JOB), Scope())
    assert result.findings[0].severity == "ok" and ":" not in result.findings[0].title


def test_two_healthy_runs_differ_in_nothing(runs: Runs) -> None:
    answer = what_moved(runs(JOB), runs(replace(JOB, seed=4)))
    assert not answer.parts and not answer.hidden


TIMES = st.lists(st.integers(0, 50), min_size=1, max_size=6)


@given(TIMES, TIMES, st.integers(0, 3), st.integers(0, 3))
def test_the_shortest_is_compared_with_the_shortest(
    mine: list[int], theirs: list[int], missing: int, others_missing: int
) -> None:
    steps, others = len(mine) + missing, len(theirs) + others_missing
    spots = (np.zeros(len(mine), dtype=np.int64), np.zeros(len(theirs), dtype=np.int64))
    usual = _in_other(spots[0], np.array(mine), steps, spots[1], np.array(theirs), others)
    assert all(usual[a] <= usual[b] for a in range(len(mine)) for b in range(len(mine)) if mine[a] < mine[b])
    there = sorted([0] * others_missing + theirs)
    assert there[0] <= usual.min() and usual.max() <= there[-1]
    if steps == others:
        assert sorted(usual.tolist()) == there[missing:]


# Where it cannot be told


@pytest.mark.slow
def test_without_the_same_ranks_it_cannot_be_told(runs: Runs) -> None:
    slow = runs(replace(JOB, data=2, faults=(Fault("compute", (1,), 9 * MS),)))
    result = diff(runs(JOB), slow, Scope())
    assert result.findings[0].title.endswith("(2.6x slower)")
    assert "what moved cannot be told: the runs have different ranks" in result.notes


def test_without_steps_it_cannot_be_told(tmp_path: Path) -> None:
    windows = []
    for name, took in (("a", 400), ("b", 900)):
        write_kineto(tmp_path / f"{name}.json", [slice_event("aten::mm", 0, took)])
        windows.append(open_trace(tmp_path / f"{name}.json"))
    result = diff(windows[0], windows[1], Scope())
    assert "what moved cannot be told: not all steps are known" in result.notes


# What else is said


def samples(**values: float) -> Samples:
    """Six steps; names are REPORT__KEY, values are in ms."""
    measures = {
        STEP if name == "step" else Measure(*name.split("__", 1)): [(value + noise) * 1e6 for noise in NOISE]
        for name, value in values.items()
    }
    return Samples(list(range(6)), 2, measures)


def test_memory_is_less_and_an_unsure_step_is_not_the_same() -> None:
    def rows(base: Samples, new: Samples) -> dict[str, str]:
        comparison = compare(base, new, Rules())
        result = Result("diff", "", "", COLUMNS, comparison.rows, facts={"likely": comparison.likely})
        assert [row["what"] for part in by_unit(result) for row in part.rows]
        assert not any("same" in note for note in comparison.notes)
        return {row["what"]: row["verdict"] for row in shown_rows(result)}

    small, large = ({"step": 50, "memory__peak allocated": size} for size in (60, 80))
    assert rows(samples(**large), samples(**small))["memory: peak allocated"] == "less"
    assert rows(samples(**small), samples(**large))["memory: peak allocated"] == "more"
    few = [
        Samples([0, 1, 2], 1, {STEP: [a * 1e6, b * 1e6, c * 1e6]}) for a, b, c in ((50, 45, 58), (70, 66, 62))
    ]
    assert rows(*few)["steps: step"] == "likely"


def trace(folder: Path, command: list[str], torch: str, shape: list[int], **header: Any) -> Run:
    """One rank with a job's manifests beside it."""
    folder.mkdir()
    events: list[Any] = []
    for step in range(3):
        at, number = 1000.0 * step, {"External id": step + 1}
        launch = {"correlation": step + 1, **number}
        events += [
            slice_event(f"ProfilerStep#{step}", at, 900, cat="user_annotation"),
            slice_event("aten::mm", at + 10, 50, args=number | ({"Input Dims": [shape]} if shape else {})),
            slice_event("cudaLaunchKernel", at + 20, 5, cat="cuda_runtime", args=launch),
            kernel_event("gemm", at + 40, 400, step + 1, **number),
        ]
    path = write_kineto(folder / "rank-0-of-1.json", events)
    path.write_text(json.dumps(json.loads(path.read_text()) | header))
    (folder / "rankscope.json").write_text(json.dumps({"command": command, "tool": "torch"}))
    (folder / "rank-0.rankscope.json").write_text(json.dumps({"rank": 0, "torch": torch, "host": "n1"}))
    return open_trace(path)


@pytest.mark.slow
def test_what_else_differs_is_named(tmp_path: Path) -> None:
    base = trace(
        tmp_path / "a", ["python", "train.py", "--dtype", "fp32", "--fused"], "2.9.0", [4, 4], record_shapes=1
    )
    new = trace(tmp_path / "b", ["python", "train.py", "--dtype=bf16"], "2.10.0", [8, 4], record_shapes=1)
    *_, last = diff(base, new, Scope()).findings
    assert last.title == (
        "The runs also differ in torch (2.9.0 -> 2.10.0), --dtype (fp32 -> bf16), --fused (given -> not there) and "
        "the shapes of mm ([[4,4]] -> [[8,4]])"
    )
    same = diff(base, base, Scope())
    assert not any("differ" in finding.title for finding in same.findings)


def test_ops_with_and_without_shapes_are_compared_by_name(tmp_path: Path) -> None:
    base, new = trace(tmp_path / "a", [], "2.9.0", [4, 4]), trace(tmp_path / "b", [], "2.9.0", [])
    result = diff(base, new, Scope())
    assert [row["verdict"] for row in result.rows if row["key"] == "aten::mm"] == ["same", "same"]
    assert any("without shapes" in note for note in result.notes)
