"""Why a GPU does nothing: every nanosecond of idle time goes to one cause."""

from __future__ import annotations

from typing import Any

from rankscope.analysis.core.device_events import UNKNOWN, steps_in
from rankscope.analysis.core.notes import NO_GPU, left_out, outside_steps
from rankscope.analysis.core.result import Column, Finding, Result
from rankscope.analysis.core.scope import Scope
from rankscope.analysis.core.severity import graded, of_the_worst
from rankscope.analysis.within_rank.gaps import Place, places_of
from rankscope.analysis.within_rank.idle_causes import CAUSES, DeviceIdle, idle_by_device
from rankscope.store.run import Run
from rankscope.units import format_ns

IDLE_INFO, IDLE_WARNING, IDLE_CRITICAL = 0.05, 0.15, 0.40
"""Shares of the span. Below 5 % there is nothing to gain; a well-fed training step stays under 10 to 15 %; above
40 % the device is mostly rented for nothing."""

COLUMNS = (
    Column("rank"),
    Column("device"),
    Column("host_bound_ns", "ns", "the next event's launch call had not begun"),
    Column("launch_latency_ns", "ns", "from that call to the event's start"),
    Column("sync_ns", "ns", "the host was in a synchronising call"),
    Column("dataloader_ns", "ns", "the host waited for a batch"),
    Column("other_ns", "ns", "the next event was queued already, or its launch is not known"),
)


def idle(run: Run, scope: Scope, by: str | None = None) -> Result:
    """One row a rank and device."""
    rows: list[dict[str, Any]] = []
    findings: list[Finding] = []
    inside = without_launch = 0
    steps = steps_in(run, scope)
    for found in idle_by_device(run, scope):
        row: dict[str, Any] = {"rank": found.rank, "device": found.device if found.device >= 0 else None}
        row |= {f"{cause}_ns": found.total(cause) for cause in CAUSES}
        rows.append(row)
        inside += len(found.events)
        without_launch += int((found.events.launch_start == UNKNOWN).sum())
        findings += _finding(run, scope, found, row, steps)
    notes = left_out(run, scope) + outside_steps(run, scope, inside, "gpu", "true", "GPU events")
    if not rows:
        notes.append(NO_GPU)
    elif without_launch:
        notes.append(
            f"{without_launch:,} GPU events have no launch in the file: idle time before them is 'other'"
        )
    return Result(
        "idle", "Why the GPU is idle", scope.window, COLUMNS, rows, of_the_worst(findings), tuple(notes)
    )


def _finding(run: Run, scope: Scope, found: DeviceIdle, row: dict[str, Any], steps: int) -> list[Finding]:
    """What the host's pace costs; waits for data and synchronising calls have reports of their own."""
    ours = row["host_bound_ns"] + row["launch_latency_ns"] + row["other_ns"]
    severity = graded(ours, found.span, IDLE_INFO, IDLE_WARNING, IDLE_CRITICAL)
    if severity is None:
        return []
    (where, place), *_ = sorted(places_of(run, scope, found, ("within",)), key=lambda item: -_pace(item[1]))
    idle = sum(row[f"{cause}_ns"] for cause in CAUSES)
    steps = max(steps, 1)
    every = " a step" if steps > 1 else ""
    parts = ", ".join(f"{name.replace('_', ' ')} {format_ns(row[f'{name}_ns'])}" for name in CAUSES)
    return [
        Finding(
            severity,
            f"The GPU is idle {100 * idle / found.span:.0f} % of the time: {format_ns(_pace(place) / steps)}{every} "
            f"before {where[0] or 'events without a launch'}, {_REASONS[max(_PACE, key=place.causes.__getitem__)]}",
            f"rank {found.rank}, device {row['device']}: {format_ns(idle)} of {format_ns(found.span)} in "
            f"{len(found.gaps.start):,} gaps: {parts}",
            (found.rank,),
            place.longest_span,
            _HINTS.get(_kind(where[0]), _FEWER_LAUNCHES),
            ours // steps,
        )
    ]


def _pace(place: Place) -> int:
    """Idle time that is neither a wait for data nor a synchronising call."""
    return sum(place.causes[cause] for cause in _PACE)


def _kind(where: str | None) -> str:
    return "optimizer" if where and where.lower().startswith("optim") else ""


_PACE = ("host_bound", "launch_latency", "other")
_REASONS = {
    "host_bound": "the host launches too late",
    "launch_latency": "launches take long to arrive",
    "other": "the work was queued and did not run",
}
_FEWER_LAUNCHES = "Launch less: larger batches, torch.compile, CUDA graphs; -r gaps and -r short say where."
_HINTS = {
    "optimizer": "Use fused=True (or foreach=True) in the optimizer, or CUDA graphs; -r gaps says where."
}
