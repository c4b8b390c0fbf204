"""The slices of one segment as flat arrays in drawing order, kept in the store (store.derived) and memory-mapped.

Tiles are made from these arrays without SQL: a tile costs a few binary searches, whatever the size of the run.
The file of a segment is written at the first view.

Level of detail: for each pixel of a lane, the longest slice that starts in it and the number of slices that do. A lane
is a row of non-overlapping slices in order of start. Of the slices that start in one pixel at most one is wider than
the pixel, so drawing the longest shows everything that is visible. This is exact at every zoom level: a pyramid of
block maxima gives the longest slice of a range without reading the whole range.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from rankscope.analysis.core.device_events import CLASS_NUMBER
from rankscope.analysis.within_rank.kernel_families import coloured_family
from rankscope.model import HOST_COLLECTIVE_PATTERN, LAUNCH_CATEGORIES, SYNC_CALL_PATTERN
from rankscope.sql import sql_texts
from rankscope.store.arrays import Ints
from rankscope.store.derived import Table, slices_file
from rankscope.store.index import SegmentEntry, can_write
from rankscope.text.names import COLOURED
from rankscope.timeline.run import Run
from rankscope.viewer.answers import KINDS

Indices = NDArray[np.int32]

BLOCK = 16
"""Entries of one level per entry of the next."""

_NOTHING = np.zeros(0, dtype=np.int64)

_NUMBER = {name: index for index, name in enumerate(KINDS)}
_HOST_KIND = f"""CASE
    WHEN regexp_matches(s.name, '{SYNC_CALL_PATTERN}') THEN {_NUMBER["sync"]}
    WHEN s.category = 'user_annotation'
         AND regexp_matches(s.name, '{HOST_COLLECTIVE_PATTERN}') THEN {_NUMBER["comm"]}
    WHEN s.category = 'cpu_op' THEN {_NUMBER["op"]}
    WHEN s.category IN ('user_annotation', 'gpu_user_annotation') THEN {_NUMBER["annotation"]}
    WHEN s.category IN ({sql_texts(LAUNCH_CATEGORIES)}) THEN {_NUMBER["runtime"]}
    WHEN s.category IN ('python_function', 'python_sample') THEN {_NUMBER["python"]}
    ELSE {_NUMBER["other"]} END::UTINYINT"""
"""SQL for the colour class of slices that are not device activity."""

_COLUMNS = {"start": np.int64, "duration": np.int64, "id": np.int64, "name": np.int32, "kind": np.uint8}


@dataclass(frozen=True)
class Lanes:
    """Slices ordered by track, row and start."""

    start: Ints
    duration: Ints
    id: Ints
    name: Indices
    kind: NDArray[np.uint8]
    names: list[str]
    lanes: Ints
    """One row per lane: track, row within the track, first slice, one past the last slice."""
    levels: list[Indices]
    segment: Ints | None = None
    """Segment of each slice; None when all are of the same segment."""

    @cached_property
    def by_track(self) -> dict[int, Ints]:
        tracks = self.lanes[:, 0]
        return {int(track): self.lanes[tracks == track] for track in np.unique(tracks)}

    def tile(self, track: int, begin: int, step: int, width: int) -> tuple[Ints, Ints, Ints]:
        """What to draw of a track in a window: arrays of row, slice index and count."""
        rows = self.by_track.get(track, np.zeros((0, 4), dtype=np.int64))
        spans = [(first, last) for _, _, first, last in rows.tolist()]
        drawn = buckets(self.start, self.duration, self.levels, spans, begin, step, width)
        return rows[drawn.lane, 1], drawn.longest, drawn.count


def open_lanes(run: Run, entry: SegmentEntry) -> Lanes:
    """The arrays of a segment: loaded from the store, or built, and saved where it is writable."""
    cached = _load(run, entry)
    if cached is not None:
        return cached
    lanes = _build(run, entry)
    if can_write(run.store):
        save_lanes(run, entry, lanes)
        return _load(run, entry) or lanes
    return lanes


def save_lanes(run: Run, entry: SegmentEntry, lanes: Lanes) -> None:
    """Keep the arrays in the store."""
    flat = replace(lanes, lanes=lanes.lanes.reshape(-1))
    _table(entry).save(run.store, (entry.build, run.comm_patterns), flat)


def _load(run: Run, entry: SegmentEntry) -> Lanes | None:
    lanes = _table(entry).load(run.store, (entry.build, run.comm_patterns))
    return lanes and replace(lanes, lanes=lanes.lanes.reshape(-1, 4))


def _table(entry: SegmentEntry) -> Table[Lanes]:
    return Table(slices_file(entry.rank, entry.segment), Lanes, mapped=True)


def _build(run: Run, entry: SegmentEntry) -> Lanes:
    shift = run.shift_ns(entry)
    here = f"rank = {entry.rank} AND segment = {entry.segment}"
    columns = run.arrays(
        f"""
        WITH mine AS (SELECT * FROM slices WHERE {here}),
             names AS (SELECT name, (row_number() OVER (ORDER BY name) - 1)::INTEGER AS number
                       FROM (SELECT DISTINCT name FROM mine))
        SELECT s.track::BIGINT AS track, s.depth::BIGINT AS depth, s.start_ns - {shift} AS start,
               greatest(s.dur_ns, 0) AS duration, s.id, n.number AS name, coalesce(g.kind, {_HOST_KIND}) AS kind
        FROM mine s JOIN names n ON n.name = s.name
        LEFT JOIN (SELECT id, ({CLASS_NUMBER})::UTINYINT AS kind
                   FROM gpu WHERE {here}) g ON g.id = s.id
        ORDER BY track, depth, start, duration
        """
    )
    names = [name for (name,) in run.rows(f"SELECT DISTINCT name FROM slices WHERE {here} ORDER BY name")]
    arrays = {name: np.ascontiguousarray(columns[name], dtype=kind) for name, kind in _COLUMNS.items()}
    lanes = lane_table(columns["track"], columns["depth"])
    return Lanes(**arrays, names=names, lanes=lanes, levels=build_pyramid(arrays["duration"]))


def lane_table(track: Ints, row: Ints) -> Ints:
    """`Lanes.lanes` of slices in their order: by track and row."""
    first = np.flatnonzero((np.diff(track, prepend=-2) != 0) | (np.diff(row, prepend=-1) != 0))
    ends = np.append(first, len(row))[1:]
    return np.column_stack([track[first], row[first], first, ends]).astype(np.int64)


def with_families(kind: NDArray[np.uint8], name: Indices, names: Sequence[str]) -> NDArray[np.uint8]:
    """The colour classes of slices, of kernels and ops those of their family; an op of no family stays one."""
    numbers, of_slice = np.unique(name, return_inverse=True)
    family = np.array([coloured_family(names[number]) for number in numbers.tolist()], dtype=np.int64)[
        of_slice
    ]
    compute, op, first = KINDS.index("compute"), KINDS.index("op"), KINDS.index(COLOURED[0])
    is_op = (kind == op) & (family != len(COLOURED) - 1)
    by_family = np.where(is_op, first + len(COLOURED) + family, first + family)
    return np.where(is_op | (kind == compute), by_family, kind).astype(np.uint8)


@dataclass(frozen=True)
class Buckets:
    """What to draw of some lanes in a window: one entry per lane and pixel in which a slice starts."""

    lane: Ints
    """Index into the requested lanes."""
    longest: Ints
    """Index of the longest slice that starts there."""
    count: Ints
    """Number of slices that start there, including the longest."""


def build_pyramid(duration: Ints) -> list[Indices]:
    """For each level, the index of the longest slice in each block of the level below."""
    levels = []
    best = np.arange(len(duration), dtype=np.int32)
    while len(best) > BLOCK:
        padded = np.concatenate([best, np.full(-len(best) % BLOCK, best[-1], dtype=np.int32)])
        blocks = padded.reshape(-1, BLOCK)
        best = blocks[np.arange(len(blocks)), duration[blocks].argmax(axis=1)]
        levels.append(best)
    return levels


def buckets(
    start: Ints,
    duration: Ints,
    levels: list[Indices],
    lanes: Sequence[tuple[int, int]],
    begin: int,
    step: int,
    width: int,
) -> Buckets:
    """The lanes [first, last) of a table of slices, from `begin` in `width` pixels of `step` ns each.

    A slice that begins before the window and extends into it is returned after all others, with a count of 1.
    """
    lows, highs, carried, carriers = [], [], [], []
    for number, (first, last) in enumerate(lanes):
        lane = start[first:last]
        low, high = (first + int(n) for n in np.searchsorted(lane, [begin, begin + step * width]))
        lower, upper = _ranges(start, low, high, begin, step, width)
        lows.append(lower)
        highs.append(upper)
        if low > first and start[low - 1] + duration[low - 1] > begin:
            carried.append(low - 1)
            carriers.append(number)
    sizes = [len(lower) for lower in lows]
    low_all, high_all = (np.concatenate(parts) if parts else _NOTHING for parts in (lows, highs))
    return Buckets(
        lane=np.concatenate([np.repeat(np.arange(len(lanes)), sizes), np.array(carriers, dtype=np.int64)]),
        longest=np.concatenate(
            [_longest(duration, levels, low_all, high_all), np.array(carried, dtype=np.int64)]
        ),
        count=np.concatenate([high_all - low_all, np.ones(len(carried), dtype=np.int64)]),
    )


def _ranges(start: Ints, low: int, high: int, begin: int, step: int, width: int) -> tuple[Ints, Ints]:
    """For each pixel with slices, the index of the first and one past the last."""
    if high - low <= width:  # fewer slices than pixels: compute the pixel of each slice
        pixel = (np.asarray(start[low:high]) - begin) // step
        fresh = np.flatnonzero(np.diff(pixel, prepend=-1))
        return low + fresh, low + np.append(fresh[1:], high - low) if len(fresh) else fresh
    edges = low + np.searchsorted(start[low:high], begin + step * np.arange(width + 1, dtype=np.int64))
    full = edges[1:] > edges[:-1]
    return edges[:-1][full], edges[1:][full]


def _longest(duration: Ints, levels: list[Indices], low: Ints, high: Ints) -> Ints:
    """Index of the longest slice of each range [low, high); the first of equals."""
    if len(low) == 0:
        return _NOTHING
    owners, candidates = [], []

    def consider(ranges: Ints, begin: Ints, end: Ints, level: int) -> None:
        sizes = np.maximum(end - begin, 0)
        offsets = np.arange(int(sizes.sum())) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        entries = np.repeat(begin, sizes) + offsets
        owners.append(np.repeat(ranges, sizes))
        candidates.append(entries if level == 0 else levels[level - 1][entries].astype(np.int64))

    mine, level = np.arange(len(low)), 0
    while len(mine):
        wide = (high - low > BLOCK) & (level < len(levels))
        consider(mine[~wide], low[~wide], high[~wide], level)
        mine, low, high = mine[wide], low[wide], high[wide]
        left = -(-low // BLOCK)
        right = np.maximum(left, high // BLOCK)  # equal where the range contains no whole block
        edge = np.minimum(left * BLOCK, high)
        consider(mine, low, edge, level)
        consider(mine, right * BLOCK, high, level)
        low, high, level = left, right, level + 1
    owner, candidate = np.concatenate(owners), np.concatenate(candidates)
    order = np.argsort(owner, kind="stable")
    owner, candidate = owner[order], candidate[order]
    length = np.asarray(duration[candidate])
    first = np.flatnonzero(np.diff(owner, prepend=-1))
    sizes = np.diff(np.append(first, len(owner)))
    longest = length == np.repeat(np.maximum.reduceat(length, first), sizes)
    best: Ints = np.minimum.reduceat(np.where(longest, candidate, np.iinfo(np.int64).max), first)
    return best
