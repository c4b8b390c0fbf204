"""Communication that overlaps with compute and communication that is exposed, by kind of collective."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from rankscope.analysis.core.advice import ways_to_overlap
from rankscope.analysis.core.device_events import (
    COMM,
    COMPUTE,
    DeviceEvents,
    device_events,
    gpu_ranks,
    steps_in,
)
from rankscope.analysis.core.gpu_counts import gpu_counts
from rankscope.analysis.core.intervals import Intervals, covered, intersect, length, union
from rankscope.analysis.core.names import all_names
from rankscope.analysis.core.notes import gpu_outside_steps, left_out, no_gpu
from rankscope.analysis.core.rank_activity import host_collectives, rank_activity
from rankscope.analysis.core.result import Column, Fact, Finding, Remedy, Result, Unit
from rankscope.analysis.core.rollups import kept_per_rank
from rankscope.analysis.core.run_steps import NO_STEP
from rankscope.analysis.core.scope import Scope, cut_ranks
from rankscope.analysis.core.severity import LIMIT_SHARE, mean_on
from rankscope.analysis.core.step_times import StepWindows, windows
from rankscope.analysis.within_rank.breakdown import exposed_waits, rank_parts
from rankscope.analysis.within_rank.kernel_families import kernel_name
from rankscope.records import dataclass
from rankscope.store.arrays import unique_values
from rankscope.timeline.run import Run

ON_HOST = "collectives on the host"
COLUMNS = (
    Column("rank"),
    Column("step", help="null: the whole window"),
    Column("collective", help="null: all collectives together", at_end=True),
    Column("comm_ns", "ns", "time in which at least one collective of the row runs"),
    Column("hidden_ns", "ns", "part of it in which a compute kernel also runs"),
    Column("exposed_ns", "ns", "part of it in which no compute kernel runs"),
    Column("overlap_pct", "percent", "hidden share of the communication time"),
    Column("hidden_by", help="compute kernel with the longest overlap", at_end=True),
)


class OverlapRow(NamedTuple):
    """The communication of one rank in some windows: of one kind, or all together."""

    collective: str | None
    comm_ns: int
    hidden_ns: int
    hidden_by: str | None

    def as_row(self, rank: int, step: int | None) -> dict[str, Any]:
        values = {"rank": rank, "step": step, **self._asdict()}
        values["exposed_ns"] = self.comm_ns - self.hidden_ns
        values["overlap_pct"] = 100 * self.hidden_ns / self.comm_ns
        return {column.name: values[column.name] for column in COLUMNS}


@dataclass(frozen=True)
class RankOverlap:
    """The communication of one rank."""

    rows: tuple[OverlapRow, ...]
    """All together, then by kind of collective."""


@kept_per_rank("overlap", RankOverlap)
def rank_overlap(run: Run, scope: Scope) -> dict[int, RankOverlap]:
    """Of the ranks with GPU events."""
    return {
        rank: RankOverlap(tuple(_rows(run, rank, window.intervals, each=True)))
        for rank, window in _gpu_windows(run, scope)
    }


def _gpu_windows(run: Run, scope: Scope) -> Iterator[tuple[int, StepWindows]]:
    """The ranks with GPU events and a window."""
    for rank in scope.ranks_in(run):
        window = windows(run, rank, scope)
        if rank in gpu_ranks(run) and len(window.step):
            yield rank, window


def overlap(run: Run, scope: Scope, by: str | None = None) -> Result:
    """One row per rank for all collectives, then one per kind; --by step: one per rank and step."""
    rows: list[dict[str, Any]] = []
    if by == "step":
        for rank, window in _gpu_windows(run, scope):
            for step in unique_values(window.step[window.step != NO_STEP]).tolist():
                mine = window.step == step
                times = Intervals(window.start[mine], window.end[mine])
                rows += [row.as_row(rank, step) for row in _rows(run, rank, times, each=False)]
    else:
        for rank, record in rank_overlap(run, scope).items():
            rows += [row.as_row(rank, None) for row in record.rows]
    inside = sum(count.events for count in gpu_counts(run, scope))
    notes = left_out(run, scope) + gpu_outside_steps(run, scope, inside)
    if not inside:
        notes.append(no_gpu(run))
    elif not rows:
        notes.append("no communication in the window: the run has one rank, or collectives were not recorded")
    title, limits = "Overlap of communication and compute", _limits(run, scope, rows if by is None else [])
    return Result("overlap", title, scope.window, COLUMNS, rows, limits, tuple(notes))


def _rows(run: Run, rank: int, window: Intervals, each: bool) -> Iterator[OverlapRow]:
    """As in the breakdown, all is clipped to the window."""
    events, activity = device_events(run, rank, Scope()), rank_activity(run, rank)
    names = all_names(run)
    sets: list[tuple[str | None, Intervals]] = [(None, activity.communication)]
    if each:
        comm = np.flatnonzero(events.kind == COMM)
        work, kinds = events.work[comm], dict[str, list[int]]()
        for code in unique_values(work).tolist():
            kinds.setdefault(kernel_name(names[code]), []).append(code)
        for kind, codes in sorted(kinds.items()):
            mine = comm[np.isin(work, codes)]
            sets.append((kind, union(events.start[mine], events.end[mine])))
        sets.append((ON_HOST, host_collectives(run)[rank]))
    compute = events.pick(events.kind == COMPUTE)
    for name, everywhere in sets:
        spans = intersect(everywhere, window)
        total = length(spans)
        if total:
            hidden = length(intersect(spans, activity.compute))
            yield OverlapRow(name, total, hidden, _longest(compute, spans, names) if hidden else None)


def _longest(compute: DeviceEvents, spans: Intervals, names: Any) -> str:
    """The kernel with the longest overlap with the spans."""
    shared = covered(spans, compute.start, compute.end)
    times: Counter[str] = Counter()
    codes, which = np.unique(compute.work[shared > 0], return_inverse=True)
    for code, time in zip(
        codes.tolist(), np.bincount(which, weights=shared[shared > 0]).tolist(), strict=True
    ):
        times[kernel_name(names[code])] += int(time)
    return max(times, key=lambda name: times[name])


def _limits(run: Run, scope: Scope, rows: list[dict[str, Any]]) -> tuple[Finding, ...]:
    """By the transfers alone: no overlap shortens the wait for a late rank."""
    if cut_ranks(run):  # which part of it is waiting is not known
        return ()
    waited, parts = exposed_waits(run, scope), rank_parts(run, scope)
    exposed = {row["rank"]: row for row in rows if row["collective"] is None}
    waits = {rank: int(waited[rank].sum()) for rank in exposed}
    transfer = {
        rank: time
        for rank, row in exposed.items()
        if (time := row["exposed_ns"] - waits[rank]) > 0 and time >= LIMIT_SHARE * parts[rank].span
    }
    if not transfer:
        return ()
    rank = max(transfer, key=lambda rank: transfer[rank])
    whole, steps = exposed[rank], steps_in(run, scope)
    kinds = [row for row in rows if row["rank"] == rank and row["collective"] is not None]
    most = max(kinds, key=lambda row: row["exposed_ns"])
    key = {"rank": rank, "step": None, "collective": None}
    without = ", without waiting for other ranks" if waits[rank] else ""
    quantities: tuple[tuple[str, float, Unit], ...] = (
        ("exposed_ns", whole["exposed_ns"], "ns"),
        ("comm_ns", whole["comm_ns"], "ns"),
        ("exposed_wait_ns", waits[rank], "ns"),
    )
    return (
        Finding(
            "limit",
            "Communication",
            f"compute does not hide it{without}: {mean_on(transfer, len(scope.ranks_in(run)), steps)}; "
            f"most of it is {most['collective']}",
            tuple(sorted(transfer)),
            hint=f"Overlap it with compute ({', '.join(ways_to_overlap(run))}), or send less data. "
            "Predict the gain: rankscope whatif RUN --hide-comm",
            facts=tuple(Fact(*quantity, f"rank {rank}", (rank,), key) for quantity in quantities),
            remedy=Remedy("communication hidden"),
            names=(most["collective"],),
        ),
    )
