"""The GPU timeline of TraceLens. Fills count as computation; GPU events without a launch in the file do not count."""

from __future__ import annotations

from typing import Any

from rankscope.analysis.core.intervals import join, length, subtract, union
from rankscope.analysis.core.result import Column, Result
from rankscope.analysis.core.scope import Scope
from rankscope.timeline.run import Run

COLUMNS = (Column("type"), Column("time_ms"), Column("percent"))
WHY = (
    "TraceLens counts fills as computation and leaves out GPU events whose launch call is not in the file; "
    "-r breakdown without --compat includes them, and counts fills as copies"
)


def breakdown(run: Run, scope: Scope, by: str | None = None) -> Result:
    """Eight rows for each rank; with several ranks, a column names the rank. --steps has no effect."""
    ranks = [rank for rank in run.ranks if scope.ranks is None or rank in scope.ranks]
    rows = [{"rank": rank, **row} for rank in ranks for row in _rows(run, rank)]
    columns = (Column("rank"), *COLUMNS) if len(ranks) > 1 else COLUMNS
    notes = (WHY,) if rows else ("no GPU events with a launch: TraceLens would have no result",)
    return Result("breakdown", "GPU timeline as in TraceLens", "whole file", columns, rows, notes=notes)


def _rows(run: Run, rank: int) -> list[dict[str, Any]]:
    events = run.arrays(
        "SELECT start_ns AS start, start_ns + greatest(dur_ns, 0) AS stop, category = 'gpu_memcpy' AS copy, "
        "category = 'kernel' AND contains(lower(name), 'nccl') AS comm "
        f"FROM gpu WHERE rank = {rank} AND launch IS NOT NULL"
    )
    start, end, copies, comms = events["start"], events["stop"], events["copy"], events["comm"]
    if len(start) == 0:
        return []
    work = ~(copies | comms)
    compute, comm, copy = (union(start[mask], end[mask]) for mask in (work, comms, copies))
    exposed_comm = subtract(comm, compute)
    busy, total = length(join(compute, comm, copy)), int(end.max() - start.min())
    times = {
        "computation_time": length(compute),
        "exposed_comm_time": length(exposed_comm),
        "exposed_memcpy_time": length(subtract(subtract(copy, compute), comm)),
        "busy_time": busy,
        "idle_time": total - busy,
        "total_time": total,
        "total_comm_time": length(comm),
        "total_memcpy_time": length(copy),
    }
    return [
        {"type": name, "time_ms": round(ns / 1e6, 6), "percent": 100 * ns / total if total else None}
        for name, ns in times.items()
    ]
