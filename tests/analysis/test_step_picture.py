"""The step that is drawn first: the planted culprit is marked, its peers wait, the sets add up to the breakdown."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from conftest import DATA
from rankscope.analysis.across_ranks.step_picture import (
    MOST_RANKS,
    StepPicture,
    _chosen,
    _longest,
    step_picture,
)
from rankscope.analysis.core.intervals import EMPTY, Intervals, length
from rankscope.analysis.core.result import Fact, Finding
from rankscope.analysis.core.scope import Scope
from rankscope.analysis.core.step_times import run_step_times
from rankscope.analysis.within_rank.breakdown import breakdown
from rankscope.timeline.run import Run
from rankscope.views.charts.heatmap import NARROW, caption, step_picture_chart

SLOW = Finding(
    "critical", "Rank 2 costs time", ranks=(2,), facts=(Fact("cause", "compute"),), report="faults"
)


@pytest.fixture
def run(open_real: Callable[[Path], Run]) -> Run:
    return open_real(DATA / "seqpar-gloo4-slow2")


def drawn(run: Run, finding: Finding | None) -> StepPicture:
    picture = step_picture(run, Scope().in_run(run), finding)
    assert picture is not None
    return picture


def test_the_culprit_and_those_who_wait(run: Run) -> None:
    picture = drawn(run, SLOW)
    assert [row.rank for row in picture.rows if row.is_culprit] == [2]
    stretches = [row.stretch for row in picture.rows]
    assert [stretch and stretch.label for stretch in stretches] == ["waits", "waits", "slow_extra", "waits"]
    arrival = picture.arrival
    assert arrival is not None and (arrival.rank, arrival.kind) == (2, "reduce_scatter")
    for row, stretch in zip(picture.rows, stretches, strict=True):
        assert stretch is not None
        # Clocks are aligned to some microseconds: a wait ends when the last rank arrives.
        assert abs(stretch.end_ns - arrival.at_ns) < 100_000, row.rank


def test_the_sets_are_those_of_the_breakdown(run: Run) -> None:
    picture = drawn(run, None)
    broken = breakdown(run, Scope().in_run(run))
    rows = {row["rank"]: row for row in broken.rows if row["step"] == picture.step}
    for row in picture.rows:
        known = rows[row.rank]
        assert row.end_ns - row.start_ns == known["span_ns"]
        parts = row.parts
        assert length(parts.compute) == known["compute_ns"] and length(parts.copy) == known["exposed_copy_ns"]
        assert length(parts.waiting) == known["exposed_wait_ns"] and length(parts.idle) == known["idle_ns"]
        assert length(parts.communication) == known["exposed_comm_ns"] - known["exposed_wait_ns"]


def test_a_wait_is_not_said_over_compute(run: Run) -> None:
    """Short waits between calls of compute: none of them is long, however close they are."""
    (row,) = [row for row in drawn(run, None).rows if row.rank == 0]
    row = replace(row, start_ns=0, end_ns=100_000)
    short = [*range(0, 22_000, 1000)]
    waits = Intervals(
        np.array([*short, 50_000, 55_100]), np.array([at + 200 for at in short] + [55_000, 60_000])
    )
    stretch = _longest(row, waits, "wait", "waits")
    assert stretch is not None and (stretch.start_ns, stretch.end_ns) == (50_000, 60_000)
    stretch = _longest(row, Intervals(waits.start[:22], waits.end[:22]), "wait", "waits")
    assert stretch is not None and stretch.end_ns - stretch.start_ns == 200
    assert _longest(row, EMPTY, "wait", "waits") is None


def test_without_a_finding_it_is_the_longest_step(run: Run) -> None:
    times: dict[int, list[int]] = {}
    for row in breakdown(run, Scope().in_run(run)).rows:
        if row["step"] is not None:
            times.setdefault(row["step"], []).append(row["span_ns"])
    picture = drawn(run, None)
    assert picture.step == max(times, key=lambda step: sum(times[step]))
    assert not any(row.is_culprit for row in picture.rows)


def test_only_a_fault_marks_culprits(run: Run) -> None:
    assert not any(row.is_culprit for row in drawn(run, replace(SLOW, report="dataloader")).rows)


def test_of_the_steps_of_a_fault_the_longest_is_drawn(run: Run) -> None:
    times = run_step_times(run, Scope())
    for late in [(3,), (4, 5, 6)]:
        assert drawn(run, replace(SLOW, steps=late)).step == max(late, key=times.__getitem__)


def test_a_run_without_steps_has_no_such_picture(open_real: Callable[[Path], Run]) -> None:
    run = open_real(DATA / "seqpar-gloo4-slow2")
    assert step_picture(run, Scope(whole_file=True), None) is not None, (
        "steps are known, whatever figures cover"
    )
    assert step_picture(run, Scope(frozenset({77})), None) is None


def test_of_many_ranks_some_are_drawn() -> None:
    ranks = list(range(1024))
    assert _chosen(ranks[:4], (), None, []) == [0, 1, 2, 3]
    chosen = _chosen(ranks, (137,), None, list(range(128, 160)))
    assert len(chosen) <= MOST_RANKS and 137 in chosen and sum(128 <= rank < 160 for rank in chosen) > 8


def test_the_caption_says_what_is_drawn(run: Run) -> None:
    picture = drawn(run, SLOW)
    text = caption(picture)
    assert text.startswith(f"Step {picture.step} on all ranks, clocks aligned to ±")
    assert caption(replace(picture, ranks=1024, clock_error_ns=None, arrival=None)) == (
        f"Step {picture.step} on 4 of 1,024 ranks."
    )
    assert step_picture_chart(picture, NARROW).width == NARROW
