"""What can make a rank late: ops that others do not run, a long micro-batch, a gap."""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from statistics import median_high, median_low
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conftest import examples, slice_event, write_kineto
from rankscope.analysis import REPORTS
from rankscope.analysis.across_ranks.main_thread import gaps
from rankscope.analysis.across_ranks.op_differences import OpCalls, RankOps, _side_by_side
from rankscope.analysis.core.result import Finding, Result
from rankscope.analysis.core.scope import NO_STEP, Scope
from rankscope.analysis.faults import faults_of
from rankscope.analysis.faults.stragglers import causes_of_ranks
from rankscope.analysis.findings import collect
from rankscope.timeline.reading import ingest
from rankscope.timeline.run import Run

FORWARD = ("aten::linear", "aten::gelu", "aten::linear", "aten::add", "aten::layer_norm", "aten::mean")
ENGINE = "autograd::engine::evaluate_function: "
BACKWARD = ("MeanBackward0", "NativeLayerNormBackward0", "AddBackward0", "AddmmBackward0", "GeluBackward0")


class Script:
    """What the main thread of a rank does; times in µs."""

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []
        self.now = 0.0

    def op(self, name: str, dur: float = 500.0) -> None:
        self.events.append(slice_event(name, self.now, dur))
        self.now += dur + 10

    def forward(self, dur: float = 500.0) -> None:
        for name in FORWARD:
            self.op(name, dur)

    def backward(self, dur: float = 500.0) -> None:
        for name in BACKWARD:
            self.op(ENGINE + name, dur)

    def annotate(self, name: str, start: float, **fields: Any) -> None:
        self.events.append(slice_event(name, start, self.now - start, cat="user_annotation", **fields))


def record(folder: Path, ranks: int, steps: int, work: Any) -> Run:
    """Ranks over gloo: `work(script, rank, step)` and an all_reduce in every step, which all leave together."""
    scripts = [Script() for _ in range(ranks)]
    for step in range(1, steps + 1):
        begins = scripts[0].now
        for rank, script in enumerate(scripts):
            work(script, rank, step)
        together = max(script.now for script in scripts) + 200
        for script in scripts:
            arrived, script.now = script.now, together
            script.annotate("gloo:all_reduce", arrived, tid=2)
            script.op("aten::add_", 100.0)
            script.annotate(f"ProfilerStep#{step}", begins)
    for rank, script in enumerate(scripts):
        info = {"backend": "gloo", "rank": rank, "world_size": ranks}
        write_kineto(folder / f"rank-{rank}.pt.trace.json", script.events, distributedInfo=info)
    return Run(ingest([folder]))


def ask(run: Run, report: str = "stragglers", by: str | None = None, **scope: Any) -> Result:
    return REPORTS[report].analyse(run, Scope(**scope), by)


def the_finding(run: Run, report: str) -> Finding:
    (finding,) = ask(run, report).findings
    return finding


Counts = dict[tuple[int, int, int], int]
"""By rank, step and op."""


@settings(max_examples=examples(80))
@given(st.dictionaries(st.tuples(st.integers(0, 4), st.integers(0, 2), st.integers(0, 3)), st.integers(1, 4)))
def test_calls_are_compared_with_the_median_of_the_others(counts: Counts) -> None:
    """A rank that has no op in a step was not recorded in it."""
    records = {}
    for rank in sorted({rank for rank, _, _ in counts}):
        rows = [(step, op, calls) for (owner, step, op), calls in counts.items() if owner == rank]
        step, op, calls = (np.array(column, dtype=np.int64) for column in zip(*rows, strict=True))
        names = tuple(f"op{number}" for number in range(4))
        records[rank] = RankOps(names, step, op, calls, 10 * calls, 0 * calls)
    table = _side_by_side(records, None)
    assert {
        (table.ranks[who], int(table.step[row]), int(table.name[row])): int(table.calls[row, who])
        for row, who in zip(*np.nonzero(np.nan_to_num(table.calls)), strict=True)
    } == counts
    for row, (step_number, name) in enumerate(zip(table.step.tolist(), table.name.tolist(), strict=True)):
        there = [rank for rank in table.ranks if any(key[:2] == (rank, step_number) for key in counts)]
        for who, rank in enumerate(table.ranks):
            others = [counts.get((other, step_number, name), 0) for other in there if other != rank]
            if rank not in there or not others:
                assert np.isnan(table.median_calls[row, who])
                continue
            mine = counts.get((rank, step_number, name), 0)
            assert table.median_calls[row, who] == min(max(mine, median_low(others)), median_high(others))


def test_without_steps_all_ops_count() -> None:
    empty = np.array([], dtype=np.int64)
    one = np.array([3], dtype=np.int64)
    records = {0: RankOps(("a",), 0 * one + NO_STEP, 0 * one, one, one, one), 1: RankOps((), *[empty] * 5)}
    table: OpCalls = _side_by_side(records, None)
    assert table.calls[0, 0] == 3 and np.isnan(table.calls[0, 1])


def evaluates(script: Script, rank: int, step: int) -> None:
    script.forward()
    script.backward()
    if rank == 1 and step % 3 == 0:
        for _ in range(7):
            script.forward()


