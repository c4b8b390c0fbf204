"""The GPU events of a rank as arrays, each with its launch; and the names that occur in a run.

Reports read rank by rank, so that only the arrays of a few ranks need be in memory at a time. The arrays of small runs
are kept for the next report.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from rankscope.analysis.core.cache import once_per_run
from rankscope.analysis.core.event_sets import COMM, COMPUTE, COPY, NO_STEP
from rankscope.analysis.core.intervals import Ints
from rankscope.analysis.core.scope import Scope
from rankscope.sql import sql_texts
from rankscope.store.run import Run

UNKNOWN = -1
"""In place of a time, an id or a text that is not in the file."""
RANKS_AT_A_TIME = 8
KEPT_EVENTS = 4_000_000
"""How many events stay in memory between reports: about 400 MB."""
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
    """Its name, an index into `works`."""
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


@once_per_run
def _names_by_category(run: Run) -> dict[str, list[str]]:
    """One pass over all slices."""
    found: dict[str, list[str]] = {}
    for category, name in run.rows("SELECT DISTINCT category, name FROM slices ORDER BY ALL"):
        found.setdefault(category, []).append(name)
    return found


@once_per_run
def _vocabularies(run: Run) -> dict[tuple[str, ...], list[str]]:
    """By categories; `vocabulary` fills it."""
    return {}


def vocabulary(run: Run, *categories: str) -> list[str]:
    """The names that occur in some categories, sorted: regular expressions are matched with these, not with events."""
    kept = _vocabularies(run)
    if categories not in kept:
        found = _names_by_category(run)
        lists = [found[category] for category in categories if category in found]
        # Each list is sorted already; a file may have a million names.
        kept[categories] = lists[0] if len(lists) == 1 else sorted(set().union(*lists))
    return kept[categories]


def categories(run: Run) -> list[str]:
    """The categories that occur."""
    return list(_names_by_category(run))


def ranks_in(run: Run, scope: Scope) -> list[int]:
    return [rank for rank in run.ranks if scope.ranks is None or rank in scope.ranks]


def steps_in(run: Run, scope: Scope) -> int:
    """The largest number of steps of any rank in the window; 0 without steps."""
    counts = run.rows(f"SELECT count(DISTINCT step) FROM steps WHERE {scope.where()} GROUP BY rank")
    return max((count for (count,) in counts), default=0)


@dataclass(frozen=True)
class _Work:
    """One kind of GPU event: events are classified by these three."""

    name: str
    category: str
    collective: bool
    kind: int


@once_per_run
def _works(run: Run) -> list[_Work]:
    rows = run.rows(
        "SELECT DISTINCT name, category, collective IS NOT NULL AS collective, class FROM gpu ORDER BY ALL"
    )
    return [_Work(name, category, collective, _CLASSES[kind]) for name, category, collective, kind in rows]


@once_per_run
def works(run: Run) -> Sequence[str]:
    """Names of kernels, copies and fills; DeviceEvents.work is an index into them."""
    return tuple(work.name for work in _works(run))


def texts(run: Run) -> Sequence[str]:
    """Names of ops and lines of Python; DeviceEvents.op and .line are indices into them."""
    return vocabulary(run, "cpu_op", "python_function")


@once_per_run
def _kept_events(run: Run) -> dict[int, DeviceEvents]:
    """The events in memory, by rank; `device_events` fills it and keeps it below KEPT_EVENTS."""
    return {}


def device_events(run: Run, rank: int, scope: Scope) -> DeviceEvents:
    """A rank's GPU events in the window."""
    kept = _kept_events(run)
    events = kept.get(rank)
    if events is None:
        later = [other for other in run.ranks if other > rank and other not in kept]
        # Reports ask rank by rank, and a query costs more than the rows of a rank.
        loaded = _load(run, [rank, *later[: RANKS_AT_A_TIME - 1]])
        events = loaded[rank]
        if sum(map(len, (*kept.values(), *loaded.values()))) > KEPT_EVENTS:
            kept.clear()
        kept |= loaded
    if scope.steps is None:
        return events
    return events.pick((events.step >= scope.steps[0]) & (events.step <= scope.steps[1]))


def sql_names(names: Sequence[str]) -> str:
    """For IN (…); nothing matches an empty list."""
    return sql_texts(names) or "NULL"


def _load(run: Run, ranks: list[int]) -> dict[int, DeviceEvents]:
    found, names = _works(run), texts(run)
    of_works = [[getattr(work, f.name) for work in found] for f in fields(_Work)]
    parameters = [*of_works, len(found), names, len(names)]
    columns = run.arrays(
        f"""
        WITH works AS MATERIALIZED (
            SELECT unnest(?::VARCHAR[]) AS name, unnest(?::VARCHAR[]) AS category, unnest(?::BOOLEAN[]) AS collective,
                   unnest(?::BIGINT[]) AS kind, unnest(range(?)) AS code
        ), texts AS MATERIALIZED (
            SELECT unnest(?::VARCHAR[]) AS name, unnest(range(?)) AS code
        )
        SELECT g.rank::BIGINT AS rank, g.start_ns AS start, g.start_ns + greatest(g.dur_ns, 0) AS end,
               w.kind, w.code AS work,
               coalesce(g.step, {NO_STEP})::BIGINT AS step, coalesce(g.device, {UNKNOWN})::BIGINT AS device,
               coalesce(g.stream, {UNKNOWN}) AS stream, coalesce(g.launch_ns, {UNKNOWN}) AS launch_start,
               coalesce(g.launch_ns + greatest(g.launch_dur_ns, 0), {UNKNOWN}) AS launch_end,
               coalesce(g.launch_track, {UNKNOWN})::BIGINT AS launch_track,
               coalesce(g.launch, {UNKNOWN}) AS launch, coalesce(o.code, {UNKNOWN}) AS op,
               coalesce(g.op_ns, {UNKNOWN}) AS op_start, coalesce(g.op_track, {UNKNOWN})::BIGINT AS op_track,
               coalesce(l.code, {UNKNOWN}) AS line, g.segment::BIGINT AS segment, g.track::BIGINT AS track, g.id
        FROM gpu g
        JOIN works w ON w.name = g.name AND w.category = g.category
             AND w.collective = (g.collective IS NOT NULL)
        LEFT JOIN texts o ON o.name = g.op_name
        LEFT JOIN texts l ON l.name = g.line
        WHERE g.rank IN ({", ".join(map(str, ranks))})
    """,
        parameters,
    )
    order = np.lexsort((columns["launch_start"], columns["start"], columns["rank"]))
    bounds = np.searchsorted(columns["rank"][order], [*ranks, max(ranks) + 1])
    return {
        rank: DeviceEvents(**{f.name: columns[f.name][order[low:high]] for f in fields(DeviceEvents)})
        for rank, low, high in zip(ranks, bounds[:-1], bounds[1:], strict=True)
    }
