"""Pipeline bubbles: how long each stage is not busy in a step, and in which part of the step."""

from __future__ import annotations

from typing import Any

import numpy as np

from rankscope.analysis.across_ranks.layout import layout_of
from rankscope.analysis.core.device_events import COMM, device_events, gpu_ranks
from rankscope.analysis.core.grouping import split_by_rank
from rankscope.analysis.core.intervals import Axis, Intervals, Ints, join, subtract, union
from rankscope.analysis.core.notes import left_out
from rankscope.analysis.core.result import Column, Fact, Finding, Result, Severity
from rankscope.analysis.core.rollups import kept_per_rank
from rankscope.analysis.core.run_steps import NO_STEP
from rankscope.analysis.core.scope import Scope
from rankscope.records import dataclass
from rankscope.sql import sql_text
from rankscope.store.arrays import Mask
from rankscope.timeline.run import Run
from rankscope.units import format_rounded

_PARTS = ("busy", "p2p", "fill", "drain", "gap")
_POINT_TO_POINT = ("send", "recv", "sendrecv")
_WARNING_PCT, _CRITICAL_PCT = 20.0, 40.0


def bubbles(run: Run, scope: Scope, by: str | None = None) -> Result:
    """One row for each stage, the mean over its ranks and steps; with --by rank one row for each rank."""
    columns = _columns(by)
    layout = layout_of(run, Scope())
    notes = [*left_out(run, scope), *layout.notes]
    why, measured = "no pipeline-parallel process group was recognised, so there are no stages to compare", {}
    if "pp" in layout.axes:
        why, measured = (
            "no GPU events in the window; ProfilerActivity.CUDA records them",
            _measure(run, scope),
        )
    if not measured:
        notes.append(why)
        return Result("bubbles", "Pipeline bubbles", scope.window, columns, [], notes=tuple(notes))
    if any(step == NO_STEP for _, step in measured):
        notes.append("no steps: the whole window counts as one step (call profiler.step() in the loop)")
    rows = _rows(measured, {rank: layout.stage(rank) for rank, _ in measured}, by)
    findings, title = tuple(_findings(rows, by)), "Pipeline bubbles, per step"
    return Result("bubbles", title, scope.window, columns, rows, findings, tuple(notes))


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


@dataclass(frozen=True)
class RankParts:
    """One entry for each step of a rank with GPU events, and one for those outside steps. Times count from
    run.origin_ns(rank)."""

    step: Ints
    first: Ints
    """Start of the first GPU event."""
    last: Ints
    busy: Ints
    p2p: Ints


@kept_per_rank("pipeline_parts", RankParts, any_window=True)
def rank_parts(run: Run, scope: Scope) -> dict[int, RankParts]:
    """Of the ranks that have GPU events."""
    ranks = [rank for rank in scope.ranks_in(run) if rank in gpu_ranks(run)]
    between = ", ".join(map(sql_text, _POINT_TO_POINT))
    rows = run.arrays(
        f"SELECT rank::BIGINT AS rank, coalesce(step, {NO_STEP})::BIGINT AS step, start_ns AS start, "
        f"start_ns + dur_ns AS end, kind IN ({between}) AS p2p, place = 'device' AS on_device "
        f"FROM collectives WHERE kind IS NOT NULL AND place IS NOT NULL AND {scope.where()}"
    )
    collectives = split_by_rank(rows, ranks)
    return {rank: _rank_parts(run, rank, collectives[rank]) for rank in ranks}


