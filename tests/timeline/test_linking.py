"""Links, steps and pairs on small, hand-made arrays."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from rankscope.store.arrays import NONE
from rankscope.timeline.nesting import nest, self_time, slice_at, slice_at_with_numpy
from rankscope.timeline.segment import device_time
from rankscope.timeline.slices import find_steps, match_first, pair_halves


def ints(*values: int) -> np.ndarray:
    return np.array(values, dtype=np.int64)


@given(st.lists(st.integers(0, 6), max_size=12), st.lists(st.integers(0, 8), max_size=12))
def test_match_first_is_the_first_occurrence(keys: list[int], wanted: list[int]) -> None:
    found = match_first(np.array(keys, dtype=np.int64), np.array(wanted, dtype=np.int64))
    expected = [keys.index(key) if key > 0 and key in keys else NONE for key in wanted]
    assert found.tolist() == expected


def test_self_time_leaves_out_direct_children_only() -> None:
    start, end = ints(0, 1, 2, 6), ints(10, 5, 4, 9)
    nesting = nest(ints(0, 0, 0, 0), start, end)
    assert self_time(nesting, end - start).tolist() == [3, 2, 2, 3]


def test_slice_at_finds_the_innermost_open_slice() -> None:
    track, start, end = ints(0, 0, 0, 1), ints(0, 2, 20, 0), ints(10, 4, 30, 5)
    nesting = nest(track, start, end)
    places = [(0, 0), (0, 3), (0, 7), (0, 15), (0, 20), (1, 4), (2, 0)]
    found = slice_at(nesting, track, start, end - start, *np.array(places, dtype=np.int64).T)
    assert found.tolist() == [0, 1, 0, NONE, 2, 3, NONE]


SLICES = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 12), st.integers(-3, 12)), max_size=14)
QUESTIONS = st.lists(st.tuples(st.integers(-1, 3), st.integers(-2, 26)), max_size=14)


@given(SLICES, QUESTIONS)
def test_the_open_slice_is_the_same_in_c_and_numpy(
    slices: list[tuple[int, int, int]], questions: list[tuple[int, int]]
) -> None:
    track, start, duration = np.array(slices, dtype=np.int64).reshape(-1, 3).T
    at_track, at_time = np.array(questions, dtype=np.int64).reshape(-1, 2).T
    asked = nest(track, start, start + duration), track, start, duration, at_track, at_time
    assert slice_at(*asked).tolist() == slice_at_with_numpy(*asked).tolist()


def test_profiler_steps_come_first() -> None:
    steps = find_steps([("Optimizer.step#SGD.step", 3, 4), ("ProfilerStep#7", 0, 5)])
    assert (steps.number.tolist(), steps.source) == ([7], "profiler")
    assert steps.at(ints(0, 4, 5, -1)).tolist() == [7, 7, NONE, NONE]


def test_numbered_annotations_are_steps_too() -> None:
    steps = find_steps([("step 3", 0, 5), ("Iteration #4", 6, 9), ("stepping", 0, 1)])
    assert (steps.number.tolist(), steps.source) == ([3, 4], "annotation")


def test_without_either_the_optimizer_tells() -> None:
    steps = find_steps(
        [
            ("forward", 1, 2),
            ("Optimizer.step#A", 3, 5),
            ("Optimizer.step#A", 8, 9),
        ]
    )
    assert (steps.start.tolist(), steps.end.tolist(), steps.source) == ([1, 5], [5, 9], "optimizer")


def test_no_annotations_no_steps() -> None:
    steps = find_steps([("forward", 1, 2)])
    assert (len(steps.number), steps.source) == (0, "")


def test_begin_and_end_pair_like_brackets() -> None:
    begins = np.array([True, True, False, False, True, False, False, True])
    pairs = pair_halves(ints(0, 0, 0, 0, 1, 1, 1, 0), ints(0, 1, 2, 3, 0, 1, 2, 9), begins, nested=True)
    assert sorted(zip(pairs.begin.tolist(), pairs.end.tolist(), strict=True)) == [(0, 3), (1, 2), (4, 5)]
    assert (pairs.never_ended.tolist(), pairs.never_begun.tolist()) == ([7], [6])


def test_async_events_pair_by_key() -> None:
    begins = np.array([True, True, False, False])
    pairs = pair_halves(ints(5, 6, 5, 6), ints(0, 1, 2, 3), begins, nested=False)
    assert sorted(zip(pairs.begin.tolist(), pairs.end.tolist(), strict=True)) == [(0, 2), (1, 3)]


@given(st.lists(st.tuples(st.integers(-1, 20), st.integers(0, 9), st.booleans()), max_size=20))
def test_device_time_is_that_of_the_ops_inside_too(rows: list[tuple[int, int, bool]]) -> None:
    """Ops are inside earlier ones; kernels come after them, each launched by an op or by none."""
    ops = [around if around < place else NONE for place, (around, _, _) in enumerate(rows)]
    kernels = [(min(place, around), time) for place, (around, time, launches) in enumerate(rows) if launches]
    op = ints(*ops, *(around for around, _ in kernels))
    duration = ints(*(time for _, time, _ in rows), *(time for _, time in kernels))
    is_gpu = np.arange(len(op)) >= len(rows)
    own_time: dict[int, int] = {}
    total = dict.fromkeys(range(len(rows)), 0)
    for around, time in kernels:
        if around != NONE:
            own_time[around] = own_time.get(around, 0) + time
        while around != NONE:
            total[around] += time
            around = ops[around]
    times = device_time(op, is_gpu, duration, np.arange(len(op)))
    inside = set(own_time)
    for around in own_time:
        while (around := ops[around]) != NONE:
            inside.add(around)
    assert times.op.tolist() == sorted(inside)
    assert times.own_time.tolist() == [own_time.get(place, 0) for place in sorted(inside)]
    assert times.total.tolist() == [total[place] for place in sorted(inside)]
