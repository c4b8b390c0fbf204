"""Links between slices: kernel to launch and op, op to module and Python frame, slice to training step.

Functions take arrays and return arrays of indices, with NONE (-1) for "no such slice".
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from rankscope import native
from rankscope.capture.schedule import unfinished_step
from rankscope.records import dataclass
from rankscope.store.arrays import NONE, Ints, Mask
from rankscope.timeline.nesting import Indices, Nesting, track_time_key

if TYPE_CHECKING:
    from concurrent.futures import Executor

_TIMES_AT_ONCE = 1 << 18
"""So that arrays that are needed only for a moment are small."""


_DENSE = 8
"""Largest ratio of the largest id to the number of ids for which a table of all ids is used."""


def match_first(keys: NDArray[Any], wanted: NDArray[Any]) -> Indices:
    """For each wanted key, the index of its first occurrence in `keys`, or NONE. Keys below 1 never match."""
    largest = int(keys.max(initial=0))
    if largest <= _DENSE * len(keys):  # ids are mostly counted up: a table of all of them is small
        first = np.full(max(largest, 0) + 1, NONE, dtype=np.int32)
        first[np.maximum(keys, 0)[::-1]] = np.arange(len(keys) - 1, -1, -1, dtype=np.int32)
        first[0] = NONE
        return first[np.where((wanted > 0) & (wanted <= largest), wanted, 0)]
    result = np.full(len(wanted), NONE, dtype=np.int32)
    kind = np.promote_types(keys.dtype, wanted.dtype)  # searchsorted would convert all keys for every piece
    ordered, order = keys.astype(kind, copy=False), np.arange(len(keys), dtype=np.int32)
    wanted = wanted.astype(kind, copy=False)
    if (keys < 1).any():
        order = order[keys > 0]
        ordered = ordered[order]
    if (ordered[1:] < ordered[:-1]).any():  # else they are in order already
        by_key = np.argsort(ordered, kind="stable")
        ordered, order = ordered[by_key], order[by_key]
    for begin in range(0, len(wanted), _TIMES_AT_ONCE):
        piece = wanted[begin : begin + _TIMES_AT_ONCE]
        at = np.minimum(np.searchsorted(ordered, piece), len(ordered) - 1)
        matched = (ordered[at] == piece) & (piece > 0)
        result[begin : begin + len(piece)][matched] = order[at[matched]]
    return result


def nearest_ancestor(nesting: Nesting, wanted: Mask) -> Indices:
    """For each slice, the innermost slice around it for which `wanted` holds."""
    if not wanted.any():
        return np.broadcast_to(np.int32(NONE), len(wanted))  # takes no memory
    if native.functions is not None:
        columns = map(np.ascontiguousarray, (nesting.order, nesting.parent, wanted))
        return np.frombuffer(native.functions.nearest_ancestor(*columns), dtype=np.int32)
    nearest = np.full(len(wanted), NONE, dtype=np.int32)
    for level in nesting.levels[1:]:
        parent = nesting.parent[level]
        nearest[level] = np.where(wanted[parent], parent, nearest[parent])
    return nearest


def self_time(nesting: Nesting, duration: Ints) -> Ints:
    """Duration minus that of the direct children."""
    if native.functions is not None:
        columns = map(np.ascontiguousarray, (nesting.parent, duration))
        return np.frombuffer(native.functions.self_time(*columns), dtype=np.int64)
    inside = nesting.parent != NONE
    covered = np.bincount(nesting.parent[inside], weights=duration[inside], minlength=len(duration))
    return np.maximum(duration - covered.astype(np.int64), 0)


def follow(first: NDArray[Any], then: NDArray[Any]) -> NDArray[Any]:
    """then[first], with NONE staying NONE."""
    if len(then) == 0:
        return np.full(len(first), NONE)
    return np.where(first != NONE, then[first], NONE)


@dataclass(frozen=True)
class Links:
    """For each slice the index of another slice, or NONE."""

    launch: Indices
    op: Indices
    python: Indices
    module: Indices


@dataclass(frozen=True)
class SliceKinds:
    """What each slice is."""

    is_gpu: Mask
    is_launch: Mask
    is_op: Mask
    is_line: Mask
    is_own_line: Mask
    is_module: Mask


def link(
    nesting: Nesting,
    correlation: Callable[[NDArray[Any]], NDArray[Any]],
    external_id: Callable[[NDArray[Any]], NDArray[Any]],
    kinds: SliceKinds,
    pool: Executor,
) -> Links:
    """Link device activity to its launch by correlation id, and launches and ops by nesting.

    Where the launch is not in the file, or not inside an op, the External id links to the op. `correlation` and
    `external_id` give the ids of slices.
    """
    wanted = kinds.is_op, kinds.is_line, kinds.is_own_line, kinds.is_module
    op_around, *lines_around, module = (pool.submit(nearest_ancestor, nesting, each) for each in wanted)
    gpu, launches = (np.flatnonzero(mask).astype(np.int32) for mask in (kinds.is_gpu, kinds.is_launch))
    launch = np.full(len(kinds.is_gpu), NONE, dtype=np.int32)
    launch[gpu] = follow(match_first(correlation(launches), correlation(gpu)), launches)
    op = op_around.result()
    op = _with(op, gpu, follow(launch[gpu], op))
    ops = np.flatnonzero(kinds.is_op)
    if len(ops):
        without = np.flatnonzero((kinds.is_gpu | kinds.is_launch) & (op == NONE))
        op = _with(op, without, follow(match_first(external_id(ops), external_id(without)), ops))
    any_line, own_line = (line.result() for line in lines_around)
    # The innermost line of user code around each slice, else the innermost line.
    line = np.where(own_line != NONE, own_line, any_line) if kinds.is_line.any() else own_line
    frames = []
    for nearest in (line, module.result()):
        if nearest.strides != (0,):  # else there are no such slices
            of_launch, of_op = follow(launch[gpu], nearest), follow(op[gpu], nearest)
            nearest = _with(nearest, gpu, np.where(launch[gpu] != NONE, of_launch, of_op))
        frames.append(nearest)
    return Links(launch, op, *frames)


def _with(indices: Indices, slices: NDArray[Any], values: NDArray[Any]) -> Indices:
    """The same with other values for some slices."""
    if (indices[slices] == values).all():
        return indices
    changed = indices if indices.flags.writeable else indices.copy()
    changed[slices] = values
    return changed


class SliceLookup:
    """Finds slices by their track and a time."""

    def __init__(self, nesting: Nesting, track: NDArray[Any], start: Ints, duration: Ints) -> None:
        self._nesting, self._track, self._start, self._duration = nesting, track, start, duration

    @cached_property
    def _key(self) -> Ints:
        key: Ints = track_time_key(self._track, self._start)[self._nesting.order]
        return key

    def at(self, at_track: NDArray[Any], at_time: Ints) -> NDArray[Any]:
        """The innermost slice on a track that is open at a time, or starts then."""
        if native.functions is None:
            return self.at_with_numpy(at_track, at_time)
        slices = self._nesting.order, self._nesting.parent, self._track.astype(np.int32, copy=False)
        times = self._start, self._duration, at_track.astype(np.int32, copy=False), at_time
        tracks = int(self._track.max(initial=-1)) + 1
        slices_open = native.functions.open_slices(*map(np.ascontiguousarray, (*slices, *times)), tracks)
        return np.frombuffer(slices_open, dtype=np.int32)

    def at_with_numpy(self, at_track: NDArray[Any], at_time: Ints) -> Ints:
        """The same without the C parts."""
        order, parent, start = self._nesting.order, self._nesting.parent, self._start
        if len(order) == 0:
            return np.full(len(at_track), NONE)
        wanted = track_time_key(at_track, np.maximum(at_time, 0))
        position = np.searchsorted(self._key, wanted, side="right") - 1
        innermost = np.where(position >= 0, order[np.maximum(position, 0)], NONE)
        innermost = np.where((innermost != NONE) & (self._track[innermost] == at_track), innermost, NONE)
        while True:
            over = start[innermost] + self._duration[innermost] <= at_time
            over &= (innermost != NONE) & (start[innermost] != at_time)
            if not over.any():
                return innermost
            innermost = np.where(over, parent[innermost], innermost)


def slice_at(
    nesting: Nesting, track: NDArray[Any], start: Ints, end: Ints, at_track: NDArray[Any], at_time: Ints
) -> Ints:
    """The same, for one question."""
    return SliceLookup(nesting, track, start, end - start).at(at_track, at_time).astype(np.int64)


@dataclass(frozen=True)
class Steps:
    """Training steps in order of time, and what they were found by."""

    number: Ints
    start: Ints
    end: Ints
    source: str

    def at(self, time: Ints) -> Indices:
        """For each time the number of the step it lies in, or NONE."""
        numbers = np.full(len(time), NONE, dtype=np.int32)
        for begin in range(0, len(time) if len(self.start) else 0, _TIMES_AT_ONCE):
            piece = time[begin : begin + _TIMES_AT_ONCE]
            index = np.searchsorted(self.start, piece, side="right") - 1
            inside = (index >= 0) & (piece < self.end[np.maximum(index, 0)])
            numbers[begin : begin + len(piece)][inside] = self.number[index[inside]]
        return numbers


@dataclass(frozen=True)
class Annotation:
    """A named time span on the host."""

    name: str
    start: int
    end: int


# At most nine digits: the column is a 32-bit integer.
PROFILER_STEP = re.compile(r"^ProfilerStep#(\d{1,9})$")
NUMBERED_STEP = re.compile(
    r"^(?:train(?:ing)?[_ ]?)?(?:step|iter(?:ation)?)[ _#:=]*(\d{1,9})$", re.IGNORECASE
)
_UNFINISHED_STEP = re.compile(unfinished_step(r"(\d{1,9})$"))
_OPTIMIZER_STEP = re.compile(r"^Optimizer\.step#")


def find_steps(annotations: list[Annotation]) -> Steps:
    """From ProfilerStep#N, else from annotations numbered like steps, else from the ends of optimizer steps."""
    unfinished = {int(match[1]) for item in annotations if (match := _UNFINISHED_STEP.match(item.name))}
    for pattern, source in ((PROFILER_STEP, "profiler"), (NUMBERED_STEP, "annotation")):
        spans: dict[int, Annotation] = {}
        for item in sorted(annotations, key=lambda a: a.start):
            match = pattern.match(item.name)
            if match and int(match[1]) not in unfinished:
                spans.setdefault(int(match[1]), item)
        if spans:
            return _steps([(number, a.start, a.end) for number, a in spans.items()], source)
    ends = sorted(item.end for item in annotations if _OPTIMIZER_STEP.match(item.name))
    first = min((item.start for item in annotations), default=0)
    bounds = [first, *ends]
    pairs = pairwise(bounds)
    return _steps([(n, a, b) for n, (a, b) in enumerate(pairs)], "optimizer" if ends else "")


def _steps(spans: list[tuple[int, int, int]], source: str) -> Steps:
    spans = sorted(spans, key=lambda span: span[1])
    columns = np.array(spans, dtype=np.int64).reshape(-1, 3)
    return Steps(columns[:, 0], columns[:, 1], columns[:, 2], source)
