"""GPU idle time by cause; each nanosecond has exactly one cause."""

from __future__ import annotations

from typing import Any

from rankscope.analysis.core.device_events import UNKNOWN, steps_in
from rankscope.analysis.core.notes import NO_GPU, left_out, outside_steps
from rankscope.analysis.core.result import Column, Finding, Result
from rankscope.analysis.core.scope import Scope
from rankscope.analysis.core.severity import graded, of_the_worst
from rankscope.analysis.within_rank.idle_causes import CAUSES, DeviceIdle, idle_by_device
from rankscope.analysis.within_rank.idle_gaps import GapGroup, gap_groups
from rankscope.store.run import Run
from rankscope.units import format_rounded

IDLE_INFO, IDLE_WARNING, IDLE_CRITICAL = 0.05, 0.15, 0.40
"""Shares of the span. A training step that keeps the GPU busy stays under 10 to 15 %."""

COLUMNS = (
    Column("rank"),
    Column("device"),
    Column("host_bound_ns", "ns", "before the call that launches the next event"),
    Column("launch_latency_ns", "ns", "from the start of that call to the start of the event"),
    Column("sync_ns", "ns", "the host is in a synchronising call"),
    Column("dataloader_ns", "ns", "the host waits for a batch"),
    Column("other_ns", "ns", "the next event is already launched, or its launch is not in the file"),
)


def idle(run: Run, scope: Scope, by: str | None = None) -> Result:
    """One row per rank and device."""
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
            f"{without_launch:,} GPU events have no launch in the file; idle time before them counts as 'other'"
        )
    return Result(
        "idle", "Why the GPU is idle", scope.window, COLUMNS, rows, of_the_worst(findings), tuple(notes)
    )


def _finding(run: Run, scope: Scope, found: DeviceIdle, row: dict[str, Any], steps: int) -> list[Finding]:
    """Idle time without waits for data and synchronising calls, which have findings of their own."""
    cost = sum(row[f"{cause}_ns"] for cause in _LAUNCH_CAUSES)
    severity = graded(cost, found.span, IDLE_INFO, IDLE_WARNING, IDLE_CRITICAL)
    if severity is None:
        return []
    ((where,), group) = max(
        gap_groups(run, scope, found, ("within",)), key=lambda item: _launch_idle(item[1])
    )
    idle = sum(row[f"{cause}_ns"] for cause in CAUSES)
    steps = max(steps, 1)
    per_step = " per step" if steps > 1 else ""
    parts = ", ".join(
        f"{name.replace('_', ' ')} {format_rounded('ns', row[f'{name}_ns'])}" for name in CAUSES
    )
    device = "" if row["device"] is None else f", device {row['device']}"
    if where is None:
        what = "events without a recorded launch"
    else:
        reason = _REASONS[max(_LAUNCH_CAUSES, key=group.causes.__getitem__)]
        what = f"work launched in {_PHASE_NAMES.get(where, where)}: mainly {reason}"
    return [
        Finding(
            severity,
            f"GPU idle {100 * idle / found.span:.0f} % of the time; {format_rounded('ns', _launch_idle(group) / steps)}"
            f"{per_step} before {what}",
            f"rank {found.rank}{device}: {format_rounded('ns', idle)} of "
            f"{format_rounded('ns', found.span)} in {len(found.gaps.start):,} gaps: {parts}",
            (found.rank,),
            group.longest_span,
            _FASTER_OPTIMIZER if where and where.lower().startswith("optim") else _FEWER_LAUNCHES,
            cost // steps,
        )
    ]


def _launch_idle(group: GapGroup) -> int:
    return sum(group.causes[cause] for cause in _LAUNCH_CAUSES)


_LAUNCH_CAUSES = ("host_bound", "launch_latency", "other")
"""All causes except waits for data and synchronising calls."""
_REASONS = {
    "host_bound": "host-bound (the launch calls come too late)",
    "launch_latency": "launch latency (from the launch call to the start on the GPU)",
    "other": "other (the work was already queued)",
}
_PHASE_NAMES = {
    "dataloader": "data loading",
    "forward": "the forward pass",
    "backward": "the backward pass",
    "recompute": "the recomputation",
    "optimizer": "the optimizer step",
    "other": "an unannotated region",
}
_FEWER_LAUNCHES = (
    "Launch fewer kernels: larger batches, torch.compile, CUDA graphs. -r gaps and -r short show where."
)
_FASTER_OPTIMIZER = "Use fused=True (or foreach=True) in the optimizer, or CUDA graphs. -r gaps shows where."