def _rank_parts(run: Run, rank: int, collectives: dict[str, Any]) -> RankParts:
    """The steps of a rank are laid side by side on an axis: work counts in the step of its launch."""
    events = device_events(run, rank, Scope())
    steps, group = np.unique(events.step, return_inverse=True)
    first, last = np.full(len(steps), np.iinfo(np.int64).max), np.full(len(steps), np.iinfo(np.int64).min)
    np.minimum.at(first, group, events.start)
    np.maximum.at(last, group, events.end)
    axis = Axis.over(first, last, len(steps))
    # Collectives in steps with GPU events, cut to these.
    number = np.minimum(np.searchsorted(steps, collectives["step"]), len(steps) - 1)
    start, end = (np.clip(collectives[name], first[number], last[number]) for name in ("start", "end"))
    here = steps[number] == collectives["step"]
    in_p2p, in_other = here & collectives["p2p"], here & collectives["on_device"] & ~collectives["p2p"]

    def placed(start: Ints, end: Ints, group: Ints, wanted: Mask) -> Intervals:
        return union(axis.place(start[wanted], group[wanted]), axis.place(end[wanted], group[wanted]))

    p2p = placed(start, end, number, in_p2p)
    everything = placed(events.start, events.end, group, events.kind >= 0)
    # `everything` includes the kernels of send and recv, so they are subtracted from it.
    work = placed(events.start, events.end, group, events.kind != COMM)
    work = join(work, placed(start, end, number, in_other))
    busy = axis.lengths(join(work, subtract(everything, p2p)))
    origin = run.origin_ns(rank)
    return RankParts(steps, first - origin, last - origin, busy, axis.lengths(subtract(p2p, work)))


def _measure(run: Run, scope: Scope) -> dict[tuple[int, int], dict[str, int]]:
    """By rank and step, the parts of the pipeline's window; they add up to the window exactly."""
    table = [
        [rank, step, begin + run.origin_ns(rank), end + run.origin_ns(rank), busy, p2p]
        for rank, parts in rank_parts(run, scope).items()
        for step, begin, end, busy, p2p in zip(
            *(values.tolist() for values in (parts.step, parts.first, parts.last, parts.busy, parts.p2p)),
            strict=True,
        )
        if scope.steps is None or scope.steps[0] <= step <= scope.steps[1]
    ]
    if any(row[1] != NO_STEP for row in table):
        table = [row for row in table if row[1] != NO_STEP]
    if not table:
        return {}
    layout = layout_of(run, Scope())
    # The window of a step: from the earliest start to the latest end over the ranks of a pipeline.
    pipelines = [(layout.group_of(rank, "pp"), step) for rank, step, *_ in table]
    windows: dict[tuple[tuple[int, ...], int], tuple[int, int]] = {}
    for pipeline, (_, _, first, last, _, _) in zip(pipelines, table, strict=True):
        low, high = windows.get(pipeline, (first, last))
        windows[pipeline] = (min(low, first), max(high, last))
    measured = {}
    for pipeline, (rank, step, first, last, busy, p2p) in zip(pipelines, table, strict=True):
        low, high = windows[pipeline]
        gap = last - first - busy - p2p
        parts = (high - low, busy, p2p, first - low, high - last, gap)
        measured[rank, step] = dict(zip(("window", *_PARTS), parts, strict=True))
    return measured


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
        row |= {"rank": one_rank} if by == "rank" else {"ranks": len({rank for rank, _ in entries})}
        row |= {f"{name}_ns": round(mean[name]) for name in ("window", *_PARTS)}
        row["bubble_pct"] = 100 * (1 - mean["busy"] / mean["window"]) if mean["window"] else None
        rows.append(row)
    return rows


def _findings(rows: list[dict[str, Any]], by: str | None) -> list[Finding]:
    timed = [row for row in rows if row["bubble_pct"] is not None]
    if not timed:
        return []
    share = sum(row["bubble_pct"] for row in timed) / len(timed)
    lost = round(sum(row["window_ns"] - row["busy_ns"] for row in timed) / len(timed))
    severity: Severity = "info"
    if share >= _WARNING_PCT:
        severity = "critical" if share >= _CRITICAL_PCT else "warning"
    busiest = max(timed, key=lambda row: row["busy_ns"])
    mean = sum(row["busy_ns"] for row in timed) / len(timed)
    uneven = busiest["busy_ns"] / mean if mean else 1.0
    window = sum(row["window_ns"] for row in timed) / len(timed)
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
