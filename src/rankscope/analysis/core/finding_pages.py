"""Which page of docs/findings explains a finding: `rankscope help PAGE` prints it."""

from __future__ import annotations

from collections.abc import Iterable

OF_REPORTS = {
    "bubbles": "pipeline-bubble",
    "clocks": "doubtful-recording",
    "collectives": "small-transfers",
    "collectives.nccl": "slow-link",
    "dataloader": "data-loading",
    "diff": "comparison",
    "doctor": "doubtful-recording",
    "gpu": "slow-device",
    "hang": "hang",
    "hang.flight_recorder": "hang",
    "host_cpu": "few-cores",
    "idle": "host-gaps",
    "idle.short_kernels": "small-kernels",
    "idle.syncs": "synchronising-calls",
    "memcpy": "copies",
    "memory": "memory-full",
    "memory.allocators": "memory-full",
    "memory.fragmentation": "memory-full",
    "ncu": "slow-kernels",
    "overhead": "profiler-overhead",
    "overlap": "communication",
    "roofline": "slow-kernels",
    "snapshot_diff": "memory-growth",
    "telemetry": "live-alarm",
}
"""Of limits, and of what broke."""
OF_FACTS = {
    "growth_bytes": "memory-growth",
    "turns": "uneven-work",
    "all_to_all_load": "uneven-work",
    "thread_runs_ns": "slow-core",
}
"""By a quantity that only findings of one kind have."""
OF_AXES = {
    "link": "slow-link",
    "micro-batch": "uneven-work",
    "stage": "slow-stage",
    "step": "slow-step",
}
OF_CAUSES = {
    ("compute", "slower"): "slow-device",
    ("contention", ""): "few-cores",
    ("copy", ""): "copies",
    ("dataloader", ""): "data-loading",
    ("host", "pause"): "host-pause",
    ("host", "slower"): "slow-core",
    ("link", ""): "slow-link",
}
"""By the cause of a rank's fault, and how its work differs; where it differs in another way, a rank has other work."""
OTHER_WORK = "slow-rank"


def finding_page(report: str, quantities: Iterable[str], axis: str, cause: str, how: str) -> str:
    """Its name, without '.md'; empty where there is none. Only a fault has an axis, or a cause."""
    pages = [OF_FACTS[quantity] for quantity in quantities if quantity in OF_FACTS]
    if pages or report != "faults":
        return pages[0] if pages else OF_REPORTS.get(report, "")
    if not axis:
        return "uneven-work"
    return OF_AXES.get(axis) or OF_CAUSES.get((cause, "")) or OF_CAUSES.get((cause, how), OTHER_WORK)
