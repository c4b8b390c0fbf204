"""A run, walked once for a file of its timeline: track by track, in order of time, one trace file at a time.

Viewers draw what begins and ends on one track as a stack, so slices there must nest. Those that cross another get a
lane of their own beside the track: nothing is dropped, nothing is bent.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from rankscope.analysis.core.scope import Scope
from rankscope.store.run import Run

_MEMORY = "[memory]"
_DEVICE_KINDS = ("stream", "annotation")


@dataclass(frozen=True)
class TrackInfo:
    """A track of the store, with the place it gets under its rank: the device's first, then threads as sorted."""

    track: int
    label: str
    order: int


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
    """The file's own arguments as JSON text."""
    leaves: list[int]
    """Numbers of the arrows that leave it."""
    enters: list[int]


@dataclass(frozen=True)
class Mark:
    """A point in time on a track."""

    track: int
    ts_ns: int
    name: str
    category: str


@dataclass(frozen=True)
class Sample:
    """One value of a counter."""

    counter: str
    unit: str
    ts_ns: int
    value: float


@dataclass
class Part:
    """One trace file of one rank."""

    rank: int
    segment: int
    label: str
    tracks: list[TrackInfo]
    _run: Run = field(repr=False)
    _where: str = field(repr=False)
    _points: str = field(repr=False)
    first_flow: int = 0
    shift_ns: int = 0
    """Added to every time, so that none is negative."""

    def slices(self, with_args: bool) -> Iterator[SliceEvent]:
        """By track and start, those around others first."""
        args = "e.args::VARCHAR" if with_args else "NULL"
        # Named again: or the arguments of every rank are read for each.
        here = f"rank = {self.rank} AND segment = {self.segment}"
        events = f"LEFT JOIN (SELECT id, args FROM events WHERE {here}) e ON e.id = s.id"
        rows = self._run.stream(f"""
            WITH s AS (SELECT * FROM slices WHERE {self._where}),
            arrows AS (
                SELECT source, target, row_number() OVER (ORDER BY source_ns, source, target) + {self.first_flow} AS n
                FROM links l WHERE {here}
                AND source IN (SELECT id FROM s) AND target IN (SELECT id FROM s)
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

    def flow_count(self) -> int:
        return int(
            self._run.rows(
                f"SELECT count(*) FROM links WHERE rank = {self.rank} AND segment = {self.segment}"
            )[0][0]
        )

    def marks(self) -> Iterator[Mark]:
        """Instants; what the allocator reports is told by counters."""
        for row in self._run.stream(
            f"SELECT track, ts_ns + {self.shift_ns}, coalesce(name, ''), coalesce(category, '') FROM instants "
            f"WHERE {self._where} AND name IS DISTINCT FROM '{_MEMORY}' ORDER BY track, ts_ns"
        ):
            yield Mark(*row)

    def samples(self) -> Iterator[Sample]:
        """The file's counters, and the memory its allocator reported."""
        memory = (
            "SELECT concat(CASE device_type WHEN 0 THEN 'CPU' ELSE concat('GPU ', device) END, ' memory {what}') "
            f"AS counter, 'bytes' AS unit, ts_ns + {self.shift_ns} AS ts_ns, {{column}}::DOUBLE AS value FROM instants "
            f"WHERE {self._where} AND name = '{_MEMORY}' AND {{column}} IS NOT NULL"
        )
        allocated = memory.format(what="allocated", column="allocated_bytes")
        reserved = memory.format(what="reserved", column="reserved_bytes")
        for row in self._run.stream(
            f"SELECT concat_ws(' ', name, series) AS counter, '' AS unit, ts_ns + {self.shift_ns} AS ts_ns, value "
            f"FROM counters WHERE {self._points} UNION ALL {allocated} UNION ALL {reserved} ORDER BY counter, ts_ns"
        ):
            yield Sample(*row)


def walk(run: Run, scope: Scope) -> Iterator[Part]:
    """The files of the ranks in scope, one after the other."""
    labels = {(e.rank, e.segment): f"rank {e.rank}" for e in run.timelines}
    several = {rank for rank, segment in labels if segment > 0}
    flows = 0
    shift = -origin_ns(run)
    for rank, segment in sorted(labels):
        if scope.ranks is not None and rank not in scope.ranks:
            continue
        here = f"rank = {rank} AND segment = {segment}"
        label = labels[rank, segment] + (f", file {segment + 1}" if rank in several else "")
        part = Part(
            rank,
            segment,
            label,
            _tracks(run, here),
            run,
            f"{here} AND {Scope(steps=scope.steps).where()}",
            f"{here} AND {_time_window(run, here, scope)}",
            flows,
            shift,
        )
        flows += part.flow_count()
        yield part


def origin_ns(run: Run) -> int:
    """Where the file's time begins: the run's start, or the first slice where aligned clocks put one before it."""
    ((first,),) = run.rows("SELECT min(start_ns) FROM slices")
    return min(0, first or 0)


def _tracks(run: Run, here: str) -> list[TrackInfo]:
    rows = run.rows(
        f"SELECT track, label, kind FROM tracks WHERE {here} "
        f"ORDER BY kind NOT IN {_DEVICE_KINDS}, device, stream, kind = 'annotation', sort_index, label"
    )
    return [TrackInfo(track, label, order) for order, (track, label, _) in enumerate(rows)]


def _time_window(run: Run, here: str, scope: Scope) -> str:
    """Counters know no steps: those between the first step's start and the last one's end."""
    if scope.steps is None:
        return "true"
    low, high = run.rows(
        f"SELECT min(start_ns), max(start_ns + dur_ns) FROM steps WHERE {here} "
        f"AND {Scope(steps=scope.steps).where()}"
    )[0]
    return "false" if low is None else f"ts_ns BETWEEN {low} AND {high}"


def _in_lanes(rows: Iterator[tuple[Any, ...]]) -> Iterator[SliceEvent]:
    """Give each slice the first lane in which it lies wholly inside, or wholly after, what is open there."""
    now: int | None = None
    lanes: list[list[int]] = []
    for track, start, duration, name, category, args, leaves, enters in rows:
        if track != now:
            now, lanes = track, []
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
