"""Rows and parents against brute force."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankscope import native
from rankscope.store.arrays import NONE
from rankscope.timeline import nesting
from rankscope.timeline.nesting import Nesting, nest, nest_with_numpy

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


def brute_force(start: np.ndarray, end: np.ndarray, order: np.ndarray) -> tuple[list[int], list[int]]:
    """Rows and parents of one track, with a look at every row for each slice."""
    rows: list[int] = []  # the latest slice of each
    depth, parent = [0] * len(start), [NONE] * len(start)
    for slice in order.tolist():
        around = [row for row, other in enumerate(rows) if end[other] >= end[slice]]
        first = around[-1] + 1 if around else 0
        free = [row for row, other in enumerate(rows) if row >= first and end[other] <= start[slice]]
        depth[slice] = min(free, default=len(rows))
        parent[slice] = rows[around[-1]] if around else NONE
        rows[depth[slice] : depth[slice] + 1] = [slice]
    return depth, parent


@pytest.mark.parametrize("longest", [40, 400, 4000])
@pytest.mark.parametrize("solve", [nest, nest_with_numpy])
def test_many_rows_against_brute_force(solve: Callable[..., Nesting], longest: int) -> None:
    """More open slices at once than are looked through one by one."""
    chance = np.random.default_rng(longest)
    start = chance.integers(0, 1000, 700)
    end = start + chance.integers(1, longest, 700)
    nesting = solve(np.zeros(700, dtype=np.int64), start, end)
    depth, parent = brute_force(start, end, nesting.order)
    assert nesting.row.max() > 20
    assert nesting.row.tolist() == depth
    assert nesting.parent.tolist() == parent


@pytest.mark.slow
def test_overlapping_and_deep_slices_in_n_log_n() -> None:
    """With a look at every row this takes minutes."""
    count = 300_000
    start = np.arange(count)
    track = np.zeros(count, dtype=np.int64)
    assert nest(track, start, start + count).row.tolist() == list(range(count))
    deep = nest(track, start, 2 * count - start)
    assert deep.parent.tolist() == list(range(-1, count - 1))
    few = start[:20_000]
    overlapping = nest_with_numpy(track[:20_000], few, few + count)
    assert overlapping.row.tolist() == few.tolist()
    assert len(Nesting(deep.row[:20_000], deep.parent[:20_000], deep.order[:20_000]).levels) == 20_000


@pytest.mark.skipif(native.functions is None, reason="the C parts were not built")
@given(SLICES)
def test_c_and_numpy_agree(slices: list[tuple[int, int, int]]) -> None:
    array = np.array(slices, dtype=np.int64).reshape(-1, 3)
    columns = array[:, 0], array[:, 1], array[:, 1] + array[:, 2]
    native_one, numpy_one = nest(*columns), nest_with_numpy(*columns)
    assert native_one.row.tolist() == numpy_one.row.tolist()
    assert native_one.parent.tolist() == numpy_one.parent.tolist()
    assert native_one.order.tolist() == numpy_one.order.tolist()


@pytest.mark.skipif(native.functions is None, reason="numpy nests all tracks at once")
def test_tracks_nested_by_several_threads_are_nested_as_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    random = np.random.default_rng(5)
    track = random.integers(0, 40, 3_000)
    start = random.integers(0, 2_000, 3_000)
    end = start + random.integers(0, 60, 3_000)
    expected = nest_with_numpy(track, start, end)
    for at_once in (1, 100, 5_000):
        monkeypatch.setattr(nesting, "_SLICES_AT_ONCE", at_once)
        with ThreadPoolExecutor(4) as pool:
            nested = nest(track, start, end, pool.map)
        for name, column in vars(expected).items():
            assert getattr(nested, name).tolist() == column.tolist()
