"""Interval algebra against brute force: sets of single nanoseconds."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankscope import native
from rankscope.analysis.core.intervals import Axis, Intervals, intersect, join, length, subtract, union

RAW = st.lists(st.tuples(st.integers(-20, 40), st.integers(-5, 15)), max_size=12)


def points(raw: list[tuple[int, int]]) -> set[int]:
    return {t for start, duration in raw for t in range(start, start + duration)}


def make(raw: list[tuple[int, int]]) -> Intervals:
    array = np.array(raw, dtype=np.int64).reshape(-1, 2)
    return union(array[:, 0], array[:, 0] + array[:, 1])


def covered(a: Intervals) -> set[int]:
    return {t for start, end in zip(a.start.tolist(), a.end.tolist(), strict=True) for t in range(start, end)}


@given(RAW)
def test_union_covers_exactly_and_is_disjoint_and_sorted(raw: list[tuple[int, int]]) -> None:
    a = make(raw)
    assert covered(a) == points(raw)
    assert length(a) == len(points(raw))
    assert all(a.end > a.start) and all(a.start[1:] > a.end[:-1])


@given(RAW, RAW)
def test_c_and_numpy_give_the_same_intervals(x: list[tuple[int, int]], y: list[tuple[int, int]]) -> None:
    """Also of intervals that are empty or in no order, which some callers have in the first set."""
    raw = np.array(x, dtype=np.int64).reshape(-1, 2)
    a, b = Intervals(raw[:, 0], raw[:, 0] + np.abs(raw[:, 1])), make(y)

    def answers() -> list[list[int]]:
        sets = (union(raw[:, 0], raw[:, 0] + raw[:, 1]), intersect(a, b), subtract(b, make(x)))
        return [column.tolist() for each in sets for column in each]

    with_c = answers()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(native, "functions", None)
        assert with_c == answers()


@pytest.mark.slow
@given(RAW, RAW)
def test_set_operations(x: list[tuple[int, int]], y: list[tuple[int, int]]) -> None:
    a, b = make(x), make(y)
    assert covered(intersect(a, b)) == points(x) & points(y)
    assert covered(subtract(a, b)) == points(x) - points(y)
    assert covered(join(a, b)) == points(x) | points(y)
    for result in (intersect(a, b), subtract(a, b)):
        assert all(result.end > result.start)


@pytest.mark.slow
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 30), st.integers(0, 9)), max_size=15))
def test_groups_side_by_side_do_not_mix(raw: list[tuple[int, int, int]]) -> None:
    array = np.array(raw, dtype=np.int64).reshape(-1, 3)
    group, start, end = array[:, 0], array[:, 1], array[:, 1] + array[:, 2]
    axis = Axis.over(start, end, 4)
    lengths = axis.lengths(union(axis.place(start, group), axis.place(end, group)))
    assert lengths.tolist() == [
        len(points([(s, d) for g, s, d in raw if g == wanted])) for wanted in range(4)
    ]
