"""Kernels measured by Nsight Compute: how close each runs to the limits of the device."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rankscope.analysis.core.notes import left_out
from rankscope.analysis.core.result import Column, Fact, Finding, Remedy, Result
from rankscope.analysis.core.scope import Scope
from rankscope.analysis.efficiency.ncu_metrics import MeasuredKernel, measured_kernels
from rankscope.timeline.run import Run
from rankscope.units import format_rounded, shorten_middle

OF_PEAKS = (
    Column("compute_pct", "percent", "of the peak throughput of the SMs (speed of light)"),
    Column("memory_pct", "percent", "of the peak throughput of the memory system (speed of light)"),
)
RATE = Column("flop_s", "flop/s", "executed FLOPs per second")
SIZE_COLUMNS = (
    Column("grid", help="blocks in x, y, z", minor=True),
    Column("block", help="threads per block in x, y, z", minor=True),
)
LOW_PCT = 60.0
"""A kernel below this share of both peaks is near neither limit; ncu uses the same threshold."""

MIN_SHARE = 0.1
"""Share of the measured time; kernels below it give no finding. Chosen, not measured."""

COLUMNS = (
    Column("rank"),
    Column("name", at_end=True),
    *SIZE_COLUMNS,
    Column("duration_ns", "ns", "of this launch, at the clocks that ncu set"),
    *OF_PEAKS,
    Column("dram_pct", "percent", "of the peak DRAM bandwidth", title="DRAM", minor=True),
    Column("tensor_pct", "percent", "share of cycles in which the tensor cores are active"),
    Column("occupancy_pct", "percent", "active warps, of the maximum per SM", minor=True),
    Column("dram_bytes", "bytes", "read from and written to DRAM", title="DRAM traffic", minor=True),
    Column("flops", "flop", "executed FLOPs of all types", minor=True),
    RATE,
    Column("dtype", help="data type of most of the FLOPs"),
)


def ncu(run: Run, scope: Scope, by: str | None = None) -> Result:
    """One row per launch that ncu measured, longest first."""
    kernels = sorted(measured_kernels(run, scope), key=lambda kernel: -(kernel.duration_ns or 0))
    notes = left_out(run, scope)
    if not kernels:
        notes.append("no Nsight Compute report; rankscope profile --tool ncu -k REGEX -- COMMAND records one")
    elif all(kernel.flops is None for kernel in kernels):
        notes.append("the report counts no FLOPs; rankscope profile --tool ncu --set roofline records them")
    if kernels and all("occupancy_pct" not in kernel.shares for kernel in kernels):
        notes.append("the report has no occupancy; rankscope profile --tool ncu --set detailed records it")
    findings, rows = tuple(_findings(kernels)), [_row(kernel) for kernel in kernels]
    title = "Kernels measured by Nsight Compute"
    return Result("ncu", title, "whole file", COLUMNS, rows, findings, tuple(notes))


def _row(kernel: MeasuredKernel) -> dict[str, Any]:
    flops, duration = kernel.flops, kernel.duration_ns
    return {
        "rank": kernel.rank,
        "name": kernel.name,
        "grid": _size(kernel.grid),
        "block": _size(kernel.block),
        "duration_ns": duration,
        **{name: kernel.shares.get(name) for name in _SHARES},
        "dram_bytes": kernel.dram_bytes,
        "flops": flops,
        "flop_s": flops / duration * 1e9 if flops is not None and duration else None,
        "dtype": kernel.dtype,
    }


_SHARES = ("compute_pct", "memory_pct", "dram_pct", "tensor_pct", "occupancy_pct")


def _size(dimensions: tuple[int, ...] | None) -> str | None:
    return "x".join(map(str, dimensions)) if dimensions else None


def _findings(kernels: list[MeasuredKernel]) -> Iterator[Finding]:
    """One per kernel with at least a tenth of the measured time that is near neither limit."""
    total = sum(kernel.duration_ns or 0 for kernel in kernels)
    by_name: dict[tuple[int, str], list[MeasuredKernel]] = {}
    for kernel in kernels:
        by_name.setdefault((kernel.rank, kernel.name), []).append(kernel)
    for launches in by_name.values():
        time = sum(kernel.duration_ns or 0 for kernel in launches)
        # A report may have no durations.
        if time and time >= MIN_SHARE * total and (finding := _near_neither_limit(launches, time / total)):
            yield finding


def _near_neither_limit(launches: list[MeasuredKernel], share: float) -> Finding | None:
    """From the longest launch of the kernel."""
    kernel = max(launches, key=lambda k: k.duration_ns or 0)
    compute, memory = kernel.shares.get("compute_pct"), kernel.shares.get("memory_pct")
    if compute is None or memory is None or max(compute, memory) >= LOW_PCT:
        return None
    nearest, time = max(compute, memory), sum(launch.duration_ns or 0 for launch in launches)
    key = {"rank": kernel.rank, "name": kernel.name, "grid": _size(kernel.grid)}
    longest, ranks = f"its longest launch on rank {kernel.rank}", (kernel.rank,)
    figures = [
        Fact("compute_pct", compute, "percent", longest, ranks, key),
        Fact("memory_pct", memory, "percent", longest, ranks, key),
        Fact("duration_ns", kernel.duration_ns or 0, "ns", longest, ranks, key),
        Fact("time_pct", 100 * share, "percent", f"all its launches on rank {kernel.rank}", ranks),
    ]
    traffic = ""
    if kernel.dram_bytes is not None:
        traffic = f", DRAM traffic {format_rounded('bytes', kernel.dram_bytes)}"
        figures.append(Fact("dram_bytes", kernel.dram_bytes, "bytes", longest, ranks, key))
    return Finding(
        "limit",
        f"Kernels faster: {shorten_middle(kernel.name, 60)}",
        f"it reaches {compute:.0f} % of the compute peak and {memory:.0f} % of the memory peak; its longest launch "
        f"takes {format_rounded('ns', kernel.duration_ns or 0)}, grid {_size(kernel.grid)}{traffic}; all its launches "
        f"take {100 * share:.0f} % of the measured time; usual causes are latency and too little work per launch",
        ranks=ranks,
        hint="Give each launch more work, or fuse the kernel with its neighbours. ncu --set detailed shows stall "
        "reasons.",
        cost_ns=round(time * (1 - nearest / LOW_PCT)),
        facts=tuple(figures),
        remedy=Remedy(
            "kernels faster", names=(kernel.name,), factor=LOW_PCT / nearest if nearest else float("inf")
        ),
        names=(shorten_middle(kernel.name, 60),),
    )
