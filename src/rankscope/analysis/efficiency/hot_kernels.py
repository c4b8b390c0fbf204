"""Selects the kernels of a run that take the most time for ncu, and adds what ncu measured to that list."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rankscope.analysis.core.result import Column, Result
from rankscope.analysis.core.scope import Scope
from rankscope.analysis.efficiency.ncu_metrics import MeasuredKernel, measured_kernels
from rankscope.capture.kernel_list import HotKernel, function_name
from rankscope.store.run import Run

COLUMNS = (
    Column("name", at_end=True),
    Column("calls", "count", "in the run it was selected from"),
    Column("total_ns", "ns", "in the run it was selected from"),
    Column("avg_ns", "ns", "per launch, in that run", minor=True),
    Column("launches", "count", "launches that ncu measured, over all ranks", minor=True),
    Column("duration_ns", "ns", "mean per launch under ncu, at the clocks that ncu set"),
    Column("compute_pct", "percent", "of the peak throughput of the SMs (speed of light)"),
    Column("memory_pct", "percent", "of the peak throughput of the memory system (speed of light)"),
    Column("flop_s", "flop/s", "executed FLOPs per second"),
    Column("grid", help="blocks in x, y, z", minor=True),
    Column("block", help="threads per block in x, y, z", minor=True),
)


def hot_kernels(run: Run, top: int) -> list[HotKernel]:
    """The `top` compute kernels by total time over all ranks, one per name, grid and block."""
    rows = run.rows(f"""
        SELECT g.name, [{_axes("grid")}], [{_axes("block")}], count(*), sum(g.dur_ns)::BIGINT AS total
        FROM gpu g JOIN events e ON e.rank = g.rank AND e.segment = g.segment AND e.id = g.id
        WHERE g.class = 'COMPUTE' AND (e.args->'grid') IS NOT NULL AND (e.args->'block') IS NOT NULL
        GROUP BY ALL ORDER BY total DESC, g.name LIMIT {int(top)}
    """)
    return [
        HotKernel(name, tuple(grid), tuple(block), calls, total)
        for name, grid, block, calls, total in rows
        if None not in (*grid, *block)
    ]


def _axes(key: str) -> str:
    return ", ".join(f"TRY_CAST(e.args->'{key}'->>{axis} AS INTEGER)" for axis in range(3))


def hot_kernels_measured(run: Run, kernels: Sequence[HotKernel]) -> Result:
    """One row per selected kernel: its figures in the run, and the mean of its launches that ncu measured.

    Kernels match by function, grid and block. Where two selected kernels share all three (they differ only in
    template arguments), they match by full name.
    """
    measured = measured_kernels(run, Scope())
    rows = []
    missed = []
    for kernel in kernels:
        launches = _launches_of(kernel, kernels, measured)
        rows.append(_row(kernel, launches))
        if not launches:
            missed.append(kernel)
    others = len(measured) - sum(row["launches"] for row in rows)
    notes = [
        f"ncu measured no launch of {kernel.name} with grid {_size(kernel.grid)}; "
        "rankscope ncu -c N measures more launches"
        for kernel in missed
    ]
    if others > 0:
        notes.append(
            f"{others} measured launches have a different grid or block; rankscope stats FOLDER -r ncu shows them"
        )
    return Result("ncu_top", "Hot kernels measured by ncu", "whole file", COLUMNS, rows, (), tuple(notes))


def _launches_of(
    kernel: HotKernel, kernels: Sequence[HotKernel], measured: Sequence[MeasuredKernel]
) -> list[MeasuredKernel]:
    same = [one for one in measured if (function_name(one.name), one.grid, one.block) == kernel.key]
    alike = [other for other in kernels if other.key == kernel.key]
    if len(alike) < 2:
        return same
    return [one for one in same if _normalised(one.name) == _normalised(kernel.name)]


def _normalised(name: str) -> str:
    """The name without blanks and without casts in template arguments, which differ between demanglers."""
    for cast in ("(int)", "(unsigned int)", "(bool)", "(long)"):
        name = name.replace(cast, "")
    return "".join(name.split())


def _row(kernel: HotKernel, launches: Sequence[MeasuredKernel]) -> dict[str, Any]:
    duration = _mean([launch.duration_ns for launch in launches])
    flops = _mean([launch.flops for launch in launches])
    return {
        "name": kernel.name,
        "calls": kernel.calls,
        "total_ns": kernel.total_ns,
        "avg_ns": kernel.total_ns / kernel.calls if kernel.calls else None,
        "launches": len(launches),
        "duration_ns": duration,
        "compute_pct": _mean([launch.shares.get("compute_pct") for launch in launches]),
        "memory_pct": _mean([launch.shares.get("memory_pct") for launch in launches]),
        "flop_s": flops / duration * 1e9 if flops is not None and duration else None,
        "grid": _size(kernel.grid),
        "block": _size(kernel.block),
    }


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def _size(dimensions: Sequence[int]) -> str:
    return "x".join(map(str, dimensions))
