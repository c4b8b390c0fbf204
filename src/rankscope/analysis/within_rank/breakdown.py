"""The time of each rank and step, split into compute, exposed communication, exposed copies and idle."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import numpy as np

from rankscope.analysis.core.cache import once_per_run
from rankscope.analysis.core.collective_waits import waits
from rankscope.analysis.core.device_events import device_events, ranks_in
from rankscope.analysis.core.event_sets import COMM, COMPUTE, COPY, Activity, host_work
from rankscope.analysis.core.grouping import split_by_rank
from rankscope.analysis.core.host_spans import rank_collectives
from rankscope.analysis.core.intervals import (
    EMPTY,
    Intervals,
    Ints,
    covered_before,
    intersect,
    join,
    subtract,
    union,
)
from rankscope.analysis.core.lost_kernels import kernels_end_in
from rankscope.analysis.core.notes import left_out
from rankscope.analysis.core.result import Column, Result
from rankscope.analysis.core.scope import Scope
from rankscope.analysis.core.step_times import StepWindows, windows
from rankscope.ranges import as_ranges
from rankscope.records import dataclass
from rankscope.store.arrays import unique_values
from rankscope.store.run import Run
from rankscope.units import format_rounded

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
class SpanParts:
    """Lengths in ns, one entry per window. compute + exposed_comm + exposed_copy + idle = span, exactly."""

    span: Ints
    compute: Ints
    comm: Ints
    exposed_comm: Ints
    exposed_wait: Ints
    """Part of exposed_comm."""
    exposed_copy: Ints
    idle: Ints
    hidden: Ints

    def totals(self, mine: Any) -> dict[str, int]:
        """Summed over some windows."""
        return {f.name: int(getattr(self, f.name)[mine].sum()) for f in fields(self)}


@dataclass(frozen=True)
class RankSets:
    """When a rank computes, communicates, waits for another rank, and copies. The sets overlap."""

    compute: Intervals
    comm: Intervals
    waiting: Intervals
    """Inside a collective, until the last rank has arrived; known where the collective was matched across ranks."""
    copy: Intervals

    @property
    def any(self) -> bool:
        return any(len(one.start) for one in (self.compute, self.comm, self.copy))

    @property
    def exposed_comm(self) -> Intervals:
        return subtract(self.comm, self.compute)

    @property
    def exposed_wait(self) -> Intervals:
        return intersect(self.exposed_comm, self.waiting)

    @property
    def exposed_copy(self) -> Intervals:
        return subtract(subtract(self.copy, self.compute), self.comm)

    def within(self, found: StepWindows) -> SpanParts:
        """The parts of each window."""

        def inside(a: Intervals) -> Ints:
            return covered_before(a, found.end) - covered_before(a, found.start)

        span = found.end - found.start
        return SpanParts(
            span=span,
            compute=inside(self.compute),
            comm=inside(self.comm),
            exposed_comm=inside(self.exposed_comm),
            exposed_wait=inside(self.exposed_wait),
            exposed_copy=inside(self.exposed_copy),
            idle=span - inside(join(self.compute, self.comm, self.copy)),
            hidden=inside(intersect(self.comm, self.compute)),
        )


@once_per_run
def breakdown(run: Run, scope: Scope, by: str | None = None) -> Result:
    """One row per rank for the whole window, then one per rank and step."""
    rows: list[dict[str, Any]] = []
    on_host, empty = [], []
    lost = kernels_end_in(run, scope)
    for rank in ranks_in(run, scope):  # one at a time, to hold the events of one rank in memory
        found = windows(run, rank, scope)
        if len(found.step) == 0 or rank in lost:  # a doubt of the run says why
            continue
        sets = rank_sets(run, rank)
        if not sets.any:
            empty.append(rank)
            continue
        if runs_on_host(run, rank):
            on_host.append(rank)
        parts = sets.within(found)
        rows.append(_row(rank, None, parts.totals(slice(None))))
        if scope.steps is not None:
            rows += [
                _row(rank, step, parts.totals(found.step == step))
                for step in unique_values(found.step).tolist()
            ]
    rows.sort(key=lambda row: (row["step"] is not None, row["rank"], row["step"] or 0))
    unrecorded = _unrecorded(run, scope)
    notes = left_out(run, scope)
    if unrecorded:
        notes.append(
            f"left out: {format_rounded('ns', unrecorded)} between the recordings of a rank, which is in no class"
        )
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
    return sets_of(work, rank_collectives(run, rank, Scope()), _waiting(run)[rank])


def sets_of(work: Activity, collectives: Activity, waiting: Intervals = EMPTY) -> RankSets:
    """The sets of one rank from its work and its collectives on the host."""
    kinds = {
        kind: union(work.start[work.kind == kind], work.end[work.kind == kind])
        for kind in (COMPUTE, COMM, COPY)
    }
    comm = join(kinds[COMM], union(collectives.start, collectives.end))
    return RankSets(kinds[COMPUTE], comm, waiting, kinds[COPY])


def _activity(run: Run, rank: int) -> Activity:
    events = device_events(run, rank, Scope())
    return Activity(np.full(len(events), rank), events.step, events.kind, events.start, events.end)


@once_per_run
def _waiting(run: Run) -> dict[int, Intervals]:
    """By rank, when it waits for another rank: the first (duration - transfer) of each matched collective."""
    found = waits(run)
    known = found.wait > 0
    start = found.rows.start[known]
    columns = {"rank": found.rows.rank[known], "start": start, "end": start + found.wait[known]}
    return {rank: union(own["start"], own["end"]) for rank, own in split_by_rank(columns, run.ranks).items()}


def _unrecorded(run: Run, scope: Scope) -> int:
    """Time between the cycles of a rank, of the rank with most of it: it was not recorded, so it is in no class."""
    found = [windows(run, rank, scope) for rank in ranks_in(run, scope)]
    return max((int(one.end[-1] - one.start[0]) - one.span for one in found if len(one.step)), default=0)
