"""Time that the training loop waits for data in each step, and how much of it the GPU is idle."""

from __future__ import annotations

from typing import Any

import numpy as np

from rankscope.analysis.core.device_events import ranks_in
from rankscope.analysis.core.host_spans import dataloader_spans
from rankscope.analysis.core.intervals import EMPTY, Intervals, covered_before, intersect
from rankscope.analysis.core.notes import NO_STEPS, left_out
from rankscope.analysis.core.result import Column, Finding, Result
from rankscope.analysis.core.scope import Scope
from rankscope.analysis.core.severity import graded, of_the_worst
from rankscope.analysis.core.step_times import step_windows
from rankscope.analysis.within_rank.idle_causes import idle_by_rank
from rankscope.store.run import Run
from rankscope.units import format_rounded

STALL_INFO, STALL_WARNING, STALL_CRITICAL = 0.05, 0.10, 0.30
"""Shares of the step time. A loader that prefetches makes the loop wait for microseconds only."""

COLUMNS = (
    Column("rank"),
    Column("step", help="null: the whole file, for a trace without steps"),
    Column("waits", "count", "number of waits for a batch"),
    Column("wait_ns", "ns", "host time in the DataLoader"),
    Column("step_ns", "ns", "duration of the step on the host"),
    Column("wait_pct", "percent", "share of the step"),
    Column(
        "gpu_idle_ns", "ns", "part of the wait in which the GPU is idle; null without a GPU", title="GPU idle"
    ),
)


def dataloader(run: Run, scope: Scope, by: str | None = None) -> Result:
    """One row per rank and step."""
    idle = idle_by_rank(run, scope)
    rows: list[dict[str, Any]] = []
    findings: list[Finding] = []
    has_steps = False
    for rank in ranks_in(run, scope):
        waits = dataloader_spans(run, rank)
        if len(waits.start) == 0:
            continue
        own, steps = _rows(run, rank, scope, waits, idle.get(rank))
        has_steps |= steps
        rows += own
        findings += _finding(rank, own, waits, rank in idle, steps)
    notes = left_out(run, scope)
    if not rows:
        notes.append(
            "no waits for data in the window; torch records them for its DataLoader with ProfilerActivity.CPU. "
            "For another loader, use record_function('DataLoader.next')"
        )
    elif not has_steps:
        notes.append(NO_STEPS)
    return Result(
        "dataloader", "Waits for data", scope.window, COLUMNS, rows, of_the_worst(findings), tuple(notes)
    )


def _rows(
    run: Run, rank: int, scope: Scope, waits: Intervals, idle: Intervals | None
) -> tuple[list[dict[str, Any]], bool]:
    found = step_windows(run, rank, scope)
    steps = list(zip(found.step.tolist(), found.start.tolist(), found.end.tolist(), strict=True))
    windows = steps or [(None, int(waits.start[0]), int(waits.end[-1]))]
    edges = np.array([[start, end] for _, start, end in windows], dtype=np.int64).T
    waited = covered_before(waits, edges[1]) - covered_before(waits, edges[0])
    count = np.searchsorted(waits.start, edges[1]) - np.searchsorted(waits.start, edges[0])
    idle_waits = intersect(waits, idle) if idle is not None else EMPTY
    gpu_idle = covered_before(idle_waits, edges[1]) - covered_before(idle_waits, edges[0])
    rows = []
    for i, (step, start, end) in enumerate(windows):
        total = end - start if step is not None else None
        rows.append(
            {
                "rank": rank,
                "step": step,
                "waits": int(count[i]),
                "wait_ns": int(waited[i]),
                "step_ns": total,
                "wait_pct": 100 * int(waited[i]) / total if total else None,
                "gpu_idle_ns": int(gpu_idle[i]) if idle is not None else None,
            }
        )
    return rows, bool(steps)


def _finding(
    rank: int, rows: list[dict[str, Any]], waits: Intervals, has_gpu: bool, has_steps: bool
) -> list[Finding]:
    """The cost is the idle time of the GPU: a wait costs nothing while the GPU works. Without a GPU it is the wait."""
    if not has_steps:
        return []
    total = sum(row["step_ns"] for row in rows)
    waited = sum(row["wait_ns"] for row in rows)
    cost = sum(row["gpu_idle_ns"] for row in rows) if has_gpu else waited
    severity = graded(cost, total, STALL_INFO, STALL_WARNING, STALL_CRITICAL)
    if severity is None:
        return []
    longest = int(np.argmax(waits.end - waits.start))
    return [
        Finding(
            severity,
            f"{'GPU idle while the host waits' if has_gpu else 'The host waits'} for data: "
            f"{100 * cost / total:.0f} % of the step time ({format_rounded('ns', cost / len(rows))} per step)",
            f"rank {rank}: {format_rounded('ns', waited)} in the DataLoader over {len(rows)} steps",
            (rank,),
            (int(waits.start[longest]), int(waits.end[longest])),
            "Use more DataLoader workers (num_workers). Also: prefetch_factor, persistent_workers=True, "
            "pin_memory=True, cheaper decoding.",
            cost // len(rows),
        )
    ]
