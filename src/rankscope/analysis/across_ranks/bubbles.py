"""Pipeline bubbles: how long each stage is not busy in a step, and in which part of the step."""

from __future__ import annotations

from typing import Any

import numpy as np

from rankscope.analysis.across_ranks.layout import layout_of
from rankscope.analysis.core.event_sets import COMM, device_activity
from rankscope.analysis.core.intervals import Axis, Intervals, Ints, join, subtract, union
from rankscope.analysis.core.notes import left_out
from rankscope.analysis.core.result import Column, Fact, Finding, Result, Severity
from rankscope.analysis.core.scope import Scope
from rankscope.collective_kinds import KINDS
from rankscope.store.arrays import number_rows
from rankscope.store.run import Run
from rankscope.units import format_rounded

_PARTS = ("busy", "p2p", "fill", "drain", "gap")
_POINT_TO_POINT = ("send", "recv", "sendrecv")
_WARNING_PCT, _CRITICAL_PCT = 20.0, 40.0
NO_STEP = -1


def bubbles(run: Run, scope: Scope, by: str | None = None) -> Result:
    """One row for each stage, the mean over its ranks and steps; with --by rank one row for each rank."""
    columns = _columns(by)
    layout = layout_of(run, Scope())
    notes = [*left_out(run, scope), *layout.notes]
    if "pp" not in layout.axes:
        notes.append("no pipeline-parallel process group was recognised, so there are no stages to compare")
        return Result("bubbles", "Pipeline bubbles", scope.window, columns, [], notes=tuple(notes))
    measured = _measure(run, scope)
    if not measured:
        notes.append("no GPU events in the window; ProfilerActivity.CUDA records them")
        return Result("bubbles", "Pipeline bubbles", scope.window, columns, [], notes=tuple(notes))
    if any(step == NO_STEP for _, step in measured):
        notes.append("no steps: the whole window counts as one step (call profiler.step() in the loop)")
    rows = _rows(measured, {rank: layout.stage(rank) for rank, _ in measured}, by)
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
        Column("window_ns", "ns", "length of a step, from the first to the last GPU event of the pipeline"),
        Column("busy_ns", "ns", "time in compute, copies and collectives other than send and recv"),
        Column(
            "p2p_ns",
            "ns",
            "time in which only a send or recv runs, including the wait for the other stage",
            title="P2P",
        ),
        Column("fill_ns", "ns", "time before the first GPU event of the rank"),
        Column("drain_ns", "ns", "time after the last GPU event of the rank"),
        Column("gap_ns", "ns", "time between these events in which nothing runs"),
        Column("bubble_pct", "percent", "share of the window that is not busy"),
    )


def _measure(run: Run, scope: Scope) -> dict[tuple[int, int], dict[str, int]]:
    """By rank and step, the parts of the pipeline's window; they add up to the window exactly."""
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
    # `everything` includes the kernels of send and recv, so they are subtracted from it.
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
    """For each step, from the earliest start to the latest end over the ranks of a pipeline."""
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
    """The index of each (rank, step) in `keys`; -1 where it is missing."""
    width = int(keys[:, 1].max()) + 3
    code, wanted = keys[:, 0] * width + keys[:, 1] + 1, rank * width + step + 1
    at = np.minimum(np.searchsorted(code, wanted), len(code) - 1)
    return np.where((code[at] == wanted) & (step < width - 1), at, -1)


def _point_to_point(run: Run, scope: Scope, keys: Ints) -> tuple[Ints, Ints, Ints]:
    rows = run.collectives
    number = _numbers(keys, rows.rank, rows.step)
    mine = np.isin(rows.kind, [KINDS.index(kind) for kind in _POINT_TO_POINT]) & (number >= 0)
    return rows.start[mine], rows.end[mine], number[mine]


def _own_work(run: Run, scope: Scope, axis: Axis, keys: Ints) -> Intervals:
    """Compute, copies, and collectives other than send and recv."""
    device = device_activity(run, scope)
    number = _numbers(keys, device.rank, device.step)
    other = (device.kind != COMM) & (number >= 0)
    work = _placed(axis, device.start[other], device.end[other], number[other])
    rows = run.collectives
    place = _numbers(keys, rows.rank, rows.step)
    comm = (
        ~np.isin(rows.kind, [KINDS.index(kind) for kind in _POINT_TO_POINT]) & (place >= 0) & rows.on_device
    )
    return join(work, _placed(axis, rows.start[comm], rows.end[comm], place[comm]))


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
    window = sum(row["window_ns"] for row in known) / len(known)
    evidence = (
        f"{format_rounded('ns', lost)} of {format_rounded('ns', window)} per step, "
        f"mean over the {'ranks' if by == 'rank' else 'stages'}"
    )
    hint = "Use more micro-batches per step, or an interleaved schedule."
    if uneven > 1.1:
        evidence += f"; stage {busiest['stage']} is busy for {uneven:.2f}x the mean"
        hint = f"Move layers away from stage {busiest['stage']}: the other stages wait for it."
    return [
        Finding(
            severity,
            f"Pipeline bubbles take {share:.1f} % of a step",
            evidence,
            hint=hint,
            facts=(
                Fact("bubble_pct", share, "percent", "mean of the rows"),
                Fact("lost_ns", lost, "ns", "mean of the rows, per step"),
                Fact("window_ns", round(window), "ns", "mean of the rows, per step"),
            ),
        )
    ]
