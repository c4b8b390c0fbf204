"""Which page of docs/findings explains a finding: `rankscope help PAGE` prints it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

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
OF_FAULTS = {
    "link": "slow-link",
    "micro-batch": "uneven-work",
    "stage": "slow-stage",
    "step": "slow-step",
    "contention": "few-cores",
    "copy": "copies",
    "dataloader": "data-loading",
    "compute slower": "slow-device",
    "host pause": "host-pause",
    "host slower": "slow-core",
}
"""By axis, else by cause, else by the cause and how the work of the rank differs."""
OTHER_WORK, MOVES = "slow-rank", "uneven-work"


def finding_page(report: str, facts: Sequence[Any]) -> str:
    """Its name, without '.md'; empty where there is none. Only a fault has a cause."""
    values = {fact.quantity: fact for fact in reversed(facts)}
    pages = [page for quantity, page in OF_FACTS.items() if quantity in values]
    if pages or report != "faults":
        return (*pages, OF_REPORTS.get(report, ""))[0]
    if "cause" not in values or not values["cause"].row:
        return MOVES
    cause, how = (
        str(values[name].value).partition(" ")[0] if name in values else "" for name in ("cause", "how")
    )
    keys = (values["cause"].row["axis"], cause, f"{cause} {how}")
    return next((OF_FAULTS[key] for key in keys if key in OF_FAULTS), OTHER_WORK)
