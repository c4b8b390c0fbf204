"""Rows and parents against brute force."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankscope import native
from rankscope.store.arrays import NONE
from rankscope.store.nesting import Nesting, nest, nest_with_numpy

SLICES = st.lists(
    st.tuples(st.integers(0, 2), st.integers(0, 12), st.sampled_from([-3, 0, 0, 1, 2, 3, 8, 12])), max_size=14
)


def columns(slices: list[tuple[int, int, int]]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    array = np.array(slices, dtype=np.int64).reshape(-1, 3)
    return array[:, 0], array[:, 1], np.maximum(array[:, 1] + array[:, 2], array[:, 1] + 1)


def solve(slices: list[tuple[int, int, int]]) -> Nesting:
    array = np.array(slices, dtype=np.int64).reshape(-1, 3)
    return nest(array[:, 0], array[:, 1], array[:, 1] + array[:, 2])


@pytest.mark.slow
@given(SLICES)
def test_no_two_slices_of_a_row_overlap(slices: list[tuple[int, int, int]]) -> None:
    track, start, end = columns(slices)
    row = solve(slices).row
    for i in range(len(slices)):
        for j in range(i):
            if track[i] == track[j] and row[i] == row[j]:
                assert end[i] <= start[j] or end[j] <= start[i]


@pytest.mark.slow
@given(SLICES)
def test_a_parent_contains_its_child_and_stands_above_it(slices: list[tuple[int, int, int]]) -> None:
    track, start, end = columns(slices)
    nesting = solve(slices)
    for child, parent in enumerate(nesting.parent):
        containing = [
            other
            for other in range(len(slices))
            if track[other] == track[child]
            and start[other] <= start[child]
            and end[other] >= end[child]
            and (start[other], -end[other], other) < (start[child], -end[child], child)
        ]
        assert (parent == NONE) == (not containing)
        if parent != NONE:
            assert parent in containing
            assert nesting.row[parent] < nesting.row[child]


@pytest.mark.slow
@given(SLICES)
def test_levels_hold_every_slice_once_below_its_parent(slices: list[tuple[int, int, int]]) -> None:
    nesting = solve(slices)
    level_of = {int(index): level for level, members in enumerate(nesting.levels) for index in members}
    assert sorted(level_of) == list(range(len(slices)))
    for child, parent in enumerate(nesting.parent.tolist()):
        assert level_of[child] == (level_of[parent] + 1 if parent != NONE else 0)


def test_nested_calls_take_one_row_each() -> None:
    nesting = solve([(0, 0, 10), (0, 1, 4), (0, 2, 2), (0, 6, 3)])
    assert nesting.row.tolist() == [0, 1, 2, 1]
    assert nesting.parent.tolist() == [NONE, 0, 1, 0]


def test_crossing_slices_go_to_rows_of_their_own() -> None:
    nesting = solve([(0, 0, 10), (0, 5, 10), (0, 12, 8)])
    assert nesting.row.tolist() == [0, 1, 0]
    assert nesting.parent.tolist() == [NONE, NONE, NONE]


@pytest.mark.skipif(native.functions is None, reason="the C parts were not built")
@given(SLICES)
def test_c_and_numpy_agree(slices: list[tuple[int, int, int]]) -> None:
    array = np.array(slices, dtype=np.int64).reshape(-1, 3)
    columns = array[:, 0], array[:, 1], array[:, 1] + array[:, 2]
    native_one, numpy_one = nest(*columns), nest_with_numpy(*columns)
    assert native_one.row.tolist() == numpy_one.row.tolist()
    assert native_one.parent.tolist() == numpy_one.parent.tolist()
    assert native_one.order.tolist() == numpy_one.order.tolist()
