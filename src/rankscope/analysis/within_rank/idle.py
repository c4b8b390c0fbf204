"""GPU idle time by cause; each nanosecond has exactly one cause."""

from __future__ import annotations

from typing import Any, NamedTuple

from rankscope.analysis.core.advice import together
from rankscope.analysis.core.device_events import UNKNOWN, steps_in
from rankscope.analysis.core.gpu_counts import kernels_end_in
from rankscope.analysis.core.notes import NO_GPU, gpu_outside_steps, left_out
from rankscope.analysis.core.result import Column, Fact, Finding, Remedy, Result, Severity, Unit
from rankscope.analysis.core.rollups import kept_per_rank
from rankscope.analysis.core.scope import Scope
from rankscope.analysis.core.severity import OnRank, graded, of_the_worst
from rankscope.analysis.within_rank.idle_causes import CAUSES, DeviceIdle, idle_by_device
from rankscope.analysis.within_rank.idle_gaps import gap_groups
from rankscope.records import dataclass
from rankscope.timeline.run import Run
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


class LargestPlace(NamedTuple):
    """The phase or annotation whose launches end the most idle time; None for events without a recorded launch."""

    name: str | None
    causes: dict[str, int]
    longest: tuple[int, int]
    """Its longest gap, in ns from the start of the rank's first file."""

    @property
    def launch_idle(self) -> int:
        return sum(self.causes[cause] for cause in _LAUNCH_CAUSES)


class DeviceSums(NamedTuple):
    """The idle time of one device."""

    device: int
    causes: dict[str, int]
    gaps: int
    without_launch: int
    """Gaps that end with an event that has no launch in the file."""
    inside: int
    """GPU events in the window."""
    span: int
    """The length of the window."""
    place: LargestPlace | None
    """None where the GPU is busy enough."""

    @property
    def launch_idle(self) -> int:
        return sum(self.causes[cause] for cause in _LAUNCH_CAUSES)

    @property
    def severity(self) -> Severity | None:
        """By the idle time without waits for data and synchronising calls, which have findings of their own."""
        return graded(self.launch_idle, self.span, IDLE_INFO, IDLE_WARNING, IDLE_CRITICAL)


@dataclass(frozen=True)
class RankIdle:
    """The devices of one rank."""

    devices: tuple[DeviceSums, ...]


@kept_per_rank("idle", RankIdle, version=1)
def rank_idle(run: Run, scope: Scope) -> dict[int, RankIdle]:
    """Of the ranks with GPU events and a window."""
    found: dict[int, list[DeviceSums]] = {}
    for device in idle_by_device(run, scope):
        found.setdefault(device.rank, []).append(_sums(run, scope, device))
    return {rank: RankIdle(tuple(devices)) for rank, devices in found.items()}


def _sums(run: Run, scope: Scope, found: DeviceIdle) -> DeviceSums:
    ends = found.gaps.before[found.gaps.before != UNKNOWN]
    sums = DeviceSums(
        device=found.device,
        causes={cause: found.total(cause) for cause in CAUSES},
        gaps=len(found.gaps.start),
        without_launch=int((found.events.launch_start[ends] == UNKNOWN).sum()),
        inside=found.inside,
        span=found.span,
        place=None,
    )
    if sums.severity is None:
        return sums
    origin = run.origin_ns(found.rank)
    places = (
        LargestPlace(name, group.causes, (group.longest_span[0] - origin, group.longest_span[1] - origin))
        for (name,), group in gap_groups(run, scope, found, ("within",))
    )
    return sums._replace(place=max(places, key=lambda place: place.launch_idle))


def idle(run: Run, scope: Scope, by: str | None = None) -> Result:
    """One row per rank and device."""
    rows: list[dict[str, Any]] = []
    findings: list[OnRank] = []
    inside = without_launch = 0
    steps = steps_in(run, scope)
    lost = kernels_end_in(run, scope)
    for rank, known in rank_idle(run, scope).items():
        for found in known.devices:
            row: dict[str, Any] = {"rank": rank, "device": found.device if found.device >= 0 else None}
            row |= {f"{cause}_ns": found.causes[cause] for cause in CAUSES}
            rows.append(row)
            inside += found.inside
            without_launch += found.without_launch
            if rank not in lost:  # then its GPU only seems idle, and a doubt of the run says so
                findings += _finding(run, found, row, steps)
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


def _finding(run: Run, found: DeviceSums, row: dict[str, Any], steps: int) -> list[OnRank]:
    severity, place, rank = found.severity, found.place, row["rank"]
    if severity is None or place is None:
        return []
    key = {"rank": rank, "device": row["device"]}
    subject = f"rank {rank}" + ("" if row["device"] is None else f", device {row['device']}")

    def fact(quantity: str, value: float, unit: Unit = "ns") -> Fact:
        return Fact(quantity, value, unit, subject, (rank,), key)

    idle = sum(found.causes.values())
    facts = (
        fact("idle_ns", idle),
        fact("idle_pct", 100 * idle / found.span, "percent"),
        fact("span_ns", found.span),
        fact("gaps", found.gaps, "count"),
        *(fact(f"{cause}_ns", row[f"{cause}_ns"]) for cause in CAUSES),
        fact("largest_place_ns", place.launch_idle),
    )
    per_step = " per step" if steps > 1 else ""
    parts = ", ".join(
        f"{name.replace('_', ' ')} {format_rounded('ns', row[f'{name}_ns'])}" for name in CAUSES
    )
    reason = max(_LAUNCH_CAUSES, key=place.causes.__getitem__)
    if place.name is None:
        what = "events without a recorded launch"
    else:
        what = f"work launched in {_PHASE_NAMES.get(place.name, place.name)}: mainly {_REASONS[reason]}"
    origin = run.origin_ns(rank)
    finding = Finding(
        severity,
        f"GPU of rank {rank} idle {100 * idle / found.span:.0f} % of the time; "
        f"{format_rounded('ns', place.launch_idle / max(steps, 1))}{per_step} before {what}",
        f"{subject}: {format_rounded('ns', idle)} of {format_rounded('ns', found.span)} in "
        f"{found.gaps:,} gaps: {parts}",
        (rank,),
        (place.longest[0] + origin, place.longest[1] + origin),
        _hint(run, row, place.name, reason),
        facts=facts,
        remedy=Remedy("host gaps gone"),
        names=(place.name,) if place.name and place.name not in _PHASE_NAMES else (),
    )
    return [OnRank(rank, found.launch_idle / found.span, finding)]


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
