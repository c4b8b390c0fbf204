"""Steps in which all ranks take longer."""

from __future__ import annotations

import json
import statistics
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from conftest import slice_event
from rankscope.analysis import REPORTS
from rankscope.analysis.across_ranks.steps import exceptional
from rankscope.analysis.core.scope import Scope
from rankscope.timeline.run import Run, open_run


def _run(folder: Path, pauses: dict[int, dict[int, float]], steps: int = 10) -> Run:
    """Two ranks with 10 ms of ops and a collective in a step. `pauses`: by rank and step, ms between the ops."""
    at = [0.0, 0.0]
    events: list[list[dict[str, object]]] = [[], []]
    for step in range(steps):
        arrives = [at[rank] + 1000 * (10 + pauses.get(rank, {}).get(step, 0)) for rank in (0, 1)]
        end = max(arrives) + 100
        for rank in (0, 1):
            begin = arrives[rank] - 10_000
            events[rank] += [
                slice_event(f"ProfilerStep#{step}", at[rank], end - at[rank], cat="user_annotation"),
                slice_event("aten::first", at[rank], 1000),
                slice_event("aten::mm", begin + 1000, 9000),
                slice_event(
                    "gloo:all_reduce", arrives[rank], end - arrives[rank], cat="user_annotation", tid=2
                ),
            ]
            at[rank] = end
    for rank in (0, 1):
        header = {"distributedInfo": {"backend": "gloo", "rank": rank, "world_size": 2}}
        text = json.dumps({**header, "traceEvents": events[rank]})
        (folder / f"rank{rank}.pt.trace.json").write_text(text)
    return open_run([folder])


def test_a_pause_of_all_ranks(tmp_path: Path) -> None:
    run = _run(tmp_path, {rank: {3: 20.0, 6: 20.0, 9: 20.0} for rank in (0, 1)})
    (finding,) = REPORTS["steps"].analyse(run, Scope(), None).findings
    assert finding.title.startswith(
        "Steps 3,6,9 take 20.0 ms longer than the others on all ranks, every 3 steps"
    )
    assert "between aten::first and aten::mm" in finding.title
    assert finding.cost_ns == pytest.approx(3 * 20e6 / 10, rel=1e-3)
    assert not finding.ranks and finding.reachable


@pytest.mark.parametrize(
    "pauses",
    [
        {},
        {1: {3: 20.0, 6: 20.0}},  # one rank: a straggler, and the others wait
        {rank: dict.fromkeys(range(0, 10, 2), 20.0) for rank in (0, 1)},  # every second step is no exception
        {rank: {0: 20.0} for rank in (0, 1)},  # the first step warms up
    ],
)
def test_other_steps_are_none(tmp_path: Path, pauses: dict[int, dict[int, float]]) -> None:
    run = _run(tmp_path, pauses)
    assert REPORTS["steps"].analyse(run, Scope(), None).findings == ()


@given(st.lists(st.integers(-50, 400), min_size=3, max_size=20))
def test_exceptional_steps(extra: list[int]) -> None:
    middle = statistics.median(extra)
    noise = 1.4826 * statistics.median(abs(value - middle) for value in extra)
    slow = [value > max(0.3 * 100, 5 * noise) for value in extra]
    if sum(slow) > 0.34 * len(slow):
        slow = [False] * len(slow)
    assert exceptional(np.array(extra, dtype=np.float64), 100.0).tolist() == slow
