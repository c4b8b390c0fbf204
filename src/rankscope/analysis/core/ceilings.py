"""Peak rates of each rank's device: given by the user, else from the table of devices by the name in the trace."""

from __future__ import annotations

from typing import Any

from rankscope.analysis.core.device_events import runs_on_cpu
from rankscope.analysis.core.scope import Scope
from rankscope.devices import Ceilings, ceilings_of, find_device
from rankscope.timeline.run import Run
from rankscope.units import format_rounded


def device_names(run: Run, scope: Scope) -> dict[int, str]:
    """By rank, the name of its device in the trace; '' where the trace has none."""
    return {rank: str(properties.get("name", "")) for rank, properties in _used(run, scope).items()}


def device_memory(run: Run, scope: Scope) -> dict[int, int]:
    """By rank, the memory of its device in bytes; ranks whose trace does not contain it are left out."""
    sizes = {rank: properties.get("totalGlobalMem") for rank, properties in _properties(run, scope).items()}
    return {rank: size for rank, size in sizes.items() if isinstance(size, int) and size > 0}


def ceilings(run: Run, scope: Scope) -> dict[int, Ceilings]:
    """By rank; with no peaks where the device is not known."""
    of_rank = {}
    for rank, properties in _used(run, scope).items():
        memory = properties.get("totalGlobalMem")
        device = find_device(str(properties.get("name", "")), memory if isinstance(memory, int) else None)
        of_rank[rank] = scope.machine.ceilings.over(ceilings_of(device) if device else Ceilings())
    return of_rank


def _used(run: Run, scope: Scope) -> dict[int, dict[str, Any]]:
    """The properties of the device that computes: torch lists the GPUs of the node, in use or not."""
    properties = _properties(run, scope)
    return {rank: {} for rank in properties} if run.has_traces and runs_on_cpu(run) else properties


def _properties(run: Run, scope: Scope) -> dict[int, dict[str, Any]]:
    """Of the first device in a rank's files: all devices of a node are assumed to be of one model."""
    properties: dict[int, dict[str, Any]] = {}
    for entry in run.segments:
        if not scope.has_rank(entry.rank):
            continue
        listed = entry.manifest["header"].get("deviceProperties")
        first = listed[0] if isinstance(listed, list) and listed and isinstance(listed[0], dict) else {}
        if first or entry.rank not in properties:
            properties[entry.rank] = first
    if not all(properties.values()):
        named_by_ncu = run.rows(
            "SELECT rank, first(text) FROM ncu_metrics WHERE metric = 'device__attribute_display_name' "
            "AND text IS NOT NULL GROUP BY rank"
        )
        properties |= {rank: {"name": name} for rank, name in named_by_ncu if not properties.get(rank, True)}
    return properties


def ceiling_notes(run: Run, scope: Scope, dtypes: set[str]) -> list[str]:
    """The peaks that figures are compared with, or the options that give them."""
    notes: list[str] = []
    if not dtypes:
        return notes
    ceilings_of_rank = ceilings(run, scope)
    groups: dict[str, list[int]] = {}
    for rank, name in device_names(run, scope).items():
        groups.setdefault(name, []).append(rank)
    for name, ranks in groups.items():
        ceiling = ceilings_of_rank[ranks[0]]
        peaks = [
            f"{dtype} {format_rounded('flop/s', peak)}"
            for dtype in sorted(dtypes)
            if (peak := ceiling.peak(dtype)) is not None
        ]
        if ceiling.bandwidth is not None:
            peaks.append(f"memory {format_rounded('GB/s', ceiling.bandwidth / 1e9)}")
        missing = sorted(dtype for dtype in dtypes if ceiling.peak(dtype) is None)
        if peaks:
            notes.append(f"peaks of {name or 'the device'}: {', '.join(peaks)} ({ceiling.source})")
        if missing or ceiling.bandwidth is None:
            what = [f"the {dtype} peak" for dtype in missing]
            what += ["the bandwidth"] if ceiling.bandwidth is None else []
            notes.append(
                f"not known for {name or 'this device (the trace has no device name)'}: {', '.join(what)}; "
                "give --peak 989TF --bandwidth 4.8TB/s"
            )
    return notes
