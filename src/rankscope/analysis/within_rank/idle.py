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
from rankscope.analysis.within_rank.idle_gaps import CAUSES, GapGroup, gap_groups, idle_by_device
from rankscope.records import dataclass
from rankscope.timeline.run import Run
from rankscope.units import format_rounded

LEAST_IDLE = 0.05
"""Share of the span. Below it the GPU counts as busy."""

COLUMNS = (
    Column("rank"),
    Column("device"),
    Column("host_bound_ns", "ns", "before the call that launches the next event"),
    Column("launch_latency_ns", "ns", "from the start of that call to the start of the event"),
    Column("sync_ns", "ns", "the host is in a synchronising call, and nothing is queued"),
    Column("dataloader_ns", "ns", "the host waits for a batch"),
    Column("other_ns", "ns", "the next event is already launched, or its launch is not in the file"),
)


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
    region: GapGroup | None
    """The phase or annotation whose launches end the most idle time; None where the GPU is busy enough."""

    @property
    def launch_idle(self) -> int:
        return _launch_idle(self.causes)

    @property
    def severity(self) -> Severity | None:
        """By the idle time without waits for data and synchronising calls, which have findings of their own."""
        return graded(self.launch_idle, self.span, LEAST_IDLE)


@dataclass(frozen=True)
class RankIdle:
    """The devices of one rank."""

    devices: tuple[DeviceSums, ...]


@kept_per_rank("idle", RankIdle)
def rank_idle(run: Run, scope: Scope) -> dict[int, RankIdle]:
    """Of the ranks with GPU events and a window."""
    devices: dict[int, list[DeviceSums]] = {}
    for device in idle_by_device(run, scope):
        ends = device.gaps.before[device.gaps.before != UNKNOWN]
        sums = DeviceSums(
            device=device.device,
            causes={cause: int(getattr(device.gaps, cause).sum()) for cause in CAUSES},
            gaps=len(device.gaps.start),
            without_launch=int((device.events.launch_start[ends] == UNKNOWN).sum()),
            inside=device.inside,
            span=device.span,
            region=None,
        )
        if sums.severity is not None:
            regions = gap_groups(run, scope, device, ("within",))
            sums = sums._replace(region=max(regions, key=lambda region: _launch_idle(region.causes)))
        devices.setdefault(device.rank, []).append(sums)
    return {rank: RankIdle(tuple(of_rank)) for rank, of_rank in devices.items()}


def _launch_idle(causes: dict[str, int]) -> int:
    """Without waits for data and synchronising calls."""
    return sum(causes[cause] for cause in _LAUNCH_CAUSES)


def idle(run: Run, scope: Scope, by: str | None = None) -> Result:
    """One row per rank and device."""
    rows: list[dict[str, Any]] = []
    findings: list[OnRank] = []
    inside = without_launch = 0
    steps = steps_in(run, scope)
    lost = kernels_end_in(run, scope)
    for rank, record in rank_idle(run, scope).items():
        for device in record.devices:
            row: dict[str, Any] = {"rank": rank, "device": device.device if device.device >= 0 else None}
            row |= {f"{cause}_ns": device.causes[cause] for cause in CAUSES}
            rows.append(row)
            inside += device.inside
            without_launch += device.without_launch
            if rank not in lost:  # then its GPU only seems idle, and a doubt of the run says so
                findings += _finding(run, device, row, steps)
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


def _finding(run: Run, device: DeviceSums, row: dict[str, Any], steps: int) -> list[OnRank]:
    severity, region, rank = device.severity, device.region, row["rank"]
    if severity is None or region is None:
        return []
    (name,) = region.key
    key = {"rank": rank, "device": row["device"]}
    subject = f"rank {rank}" + ("" if row["device"] is None else f", device {row['device']}")

    def fact(quantity: str, value: float, unit: Unit = "ns") -> Fact:
        return Fact(quantity, value, unit, subject, (rank,), key)

    idle = sum(device.causes.values())
    facts = (
        fact("idle_ns", idle),
        fact("idle_pct", 100 * idle / device.span, "percent"),
        fact("span_ns", device.span),
        fact("gaps", device.gaps, "count"),
        *(fact(f"{cause}_ns", row[f"{cause}_ns"]) for cause in CAUSES),
        fact("largest_place_ns", _launch_idle(region.causes)),
    )
    per_step = " per step" if steps > 1 else ""
    parts = ", ".join(
        f"{cause.replace('_', ' ')} {format_rounded('ns', row[f'{cause}_ns'])}" for cause in CAUSES
    )
    reason = max(_LAUNCH_CAUSES, key=region.causes.__getitem__)
    if name is None:
        what = "events without a recorded launch"
    else:
        what = f"work launched in {_PHASE_NAMES.get(name, name)}: mainly {_REASONS[reason]}"
    why = f"{format_rounded('ns', _launch_idle(region.causes) / max(steps, 1))}{per_step} before {what}"
    origin = run.origin_ns(rank)
    finding = Finding(
        severity,
        f"GPU of rank {rank} idle {100 * idle / device.span:.0f} % of the time; {why}",
        f"{subject}: {format_rounded('ns', idle)} of {format_rounded('ns', device.span)} in "
        f"{device.gaps:,} gaps: {parts}",
        (rank,),
        (region.longest_span[0] + origin, region.longest_span[1] + origin),
        _hint(run, row, name, reason),
        facts=facts,
        remedy=Remedy("host gaps gone"),
        names=(name,) if name and name not in _PHASE_NAMES else (),
        why=why,
    )
    return [OnRank(rank, device.launch_idle / device.span, finding)]


def _hint(run: Run, row: dict[str, Any], where: str | None, reason: str) -> str:
    """Advice follows the cause; data loading and synchronising calls come first where they are the larger part."""
    launch_idle = sum(row[f"{cause}_ns"] for cause in _LAUNCH_CAUSES)
    first = ""
    if row["dataloader_ns"] > launch_idle or where == "dataloader":
        first = "Load data faster first (-r dataloader). "
    elif row["sync_ns"] > launch_idle:
        first = "Remove synchronising calls first (-r syncs). "
    if reason == "other":
        return f"{first}The work was queued in time: see what its stream waits for, such as other streams (-r gaps)."
    if where and where.lower().startswith("optim"):
        ways = ["fused=True (or foreach=True) in the optimizer", *together(run)]
        return f"{first}Launch less in the optimizer: {', '.join(ways)}. -r gaps shows where."
    ways = ["larger batches", *together(run), "less Python between ops"]
    return (
        f"{first}Keep the host ahead of the GPU: {', '.join(ways)}. -r gaps and -r short_kernels show where."
    )


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
