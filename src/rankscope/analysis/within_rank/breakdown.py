"""The time of each rank and step, split into compute, exposed communication, exposed copies and idle."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from rankscope.analysis.core.device_events import device_events, ranks_in
from rankscope.analysis.core.event_sets import COMM, COMPUTE, COPY, Activity, host_work
from rankscope.analysis.core.host_spans import rank_collectives
from rankscope.analysis.core.intervals import Axis, Intervals, Ints, intersect, join, subtract, union
from rankscope.analysis.core.notes import left_out, outside_steps
from rankscope.analysis.core.result import Column, Result
from rankscope.analysis.core.scope import Scope
from rankscope.store.run import Run

COLUMNS = (
    Column("rank"),
    Column("step", help="null: the whole window"),
    Column("span_ns", "ns", "from the first start to the last end of GPU events"),
    Column("compute_ns", "ns", "time in which at least one compute kernel runs"),
    Column("comm_ns", "ns", "time in which at least one collective runs, hidden or not"),
    Column("exposed_comm_ns", "ns", "time in which a collective runs and no compute kernel does"),
    Column("exposed_copy_ns", "ns", "time in which only copies or fills run"),
    Column("idle_ns", "ns", "time in which nothing runs"),
    Column("overlap_pct", "percent", "share of communication that overlaps with compute"),
)


@dataclass(frozen=True)
class SpanParts:
    """Lengths in ns, one entry per group. compute + exposed_comm + exposed_copy + idle = span, exactly."""

    span: Ints
    compute: Ints
    comm: Ints
    exposed_comm: Ints
    exposed_copy: Ints
    idle: Ints
    hidden: Ints


def breakdown(run: Run, scope: Scope, by: str | None = None) -> Result:
    """One row per rank for the whole window, then one per rank and step."""
    ranks = ranks_in(run, scope)
    count = sum(len(device_events(run, rank, scope)) for rank in ranks)
    notes = [*left_out(run, scope), *outside_steps(run, scope, count, "gpu", "true", "GPU events")]
    on_host = count == 0
    if on_host:
        notes.append(
            "no GPU events: compute is the time in leaf ops on the host, the span is that of the steps"
        )
    rows: list[dict[str, Any]] = []
    for rank in ranks:  # one at a time, to hold the events of one rank in memory
        device = (
            host_work(run, Scope(frozenset([rank]), scope.steps)) if on_host else _activity(run, rank, scope)
        )
        host = rank_collectives(run, rank, scope)
        for per_step in (False, True):
            rows += _rows(run, rank, scope, device, host, on_host, per_step)
    rows.sort(key=lambda row: (row["step"] is not None, row["rank"], row["step"] or 0))
    return Result("breakdown", "Where the time went", scope.window, COLUMNS, rows, notes=tuple(notes))


def _activity(run: Run, rank: int, scope: Scope) -> Activity:
    events = device_events(run, rank, scope)
    return Activity(np.full(len(events), rank), events.step, events.kind, events.start, events.end)


def _rows(
    run: Run, rank: int, scope: Scope, device: Activity, host: Activity, on_host: bool, per_step: bool
) -> list[dict[str, Any]]:
    if per_step:
        device, host = device.pick(device.step >= 0), host.pick(host.step >= 0)
    steps = (
        np.concatenate([device.step, host.step]) if per_step else np.zeros(len(device.step) + len(host.step))
    )
    groups, group = np.unique(steps.astype(np.int64), return_inverse=True)
    if len(groups) == 0:
        return []
    count = len(device.step)
    low, high = (
        _step_bounds(run, rank, scope, groups, per_step)
        if on_host
        else _bounds(device, group[:count], len(groups))
    )
    measured = _measure(device, group[:count], host, group[count:], low, high)
    return [
        {
            "rank": rank,
            "step": step if per_step else None,
            "span_ns": int(measured.span[i]),
            "compute_ns": int(measured.compute[i]),
            "comm_ns": int(measured.comm[i]),
            "exposed_comm_ns": int(measured.exposed_comm[i]),
            "exposed_copy_ns": int(measured.exposed_copy[i]),
            "idle_ns": int(measured.idle[i]),
            "overlap_pct": 100 * int(measured.hidden[i]) / int(measured.comm[i])
            if measured.comm[i]
            else None,
        }
        for i, step in enumerate(groups.tolist())
        if high[i] >= low[i]
    ]


def _bounds(device: Activity, group: Ints, count: int) -> tuple[Ints, Ints]:
    """First start and last end of each group; for an empty group the end is below the start."""
    low = np.full(count, np.iinfo(np.int64).max)
    high = np.full(count, np.iinfo(np.int64).min)
    np.minimum.at(low, group, device.start)
    np.maximum.at(high, group, device.end)
    return low, high


def _step_bounds(run: Run, rank: int, scope: Scope, groups: Ints, per_step: bool) -> tuple[Ints, Ints]:
    """Start and end of each step on the host; without steps, of all host ops."""
    steps = run.rows(
        f"SELECT {'step' if per_step else '0'}, min(start_ns), max(start_ns + dur_ns) FROM steps "
        f"WHERE rank = {rank} AND {scope.where()} GROUP BY 1"
    )
    if not steps:
        steps = run.rows(
            "SELECT 0, min(start_ns), max(start_ns + dur_ns) FROM slices WHERE category = 'cpu_op' "
            f"AND rank = {rank} AND {scope.where()} HAVING count(*) > 0"
        )
    bounds = {step: (low, high) for step, low, high in steps}
    low, high = np.array([bounds.get(step, (0, -1)) for step in groups.tolist()], dtype=np.int64).T
    return low, high


def _measure(
    device: Activity, group: Ints, host: Activity, host_group: Ints, low: Ints, high: Ints
) -> SpanParts:
    not_empty = high >= low
    axis = Axis.over(low[not_empty], high[not_empty], len(low))

    def placed(activity: Activity, groups: Ints, kind: int) -> Intervals:
        mine = activity.kind == kind
        g = groups[mine]
        start = np.clip(activity.start[mine], low[g], high[g])
        end = np.clip(activity.end[mine], low[g], high[g])
        return union(axis.place(start, g), axis.place(end, g))

    compute = placed(device, group, COMPUTE)
    comm = join(placed(device, group, COMM), placed(host, host_group, COMM))
    copy = placed(device, group, COPY)
    span = np.where(not_empty, high - low, 0)
    busy = axis.lengths(join(compute, comm, copy))
    return SpanParts(
        span=span,
        compute=axis.lengths(compute),
        comm=axis.lengths(comm),
        exposed_comm=axis.lengths(subtract(comm, compute)),
        exposed_copy=axis.lengths(subtract(subtract(copy, compute), comm)),
        idle=span - busy,
        hidden=axis.lengths(intersect(comm, compute)),
    )
