"""Parent and row of each slice within its track. Pure numpy, without a loop over slices.

Two sorts are enough for a track whose slices nest properly (all threads, nearly all streams). Where slices cross,
one starting inside another and ending after it, a loop runs over that cluster of slices.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from rankscope.records import dataclass
from rankscope.store.arrays import NONE, Ints, Mask


@dataclass(frozen=True)
class Nesting:
    """One entry per slice, in the order of the input."""

    row: Ints
    """Row inside the track: slices of one row do not overlap."""
    parent: Ints
    """Index of the innermost slice that contains it, or NONE."""
    levels: list[Ints]
    """Indices of the slices with 0, 1, 2, … ancestors, for walking down or up the tree."""
    order: Ints
    """Indices by track and start, parents before children."""


def track_time_key(track: Ints, time: Ints) -> Ints:
    """One sortable number for (track, time): sorting by it sorts by track first.

    Times must not be negative. There is room for 65,536 tracks of 39 hours.
    """
    return (track << 47) | time


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


def nest(track: Ints, start: Ints, end: Ints) -> Nesting:
    """Rows and parents of slices [start, end) on their tracks. An empty slice is treated as 1 ns long."""
    count = len(track)
    if count == 0:
        return Nesting(start, start, [], start)
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
    level = depth.copy()
    if crossing.any():
        _solve_crossing(s_track, s_start, s_end, crossing, depth, parent, level)
    row_out, parent_out = np.empty_like(depth), np.full(count, NONE)
    row_out[order] = depth
    inside = parent != NONE
    parent_out[order[inside]] = order[parent[inside]]
    return Nesting(row_out, parent_out, [order[positions] for positions in _group(level)], order)


def _group(level: Ints) -> list[Ints]:
    """Positions by level, each in ascending order."""
    by_level = np.argsort(level.astype(np.int32), kind="stable")
    bounds = np.cumsum(np.bincount(level))[:-1]
    return np.split(by_level, bounds)


def _parents(depth: Ints) -> Ints:
    """The last slice before each that is one row up. Correct where slices nest properly."""
    parent = np.full(len(depth), NONE)
    groups = _group(depth)
    for upper, lower in pairwise(groups):
        found = np.searchsorted(upper, lower) - 1
        parent[lower] = upper[np.maximum(found, 0)]
    return parent


def _solve_crossing(
    track: Ints, start: Ints, end: Ints, crossing: Mask, depth: Ints, parent: Ints, level: Ints
) -> None:
    """Recompute rows, parents and levels of the clusters in which slices cross."""
    reach = np.maximum.accumulate(track_time_key(track, end))
    begins = np.ones(len(track), dtype=bool)
    begins[1:] = track_time_key(track[1:], start[1:]) >= reach[:-1]
    cluster = np.cumsum(begins) - 1
    bounds = np.append(np.flatnonzero(begins), len(track))
    for number in np.unique(cluster[crossing]):
        low, high = int(bounds[number]), int(bounds[number + 1])
        _rows_of_cluster(start[low:high], end[low:high], low, depth, parent, level)


def _rows_of_cluster(start: Ints, end: Ints, base: int, depth: Ints, parent: Ints, level: Ints) -> None:
    """In order of start, each slice gets the first free row below the innermost open slice that contains it."""
    occupied: list[tuple[int, int]] = []  # per row: end and position of its latest slice
    for position, (begin, stop) in enumerate(zip(start.tolist(), end.tolist(), strict=True)):
        inside = NONE
        for row in range(len(occupied) - 1, -1, -1):
            if occupied[row][0] > begin and occupied[row][0] >= stop:
                inside = row
                break
        row = inside + 1
        while row < len(occupied) and occupied[row][0] > begin:
            row += 1
        at = base + position
        depth[at] = row
        parent[at] = occupied[inside][1] if inside != NONE else NONE
        level[at] = level[parent[at]] + 1 if inside != NONE else 0
        if row == len(occupied):
            occupied.append((stop, at))
        else:
            occupied[row] = (stop, at)
