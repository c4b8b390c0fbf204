"""Kernels measured by Nsight Compute: how close each runs to the limits of the device."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from rankscope.analysis.core.notes import left_out
from rankscope.analysis.core.result import Column, Fact, Finding, Result
from rankscope.analysis.core.scope import Scope
from rankscope.analysis.efficiency.ncu_metrics import MeasuredKernel, measured_kernels
from rankscope.capture.kernel_list import HotKernel, KernelList, function_name, size_text
from rankscope.capture.ncu_selection import why_missed
from rankscope.sql import sql_texts
from rankscope.timeline.run import Run
from rankscope.tools import Launch
from rankscope.units import format_rounded, shorten_middle

_OF_PEAKS = (
    Column("compute_pct", "percent", "of the peak throughput of the SMs (speed of light)"),
    Column("memory_pct", "percent", "of the peak throughput of the memory system (speed of light)"),
)
_RATE = Column("flop_s", "flop/s", "executed FLOPs per second")
_SIZE_COLUMNS = (
    Column("grid", help="blocks in x, y, z", minor=True),
    Column("block", help="threads per block in x, y, z", minor=True),
)
_HOT_COLUMNS = (
    Column("name", at_end=True),
    Column("calls", "count", "in the run it was selected from"),
    Column("total_ns", "ns", "in the run it was selected from"),
    Column("avg_ns", "ns", "per launch, in that run", minor=True),
    Column("launches", "count", "launches that ncu measured, over all ranks", minor=True),
    Column("duration_ns", "ns", "mean per launch under ncu, at the clocks that ncu set"),
    *_OF_PEAKS,
    _RATE,
    *_SIZE_COLUMNS,
)


def hot_kernels(run: Run, top: int, by: str = "time") -> KernelList:
    """The `top` compute kernels over all ranks, one per name, grid and block; by total time or by number of calls."""
    first = {"time": "total", "calls": "calls"}[by]
    rows = run.rows(f"""
        SELECT g.name, {_SIZES}, count(*) AS calls, sum(g.dur_ns)::BIGINT AS total FROM {_SIZED}
        GROUP BY ALL ORDER BY {first} DESC, total DESC, g.name LIMIT {int(top)}
    """)
    kernels = [
        HotKernel(name, tuple(grid), tuple(block), calls, total)
        for name, grid, block, calls, total in rows
        if None not in (*grid, *block)
    ]
    return _with_order(run, kernels) if kernels else KernelList(())


def _with_order(run: Run, kernels: list[HotKernel]) -> KernelList:
    """The list with the launches of one rank in one step: the first step with most of the kernels."""
    functions = {function_name(kernel.name) for kernel in kernels}
    names = [
        name
        for (name,) in run.rows(f"SELECT DISTINCT g.name FROM {_SIZED}")
        if function_name(name) in functions
    ]
    chosen = sql_texts(kernel.name for kernel in kernels)
    launched = run.rows(
        f"SELECT DISTINCT g.rank, g.step, g.name, {_SIZES} FROM {_SIZED} AND g.name IN ({chosen})"
    )
    wanted = {kernel[:3] for kernel in kernels}
    kernels_in = Counter(
        (rank, step)
        for rank, step, name, grid, block in launched
        if (name, tuple(grid), tuple(block)) in wanted
    )
    rank, step = min(kernels_in, key=lambda at: (at[1] is None, -kernels_in[at], at[0], at[1] or 0))
    same_step = "g.step IS NULL" if step is None else f"g.step = {int(step)}"
    rows = run.rows(f"""
        SELECT g.name, {_SIZES} FROM {_SIZED}
        AND g.rank = {int(rank)} AND {same_step} AND g.name IN ({sql_texts(names)})
        ORDER BY coalesce(g.launch_ns, g.start_ns), g.start_ns, g.id LIMIT {_MOST_LAUNCHES}
    """)
    order = [
        Launch(name, tuple(grid), tuple(block)) for name, grid, block in rows if None not in (*grid, *block)
    ]
    return KernelList(tuple(kernels), step, tuple(order))


def _axes(key: str) -> str:
    return ", ".join(f"TRY_CAST(e.args->'{key}'->>{axis} AS INTEGER)" for axis in range(3))


_SIZES = f"[{_axes('grid')}], [{_axes('block')}]"
_SIZED = """gpu g JOIN events e ON e.rank = g.rank AND e.segment = g.segment AND e.id = g.id
    WHERE g.class = 'COMPUTE' AND (e.args->'grid') IS NOT NULL AND (e.args->'block') IS NOT NULL"""
# A step of a large model has some thousands; a run without steps is cut here.
_MOST_LAUNCHES = 50_000


def hot_kernels_measured(run: Run, listed: KernelList) -> Result:
    """One row per selected kernel: its figures in the run, and the mean of its launches that ncu measured."""
    measured = measured_kernels(run, Scope())
    launches = [Launch(kernel.name, kernel.grid or (), kernel.block or ()) for kernel in measured]
    rows = []
    notes = []
    for kernel in listed.kernels:
        pairs = zip(measured, launches, strict=True)
        of_kernel = [launched for launched, launch in pairs if listed.is_launch_of(kernel, launch)]
        rows.append(_hot_row(kernel, of_kernel))
        if not of_kernel:
            notes.append(
                f"not measured: {kernel.name} ({kernel.size}): {why_missed(kernel, launches)}; "
                "rankscope ncu --runs N tries more"
            )
    others = len(measured) - sum(row["launches"] for row in rows)
    if others > 0:
        notes.append(
            f"{others} measured launches are of other kernels or sizes; rankscope stats FOLDER -r ncu shows them"
        )
    return Result(
        "ncu_top", "Hot kernels measured by ncu", "whole file", _HOT_COLUMNS, rows, (), tuple(notes)
    )


def _hot_row(kernel: HotKernel, launches: Sequence[MeasuredKernel]) -> dict[str, Any]:
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
        "grid": size_text(kernel.grid),
        "block": size_text(kernel.block),
    }


def _mean(values: Sequence[float | None]) -> float | None:
    numbers = [value for value in values if value is not None]
    return sum(numbers) / len(numbers) if numbers else None


LOW_PCT = 60.0
"""A kernel below this share of both peaks is near neither limit; ncu uses the same threshold."""

MIN_SHARE = 0.1
"""Share of the measured time; kernels below it give no finding. Chosen, not measured."""

COLUMNS = (
    Column("rank"),
    Column("name", at_end=True),
    *_SIZE_COLUMNS,
    Column("duration_ns", "ns", "of this launch, at the clocks that ncu set"),
    *_OF_PEAKS,
    Column("dram_pct", "percent", "of the peak DRAM bandwidth", title="DRAM", minor=True),
    Column("tensor_pct", "percent", "share of cycles in which the tensor cores are active"),
    Column("occupancy_pct", "percent", "active warps, of the maximum per SM", minor=True),
    Column("dram_bytes", "bytes", "read from and written to DRAM", title="DRAM traffic", minor=True),
    Column("flops", "flop", "executed FLOPs of all types", minor=True),
    _RATE,
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
        "info",
        f"{shorten_middle(kernel.name, 60)} reaches {compute:.0f} % of the compute peak and {memory:.0f} % of the "
        "memory peak",
        f"Longest launch: {format_rounded('ns', kernel.duration_ns or 0)}, grid {_size(kernel.grid)}{traffic}. "
        f"All launches: {100 * share:.0f} % of the measured time. The kernel is near neither limit; usual causes are "
        "latency and too little work per launch.",
        ranks=ranks,
        hint="Give each launch more work, or fuse the kernel with its neighbours. ncu --set detailed shows stall "
        "reasons.",
        facts=tuple(figures),
    )
