"""The events of a run for export, one trace file at a time, by track and time.

Trace viewers draw the slices of a track as a stack, so they must nest. A slice that overlaps another without nesting
goes to an extra lane beside the track. No slice is dropped or changed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from rankscope.analysis.core.scope import Scope
from rankscope.timeline.run import Run

_MEMORY = "[memory]"
_DEVICE_KINDS = ("stream", "annotation")


@dataclass(frozen=True)
class SliceEvent:
    """One slice on one lane of its track."""

    track: int
    lane: int
    start_ns: int
    dur_ns: int
    name: str
    category: str
    args: str | None
    """The arguments in the trace file, as JSON text."""
    leaves: list[int]
    """Ids of the flow arrows that start here."""
    enters: list[int]


@dataclass
class TraceFile:
    """One trace file of one rank."""

    rank: int
    segment: int
    label: str
    tracks: dict[int, tuple[str, int]]
    """By number: the label, and the position below the rank, devices first, then threads in their sort order."""
    _run: Run = field(repr=False)
    _here: str = field(repr=False)
    _where: str = field(repr=False)
    _points: str = field(repr=False)
    first_flow: int = 0
    shift_ns: int = 0
    """Added to all times, so that none is negative."""

    def lane(self, track: int, lane: int) -> tuple[str, int]:
        """The name and the position of a lane; tracks of the second file of a rank come later."""
        name, order = self.tracks[track]
        if lane:
            name += f", overlapping {lane}"
        if self.segment:
            name += f" ({self.label.partition(', ')[2]})"
        return name, self.segment * 100_000 + order * 100 + lane

    def slices(self, with_args: bool) -> Iterator[SliceEvent]:
        """By track and start; enclosing slices before the enclosed."""
        args = "e.args::VARCHAR" if with_args else "NULL"
        # Repeated in the subquery: otherwise DuckDB reads the arguments of all ranks for each file.
        events = f"LEFT JOIN (SELECT id, args FROM events WHERE {self._here}) e ON e.id = s.id"
        rows = self._run.stream(f"""
            WITH s AS (SELECT * FROM slices WHERE {self._where}),
            arrows AS (
                SELECT * FROM (
                    SELECT source, target,
                           row_number() OVER (ORDER BY kind, source_ns, source, target) + {self.first_flow} AS n
                    FROM links WHERE {self._here}
                ) WHERE source IN (SELECT id FROM s) AND target IN (SELECT id FROM s)
            ),
            leaves AS (SELECT source AS id, list(n ORDER BY n) AS arrows FROM arrows GROUP BY 1),
            enters AS (SELECT target AS id, list(n ORDER BY n) AS arrows FROM arrows GROUP BY 1)
            SELECT s.track, s.start_ns + {self.shift_ns}, greatest(s.dur_ns, 0), s.name, s.category,
                   {args}, l.arrows, t.arrows
            FROM s {events if with_args else ""}
            LEFT JOIN leaves l ON l.id = s.id LEFT JOIN enters t ON t.id = s.id
            ORDER BY s.track, s.start_ns, greatest(s.dur_ns, 0) DESC, s.depth
        """)
        return _in_lanes(rows)

    def marks(self) -> Iterator[tuple[Any, ...]]:
        """Track, time, name and category of instant events, without those of the memory allocator, which are exported
        as counters."""
        return self._run.stream(
            f"SELECT track, ts_ns + {self.shift_ns}, coalesce(name, ''), coalesce(category, '') FROM instants "
            f"WHERE {self._where} AND name IS DISTINCT FROM '{_MEMORY}' ORDER BY track, ts_ns"
        )

    def samples(self) -> Iterator[tuple[Any, ...]]:
        """Counter, unit, time and value, also of the memory that the allocator reported."""
        memory = (
            "SELECT concat(CASE device_type WHEN 0 THEN 'CPU' ELSE concat('GPU ', device) END, ' memory {what}') "
            f"AS counter, 'bytes' AS unit, ts_ns + {self.shift_ns} AS ts_ns, {{column}}::DOUBLE AS value FROM instants "
            f"WHERE {self._where} AND name = '{_MEMORY}' AND {{column}} IS NOT NULL"
        )
        allocated = memory.format(what="allocated", column="allocated_bytes")
        reserved = memory.format(what="reserved", column="reserved_bytes")
        return self._run.stream(
            f"SELECT concat_ws(' ', name, series) AS counter, '' AS unit, ts_ns + {self.shift_ns} AS ts_ns, value "
            f"FROM counters WHERE {self._points} UNION ALL {allocated} UNION ALL {reserved} ORDER BY counter, ts_ns"
        )


def timeline_files(run: Run, scope: Scope) -> Iterator[TraceFile]:
    """The trace files of the ranks in scope."""
    several = {entry.rank for entry in run.timelines if entry.segment > 0}
    flows = 0
    shift = -origin_ns(run)
    ranks = scope.ranks_in(run)
    for rank, segment in sorted(
        (entry.rank, entry.segment) for entry in run.timelines if entry.rank in ranks
    ):
        here = f"rank = {rank} AND segment = {segment}"
        label = f"rank {rank}" + (f", file {segment + 1}" if rank in several else "")
        tracks = run.rows(
            f"SELECT track, label FROM tracks WHERE {here} "
            f"ORDER BY kind NOT IN {_DEVICE_KINDS}, device, stream, kind = 'annotation', sort_index, label"
        )
        positions = {track: (name, order) for order, (track, name) in enumerate(tracks)}
        where = f"{here} AND {Scope(steps=scope.steps).where()}"
        points = f"{here} AND {_time_window(run, here, scope)}"
        file = TraceFile(rank, segment, label, positions, run, here, where, points, flows, shift)
        yield file
        ((links,),) = run.rows(f"SELECT count(*) FROM links WHERE {here}")
        flows += links


def origin_ns(run: Run) -> int:
    """Time 0 of the export: the start of the run, or the first slice if clock alignment moved it before the start."""
    ((first,),) = run.rows("SELECT min(start_ns) FROM slices")
    return min(0, first or 0)


def _time_window(run: Run, here: str, scope: Scope) -> str:
    """Counters have no step, so they are selected by time: from the start of the first step to the end of the last."""
    if scope.steps is None:
        return "true"
    low, high = run.rows(
        f"SELECT min(start_ns), max(start_ns + dur_ns) FROM steps WHERE {here} "
        f"AND {Scope(steps=scope.steps).where()}"
    )[0]
    return "false" if low is None else f"ts_ns BETWEEN {low} AND {high}"


def _in_lanes(rows: Iterator[tuple[Any, ...]]) -> Iterator[SliceEvent]:
    """Assign each slice to the first lane where it lies inside the open slice or after all slices."""
    current: int | None = None
    lanes: list[list[int]] = []
    for track, start, duration, name, category, args, leaves, enters in rows:
        if track != current:
            current, lanes = track, []
        end = start + duration
        lane = 0
        while lane < len(lanes):
            open_ends = lanes[lane]
            while open_ends and open_ends[-1] <= start:
                open_ends.pop()
            if not open_ends or open_ends[-1] >= end:
                break
            lane += 1
        else:
            lanes.append([])
        lanes[lane].append(end)
        yield SliceEvent(track, lane, start, duration, name, category, args, leaves or [], enters or [])
