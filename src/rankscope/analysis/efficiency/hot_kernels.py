"""Selects the kernels of a run that take the most time for ncu, and adds what ncu measured to that list."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

from rankscope.analysis.core.result import Column, Result
from rankscope.analysis.core.scope import Scope
from rankscope.analysis.efficiency.ncu import OF_PEAKS, RATE, SIZE_COLUMNS, measured_kernels
from rankscope.capture.kernel_list import HotKernel, KernelList, function_name, size_text
from rankscope.capture.ncu_selection import why_missed
from rankscope.sql import sql_texts
from rankscope.timeline.run import Run
from rankscope.tools import Launch

COLUMNS = (
    Column("name", at_end=True),
    Column("calls", "count", "in the run it was selected from"),
    Column("total_ns", "ns", "in the run it was selected from"),
    Column("avg_ns", "ns", "per launch, in that run", minor=True),
    Column("launches", "count", "launches that ncu measured, over all ranks", minor=True),
    Column("duration_ns", "ns", "mean per launch under ncu, at the clocks that ncu set"),
    *OF_PEAKS,
    RATE,
    *SIZE_COLUMNS,
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
    rows = list[dict[str, Any]]()
    notes = []
    for kernel in listed.kernels:
        pairs = zip(measured, launches, strict=True)
        mine = [launched for launched, launch in pairs if listed.is_launch_of(kernel, launch)]
        if not mine:
            notes.append(
                f"not measured: {kernel.name} ({kernel.size}): {why_missed(kernel, launches)}; "
                "--runs N tries more"
            )
        duration, flops = _mean(each.duration_ns for each in mine), _mean(each.flops for each in mine)
        rows.append(
            {
                "name": kernel.name,
                "calls": kernel.calls,
                "total_ns": kernel.total_ns,
                "avg_ns": kernel.total_ns / kernel.calls if kernel.calls else None,
                "launches": len(mine),
                "duration_ns": duration,
                **{share.name: _mean(each.shares.get(share.name) for each in mine) for share in OF_PEAKS},
                "flop_s": flops / duration * 1e9 if flops is not None and duration else None,
                "grid": size_text(kernel.grid),
                "block": size_text(kernel.block),
            }
        )
    others = len(measured) - sum(row["launches"] for row in rows)
    if others > 0:
        notes.append(
            f"{others} measured launches are of other kernels or sizes; rankscope stats FOLDER -r ncu shows them"
        )
    return Result("ncu_top", "Hot kernels measured by ncu", "whole file", COLUMNS, rows, (), tuple(notes))


def _mean(values: Iterable[float | None]) -> float | None:
    numbers = [value for value in values if value is not None]
    return sum(numbers) / len(numbers) if numbers else None
