"""How near the limits of the device each kernel runs, as Nsight Compute measured it."""

from __future__ import annotations

from typing import Any

from rankscope.analysis.core.notes import left_out
from rankscope.analysis.core.result import Column, Finding, Result
from rankscope.analysis.core.scope import Scope
from rankscope.analysis.efficiency.ncu_metrics import MeasuredKernel, measured_kernels
from rankscope.store.run import Run
from rankscope.units import format_bytes, format_ns, shorten_middle

LOW_PCT = 60.0
"""Below this share of both peaks a kernel is near neither limit; ncu draws the same line."""

LEAST_SHARE = 0.1
"""Of the measured time; less is not worth a finding."""

COLUMNS = (
    Column("rank"),
    Column("name", at_end=True),
    Column("grid", help="blocks in x, y, z", minor=True),
    Column("block", help="threads of a block in x, y, z", minor=True),
    Column("duration_ns", "ns", "of this launch, at the clocks ncu set"),
    Column("compute_pct", "percent", "of the SMs' peak (speed of light)"),
    Column("memory_pct", "percent", "of the memory system's peak (speed of light)"),
    Column("dram_pct", "percent", "of DRAM's peak bandwidth", title="DRAM", minor=True),
    Column("tensor_pct", "percent", "cycles in which the tensor cores worked"),
    Column("occupancy_pct", "percent", "warps resident, of the most an SM holds", minor=True),
    Column("dram_bytes", "bytes", "read from and written to DRAM", title="DRAM traffic", minor=True),
    Column("flops", "flop", "executed, all types", minor=True),
    Column("flop_s", "flop/s", "executed per second"),
    Column("dtype", help="the type that did most of the work"),
)


def ncu(run: Run, scope: Scope, by: str | None = None) -> Result:
    """One row a launch that ncu measured, longest first."""
    kernels = sorted(measured_kernels(run, scope), key=lambda kernel: -(kernel.duration_ns or 0))
    notes = left_out(run, scope)
    if not kernels:
        notes.append("no Nsight Compute report; rankscope profile --tool ncu -k REGEX -- COMMAND records one")
    elif all(kernel.flops is None for kernel in kernels):
        notes.append("the report counts no FLOPs; rankscope profile --tool ncu --set roofline records them")
    if kernels and all("occupancy_pct" not in kernel.shares for kernel in kernels):
        notes.append("the report has no occupancy; rankscope profile --tool ncu --set detailed records it")
    findings = _findings(kernels)
    rows = [_row(kernel) for kernel in kernels]
    return Result(
        "ncu",
        "Kernels that Nsight Compute measured",
        "whole file",
        COLUMNS,
        rows,
        tuple(findings),
        tuple(notes),
    )


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


def _findings(kernels: list[MeasuredKernel]) -> list[Finding]:
    """One a kernel that matters: at least a tenth of the time that was measured."""
    total = sum(kernel.duration_ns or 0 for kernel in kernels)
    by_name: dict[tuple[int, str], list[MeasuredKernel]] = {}
    for kernel in kernels:
        by_name.setdefault((kernel.rank, kernel.name), []).append(kernel)
    found = []
    for launches in by_name.values():
        time = sum(kernel.duration_ns or 0 for kernel in launches)
        if time >= LEAST_SHARE * total and (finding := _far_from_both(launches, time / total)) is not None:
            found.append(finding)
    return found


def _far_from_both(launches: list[MeasuredKernel], share: float) -> Finding | None:
    """Judged by its longest launch."""
    kernel = max(launches, key=lambda k: k.duration_ns or 0)
    compute, memory = kernel.shares.get("compute_pct"), kernel.shares.get("memory_pct")
    if compute is None or memory is None or max(compute, memory) >= LOW_PCT:
        return None
    moved = f", {format_bytes(kernel.dram_bytes)} from DRAM" if kernel.dram_bytes is not None else ""
    return Finding(
        "info",
        f"{shorten_middle(kernel.name, 60)} uses {compute:.0f} % of compute and {memory:.0f} % of memory throughput",
        f"{format_ns(kernel.duration_ns or 0)} a launch, grid {_size(kernel.grid)}{moved}, {100 * share:.0f} % of the "
        "measured time: near neither limit, so it waits for latency or has too little work.",
        ranks=(kernel.rank,),
        hint="Give it more work a launch, or fuse it with its neighbours; ncu --set detailed shows what stalls it.",
    )
