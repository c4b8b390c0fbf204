"""ComputeClock against numpy's interpolation, rank by rank."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from rankscope.analysis.critical_path.compute_clock import ComputeClock


@settings(max_examples=200, deadline=None)
@given(seed=st.integers(0, 10_000), ranks=st.integers(1, 4), count=st.integers(0, 12))
def test_compute_between_two_times(seed: int, ranks: int, count: int) -> None:
    draw = np.random.default_rng(seed)
    names = np.sort(draw.choice(20, ranks, replace=False))
    start = draw.integers(0, 50, count)
    took: Any = draw.integers(0, 9, count)
    segments: Any = SimpleNamespace(
        rank=draw.choice([*names, 99], count), start=start, end=start + draw.integers(0, 9, count)
    )
    other = took * 2.0
    clock = ComputeClock.of(segments, names.tolist())
    number, begin = draw.integers(0, ranks, 30), draw.integers(-5, 70, 30)
    end = begin + draw.integers(0, 20, 30)
    moments = clock.moments(number, begin), clock.moments(number, end)
    for durations in (took, other):
        between = clock.between(*moments, durations)
        for at in range(30):
            expected = [
                by_interpolation(segments, durations, names[number[at]], time)
                for time in (begin[at], end[at])
            ]
            assert abs(between[at] - (expected[1] - expected[0])) < 1e-9


def by_interpolation(segments: Any, took: Any, rank: int, time: int) -> float:
    mine = np.flatnonzero(segments.rank == rank)
    mine = mine[np.lexsort((segments.end[mine], segments.start[mine]))]
    if not len(mine):
        return 0.0
    times = np.maximum.accumulate(np.stack([segments.start[mine], segments.end[mine]], axis=1).reshape(-1))
    sums = np.cumsum(np.stack([np.zeros(len(mine)), took[mine]], axis=1).reshape(-1))
    return float(np.interp(time, times, sums))
