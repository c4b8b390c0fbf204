"""The kernels that cost a run most, for ncu to look at closely; and what it measured, beside what they cost."""

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
    Column("calls", "count", "in the run it was chosen from"),
    Column("total_ns", "ns", "in the run it was chosen from"),
    Column("avg_ns", "ns", "a launch, in that run", minor=True),
    Column("launches", "count", "that ncu measured, over all ranks", minor=True),
    Column("duration_ns", "ns", "a launch under ncu, at the clocks it set (mean)"),
    Column("compute_pct", "percent", "of the SMs' peak (speed of light)"),
    Column("memory_pct", "percent", "of the memory system's peak (speed of light)"),
    Column("flop_s", "flop/s", "executed per second"),
    Column("grid", help="blocks in x, y, z", minor=True),
    Column("block", help="threads of a block in x, y, z", minor=True),
)


def hot_kernels(run: Run, top: int) -> list[HotKernel]:
    """Compute kernels by total time over all ranks, one for each name, grid and block."""
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


def joined(run: Run, kernels: Sequence[HotKernel]) -> Result:
    """One row a chosen kernel: the list's figures, and the mean of the launches that ncu measured of it.

    The same function, grid and block is the same kernel; where two of the list share all three (they differ only
    in template arguments), the names decide.
    """
    measured = measured_kernels(run, Scope())
    rows = []
    missed = []
    for kernel in kernels:
        same = _measured_of(kernel, kernels, measured)
        rows.append(_row(kernel, same))
        if not same:
            missed.append(kernel)
    others = len(measured) - sum(row["launches"] for row in rows)
    notes = [
        f"ncu met no launch of {kernel.name} with grid {_size(kernel.grid)}; "
        "give it more launches: rankscope ncu -c N"
        for kernel in missed
    ]
    if others > 0:
        notes.append(
            f"{others} measured launches have another grid or block: rankscope stats FOLDER -r ncu shows them"
        )
    return Result(
        "ncu_top", "The hot kernels, as ncu measured them", "whole file", COLUMNS, rows, (), tuple(notes)
    )


def _measured_of(
    kernel: HotKernel, kernels: Sequence[HotKernel], measured: Sequence[MeasuredKernel]
) -> list[MeasuredKernel]:
    same = [one for one in measured if (function_name(one.name), one.grid, one.block) == kernel.key]
    twins = [other for other in kernels if other.key == kernel.key]
    if len(twins) < 2:
        return same
    return [one for one in same if _plain(one.name) == _plain(kernel.name)]


def _plain(name: str) -> str:
    """A name without what demanglers write differently: blanks and the types of integer template arguments."""
    for cast in ("(int)", "(unsigned int)", "(bool)", "(long)"):
        name = name.replace(cast, "")
    return "".join(name.split())


def _row(kernel: HotKernel, same: Sequence[MeasuredKernel]) -> dict[str, Any]:
    duration = _mean([one.duration_ns for one in same])
    flops = _mean([one.flops for one in same])
    return {
        "name": kernel.name,
        "calls": kernel.calls,
        "total_ns": kernel.total_ns,
        "avg_ns": kernel.total_ns / kernel.calls if kernel.calls else None,
        "launches": len(same),
        "duration_ns": duration,
        "compute_pct": _mean([one.shares.get("compute_pct") for one in same]),
        "memory_pct": _mean([one.shares.get("memory_pct") for one in same]),
        "flop_s": flops / duration * 1e9 if flops is not None and duration else None,
        "grid": _size(kernel.grid),
        "block": _size(kernel.block),
    }


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def _size(dimensions: Sequence[int]) -> str:
    return "x".join(map(str, dimensions))
