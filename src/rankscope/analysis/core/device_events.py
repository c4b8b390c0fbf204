"""A rank's GPU events as arrays, each with what launched it; read once, for all reports of a run.

Reports ask rank by rank, so that only one rank's arrays need be in memory at a time; those of small runs are
kept for the next report.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from rankscope.analysis.core.event_sets import COMM, COMPUTE, COPY, NO_STEP
from rankscope.analysis.core.intervals import Ints
from rankscope.analysis.core.scope import Scope
from rankscope.sql import sql_texts
from rankscope.store.run import Run

UNKNOWN = -1
"""In place of a time, an id or a text: the file does not tell."""
RANKS_AT_A_TIME = 8
KEPT_EVENTS = 4_000_000
"""How many events stay in memory between reports: some 400 MB."""
_CLASSES = {"COMPUTE": COMPUTE, "COMM": COMM, "COPY": COPY}


@dataclass(frozen=True)
class DeviceEvents:
    """Kernels, copies and fills of one rank in order of their start; one entry an event."""

    start: Ints
    end: Ints
    """Never before the start: an event of negative length counts as empty."""
    kind: Ints
    """COMPUTE, COMM or COPY."""
    work: Ints
    """Which name: an index into `works`."""
    step: Ints
    device: Ints
    stream: Ints
    launch_start: Ints
    """Of the runtime call that launched it, or UNKNOWN; so for the next two."""
    launch_end: Ints
    launch_track: Ints
    launch: Ints
    """Id of that call, or UNKNOWN."""
    op: Ints
    """Name of the op that launched it, an index into `texts`, or UNKNOWN."""
    op_start: Ints
    """Of that op, or UNKNOWN; so for the next."""
    op_track: Ints
    line: Ints
    """The line of Python that launched it, an index into `texts`, or UNKNOWN."""
    segment: Ints
    track: Ints
    id: Ints

    def __len__(self) -> int:
        return len(self.start)

    def pick(self, mask: NDArray[np.bool_]) -> DeviceEvents:
        return DeviceEvents(*(getattr(self, f.name)[mask] for f in fields(self)))

    def devices(self) -> Iterator[tuple[int, DeviceEvents]]:
        """Device by device."""
        for device in np.unique(self.device).tolist():
            mine = self.device == device
            yield device, self if mine.all() else self.pick(mine)


@dataclass
class _Known:
    """What has been read of a run."""

    vocabulary: dict[tuple[str, ...], list[str]] = field(default_factory=dict)
    """The names that occur, by categories."""
    works: list[str] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    events: dict[int, DeviceEvents] = field(default_factory=dict)
    prepared: bool = False


_KNOWN: WeakKeyDictionary[Run, _Known] = WeakKeyDictionary()


def _known(run: Run) -> _Known:
    """Also makes the temporary table `slice_names`, which costs a pass over all slices."""
    if run not in _KNOWN:
        run.connection.execute(
            "CREATE OR REPLACE TEMP TABLE slice_names AS SELECT DISTINCT category, name FROM slices"
        )
        _KNOWN[run] = _Known()
    return _KNOWN[run]


def vocabulary(run: Run, *categories: str) -> list[str]:
    """The names that occur in some categories: regular expressions look at these, not at every event."""
    known = _known(run).vocabulary
    if categories not in known:
        where = f"category IN ({sql_names(categories)})"
        rows = run.rows(f"SELECT DISTINCT name FROM slice_names WHERE {where} ORDER BY name")
        known[categories] = [name for (name,) in rows]
    return known[categories]


def categories(run: Run) -> list[str]:
    """The categories that occur."""
    _known(run)
    return [
        category for (category,) in run.rows("SELECT DISTINCT category FROM slice_names ORDER BY category")
    ]


def ranks_in(run: Run, scope: Scope) -> list[int]:
    return [rank for rank in run.ranks if scope.ranks is None or rank in scope.ranks]


def steps_in(run: Run, scope: Scope) -> int:
    """The most steps any rank has in the window; 0 without steps."""
    counts = run.rows(f"SELECT count(DISTINCT step) FROM steps WHERE {scope.where()} GROUP BY rank")
    return max((count for (count,) in counts), default=0)


def works(run: Run) -> Sequence[str]:
    """Names of kernels, copies and fills."""
    return _prepared(run).works


def texts(run: Run) -> Sequence[str]:
    """Names of ops and lines of Python."""
    return _prepared(run).texts


def device_events(run: Run, rank: int, scope: Scope) -> DeviceEvents:
    """A rank's GPU events in the window."""
    known = _prepared(run)
    events = known.events.get(rank)
    if events is None:
        loaded = _load(run, _next_ranks(run, rank, known))
        events = loaded[rank]
        if sum(map(len, (*known.events.values(), *loaded.values()))) > KEPT_EVENTS:
            known.events.clear()
        known.events |= loaded
    if scope.steps is None:
        return events
    return events.pick((events.step >= scope.steps[0]) & (events.step <= scope.steps[1]))


