"""Communication that overlaps with compute and communication that is exposed, by kind of collective."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from rankscope.analysis.core.device_events import DeviceEvents, device_events, ranks_in
from rankscope.analysis.core.event_sets import COMM, COMPUTE, NO_STEP, Activity
from rankscope.analysis.core.gpu_counts import gpu_counts
from rankscope.analysis.core.host_spans import rank_collectives
from rankscope.analysis.core.intervals import Intervals, covered_before, intersect, join, length, union
from rankscope.analysis.core.names import all_names
from rankscope.analysis.core.notes import NO_GPU, gpu_outside_steps, left_out
from rankscope.analysis.core.result import Column, Fact, Finding, Remedy, Result, Unit
from rankscope.analysis.core.rollups import kept_per_rank
from rankscope.analysis.core.scope import Scope
from rankscope.analysis.core.severity import OnRank, graded, of_the_worst
from rankscope.analysis.core.step_times import StepWindows, windows
from rankscope.analysis.within_rank.breakdown import exposed_waits, rank_parts
from rankscope.analysis.within_rank.kernel_families import kernel_name
from rankscope.records import dataclass
from rankscope.store.arrays import unique_values
from rankscope.timeline.run import Run
from rankscope.units import format_rounded

EXPOSED_INFO, EXPOSED_WARNING, EXPOSED_CRITICAL = 0.05, 0.15, 0.40
"""Shares of the span with an exposed transfer. Data-parallel training that overlaps its buckets stays under 15 %."""

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
        return {
            "rank": rank,
            "step": step,
            "collective": self.collective,
            "comm_ns": self.comm_ns,
            "hidden_ns": self.hidden_ns,
            "exposed_ns": self.comm_ns - self.hidden_ns,
            "overlap_pct": 100 * self.hidden_ns / self.comm_ns,
            "hidden_by": self.hidden_by,
        }


@dataclass(frozen=True)
class RankOverlap:
    """The communication of one rank."""

    rows: tuple[OverlapRow, ...]
    """All together, then by kind of collective."""


@kept_per_rank("overlap", RankOverlap)
def rank_overlap(run: Run, scope: Scope) -> dict[int, RankOverlap]:
    """Of the ranks with GPU events."""
    found = {}
    for rank, events, host, own in _recorded(run, scope):
        found[rank] = RankOverlap(tuple(_rows(run, events, host, own.intervals, each=True)))
    return found


def _recorded(run: Run, scope: Scope) -> Iterator[tuple[int, DeviceEvents, Activity, StepWindows]]:
    """Rank by rank its GPU events, its collectives on the host and its windows."""
    for rank in ranks_in(run, scope):
        events, found = device_events(run, rank, scope.only_ranks()), windows(run, rank, scope)
        if len(events) and len(found.step):
            yield rank, events, rank_collectives(run, rank, Scope()), found


def overlap(run: Run, scope: Scope, by: str | None = None) -> Result:
    """One row per rank for all collectives, then one per kind; --by step: one per rank and step."""
    rows: list[dict[str, Any]] = []
    findings: list[OnRank] = []
    if by == "step":
        for rank, events, host, found in _recorded(run, scope):
            for step in unique_values(found.step[found.step != NO_STEP]).tolist():
                mine = found.step == step
                window = Intervals(found.start[mine], found.end[mine])
                rows += [one.as_row(rank, step) for one in _rows(run, events, host, window, each=False)]
    else:
        for rank, known in rank_overlap(run, scope).items():
            own_rows = [one.as_row(rank, None) for one in known.rows]
            rows += own_rows
            findings += _finding(run, rank, own_rows, scope)
    inside = sum(count.events for count in gpu_counts(run, scope))
    notes = left_out(run, scope) + gpu_outside_steps(run, scope, inside)
    if not inside:
        notes.append(NO_GPU)
    elif not rows:
        notes.append("no communication in the window: the run has one rank, or collectives were not recorded")
    return Result(
        "overlap",
        "Overlap of communication and compute",
        scope.window,
        COLUMNS,
        rows,
        of_the_worst(findings),
        tuple(notes),
    )


def _rows(
    run: Run, events: DeviceEvents, host: Activity, window: Intervals, each: bool
) -> Iterator[OverlapRow]:
    """As in the breakdown, all is clipped to the window."""
    on_host = union(host.start, host.end)
    is_comm, is_compute = events.kind == COMM, events.kind == COMPUTE
    compute = events.pick(is_compute)
    computing = union(compute.start, compute.end)
    comm = events.pick(is_comm)
    names = all_names(run)
    sets: list[tuple[str | None, Intervals]] = [(None, join(union(comm.start, comm.end), on_host))]
    if each:
        kinds: dict[str, list[int]] = {}
        for code in unique_values(comm.work).tolist():
            kinds.setdefault(kernel_name(names[code]), []).append(code)
        for kind, codes in sorted(kinds.items()):
            mine = np.isin(comm.work, codes)
            sets.append((kind, union(comm.start[mine], comm.end[mine])))
        sets.append((ON_HOST, on_host))
    for name, everywhere in sets:
        spans = intersect(everywhere, window)
        total = length(spans)
        if not total:
            continue
        hidden = length(intersect(spans, computing))
        yield OverlapRow(name, total, hidden, _longest(compute, spans, names) if hidden else None)


def _longest(compute: DeviceEvents, spans: Intervals, names: Any) -> str:
    """The kernel with the longest overlap with the spans."""
    shared = covered_before(spans, compute.end) - covered_before(spans, compute.start)
    times: Counter[str] = Counter()
    codes, which = np.unique(compute.work[shared > 0], return_inverse=True)
    for code, time in zip(
        codes.tolist(), np.bincount(which, weights=shared[shared > 0]).tolist(), strict=True
    ):
        times[kernel_name(names[code])] += int(time)
    return max(times, key=lambda name: times[name])


def _finding(run: Run, rank: int, rows: list[dict[str, Any]], scope: Scope) -> list[OnRank]:
    """By the transfers alone: waiting for a late rank is no matter of overlap (-r stragglers)."""
    if not rows:
        return []
    whole, *kinds = rows
    waiting = int(exposed_waits(run, scope)[rank].sum())
    transfer = whole["exposed_ns"] - waiting
    found = rank_parts(run, scope)[rank]
    severity = graded(transfer, found.span, EXPOSED_INFO, EXPOSED_WARNING, EXPOSED_CRITICAL)
    if severity is None:
        return []
    most = max(kinds, key=lambda row: row["exposed_ns"])
    steps = 0 if (found.step == NO_STEP).all() else len(found.step)
    share = transfer / found.span
    per_step = f" ({format_rounded('ns', transfer / steps)} per step)" if steps else ""
    facts = tuple(
        Fact(quantity, value, unit, f"rank {rank}", (rank,), {"rank": rank, "step": None, "collective": None})
        for quantity, value, unit in _quantities(whole, waiting, share)
    )
    of_it = f"; {format_rounded('ns', waiting)} of that is waiting for another rank" if waiting else ""
    finding = Finding(
        severity,
        f"Exposed communication takes {100 * share:.0f} % of the time on rank {rank}{per_step}"
        f"{', without waiting' if waiting else ''}",
        f"rank {rank}: {format_rounded('ns', whole['exposed_ns'])} of {format_rounded('ns', whole['comm_ns'])} "
        f"does not overlap with compute{of_it}; the largest part is {most['collective']} "
        f"({format_rounded('ns', most['exposed_ns'])})",
        (rank,),
        hint=_OVERLAP,
        facts=facts,
        remedy=Remedy("communication hidden"),
    )
    return [OnRank(rank, share, finding)]


def _quantities(whole: dict[str, Any], waiting: int, share: float) -> tuple[tuple[str, float, Unit], ...]:
    return (
        ("exposed_ns", whole["exposed_ns"], "ns"),
        ("comm_ns", whole["comm_ns"], "ns"),
        ("exposed_wait_ns", waiting, "ns"),
        ("transfer_pct", 100 * share, "percent"),
    )


_OVERLAP = (
    "Overlap it with compute (larger DDP buckets, FSDP prefetch, async_op=True), or send less data. "
    "Predict the gain: rankscope whatif RUN --hide-comm"
)
