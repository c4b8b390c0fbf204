"""Twice the input is about twice the work, on each path that could compare everything with everything.

Work is counted: the lines of Python that run, and the entries of the arrays that numpy is handed.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import fields, replace
from functools import partial
from types import FrameType
from typing import Any

import numpy as np
import pytest

from rankscope import native
from rankscope.store.event_log import Events
from rankscope.timeline.clock_fit import Sightings, fit, fit_many
from rankscope.timeline.collectives.entries import Collectives, Group
from rankscope.timeline.collectives.matching import match_collectives
from rankscope.timeline.nesting import nearest_ancestor, nest_with_numpy
from rankscope.timeline.recording import _tracks
from rankscope.timeline.segment import _flow_steps, device_time
from rankscope.timeline.slices import find_steps, match_first, pair_halves

SIZE = 400
MOST = 2.6
"""Sorting adds a tenth to twice the work; comparing all pairs makes it four times as much."""


class Counted(np.ndarray[Any, Any]):
    """An array that counts what numpy is asked to do with it, and with what is made from it."""

    entries = 0

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, out: Any = None, **options: Any) -> Any:
        parts = inputs[1:] if method == "at" else inputs  # `at` changes some entries of the first
        Counted.entries += max(_size(part) for part in parts)
        if out is not None:
            options["out"] = out
        plain_options = {name: _plain(value) for name, value in options.items()}
        return _counted(getattr(ufunc, method)(*map(_plain, inputs), **plain_options))

    def __array_function__(self, function: Any, types: Any, args: Any, options: Any) -> Any:
        if function is np.searchsorted:
            Counted.entries += _search_cost(*args[:2])
        else:
            Counted.entries += sum(_size(part) for part in _flat((*args, *options.values())))
        plain_options = {name: _plain(value) for name, value in options.items()}
        return _counted(function(*map(_plain, args), **plain_options))

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, np.ndarray):
            Counted.entries += key.size
        return _counted(_plain(self)[_plain(key)])

    def __setitem__(self, key: Any, value: Any) -> None:
        Counted.entries += max(_size(key), _size(value))
        _plain(self)[_plain(key)] = _plain(value)


def _search_cost(ordered: Any, wanted: Any) -> int:
    """A binary search for each wanted entry; numbers of another type make numpy convert all of them first."""
    converted = 0 if getattr(wanted, "dtype", None) == ordered.dtype else _size(ordered)
    return int(_size(wanted)) * max(int(_size(ordered)).bit_length(), 1) + converted


def _size(value: Any) -> int:
    return (
        value.size if isinstance(value, np.ndarray) else len(value) if isinstance(value, (list, tuple)) else 1
    )


def _flat(values: Any) -> list[Any]:
    return [
        part
        for value in values
        for part in (_flat(value) if isinstance(value, (list, tuple)) else [value])
        if isinstance(part, np.ndarray)
    ]


def _plain(value: Any) -> Any:
    if isinstance(value, Counted):
        return value.view(np.ndarray)
    return type(value)(map(_plain, value)) if type(value) in (list, tuple) else value


def _counted(value: Any) -> Any:
    if isinstance(value, np.ndarray) and value.dtype != object:
        return value.view(Counted)
    return type(value)(map(_counted, value)) if type(value) in (list, tuple) else value


def counted(values: Any) -> Any:
    return np.array(values).view(Counted)


def work(function: Callable[..., Any], *args: Any) -> int:
    lines = 0

    def trace(frame: FrameType, event: str, value: Any) -> Any:
        nonlocal lines
        if "rankscope" not in frame.f_code.co_filename:
            return None
        lines += event == "line"
        return trace

    Counted.entries = 0
    before = sys.gettrace()
    sys.settrace(trace)
    try:
        function(*args)
    finally:
        sys.settrace(before)
    return lines + Counted.entries


def assert_linear(
    make: Callable[[int], tuple[Any, ...]], function: Callable[..., Any], size: int = SIZE
) -> None:
    once, twice = (work(function, *make(count)) for count in (size, 2 * size))
    assert once >= size / 4, "the work is not counted"
    assert twice <= MOST * once, f"{once} -> {twice}"


def test_the_count_tells_pairs_from_a_sort() -> None:
    def pairs(values: Any) -> None:
        np.abs(values[:, None] - values[None, :])

    once, twice = (work(pairs, counted(range(size))) for size in (SIZE, 2 * SIZE))
    assert twice > 3 * once
    assert_linear(lambda size: (counted(range(size)),), lambda values: np.sort(values))


def crossing(size: int) -> tuple[Any, ...]:
    """Each begins inside the one before and ends after it; all are open at once."""
    index = np.arange(size)
    return counted(np.zeros(size, np.int64)), counted(index), counted(index + size)


def nested(size: int) -> tuple[Any, ...]:
    index = np.arange(size)
    return counted(np.zeros(size, np.int64)), counted(index), counted(2 * size - index)


@pytest.mark.parametrize("make", [crossing, nested])
def test_slices_on_a_track(make: Callable[[int], tuple[Any, ...]]) -> None:
    assert_linear(make, nest_with_numpy)


def test_ancestors_of_nested_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "functions", None)

    def make(size: int) -> tuple[Any, ...]:
        nesting = nest_with_numpy(*map(_plain, nested(size)))
        nesting = replace(
            nesting, **{field.name: counted(getattr(nesting, field.name)) for field in fields(nesting)}
        )
        return nesting, counted(np.arange(size) % 2 == 0)

    assert_linear(make, nearest_ancestor)


def test_device_time_of_nested_ops() -> None:
    """Each op is inside the one before and launches a kernel."""

    def make(size: int) -> tuple[Any, ...]:
        ops = np.arange(-1, size - 1)
        op = np.concatenate([ops, np.arange(size)])
        columns = op, np.arange(2 * size) >= size, np.ones(2 * size, np.int64), np.arange(2 * size)
        return tuple(map(counted, columns))

    assert_linear(make, device_time)


@pytest.mark.parametrize("spread", [1, 1000])
@pytest.mark.parametrize("kinds", [(np.int32, np.int32), (np.int32, np.int64)])
def test_launches_of_kernels(spread: int, kinds: tuple[Any, Any]) -> None:
    def make(size: int) -> tuple[Any, ...]:
        ids = np.arange(size, 0, -1) * spread
        return tuple(counted(ids.astype(kind)) for kind in kinds)

    assert_linear(make, match_first)


def test_flows() -> None:
    """All have one id."""

    def make(size: int) -> tuple[Any, ...]:
        return counted(np.zeros(size, np.int64)), counted(np.arange(size) % 3)

    assert_linear(make, _flow_steps)


@pytest.mark.parametrize("nested", [True, False])
def test_pairs(nested: bool) -> None:
    def make(size: int) -> tuple[Any, ...]:
        index = np.arange(size)
        return counted(index % 2 * 0), counted(index), counted(index < size // 2)

    assert_linear(make, partial(pair_halves, nested=nested))


@pytest.mark.parametrize("name", ["ProfilerStep#{}", "step {}", "Optimizer.step#{}"])
def test_steps(name: str) -> None:
    def make(size: int) -> tuple[Any, ...]:
        return ([(name.format(number), number, number + 1) for number in range(size, 0, -1)],)

    assert_linear(make, find_steps)


def test_groups_of_events() -> None:
    """Each thread has one event."""

    def make(size: int) -> tuple[Any, ...]:
        texts = ["X", "cpu_op", "1", *map(str, range(1000, 1000 + size))]
        codes = np.arange(size)
        groups = np.stack([codes * 0, codes * 0 + 1, codes * 0 + 2, codes + 3], axis=1).astype(np.int32)
        sparse = {field.name: np.empty(0, np.int32) for field in fields(Events)}
        columns = {**sparse, "group": counted(codes), "groups": groups, "texts": texts, "args": {}}
        return Events(**columns), counted(np.ones(size, bool))

    assert_linear(make, _tracks)


def test_places_of_linked_events(monkeypatch: pytest.MonkeyPatch) -> None:
    """Looked up some at a time, as the tables are written."""
    monkeypatch.setattr(native, "functions", None)

    def make(size: int) -> tuple[Any, ...]:
        columns = {field.name: np.empty(0, np.int32) for field in fields(Events)}
        return Events(**{**columns, "linked": counted(np.arange(size, dtype=np.int32))}), size

    def look_up(events: Events, size: int) -> None:
        for begin in range(0, size, 10):
            events.places(counted(np.arange(begin, begin + 10)))

    assert_linear(make, look_up)


@pytest.mark.slow(every_variation=True)
@pytest.mark.parametrize(("many_ranks", "size"), [(False, 5000), (True, SIZE)])
@pytest.mark.parametrize("numbered", [True, False])
def test_collectives_of_ranks(many_ranks: bool, size: int, numbered: bool) -> None:
    """With sequence numbers, and by their order: of two ranks, and four each of many. Of two ranks, the first thousand
    are compared in several hundred ways."""

    def make(size: int) -> tuple[Any, ...]:
        ranks = size // 4 if many_ranks else 2
        rank, index = np.divmod(np.arange(size), size // ranks)
        none, zero = np.full(size, -1), np.zeros(size, np.int64)
        arrays = {field.name: none for field in fields(Collectives)}
        arrays |= {"rank": rank, "segment": zero, "slice": np.arange(size), "group": zero, "kind": zero}
        arrays |= {"start": 10 * index, "end": 10 * index + 5, "on_device": zero == 0}
        arrays |= {"seq": index if numbered else none, "sends": none[:0], "recvs": none[:0]}
        columns: dict[str, Any] = {name: counted(array) for name, array in arrays.items()}
        groups = (Group("0", "default_pg", tuple(range(ranks)), ranks),)
        rows = Collectives(**columns | {"groups": groups, "dtypes": (), "batches": (), "unmatched": ()})
        return rows, counted(zero)

    assert_linear(make, match_collectives, size)


@pytest.mark.parametrize(("solve", "clocks"), [(fit, lambda size: 4), (fit_many, lambda size: size // 4)])
def test_clocks(solve: Callable[..., Any], clocks: Callable[[int], int]) -> None:
    """Of more moments, and of more ranks."""

    def make(size: int) -> tuple[Any, ...]:
        count = clocks(size)
        moment = np.repeat(np.arange(size * 4 // count if count != 4 else size), count)
        clock = np.tile(np.arange(count), len(moment) // count)
        time = moment * 100_000 + clock * 7
        return Sightings(*map(counted, (moment, clock, time, moment * 0))), count

    assert_linear(make, solve)