def _next_ranks(run: Run, rank: int, known: _Known) -> list[int]:
    """This rank and those that will be asked for next: a question to the store costs more than a rank's rows."""
    later = [other for other in run.ranks if other > rank and other not in known.events]
    return [rank, *later[: RANKS_AT_A_TIME - 1]]


def sql_names(names: Sequence[str]) -> str:
    """For IN (…); nothing matches an empty list."""
    return sql_texts(names) or "NULL"


def _prepared(run: Run) -> _Known:
    """Numbers for the texts: arrays hold numbers only."""
    known = _known(run)
    if not known.prepared:
        execute = run.connection.execute
        execute(
            "CREATE OR REPLACE TEMP TABLE device_works AS SELECT *, row_number() OVER () - 1 AS code FROM "
            "(SELECT DISTINCT name, category, collective IS NOT NULL AS collective, class FROM gpu)"
        )
        execute(
            "CREATE OR REPLACE TEMP TABLE device_texts AS SELECT *, row_number() OVER () - 1 AS code FROM "
            "(SELECT DISTINCT name FROM slice_names WHERE category IN ('cpu_op', 'python_function'))"
        )
        known.works = [name for (name,) in run.rows("SELECT name FROM device_works ORDER BY code")]
        known.texts = [name for (name,) in run.rows("SELECT name FROM device_texts ORDER BY code")]
        known.prepared = True
    return known


def _load(run: Run, ranks: list[int]) -> dict[int, DeviceEvents]:
    classes = " ".join(f"WHEN '{name}' THEN {number}" for name, number in _CLASSES.items())
    columns = run.arrays(f"""
        SELECT g.rank::BIGINT AS rank, g.start_ns AS start, g.start_ns + greatest(g.dur_ns, 0) AS end,
               CASE w.class {classes} END::BIGINT AS kind, w.code AS work,
               coalesce(g.step, {NO_STEP})::BIGINT AS step, coalesce(g.device, {UNKNOWN})::BIGINT AS device,
               coalesce(g.stream, {UNKNOWN}) AS stream, coalesce(g.launch_ns, {UNKNOWN}) AS launch_start,
               coalesce(g.launch_ns + greatest(g.launch_dur_ns, 0), {UNKNOWN}) AS launch_end,
               coalesce(g.launch_track, {UNKNOWN})::BIGINT AS launch_track,
               coalesce(g.launch, {UNKNOWN}) AS launch, coalesce(o.code, {UNKNOWN}) AS op,
               coalesce(g.op_ns, {UNKNOWN}) AS op_start, coalesce(g.op_track, {UNKNOWN})::BIGINT AS op_track,
               coalesce(l.code, {UNKNOWN}) AS line, g.segment::BIGINT AS segment, g.track::BIGINT AS track, g.id
        FROM gpu g
        JOIN device_works w ON w.name = g.name AND w.category = g.category
             AND w.collective = (g.collective IS NOT NULL)
        LEFT JOIN device_texts o ON o.name = g.op_name
        LEFT JOIN device_texts l ON l.name = g.line
        WHERE g.rank IN ({", ".join(map(str, ranks))})
    """)
    order = np.lexsort((columns["launch_start"], columns["start"], columns["rank"]))
    bounds = np.searchsorted(columns["rank"][order], [*ranks, max(ranks) + 1])
    return {
        rank: DeviceEvents(**{f.name: columns[f.name][order[low:high]] for f in fields(DeviceEvents)})
        for rank, low, high in zip(ranks, bounds[:-1], bounds[1:], strict=True)
    }
