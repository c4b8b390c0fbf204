"""How much of a pipeline's step do its stages stand still, and where in the step?"""

from __future__ import annotations

from typing import Any

import numpy as np

from rankscope.analysis.across_ranks.layout import layout_of
from rankscope.analysis.core.event_sets import COMM, device_activity
from rankscope.analysis.core.intervals import Axis, Intervals, Ints, join, subtract, union
from rankscope.analysis.core.notes import left_out
from rankscope.analysis.core.result import Column, Finding, Result, Severity
from rankscope.analysis.core.scope import Scope
from rankscope.collective_kinds import KINDS
from rankscope.store.arrays import number_rows
from rankscope.store.run import Run
from rankscope.units import format_ns

_PARTS = ("busy", "p2p", "fill", "drain", "gap")
_BETWEEN = ("send", "recv", "sendrecv")
_WARNING_PCT, _CRITICAL_PCT = 20.0, 40.0
NO_STEP = -1


def bubbles(run: Run, scope: Scope, by: str | None = None) -> Result:
    """One row a stage: the means over its ranks and steps. With --by rank one row a rank."""
    columns = _columns(by)
    layout = layout_of(run, Scope())
    notes = [*left_out(run, scope), *layout.notes]
    if "pp" not in layout.axes:
        notes.append("no pipeline-parallel group: there are no stages to stand still")
        return Result("bubbles", "Pipeline bubbles", scope.window, columns, [], notes=tuple(notes))
    measured = _measure(run, scope)
    if not measured:
        notes.append("no GPU events in the window; ProfilerActivity.CUDA records them")
        return Result("bubbles", "Pipeline bubbles", scope.window, columns, [], notes=tuple(notes))
    if any(step == NO_STEP for _, step in measured):
        notes.append("no steps: the whole window counts as one; call profiler.step() in the loop")
    rows = _rows(measured, {rank: layout.places[rank].get("pp", 0) for rank, _ in measured}, by)
    return Result(
        "bubbles",
        "Pipeline bubbles, per step",
        scope.window,
        columns,
        rows,
        findings=tuple(_findings(rows, by)),
        notes=tuple(notes),
    )


def _columns(by: str | None) -> tuple[Column, ...]:
    return (
        Column("stage"),
        *((Column("rank"),) if by == "rank" else (Column("ranks", "count"),)),
        Column("window_ns", "ns", "of a step, from the first to the last GPU event of its pipeline"),
        Column("busy_ns", "ns", "the GPU computes, copies, or communicates within the stage"),
        Column("p2p_ns", "ns", "only a send or a receive runs: it waits for a neighbour", title="In p2p"),
        Column("fill_ns", "ns", "nothing has run yet"),
        Column("drain_ns", "ns", "nothing runs any more"),
        Column("gap_ns", "ns", "nothing runs in between"),
        Column("bubble_pct", "percent", "all but busy, of the window"),
    )


def _measure(run: Run, scope: Scope) -> dict[tuple[int, int], dict[str, int]]:
    """By rank and step, the parts of the window of its pipeline; they add up to it exactly."""
    device = device_activity(run, scope)
    if len(device.rank) == 0:
        return {}
    if (device.step >= 0).any():
        device = device.pick(device.step >= 0)
    layout = layout_of(run, Scope())
    keys, group = number_rows([device.rank, device.step])
    first, last = np.full(len(keys), np.iinfo(np.int64).max), np.full(len(keys), np.iinfo(np.int64).min)
    np.minimum.at(first, group, device.start)
    np.maximum.at(last, group, device.end)
    low, high = _windows(keys, first, last, [layout.group_of(int(rank), "pp") for rank in keys[:, 0]])
    axis = Axis.over(low, high, len(keys))
    between = _point_to_point(run, scope, keys)
    everything = _placed(axis, device.start, device.end, group)
    p2p = _placed(axis, *between)
    # A send's kernel is among the device's events: what is left when it is gone is the stage's own work.
    own = _own_work(run, scope, axis, keys)
    waiting = subtract(p2p, own)
    busy = axis.lengths(join(own, subtract(everything, p2p)))
    in_p2p = axis.lengths(waiting)
    window, fill, drain = high - low, first - low, high - last
    gap = window - busy - in_p2p - fill - drain
    return {
        (int(rank), int(step)): {
            "window": int(window[i]),
            **dict(zip(_PARTS, map(int, (busy[i], in_p2p[i], fill[i], drain[i], gap[i])), strict=True)),
        }
        for i, (rank, step) in enumerate(keys.tolist())
    }


