"""Parent and row of each slice within its track, and what follows from them: ancestors, self times, open slices.

One pass in C (native/nesting.c), or numpy without a loop over slices.

With numpy, two sorts are enough for a track whose slices nest properly (all threads, nearly all streams). Where slices
cross, one starting inside another and ending after it, a loop runs over that cluster of slices.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rankscope import native
from rankscope.records import dataclass
from rankscope.store.arrays import NONE, Ints, Mask

Indices = NDArray[np.int32]
_SLICES_AT_ONCE = 1 << 16
"""At least, for a thread to take them."""


@dataclass(frozen=True)
class Nesting:
    """One entry per slice, in the order of the input."""

    row: Indices
    """Row inside the track: slices of one row do not overlap."""
    parent: Indices
    """Index of the innermost slice that contains it, or NONE."""
    order: Indices
    """Indices by track and start, parents before children."""

    @cached_property
    def levels(self) -> list[Ints]:
        """Indices of the slices with 0, 1, 2, … ancestors, each in order: for walking down or up the tree."""
        level = ancestors(self.parent)
        return [self.order[members].astype(np.int64) for members in by_level(level[self.order])]


def ancestors(parent: NDArray[Any]) -> Ints:
    """How many ancestors each has. Each round doubles how many are counted."""
    level: Ints = (parent != NONE).astype(np.int64)
    above = parent
    while (inside := above != NONE).any():
        level = level + np.where(inside, level[above], 0)
        above = np.where(inside, above[above], NONE)
    return level


def track_time_key(track: NDArray[Any], time: Ints) -> Ints:
    """One sortable number for (track, time): sorting by it sorts by track first.

    Times must not be negative. There is room for 65,536 tracks of 39 hours.
    """
    return (track.astype(np.int64) << 47) | time


def order_outer_first(track: Ints, start: Ints, end: Ints) -> Ints:
    """Indices by track, start and descending end, so that parents come before children. Ties keep their order."""
    key = track_time_key(track, start)
    order = np.argsort(key, kind="stable")
    ordered = key[order]
    same = ordered[1:] == ordered[:-1]
    if same.any():
        tied = np.zeros(len(order), dtype=bool)
        tied[1:] |= same
        tied[:-1] |= same
        members = order[tied]
        order[tied] = members[np.lexsort((members, -end[members], key[members]))]
    return order


def nest(
    track: NDArray[Any], start: Ints, end: Ints, side_by_side: Callable[..., Iterable[None]] = map
) -> Nesting:
    """Rows and parents of slices [start, end) on their tracks. An empty slice is treated as 1 ns long.

    `side_by_side` is `map` of a pool of threads.
    """
    if native.functions is None:
        return nest_with_numpy(track, start, end)
    tracks = int(track.max(initial=-1)) + 1
    columns = native.functions.by_track(np.ascontiguousarray(track, np.int32), tracks)
    order, begins = np.frombuffer(columns[0], np.int32), np.frombuffer(columns[1], np.int64)
    row, parent = np.empty(len(track), np.int32), np.empty(len(track), np.int32)
    times = np.ascontiguousarray(start), np.ascontiguousarray(end)

    def nest_tracks(first: int, stop: int) -> None:
        slices = order[begins[first] : begins[stop]]
        native.functions.nest(slices, begins[first : stop + 1], *times, row, parent)

    bounds = _track_bounds(begins)
    list(side_by_side(nest_tracks, bounds, bounds[1:]))
    return Nesting(row, parent, order)


def _track_bounds(begins: Ints) -> list[int]:
    """Tracks at which a thread begins, so that small ones are taken together; and the number of tracks."""
    bounds, last = [0], len(begins) - 1
    while bounds[-1] < last:
        after = int(np.searchsorted(begins, begins[bounds[-1]] + _SLICES_AT_ONCE))
        bounds.append(min(max(after, bounds[-1] + 1), last))
    return bounds


def nest_with_numpy(track: NDArray[Any], start: Ints, end: Ints) -> Nesting:
    """The same without the C parts."""
    count = len(track)
    if count == 0:
        none = np.empty(0, dtype=np.int32)
        return Nesting(none, none, none)
    end = np.maximum(end, start + 1)
    order = order_outer_first(track, start, end)
    s_track, s_start, s_end = track[order], start[order], end[order]
    first_of_track = np.searchsorted(s_track, s_track, side="left")
    ends = np.sort(track_time_key(s_track, s_end))
    closed = np.searchsorted(ends, track_time_key(s_track, s_start), side="right") - first_of_track
    depth = np.arange(count) - first_of_track - closed
    parent = _parents(depth)
    inside = parent != NONE
    crossing = np.zeros(count, dtype=bool)
    crossing[inside] = s_end[inside] > s_end[parent[inside]]
    if crossing.any():
        _solve_crossing(s_track, s_start, s_end, crossing, depth, parent)
    row_out, parent_out = np.empty(count, dtype=np.int32), np.full(count, NONE, dtype=np.int32)
    row_out[order] = depth
    inside = parent != NONE
    parent_out[order[inside]] = order[parent[inside]]
    return Nesting(row_out, parent_out, order.astype(np.int32))


def by_level(level: Ints) -> list[Ints]:
    """Positions by level, each in ascending order."""
    kind = np.int16 if level.max(initial=0) < 1 << 15 else np.int32  # two bytes are sorted by counting
    by_level = np.argsort(level.astype(kind), kind="stable")
    bounds = np.cumsum(np.bincount(level))[:-1]
    return np.split(by_level, bounds)


def _parents(depth: Ints) -> Ints:
    """The last slice before each that is one row up. Correct where slices nest properly."""
    parent = np.full(len(depth), NONE)
    groups = by_level(depth)
    for upper, lower in pairwise(groups):
        before = np.searchsorted(upper, lower) - 1
        parent[lower] = upper[np.maximum(before, 0)]
    return parent


def _solve_crossing(
    track: NDArray[Any], start: Ints, end: Ints, crossing: Mask, depth: Ints, parent: Ints
) -> None:
    """Recompute rows and parents of the clusters in which slices cross."""
    reach = np.maximum.accumulate(track_time_key(track, end))
    begins = np.ones(len(track), dtype=bool)
    begins[1:] = track_time_key(track[1:], start[1:]) >= reach[:-1]
    cluster = np.cumsum(begins) - 1
    bounds = np.append(np.flatnonzero(begins), len(track))
    for number in np.unique(cluster[crossing]):
        low, high = int(bounds[number]), int(bounds[number + 1])
        _rows_of_cluster(start[low:high], end[low:high], low, depth, parent)


def _rows_of_cluster(start: Ints, end: Ints, base: int, depth: Ints, parent: Ints) -> None:
    """In order of start, each slice gets the first free row below the innermost open slice that contains it.

    Both are found in a binary tree over the rows, whose nodes have the latest and the earliest end of the rows below
    them: the leaves are in the second half, and the node i has the children 2i and 2i + 1.
    """
    leaves = 1 << len(start).bit_length()
    latest, earliest = ([-1] * (2 * leaves) for _ in range(2))  # no time is negative: unused rows are free
    slices = [0] * leaves
    for position, (begin, stop) in enumerate(zip(start.tolist(), end.tolist(), strict=True), base):
        inside = NONE
        if latest[1] >= stop:
            at = 1
            while at < leaves:
                at = 2 * at + (latest[2 * at + 1] >= stop)
            inside = at - leaves
        at = leaves + inside + 1
        while earliest[at] > begin:
            while at & 1:
                at >>= 1
            at += 1
        while at < leaves:
            at = 2 * at + (earliest[2 * at] > begin)
        depth[position] = at - leaves
        parent[position] = slices[inside] if inside != NONE else NONE
        slices[at - leaves] = position
        latest[at] = earliest[at] = stop
        while at := at >> 1:
            latest[at] = max(latest[2 * at], latest[2 * at + 1])
            earliest[at] = min(earliest[2 * at], earliest[2 * at + 1])


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


def slice_at(
    nesting: Nesting, track: NDArray[Any], start: Ints, duration: Ints, at_track: NDArray[Any], at_time: Ints
) -> NDArray[Any]:
    """The innermost slice on a track that is open at a time, or starts then."""
    if native.functions is None:
        return slice_at_with_numpy(nesting, track, start, duration, at_track, at_time)
    slices = nesting.order, nesting.parent, track.astype(np.int32, copy=False)
    times = start, duration, at_track.astype(np.int32, copy=False), at_time
    tracks = int(track.max(initial=-1)) + 1
    open_slices = native.functions.open_slices(*map(np.ascontiguousarray, (*slices, *times)), tracks)
    return np.frombuffer(open_slices, dtype=np.int32)


def slice_at_with_numpy(
    nesting: Nesting, track: NDArray[Any], start: Ints, duration: Ints, at_track: NDArray[Any], at_time: Ints
) -> NDArray[Any]:
    """The same without the C parts."""
    order, parent = nesting.order, nesting.parent
    if len(order) == 0:
        return np.full(len(at_track), NONE)
    wanted = track_time_key(at_track, np.maximum(at_time, 0))
    position = np.searchsorted(track_time_key(track, start)[order], wanted, side="right") - 1
    innermost = np.where(position >= 0, order[np.maximum(position, 0)], NONE)
    innermost = np.where((innermost != NONE) & (track[innermost] == at_track), innermost, NONE)
    while True:
        over = start[innermost] + duration[innermost] <= at_time
        over &= (innermost != NONE) & (start[innermost] != at_time)
        if not over.any():
            return innermost
        innermost = np.where(over, parent[innermost], innermost)
