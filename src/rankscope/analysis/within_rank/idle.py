"""GPU idle time by cause; each nanosecond has exactly one cause."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from rankscope.analysis.core.advice import ahead_of_gpu, framework, how_to_record, in_the_optimizer
from rankscope.analysis.core.device_events import UNKNOWN, steps_in
from rankscope.analysis.core.gpu_counts import kernels_end_in
from rankscope.analysis.core.notes import gpu_outside_steps, left_out, no_gpu
from rankscope.analysis.core.result import Column, Fact, Finding, Remedy, Result
from rankscope.analysis.core.rollups import kept_per_rank
from rankscope.analysis.core.scope import Scope
from rankscope.analysis.core.severity import LIMIT_SHARE, mean_on
from rankscope.analysis.within_rank.idle_gaps import CAUSES, GapGroup, gap_groups, idle_by_device
from rankscope.records import dataclass
from rankscope.timeline.run import Run
from rankscope.units import format_rounded

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
    """The phase or annotation before whose launches the host is late most; None where it hardly is."""
    line: GapGroup | None
    """The line of Python."""

    @property
    def host_late(self) -> int:
        """The idle time before launches that come late, without waits for data and synchronising calls."""
        return _host_late(self.causes)

    @property
    def is_late(self) -> bool:
        """Whether the host is late by a part of the window that matters; unknown where most launches were not
        recorded."""
        return 2 * self.without_launch < max(self.gaps, 1) and self.host_late >= LIMIT_SHARE * self.span


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
        if sums.is_late:
            lines = [line for line in gap_groups(run, scope, device, ("source",)) if line.key[0] is not None]
            regions = gap_groups(run, scope, device, ("within",))
            sums = sums._replace(
                line=max(lines, key=lambda line: _host_late(line.causes), default=None),
                region=max(regions, key=lambda region: _host_late(region.causes)),
            )
        devices.setdefault(device.rank, []).append(sums)
    return {rank: RankIdle(tuple(of_rank)) for rank, of_rank in devices.items()}


def _host_late(causes: dict[str, int]) -> int:
    return causes["host_bound"] + causes["launch_latency"]


def idle(run: Run, scope: Scope, by: str | None = None) -> Result:
    """One row per rank and device."""
    rows: list[dict[str, Any]] = []
    late: dict[int, DeviceSums] = {}
    inside = without_launch = 0
    lost = kernels_end_in(run, scope)
    for rank, record in rank_idle(run, scope).items():
        for device in record.devices:
            row: dict[str, Any] = {"rank": rank, "device": device.device if device.device >= 0 else None}
            row |= {f"{cause}_ns": device.causes[cause] for cause in CAUSES}
            rows.append(row)
            inside += device.inside
            without_launch += device.without_launch
            # Where kernels were lost, the GPU only seems idle, and a doubt of the run says so.
            if rank not in lost and device.is_late:
                late[rank] = max(late.get(rank, device), device, key=lambda each: each.host_late)
    notes = left_out(run, scope) + gpu_outside_steps(run, scope, inside)
    if not rows:
        notes.append(no_gpu(run))
    elif without_launch:
        notes.append(
            f"{without_launch:,} gaps end with a GPU event that has no launch in the file; they count as 'other': "
            f"{how_to_record(run, 'launches')}"
        )
    limits = (_limit(run, scope, late),) if late else ()
    return Result("idle", "Why the GPU is idle", scope.window, COLUMNS, rows, limits, tuple(notes))


def _limit(run: Run, scope: Scope, late: dict[int, DeviceSums]) -> Finding:
    """No GPU waits for a launch. Of each rank, its device that waits most."""
    rank = max(late, key=lambda rank: late[rank].host_late)
    device, steps = late[rank], steps_in(run, scope)
    assert device.region is not None
    (name,) = device.region.key
    line = device.line.key[0] if device.line else None
    waited = {rank: device.host_late for rank, device in late.items()}
    whole, region, at_line = (
        format_rounded("ns", time / max(steps, 1))
        for time in (
            device.host_late,
            _host_late(device.region.causes),
            _host_late(device.line.causes) if device.line else 0,
        )
    )
    most = f"on rank {rank}, {region} of {whole}" if len(late) > 1 else f"{region} of it"
    causes = ("host_bound_ns", "launch_latency_ns")
    key = {"rank": rank, "device": device.device if device.device >= 0 else None}
    origin = run.origin_ns(rank)
    return Finding(
        "limit",
        "Host gaps",
        f"a GPU waits for a launch: {mean_on(waited, len(scope.ranks_in(run)), steps)}; {most} before "
        + _place(run, name)
        + (f"; {at_line} before launches at {line}" if line else ""),
        tuple(sorted(late)),
        (device.region.longest_span[0] + origin, device.region.longest_span[1] + origin),
        _hint(run, tuple(late.values()), name),
        facts=tuple(
            Fact(cause, device.causes[cause.removesuffix("_ns")], "ns", f"rank {rank}", (rank,), key)
            for cause in causes
        ),
        remedy=Remedy("host gaps gone"),
        names=tuple(filter(None, (None if name in _PHASE_NAMES else name, line))),
    )


def _place(run: Run, name: str | None) -> str:
    if name is None:
        return "events without a recorded launch"
    is_jax = name == "forward" and framework(run) == "jax"
    return f"work launched in {'the step' if is_jax else _PHASE_NAMES.get(name, name)}"


def _hint(run: Run, late: Sequence[DeviceSums], where: str | None) -> str:
    """Data loading and synchronising calls come first where they are the larger part."""
    first, waited = "", sum(device.host_late for device in late)
    loading, syncs = (sum(device.causes[cause] for device in late) for cause in ("dataloader", "sync"))
    if loading > waited or where == "dataloader":
        first = "Load data faster first (-r dataloader). "
    elif syncs > waited:
        first = "Remove synchronising calls first (-r syncs). "
    if where and where.lower().startswith("optim") and (ways := in_the_optimizer(run)):
        return f"{first}Launch less in the optimizer: {', '.join(ways)}. -r gaps shows where."
    ways = ahead_of_gpu(run)
    return (
        f"{first}Keep the host ahead of the GPU: {', '.join(ways)}. -r gaps and -r short_kernels show where."
    )


_PHASE_NAMES = {
    "dataloader": "data loading",
    "forward": "the forward pass",
    "backward": "the backward pass",
    "recompute": "the recomputation",
    "optimizer": "the optimizer step",
    "other": "an unannotated region",
}