@pytest.mark.slow
def test_evaluation_on_one_rank_is_so_many_forward_passes(tmp_path: Path) -> None:
    run = record(tmp_path / "run", 4, 9, evaluates)
    rows = ask(run, "stragglers.op_differences").rows
    assert {(row["rank"], row["steps"]) for row in rows} == {(1, "3,6,9")} and len(rows) == len({*FORWARD})
    assert {row["name"]: (row["calls"], row["median_calls"]) for row in rows} == {
        name: (24 * FORWARD.count(name), 3 * FORWARD.count(name)) for name in FORWARD
    }
    assert all(row["host_ns"] == row["calls"] * 500_000 for row in rows)
    assert {row["rank"] for row in ask(run, "stragglers.op_differences", ranks=frozenset({0})).rows} == set()
    assert causes_of_ranks(run, Scope()).keys() == {1}
    by_step = ask(run, "stragglers", "step").rows
    extra = 7 * len(FORWARD) * 510_000
    for row in by_step:
        late = row["step"] in (3, 6, 9)
        assert (row["last_rank"], row["excess_ns"]) == ((1, extra) if late else (None, 0))
        assert row["caused_wait_ns"] == 3 * row["excess_ns"]


def accumulates(long: Sequence[int]) -> Any:
    def work(script: Script, rank: int, step: int) -> None:
        for number in range(4):
            dur = 500.0 * (8.0 if rank in long and number == 2 else 1.0)
            script.forward(dur)
            script.backward(dur)

    return work


@pytest.mark.slow
def test_a_long_micro_batch_of_one_rank_is_its_reason(tmp_path: Path) -> None:
    run = record(tmp_path / "run", 4, 5, accumulates([2]))
    rows = ask(run, "stragglers.micro_batches").rows
    assert len(rows) == 4 * 5 * 4
    for row in rows:
        dur = 8 if (row["rank"], row["micro_batch"]) == (2, 3) else 1
        assert row["forward_ns"] == dur * len(FORWARD) * 500_000
        assert row["backward_ns"] == dur * len(BACKWARD) * 500_000
        assert row["ratio"] == dur
    assert not ask(run, "stragglers.micro_batches").findings
    assert causes_of_ranks(run, Scope()).keys() == {2}


@pytest.mark.slow
def test_a_long_micro_batch_of_all_ranks_is_a_fault(tmp_path: Path) -> None:
    run = record(tmp_path / "run", 4, 5, accumulates(range(4)))
    (fault,) = faults_of(run, Scope()).listed
    (batch,) = fault.subjects
    assert (fault.axis, batch.number) == ("position", 3)
    extra_ns = 7 * 500_000 * len(FORWARD + BACKWARD)
    assert fault.cost_ns == pytest.approx(extra_ns)
    found = collect(run, Scope())[0]
    assert found.title == (
        "Micro-batch 3 of 4 costs 38.5 ms per step (63 %) on all ranks; it takes 8.0x as long as the others"
    )
    assert found.subject == "micro-batch 3"
    assert (
        found.evidence == "forward and backward: 44.0 ms, rank 0; forward and backward: 5.50 ms, the others"
    )


@pytest.mark.slow
def test_micro_batches_that_are_long_in_turn_name_none(tmp_path: Path) -> None:
    def work(script: Script, rank: int, step: int) -> None:
        for number in range(4):
            dur = 4000.0 if number == 3 * step % 4 else 500.0
            script.forward(dur)
            script.backward(dur)

    assert not faults_of(record(tmp_path / "run", 4, 8, work), Scope()).listed


@pytest.mark.slow(every_variation=True)
@pytest.mark.parametrize("number", range(2, 6))
def test_of_two_micro_batches_none_is_named(number: int, tmp_path: Path) -> None:
    """From three on it can be told which is long."""

    def work(script: Script, rank: int, step: int) -> None:
        for at in range(number):
            dur = 4000.0 if at == 0 else 500.0
            script.forward(dur)
            script.backward(dur)

    listed = faults_of(record(tmp_path / "run", 4, 5, work), Scope()).listed
    named = [(fault.axis, [each.number for each in fault.subjects]) for fault in listed]
    assert named == ([("position", [1])] if number > 2 else [])


@pytest.mark.parametrize("seed", range(3))
def test_gaps_between_the_same_ops_are_summed(seed: int, tmp_path: Path) -> None:
    """Against a walk over every op in order."""
    random_numbers = random.Random(seed)
    script = Script()
    ops = []
    for _ in range(60):
        name = random_numbers.choice(["aten::a", "aten::b", "aten::c"])
        dur = random_numbers.randint(1, 50)
        script.events.append(slice_event(name, script.now, dur))
        ops.append((script.now, script.now + dur, name))
        script.now += dur + random_numbers.choice([0, 0, 7, 30, 500])
    ops.append((script.now, script.now, ""))  # no op follows the last one
    script.annotate("ProfilerStep#1", 0)
    write_kineto(tmp_path / "rank-0.pt.trace.json", script.events)
    run = Run(ingest([tmp_path]))
    window = (100_000, round(script.now * 1000) - 100_000)
    expected: dict[tuple[str, str], int] = {}
    for (_, before, first), (after, _, second) in pairwise(ops):
        length = min(round(after * 1000), window[1]) - max(round(before * 1000), window[0])
        if length > 0:
            expected[first, second] = expected.get((first, second), 0) + length
    times = gaps(run, 0, [window])
    assert times.totals() == expected
    for around, total in expected.items():
        assert (times.end - times.start)[times.between(around)].sum() == total
