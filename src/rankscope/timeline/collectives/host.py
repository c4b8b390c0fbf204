"""Collectives on the host (gloo): their start, size and type, and the op that called them.

They run on worker threads without metadata. The c10d op that called them is on another thread. Workers process calls
first in, first out, so runs and calls are paired by order and size.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rankscope.collective_kinds import OTHER, kind_of
from rankscope.model import SYNC_CALL_PATTERN
from rankscope.store.arrays import NONE, Ints
from rankscope.text.json_values import listed
from rankscope.timeline.json_arguments import arguments, text_at
from rankscope.timeline.slices import SliceTable, named

_SYNC_CALL = re.compile(SYNC_CALL_PATTERN)
_MOST_ELEMENTS = 1 << 60
"""More than any tensor has; sizes whose product is larger are made up."""


@dataclass(frozen=True)
class Side:
    """Calls, or the runs on worker threads that they led to, in order of time."""

    id: Ints
    start: Ints
    kind: NDArray[np.str_]
    elements: Ints
    """Number of input elements; NONE if not recorded."""

    def keys(self, by_size: bool) -> NDArray[np.str_]:
        """Keys that are equal in a run and its call."""
        if not by_size:
            return self.kind
        return np.char.add(np.char.add(self.kind, " "), self.elements.astype(str))


@dataclass(frozen=True)
class HostRun:
    """A collective on the host."""

    slice: int
    begin_ns: int
    """After the synchronisation calls at its beginning."""
    elements: int
    """NONE if not recorded."""
    type: str
    call: int
    """The slice of the op that called it, or NONE."""


def pair_host_collectives(source: SliceTable, on_host: Ints, outermost_calls: Ints) -> list[HostRun]:
    """Start, size, type and call of each host collective, in order of time."""
    if len(on_host) == 0:
        return []
    slices = source.slices
    begin = _begins(source, on_host)
    on_host = _by_time(source, on_host)
    outermost_calls = _by_time(source, outermost_calls)
    texts = source.recording.events.texts
    run_args, call_args = _args(source, on_host), _args(source, outermost_calls)
    run_names = [texts[code] for code in slices.name[on_host].tolist()]
    call_names = [texts[code] for code in slices.name[outermost_calls].tolist()]
    run_dims = [text_at(args, "Input Dims") for args in run_args]
    call_dims = [text_at(args, "Input Dims") for args in call_args]
    runs = _side(source, on_host, run_names, map(run_elements, run_dims))
    calls = _side(source, outermost_calls, call_names, map(call_elements, call_names, call_dims))
    around = source.links.op[on_host].astype(np.int64)
    call = pair_calls(runs, calls, np.where(np.isin(around, calls.id), around, NONE))
    types = [_first_type(text_at(args, "Input type")) for args in run_args]
    rows = zip(on_host.tolist(), runs.elements.tolist(), types, call.tolist(), strict=True)
    return [HostRun(at, begin[at], elements, kind, by) for at, elements, kind, by in rows]


def _by_time(source: SliceTable, index: Ints) -> Ints:
    slices = source.slices
    return index[np.lexsort((slices.event[index], slices.time[index]))]


def _args(source: SliceTable, index: Ints) -> list[Any]:
    events = source.recording.events
    return [arguments(events.args.get(event)) for event in source.slices.event[index].tolist()]


def _begins(source: SliceTable, on_host: Ints) -> dict[int, int]:
    """When each host collective begins: after the synchronisation calls before its first other child."""
    slices, parent = source.slices, source.nesting.parent
    begin = dict(zip(on_host.tolist(), slices.time[on_host].tolist(), strict=True))
    children = np.flatnonzero(np.isin(parent, on_host))
    waits = named(source.recording, slices.name[children], _SYNC_CALL.search)
    work: dict[int, int] = {}
    for at, time in zip(
        parent[children[~waits]].tolist(), slices.time[children[~waits]].tolist(), strict=True
    ):
        work[at] = min(work.get(at, time), time)
    waiting = children[waits]
    ends = slices.time[waiting] + slices.duration[waiting]
    rows = zip(parent[waiting].tolist(), slices.time[waiting].tolist(), ends.tolist(), strict=True)
    for at, start, end in rows:
        if at not in work or start < work[at]:
            begin[at] = max(begin[at], end)
    return begin


def pair_calls(runs: Side, calls: Side, known: Ints) -> Ints:
    """The call of each run; NONE for runs called before the recording started.

    `known` has the calls that are known from nesting. The other runs and calls are paired in order, first those of
    the same kind and size, then the rest by kind only.
    """
    found: Ints = known.copy()
    is_open = ~np.isin(calls.id, known[known != NONE])
    if "reduce_scatter" not in runs.kind:  # gloo runs it as an all_reduce
        as_run = np.where(calls.kind == "reduce_scatter", "all_reduce", calls.kind)
        calls = Side(calls.id, calls.start, as_run, calls.elements)
    for by_size in (True, False):
        run_keys, call_keys = runs.keys(by_size), calls.keys(by_size)
        for key in np.intersect1d(run_keys[found == NONE], call_keys[is_open]):
            mine = np.flatnonzero((run_keys == key) & (found == NONE))
            theirs = np.flatnonzero((call_keys == key) & is_open)
            # Skip the fewest runs at the beginning so that no run starts before its call.
            earlier = np.searchsorted(runs.start[mine], calls.start[theirs], side="left")
            first = max(0, int((earlier - np.arange(len(theirs))).max()))
            count = max(0, min(len(mine) - first, len(theirs)))
            found[mine[first : first + count]] = calls.id[theirs[:count]]
            is_open[theirs[:count]] = False
    return found


@cache
def run_elements(dims: str | None) -> int:
    """Number of elements of all tensors in the arguments of gloo's annotation."""
    return _count(listed(dims))


@cache
def call_elements(name: str, dims: str | None) -> int:
    """Number of input elements of a c10d op. Ops whose output has another size list the output first."""
    given = listed(dims)
    second = any(part in name for part in ("gather", "_reduce_scatter_base", "alltoall"))
    return _count(given[second]) if len(given) > second else NONE


def _count(dims: Any) -> int:
    """Number of elements of a tensor ([2, 3]) or a list of tensors ([[2, 3], [4]]); NONE without a tensor."""
    if not isinstance(dims, list) or not dims:
        return NONE
    is_tensor = all(isinstance(size, int) for size in dims)
    elements = prod(dims) if is_tensor else sum(max(_count(part), 0) for part in dims)
    return elements if 0 <= elements <= _MOST_ELEMENTS else NONE


@cache
def _first_type(types: str | None) -> str:
    return next((text for text in listed(types) if isinstance(text, str)), "")


def _side(source: SliceTable, index: Ints, names: list[str], elements: Iterable[int]) -> Side:
    return Side(
        index.astype(np.int64),
        source.slices.time[index],
        np.array([kind_of(name) or OTHER for name in names], dtype=str),
        np.fromiter(elements, dtype=np.int64),
    )
