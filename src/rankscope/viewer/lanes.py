"""The slices of one segment as flat arrays in drawing order, saved beside the store and memory-mapped.

Tiles are made from these arrays without SQL: a tile costs a few binary searches, whatever the size of the run.
The folder `lod` of a segment is written at the first view and is safe to delete.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rankscope.analysis.core.device_events import CLASS_NUMBER
from rankscope.files import make_private_folder, unique_name
from rankscope.model import HOST_COLLECTIVE_PATTERN, LAUNCH_CATEGORIES, SYNC_CALL_PATTERN
from rankscope.sql import sql_texts
from rankscope.store.layout import SegmentEntry, can_write
from rankscope.timeline.run import Run
from rankscope.viewer.level_of_detail import Indices, Ints, buckets, build_pyramid

FOLDER = "lod"
_VERSION = 1

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
        found = buckets(self.start, self.duration, self.levels, spans, begin, step, width)
        return rows[found.lane, 1], found.longest, found.count


def open_lanes(run: Run, entry: SegmentEntry) -> Lanes:
    """The arrays of a segment: loaded from its folder, or built, and saved where the folder is writable."""
    folder = run.store / entry.folder / FOLDER
    kept = _load(folder)
    if kept is not None:
        return kept
    lanes = _build(run, entry)
    if can_write(folder.parent):
        _save(lanes, folder)
        return _load(folder) or lanes
    return lanes


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
        LEFT JOIN (SELECT id, ({CLASS_NUMBER})::UTINYINT AS kind
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


def _save(lanes: Lanes, folder: Path) -> None:
    """Write to a temporary folder and rename it, so that other viewers see all files or none."""
    temporary = folder.with_name(f".{folder.name}.{unique_name()}")
    try:
        make_private_folder(temporary)
        for name in (*_COLUMNS, "lanes"):
            np.save(temporary / f"{name}.npy", getattr(lanes, name))
        for number, level in enumerate(lanes.levels):
            np.save(temporary / f"level-{number}.npy", level)
        facts: dict[str, Any] = {"version": _VERSION, "levels": len(lanes.levels), "names": lanes.names}
        (temporary / "lanes.json").write_text(json.dumps(facts), encoding="utf-8")
        temporary.rename(folder)
    except OSError:  # disk full, or another viewer has written it: the arrays in memory are used
        shutil.rmtree(temporary, ignore_errors=True)


def _load(folder: Path) -> Lanes | None:
    try:
        facts = json.loads((folder / "lanes.json").read_text(encoding="utf-8"))
        if facts["version"] != _VERSION:
            return None
        arrays = {name: np.load(folder / f"{name}.npy", mmap_mode="r") for name in (*_COLUMNS, "lanes")}
        levels = [np.load(folder / f"level-{n}.npy", mmap_mode="r") for n in range(facts["levels"])]
    except (OSError, ValueError, KeyError, TypeError, EOFError):  # damaged: made again
        return None
    return Lanes(**arrays, names=facts["names"], levels=levels)
