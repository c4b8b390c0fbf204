"""The time of each rank and step, split into compute, exposed communication, exposed copies and idle."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from rankscope.analysis.core.cache import once_per_run
from rankscope.analysis.core.collective_waits import waits
from rankscope.analysis.core.device_events import device_events, ranks_in
from rankscope.analysis.core.event_sets import COMM, COMPUTE, COPY, Activity, host_work
from rankscope.analysis.core.grouping import split_by_rank
from rankscope.analysis.core.host_spans import rank_collectives
from rankscope.analysis.core.intervals import (
    Intervals,
    Ints,
    covered_before,
    intersect,
    join,
    subtract,
    union,
)
from rankscope.analysis.core.lost_kernels import kernels_end_in
from rankscope.analysis.core.notes import left_out, unrecorded_note
from rankscope.analysis.core.result import Column, Result
from rankscope.analysis.core.rollups import kept_per_rank
from rankscope.analysis.core.scope import Scope
from rankscope.analysis.core.step_times import StepWindows, windows
from rankscope.ranges import as_ranges
from rankscope.records import dataclass
from rankscope.timeline.run import Run

COLUMNS = (
    Column("rank"),
    Column("step", help="null: the whole window"),
    Column(
        "span_ns",
        "ns",
        "the step's time; of the whole file, from the first start to the last end of GPU events",
    ),
    Column("compute_ns", "ns", "time in which at least one compute kernel runs"),
    Column("comm_ns", "ns", "time in which at least one collective runs, hidden or not"),
    Column("exposed_comm_ns", "ns", "time in which a collective runs and no compute kernel does"),
    Column(
        "exposed_wait_ns", "ns", "part of it in which the rank waits for another rank", title="Of it waiting"
    ),
    Column("exposed_copy_ns", "ns", "time in which only copies or fills run"),
    Column("idle_ns", "ns", "time in which nothing runs"),
    Column("overlap_pct", "percent", "share of communication that overlaps with compute"),
)


@dataclass(frozen=True)
class RankSets:
    """When a rank computes, communicates and copies. The sets overlap."""

    compute: Intervals
    comm: Intervals
    copy: Intervals

    @property
    def any(self) -> bool:
        return any(len(one.start) for one in (self.compute, self.comm, self.copy))

    @property
    def exposed_comm(self) -> Intervals:
        return subtract(self.comm, self.compute)

    @property
    def exposed_copy(self) -> Intervals:
        return subtract(subtract(self.copy, self.compute), self.comm)


@dataclass(frozen=True)
class RankParts:
    """The windows of one rank and their parts: an entry a window, times in ns from the start of its first file.

    compute + exposed_comm + exposed_copy + idle = end - start, exactly.
    """

    step: Ints
    start: Ints
    end: Ints
    compute: Ints
    comm: Ints
    exposed_comm: Ints
    exposed_copy: Ints
    idle: Ints
    hidden: Ints
    exposed: Intervals
    """When a collective runs and no compute kernel does, within the windows."""
    on_host: bool
    """The rank has no GPU events: the work of its host counts."""
    anything: bool
    """Whether it has any work."""

    @property
    def span(self) -> int:
        return int((self.end - self.start).sum())

    def rows(self, rank: int, waiting: Ints, by_step: bool) -> Iterator[dict[str, Any]]:
        """For the whole window, then by step. `waiting` is the part of exposed_comm in which it waits for a rank."""
        columns = {
            "span": self.end - self.start,
            "compute": self.compute,
            "comm": self.comm,
            "exposed_comm": self.exposed_comm,
            "exposed_wait": waiting,
            "exposed_copy": self.exposed_copy,
            "idle": self.idle,
            "hidden": self.hidden,
        }
        values = np.stack(list(columns.values()))
        yield _row(rank, None, dict(zip(columns, values.sum(axis=1).tolist(), strict=True)))
        if by_step:
            order = np.argsort(self.step, kind="stable")
            steps = self.step[order]
            first = np.flatnonzero(np.diff(steps, prepend=steps[0] - 1))
            sums = np.add.reduceat(values[:, order], first, axis=1).T
            for step, own in zip(steps[first].tolist(), sums.tolist(), strict=True):
                yield _row(rank, step, dict(zip(columns, own, strict=True)))


@kept_per_rank("breakdown", RankParts)
def rank_parts(run: Run, scope: Scope) -> dict[int, RankParts]:
    """Of the ranks that have a window. One at a time, to hold the events of one rank in memory."""
    found = {}
    for rank in ranks_in(run, scope):
        own = windows(run, rank, scope)
        if len(own.step):
            found[rank] = _parts(run, rank, own)
    return found


def _parts(run: Run, rank: int, found: StepWindows) -> RankParts:
    sets = rank_sets(run, rank)
    exposed = sets.exposed_comm

    def inside(a: Intervals) -> Ints:
        return _inside(a, found.start, found.end)

    origin = run.origin_ns(rank)
    return RankParts(
        step=found.step,
        start=found.start - origin,
        end=found.end - origin,
        compute=inside(sets.compute),
        comm=inside(sets.comm),
        exposed_comm=inside(exposed),
        exposed_copy=inside(sets.exposed_copy),
        idle=found.end - found.start - inside(join(sets.compute, sets.comm, sets.copy)),
        hidden=inside(intersect(sets.comm, sets.compute)),
        exposed=_shifted(intersect(exposed, found.intervals), -origin),
        on_host=runs_on_host(run, rank),
        anything=sets.any,
    )


def _inside(a: Intervals, start: Ints, end: Ints) -> Ints:
    """How much of a set lies in each window."""
    return covered_before(a, end) - covered_before(a, start)


def _shifted(a: Intervals, by_ns: int) -> Intervals:
    return Intervals(a.start + by_ns, a.end + by_ns)


@once_per_run
def exposed_wait_times(run: Run, scope: Scope) -> dict[int, Intervals]:
    """By rank, when it waits for another rank in exposed communication; in ns from the run's start.

    That is known where a collective was matched across ranks: until the last rank has arrived.
    """
    waiting = waiting_times(run)
    return {
        rank: intersect(_shifted(parts.exposed, run.origin_ns(rank)), waiting[rank])
        for rank, parts in rank_parts(run, scope).items()
    }


@once_per_run
def exposed_waits(run: Run, scope: Scope) -> dict[int, Ints]:
    """By rank, how much of these times lies in each of its windows."""
    times, found = exposed_wait_times(run, scope), {}
    for rank, parts in rank_parts(run, scope).items():
        origin = run.origin_ns(rank)
        found[rank] = _inside(times[rank], parts.start + origin, parts.end + origin)
    return found


@once_per_run
def breakdown(run: Run, scope: Scope, by: str | None = None) -> Result:
    """One row per rank for the whole window, then one per rank and step."""
    rows: list[dict[str, Any]] = []
    on_host, empty = [], []
    lost = kernels_end_in(run, scope)
    waits_of = exposed_waits(run, scope)
    for rank, parts in rank_parts(run, scope).items():
        if rank in lost:  # a doubt of the run says why
            continue
        if not parts.anything:
            empty.append(rank)
            continue
        if parts.on_host:
            on_host.append(rank)
        rows += parts.rows(rank, waits_of[rank], scope.steps is not None)
    rows.sort(key=lambda row: (row["step"] is not None, row["rank"], row["step"] or 0))
    unrecorded = _unrecorded(run, scope)
    notes = left_out(run, scope)
    if unrecorded:
        notes.append(unrecorded_note(unrecorded))
    if on_host:
        whose = "" if len(on_host) == len(ranks_in(run, scope)) else f" of ranks {as_ranges(on_host)}"
        notes.append(
            f"no GPU events{whose}: compute is the time in leaf ops on the host, the span is that of the steps"
        )
    if empty:
        whose = "" if len(empty) == len(ranks_in(run, scope)) else f" of ranks {as_ranges(empty)}"
        notes.append(f"no GPU events and no ops{whose}: what the time was spent on is not known")
    facts = {"unrecorded_ns": unrecorded}
    return Result(
        "breakdown", "Where the time went", scope.window, COLUMNS, rows, notes=tuple(notes), facts=facts
    )


def _row(rank: int, step: int | None, parts: dict[str, int]) -> dict[str, Any]:
    hidden, comm = parts.pop("hidden"), parts["comm"]
    row: dict[str, Any] = {"rank": rank, "step": step} | {f"{name}_ns": ns for name, ns in parts.items()}
    return row | {"overlap_pct": 100 * hidden / comm if comm else None}


def runs_on_host(run: Run, rank: int) -> bool:
    """Whether the rank has no GPU events: then the work of its host is what counts."""
    return len(device_events(run, rank, Scope())) == 0


def rank_sets(run: Run, rank: int) -> RankSets:
    """The sets of one rank, over all that was recorded."""
    work = host_work(run, Scope(frozenset([rank]))) if runs_on_host(run, rank) else _activity(run, rank)
    return sets_of(work, rank_collectives(run, rank, Scope()))


def sets_of(work: Activity, collectives: Activity) -> RankSets:
    """The sets of one rank from its work and its collectives on the host."""
    kinds = {
        kind: union(work.start[work.kind == kind], work.end[work.kind == kind])
        for kind in (COMPUTE, COMM, COPY)
    }
    comm = join(kinds[COMM], union(collectives.start, collectives.end))
    return RankSets(kinds[COMPUTE], comm, kinds[COPY])


def _activity(run: Run, rank: int) -> Activity:
    events = device_events(run, rank, Scope())
    return Activity(np.full(len(events), rank), events.step, events.kind, events.start, events.end)


@once_per_run
def waiting_times(run: Run) -> dict[int, Intervals]:
    """By rank, when it waits for another rank: the first (duration - transfer) of each matched collective."""
    found = waits(run)
    known = found.wait > 0
    start = found.rows.start[known]
    columns = {"rank": found.rows.rank[known], "start": start, "end": start + found.wait[known]}
    return {rank: union(own["start"], own["end"]) for rank, own in split_by_rank(columns, run.ranks).items()}


def _unrecorded(run: Run, scope: Scope) -> int:
    """Time between the cycles of a rank, of the rank with most of it: it was not recorded, so it is in no class."""
    found = rank_parts(run, scope).values()
    return max((int(one.end[-1] - one.start[0]) - one.span for one in found), default=0)
