"""Time that the training loop waits for data in each step, and how much of it the GPU is idle."""

from __future__ import annotations

from typing import Any

import numpy as np

from rankscope.analysis.core.device_events import ranks_in
from rankscope.analysis.core.event_sets import NO_STEP
from rankscope.analysis.core.host_spans import dataloader_spans
from rankscope.analysis.core.intervals import EMPTY, Intervals, covered_before, intersect
from rankscope.analysis.core.notes import NO_STEPS, left_out
from rankscope.analysis.core.result import Column, Fact, Finding, Remedy, Result
from rankscope.analysis.core.scope import Scope
from rankscope.analysis.core.severity import OnRank, graded, of_the_worst
from rankscope.analysis.core.step_times import windows
from rankscope.analysis.within_rank.idle_causes import idle_by_rank
from rankscope.store.run import Run
from rankscope.units import format_rounded

STALL_INFO, STALL_WARNING, STALL_CRITICAL = 0.05, 0.10, 0.30
"""Shares of the step time. A loader that prefetches makes the loop wait for microseconds only."""

COLUMNS = (
    Column("rank"),
    Column("step", help="null: a whole recording, for a trace without steps"),
    Column("waits", "count", "number of waits for a batch"),
    Column("wait_ns", "ns", "host time in the DataLoader"),
    Column("step_ns", "ns", "time of the step, host and GPU"),
    Column("wait_pct", "percent", "share of the step"),
    Column(
        "gpu_idle_ns", "ns", "part of the wait in which the GPU is idle; null without a GPU", title="GPU idle"
    ),
)


def dataloader(run: Run, scope: Scope, by: str | None = None) -> Result:
    """One row per rank and step."""
    idle = idle_by_rank(run, scope)
    rows: list[dict[str, Any]] = []
    findings: list[OnRank] = []
    for rank in ranks_in(run, scope):
        waits = dataloader_spans(run, rank)
        own = _rows(run, rank, scope, waits, idle.get(rank)) if len(waits.start) else []
        rows += own
        findings += _finding(rank, own, waits, rank in idle) if scope.steps is not None else []
    notes = left_out(run, scope)
    if not rows:
        notes.append(
            "no waits for data in the window; torch records them for its DataLoader with ProfilerActivity.CPU. "
            "For another loader, use record_function('DataLoader.next')"
        )
    elif scope.steps is None:
        notes.append(NO_STEPS)
    return Result(
        "dataloader", "Waits for data", scope.window, COLUMNS, rows, of_the_worst(findings), tuple(notes)
    )


def _rows(
    run: Run, rank: int, scope: Scope, waits: Intervals, idle: Intervals | None
) -> list[dict[str, Any]]:
    found = windows(run, rank, scope)
    waited = covered_before(waits, found.end) - covered_before(waits, found.start)
    middle = (waits.start + waits.end) // 2  # a wait may begin just before the step before it ends
    count = np.searchsorted(middle, found.end) - np.searchsorted(middle, found.start)
    idle_waits = intersect(waits, idle) if idle is not None else EMPTY
    gpu_idle = covered_before(idle_waits, found.end) - covered_before(idle_waits, found.start)
    rows = []
    for i, (step, total) in enumerate(
        zip(found.step.tolist(), (found.end - found.start).tolist(), strict=True)
    ):
        rows.append(
            {
                "rank": rank,
                "step": step if step != NO_STEP else None,
                "waits": int(count[i]),
                "wait_ns": int(waited[i]),
                "step_ns": total,
                "wait_pct": 100 * int(waited[i]) / total if total else None,
                "gpu_idle_ns": int(gpu_idle[i]) if idle is not None else None,
            }
        )
    return rows


def _finding(rank: int, rows: list[dict[str, Any]], waits: Intervals, has_gpu: bool) -> list[OnRank]:
    """What counts is the idle time of the GPU: a wait costs nothing while it works. Without a GPU it is the wait."""
    total = sum(row["step_ns"] for row in rows)
    waited = sum(row["wait_ns"] for row in rows)
    lost = sum(row["gpu_idle_ns"] for row in rows) if has_gpu else waited
    severity = graded(lost, total, STALL_INFO, STALL_WARNING, STALL_CRITICAL)
    if severity is None:
        return []
    longest = int(np.argmax(waits.end - waits.start))
    subject = f"rank {rank}, all steps"
    facts = (
        Fact("wait_ns", waited, "ns", subject, (rank,), {"rank": rank}),
        Fact("gpu_idle_ns", lost if has_gpu else None, "ns", subject, (rank,), {"rank": rank}),
        Fact("step_ns", total, "ns", subject, (rank,), {"rank": rank}),
        Fact("lost_pct", 100 * lost / total, "percent", subject, (rank,), {"rank": rank}),
    )
    finding = Finding(
        severity,
        f"{'GPU idle while the host waits' if has_gpu else 'The host waits'} for data on rank {rank}: "
        f"{100 * lost / total:.0f} % of the step time ({format_rounded('ns', lost / len(rows))} per step)",
        f"rank {rank}: {format_rounded('ns', waited)} in the DataLoader over {len(rows)} steps",
        (rank,),
        (int(waits.start[longest]), int(waits.end[longest])),
        "Use more DataLoader workers (num_workers). Also: prefetch_factor, persistent_workers=True, "
        "pin_memory=True, cheaper decoding.",
        facts=facts,
        remedy=Remedy("data ready"),
    )
    return [OnRank(rank, lost / total, finding)]
