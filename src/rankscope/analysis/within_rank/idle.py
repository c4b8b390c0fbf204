"""GPU idle time by cause; each nanosecond has exactly one cause."""

from __future__ import annotations

from typing import Any, NamedTuple

from rankscope.analysis.core.advice import ahead_of_gpu, framework, recording_hint, together
from rankscope.analysis.core.device_events import UNKNOWN, steps_in
from rankscope.analysis.core.gpu_counts import kernels_end_in
from rankscope.analysis.core.notes import gpu_outside_steps, left_out, no_gpu
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
    """The phase or annotation whose launches end the most idle time, of those with the device's main causes; None
    where the GPU is busy enough."""
    line: GapGroup | None
    """The line of Python whose launches do."""

    @property
    def launch_idle(self) -> int:
        return _launch_idle(self.causes)

    @property
    def main_causes(self) -> tuple[str, ...]:
        return _main_causes(self.causes)

    @property
    def has_launches(self) -> bool:
        """Whether the launches of most events that end a gap are in the file."""
        return 2 * self.without_launch < max(self.gaps, 1)

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
            line=None,
        )
        if sums.severity is not None:
            lines = [line for line in gap_groups(run, scope, device, ("source",)) if line.key[0] is not None]
            sums = sums._replace(line=max(lines, key=lambda line: _launch_idle(line.causes), default=None))
            regions = gap_groups(run, scope, device, ("within",))
            alike = [region for region in regions if _main_causes(region.causes) == sums.main_causes]
            sums = sums._replace(region=max(alike, key=lambda region: _launch_idle(region.causes)))
        devices.setdefault(device.rank, []).append(sums)
    return {rank: RankIdle(tuple(of_rank)) for rank, of_rank in devices.items()}


def _launch_idle(causes: dict[str, int]) -> int:
    """Without waits for data and synchronising calls."""
    return sum(causes[cause] for cause in _LAUNCH_CAUSES)


def _main_causes(causes: dict[str, int]) -> tuple[str, ...]:
    """Whether the host was late or the work was queued already: the larger part of that idle time."""
    return _QUEUED if causes["other"] > sum(causes[cause] for cause in _HOST_LATE) else _HOST_LATE


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
        notes.append(no_gpu(run))
    elif without_launch:
        notes.append(
            f"{without_launch:,} gaps end with a GPU event that has no launch in the file; they count as 'other'"
        )
    worst = of_the_worst(findings, len(scope.ranks_in(run)))
    return Result("idle", "Why the GPU is idle", scope.window, COLUMNS, rows, worst, tuple(notes))


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
    # Without launches only waits for data tell why.
    times = {cause.replace("_", " "): row[f"{cause}_ns"] for cause in CAUSES}
    if not device.has_launches:
        times = {"dataloader": row["dataloader_ns"], "not known": idle - row["dataloader_ns"]}
    parts = ", ".join(f"{cause} {format_rounded('ns', time)}" for cause, time in times.items())
    if not device.has_launches:
        reason, why = "", "why is not known, since launches were not recorded"
    else:
        reason = max(device.main_causes, key=region.causes.__getitem__)
        what = "events without a recorded launch"
        if name is not None:
            phase = (
                "the step" if name == "forward" and framework(run) == "jax" else _PHASE_NAMES.get(name, name)
            )
            what = f"work launched in {phase}: mainly {_REASONS[reason]}"
        part = format_rounded("ns", _launch_idle(region.causes) / max(steps, 1))
        why = f"{part}{per_step} before {what}"
    if device.line is not None:
        parts += f"; {format_rounded('ns', _launch_idle(device.line.causes))} before launches at {device.line.key[0]}"
    origin = run.origin_ns(rank)

    def title(whose: str, up_to: str) -> str:
        return f"GPU of {whose} idle {up_to}{100 * idle / device.span:.0f} % of the time; {why}"

    finding = Finding(
        severity,
        title(f"rank {rank}", ""),
        f"{subject}: {format_rounded('ns', idle)} of {format_rounded('ns', device.span)} in "
        f"{device.gaps:,} gaps: {parts}",
        (rank,),
        (region.longest_span[0] + origin, region.longest_span[1] + origin),
        _hint(run, device, name, reason),
        facts=facts,
        remedy=Remedy("host gaps gone"),
        names=tuple(
            filter(None, (None if name in _PHASE_NAMES else name, device.line and device.line.key[0]))
        ),
        why=why,
    )
    return [OnRank(rank, idle / device.span, finding, title)]


def _hint(run: Run, device: DeviceSums, where: str | None, reason: str) -> str:
    """Advice follows the cause; data loading and synchronising calls come first where they are the larger part."""
    if not reason:
        return recording_hint(run, "launches")
    first = ""
    if device.causes["dataloader"] > device.launch_idle or where == "dataloader":
        first = "Load data faster first (-r dataloader). "
    elif device.causes["sync"] > device.launch_idle:
        first = "Remove synchronising calls first (-r syncs). "
    if reason == "other":
        if device.causes["other"] < _SHORT_GAP_NS * device.gaps:
            return f"{first}Fewer and larger kernels: between two queued kernels the GPU needs about a microsecond."
        return f"{first}The work was queued in time: see what its stream waits for, such as other streams (-r gaps)."
    if where and where.lower().startswith("optim") and framework(run) != "jax":
        ways = ["fused=True (or foreach=True) in the optimizer", *together(run)]
        return f"{first}Launch less in the optimizer: {', '.join(ways)}. -r gaps shows where."
    ways = ahead_of_gpu(run)
    return (
        f"{first}Keep the host ahead of the GPU: {', '.join(ways)}. -r gaps and -r short_kernels show where."
    )


_HOST_LATE, _QUEUED = ("host_bound", "launch_latency"), ("other",)
_LAUNCH_CAUSES = (*_HOST_LATE, *_QUEUED)
"""All causes except waits for data and synchronising calls."""
_SHORT_GAP_NS = 5_000
"""Shorter gaps, on average, are those between the kernels of one queue."""
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
