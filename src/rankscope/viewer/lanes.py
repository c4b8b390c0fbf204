"""The slices of one segment as flat arrays in drawing order, kept in the store (store.derived) and memory-mapped.

Tiles are made from these arrays without SQL: a tile costs a few binary searches, whatever the size of the run.
The file of a segment is written at the first view.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from rankscope.model import HOST_COLLECTIVE_PATTERN, LAUNCH_CATEGORIES, SYNC_CALL_PATTERN
from rankscope.sql import sql_texts
from rankscope.store.derived import Table, slices_file
from rankscope.store.layout import SegmentEntry, can_write
from rankscope.timeline.run import Run
from rankscope.viewer.level_of_detail import Indices, Ints, buckets, build_pyramid

KINDS = ("compute", "comm", "copy", "op", "annotation", "runtime", "sync", "python", "other")
"""Colour classes of slices; the arrays hold the index."""

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
    return Table(slices_file(entry.rank, entry.segment), Lanes, __name__, mapped=True)


def _build(run: Run, entry: SegmentEntry) -> Lanes:
    shift = run.shift_ns(entry)
    here = f"rank = {entry.rank} AND segment = {entry.segment}"
    columns = run.arrays(
        f"""
        WITH mine AS (SELECT * FROM slices WHERE {here}),
             names AS (SELECT name, (row_number() OVER (ORDER BY name) - 1)::INTEGER AS number
                       FROM (SELECT DISTINCT name FROM mine))
        SELECT s.track::BIGINT AS track, s.depth::BIGINT AS depth, s.start_ns - {shift} AS start,
               greatest(s.dur_ns, 0) AS duration, s.id, n.number AS name, coalesce(g.kind, {_host_kind("s")}) AS kind
        FROM mine s JOIN names n ON n.name = s.name
        LEFT JOIN (SELECT id, CASE class WHEN 'COMPUTE' THEN 0 WHEN 'COMM' THEN 1 ELSE 2 END::UTINYINT AS kind
                   FROM gpu WHERE {here}) g ON g.id = s.id
        ORDER BY track, depth, start, duration
        """
    )
    names = [name for (name,) in run.rows(f"SELECT DISTINCT name FROM slices WHERE {here} ORDER BY name")]
    arrays = {name: np.ascontiguousarray(columns[name], dtype=kind) for name, kind in _COLUMNS.items()}
    key = np.stack([columns["track"], columns["depth"]], axis=1)
    first = (
        np.flatnonzero(np.append(True, (key[1:] != key[:-1]).any(axis=1))) if len(key) else np.zeros(0, int)
    )
    lanes = np.column_stack([key[first], first, np.append(first[1:], len(key))]).astype(np.int64)
    return Lanes(**arrays, names=names, lanes=lanes, levels=build_pyramid(arrays["duration"]))


def _host_kind(alias: str) -> str:
    """SQL for the colour class of slices that are not device activity."""
    number = {name: index for index, name in enumerate(KINDS)}
    launches = sql_texts(LAUNCH_CATEGORIES)
    return f"""CASE
        WHEN regexp_matches({alias}.name, '{SYNC_CALL_PATTERN}') THEN {number["sync"]}
        WHEN {alias}.category = 'user_annotation'
             AND regexp_matches({alias}.name, '{HOST_COLLECTIVE_PATTERN}') THEN {number["comm"]}
        WHEN {alias}.category = 'cpu_op' THEN {number["op"]}
        WHEN {alias}.category IN ('user_annotation', 'gpu_user_annotation') THEN {number["annotation"]}
        WHEN {alias}.category IN ({launches}) THEN {number["runtime"]}
        WHEN {alias}.category = 'python_function' THEN {number["python"]}
        ELSE {number["other"]} END::UTINYINT"""
