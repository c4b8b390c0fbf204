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
    device_events,
    gpu_ranks,
)
from rankscope.analysis.core.intervals import Intervals, covered, intersect, length, union
from rankscope.analysis.core.names import all_names
from rankscope.analysis.core.notes import gpu_notes
from rankscope.analysis.core.rank_activity import host_collectives, rank_activity
from rankscope.analysis.core.result import Column, Fact, Finding, Remedy, Result
from rankscope.analysis.core.rollups import kept_per_rank
from rankscope.analysis.core.scope import NO_STEP, Scope, cut_ranks
from rankscope.analysis.core.severity import mean_on, that_matter
from rankscope.analysis.core.step_times import Windows, windows
from rankscope.analysis.within_rank.breakdown import exposed_waits
from rankscope.analysis.within_rank.kernel_families import kernel_name
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


@kept_per_rank("overlap", list[OverlapRow])
def rank_overlap(run: Run, scope: Scope) -> dict[int, list[OverlapRow]]:
    """Of the ranks with GPU events: all together, then by kind of collective."""
    return {
        rank: [*_rows(run, rank, window.intervals, each=True)] for rank, window in _gpu_windows(run, scope)
    }


def _gpu_windows(run: Run, scope: Scope) -> Iterator[tuple[int, Windows]]:
    """The ranks with GPU events and a window."""
    for rank in scope.ranks_in(run):
        if rank in gpu_ranks(run) and (window := windows(run, scope).of(rank)):
            yield rank, window


def overlap(run: Run, scope: Scope, by: str | None = None) -> Result:
    """One row per rank for all collectives, then one per kind; --by step: one per rank and step."""
    rows: list[dict[str, Any]] = []
    if by == "step":
        for rank, window in _gpu_windows(run, scope):
            for step in unique_values(window.step[window.step != NO_STEP]).tolist():
                times = window.pick(window.step == step).intervals
                rows += [row.as_row(rank, step) for row in _rows(run, rank, times, each=False)]
    else:
        for rank, record in rank_overlap(run, scope).items():
            rows += [row.as_row(rank, None) for row in record]
    inside, notes = gpu_notes(run, scope)
    if inside and not rows:
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
            hidden, times = length(intersect(spans, activity.compute)), Counter[str]()
            if hidden:  # the kernel with the longest overlap
                kernels, which = np.unique(compute.work, return_inverse=True)
                sums = np.bincount(which, weights=covered(spans, compute.start, compute.end))
                for code, time in zip(kernels.tolist(), sums.tolist(), strict=True):
                    times[kernel_name(names[code])] += int(time)
            longest = next(iter(times.most_common(1)), (None, 0))[0]
            yield OverlapRow(name, total, hidden, longest)


def _limits(run: Run, scope: Scope, rows: list[dict[str, Any]]) -> tuple[Finding, ...]:
    """By the transfers alone: no overlap shortens the wait for a late rank."""
    if cut_ranks(run):  # which part of it is waiting is not known
        return ()
    waited = exposed_waits(run, scope)
    exposed = {row["rank"]: row for row in rows if row["collective"] is None}
    waits = {rank: int(waited[rank].sum()) for rank in exposed}
    lengths = {rank: row["exposed_ns"] - waits[rank] for rank, row in exposed.items()}
    if not (transfer := that_matter(run, scope, lengths)):
        return ()
    rank = max(transfer, key=transfer.__getitem__)
    kinds = [row for row in rows if row["rank"] == rank and row["collective"] is not None]
    most = max(kinds, key=lambda row: row["exposed_ns"])["collective"]
    mine = (f"rank {rank}, all steps", (rank,), {"rank": rank, "step": None, "collective": None})
    finding = Finding(
        "limit",
        "Communication",
        ranks=tuple(sorted(transfer)),
        advice=f"Overlap it with compute ({', '.join(ways_to_overlap(run))}), or send less data.",
        facts=(
            Fact("exposed_ns", exposed[rank]["exposed_ns"], "ns", *mine),
            Fact("exposed_wait_ns", waits[rank], "ns", *mine),
            mean_on(run, scope, "transfer_exposed_ns", transfer),
            Fact("most_in", most, "", f"rank {rank}", (rank,)),
        ),
        remedy=Remedy("communication hidden"),
        names=(most,),
    )
    return (finding,)
