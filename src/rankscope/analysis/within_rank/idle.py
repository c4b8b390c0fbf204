"""GPU idle time by cause; each nanosecond has exactly one cause."""

from __future__ import annotations

from typing import Any

from rankscope.analysis.core.advice import together
from rankscope.analysis.core.device_events import UNKNOWN, steps_in
from rankscope.analysis.core.lost_kernels import kernels_end_in
from rankscope.analysis.core.notes import NO_GPU, gpu_outside_steps, left_out
from rankscope.analysis.core.result import Column, Fact, Finding, Remedy, Result, Unit
from rankscope.analysis.core.scope import Scope
from rankscope.analysis.core.severity import OnRank, graded, of_the_worst
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
    findings: list[OnRank] = []
    inside = without_launch = 0
    steps = steps_in(run, scope)
    lost = kernels_end_in(run, scope)
    for found in idle_by_device(run, scope):
        row: dict[str, Any] = {"rank": found.rank, "device": found.device if found.device >= 0 else None}
        row |= {f"{cause}_ns": found.total(cause) for cause in CAUSES}
        rows.append(row)
        inside += found.inside
        ends = found.gaps.before[found.gaps.before != UNKNOWN]
        without_launch += int((found.events.launch_start[ends] == UNKNOWN).sum())
        if found.rank not in lost:  # then its GPU only seems idle, and a doubt of the run says so
            findings += _finding(run, scope, found, row, steps)
    notes = left_out(run, scope) + gpu_outside_steps(run, scope, inside)
    if not rows:
        notes.append(NO_GPU)
    elif without_launch:
        notes.append(
            f"{without_launch:,} gaps end with a GPU event that has no launch in the file; they count as 'other'"
        )
    return Result(
        "idle", "Why the GPU is idle", scope.window, COLUMNS, rows, of_the_worst(findings), tuple(notes)
    )


def _finding(run: Run, scope: Scope, found: DeviceIdle, row: dict[str, Any], steps: int) -> list[OnRank]:
    """Idle time without waits for data and synchronising calls, which have findings of their own."""
    own = sum(row[f"{cause}_ns"] for cause in _LAUNCH_CAUSES)
    severity = graded(own, found.span, IDLE_INFO, IDLE_WARNING, IDLE_CRITICAL)
    if severity is None:
        return []
    ((where,), group) = max(
        gap_groups(run, scope, found, ("within",)), key=lambda item: _launch_idle(item[1])
    )
    key = {"rank": row["rank"], "device": row["device"]}
    subject = f"rank {found.rank}" + ("" if row["device"] is None else f", device {row['device']}")

    def fact(quantity: str, value: float, unit: Unit = "ns") -> Fact:
        return Fact(quantity, value, unit, subject, (found.rank,), key)

    idle = sum(row[f"{cause}_ns"] for cause in CAUSES)
    facts = (
        fact("idle_ns", idle),
        fact("idle_pct", 100 * idle / found.span, "percent"),
        fact("span_ns", found.span),
        fact("gaps", len(found.gaps.start), "count"),
        *(fact(f"{cause}_ns", row[f"{cause}_ns"]) for cause in CAUSES),
        fact("largest_place_ns", _launch_idle(group)),
    )
    per_step = " per step" if steps > 1 else ""
    parts = ", ".join(
        f"{name.replace('_', ' ')} {format_rounded('ns', row[f'{name}_ns'])}" for name in CAUSES
    )
    reason = max(_LAUNCH_CAUSES, key=group.causes.__getitem__)
    if where is None:
        what = "events without a recorded launch"
    else:
        what = f"work launched in {_PHASE_NAMES.get(where, where)}: mainly {_REASONS[reason]}"
    finding = Finding(
        severity,
        f"GPU of rank {found.rank} idle {100 * idle / found.span:.0f} % of the time; "
        f"{format_rounded('ns', _launch_idle(group) / max(steps, 1))}{per_step} before {what}",
        f"{subject}: {format_rounded('ns', idle)} of {format_rounded('ns', found.span)} in "
        f"{len(found.gaps.start):,} gaps: {parts}",
        (found.rank,),
        group.longest_span,
        _hint(run, row, where, reason),
        facts=facts,
        remedy=Remedy("host gaps gone"),
    )
    return [OnRank(found.rank, own / found.span, finding)]


def _hint(run: Run, row: dict[str, Any], where: str | None, reason: str) -> str:
    """Advice follows the cause; data loading and synchronising calls come first where they are the larger part."""
    own = sum(row[f"{cause}_ns"] for cause in _LAUNCH_CAUSES)
    first = ""
    if row["dataloader_ns"] > own or where == "dataloader":
        first = "Load data faster first (-r dataloader). "
    elif row["sync_ns"] > own:
        first = "Remove synchronising calls first (-r syncs). "
    if reason == "other":
        return f"{first}The work was queued in time: see what its stream waits for, such as other streams (-r gaps)."
    if where and where.lower().startswith("optim"):
        ways = ["fused=True (or foreach=True) in the optimizer", *together(run)]
        return f"{first}Launch less in the optimizer: {', '.join(ways)}. -r gaps shows where."
    ways = ["larger batches", *together(run), "less Python between ops"]
    return f"{first}Keep the host ahead of the GPU: {', '.join(ways)}. -r gaps and -r short show where."


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