def _windows(keys: Ints, first: Ints, last: Ints, pipelines: list[tuple[int, ...]]) -> tuple[Ints, Ints]:
    """From the earliest to the latest of the ranks of a pipeline, step by step, on the run's common axis."""
    bounds: dict[tuple[tuple[int, ...], int], tuple[int, int]] = {}
    named = [(pipeline, int(step)) for pipeline, step in zip(pipelines, keys[:, 1], strict=True)]
    for name, low, high in zip(named, first.tolist(), last.tolist(), strict=True):
        known = bounds.get(name, (low, high))
        bounds[name] = (min(known[0], low), max(known[1], high))
    found = np.array([bounds[name] for name in named], dtype=np.int64)
    return found[:, 0], found[:, 1]


def _placed(axis: Axis, start: Ints, end: Ints, group: Ints) -> Intervals:
    return union(axis.place(start, group), axis.place(end, group))


def _numbers(keys: Ints, rank: Ints, step: Ints) -> Ints:
    """The place of each (rank, step) among the keys; -1 where it is not there."""
    width = int(keys[:, 1].max()) + 3
    code, wanted = keys[:, 0] * width + keys[:, 1] + 1, rank * width + step + 1
    at = np.minimum(np.searchsorted(code, wanted), len(code) - 1)
    return np.where((code[at] == wanted) & (step < width - 1), at, -1)


def _point_to_point(run: Run, scope: Scope, keys: Ints) -> tuple[Ints, Ints, Ints]:
    rows = run.collectives
    number = _numbers(keys, rows.rank, rows.step)
    mine = np.isin(rows.kind, [KINDS.index(kind) for kind in _BETWEEN]) & (number >= 0)
    return rows.start[mine], rows.end[mine], number[mine]


def _own_work(run: Run, scope: Scope, axis: Axis, keys: Ints) -> Intervals:
    """Compute, copies, and communication that is not between stages."""
    device = device_activity(run, scope)
    number = _numbers(keys, device.rank, device.step)
    other = (device.kind != COMM) & (number >= 0)
    work = _placed(axis, device.start[other], device.end[other], number[other])
    rows = run.collectives
    place = _numbers(keys, rows.rank, rows.step)
    talk = ~np.isin(rows.kind, [KINDS.index(kind) for kind in _BETWEEN]) & (place >= 0) & rows.on_device
    return join(work, _placed(axis, rows.start[talk], rows.end[talk], place[talk]))


def _rows(
    measured: dict[tuple[int, int], dict[str, int]], stage_of: dict[int, int], by: str | None
) -> list[dict[str, Any]]:
    gathered: dict[tuple[int, int | None], list[tuple[int, dict[str, int]]]] = {}
    for (rank, _), parts in measured.items():
        key = (stage_of[rank], rank if by == "rank" else None)
        gathered.setdefault(key, []).append((rank, parts))
    rows = []
    for (stage, one_rank), entries in sorted(
        gathered.items(), key=lambda pair: (pair[0][0], pair[0][1] or 0)
    ):
        mean = {name: sum(parts[name] for _, parts in entries) / len(entries) for name in ("window", *_PARTS)}
        row: dict[str, Any] = {"stage": stage}
        row |= {"rank": one_rank} if by == "rank" else {"ranks": len({one for one, _ in entries})}
        row |= {f"{name}_ns": round(mean[name]) for name in ("window", *_PARTS)}
        row["bubble_pct"] = 100 * (1 - mean["busy"] / mean["window"]) if mean["window"] else None
        rows.append(row)
    return rows


def _findings(rows: list[dict[str, Any]], by: str | None) -> list[Finding]:
    known = [row for row in rows if row["bubble_pct"] is not None]
    if not known:
        return []
    share = sum(row["bubble_pct"] for row in known) / len(known)
    lost = round(sum(row["window_ns"] - row["busy_ns"] for row in known) / len(known))
    severity: Severity = "info"
    if share >= _WARNING_PCT:
        severity = "critical" if share >= _CRITICAL_PCT else "warning"
    busiest = max(known, key=lambda row: row["busy_ns"])
    mean = sum(row["busy_ns"] for row in known) / len(known)
    uneven = busiest["busy_ns"] / mean if mean else 1.0
    evidence = f"{format_ns(lost)} of {format_ns(known[0]['window_ns'])} a step, mean over the stages"
    hint = "More micro-batches a step, or an interleaved schedule, make the bubble a smaller share."
    if uneven > 1.1:
        evidence += f"; stage {busiest['stage']} works {uneven:.2f} times the mean"
        hint = f"Move layers away from stage {busiest['stage']}: the others wait for it."
    return [
        Finding(
            severity,
            f"Pipeline stages stand still {share:.1f} % of the step",
            evidence,
            hint=hint,
            cost_ns=lost,
        )
    ]
