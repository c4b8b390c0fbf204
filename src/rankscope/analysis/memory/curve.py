"""Memory over time from the allocator's events, reduced to the points that a chart can show."""

from __future__ import annotations

from rankscope.analysis.core.notes import left_out
from rankscope.analysis.core.result import Column, Result
from rankscope.analysis.core.scope import Scope
from rankscope.analysis.memory.allocator_events import DEVICE_NAME, IS_MEMORY_EVENT, NO_MEMORY_EVENTS
from rankscope.timeline.run import Run

POINTS = 300
"""Number of time intervals. Each keeps its highest and its last value, so that the curve shows the peak of each
interval and does not extend it."""

COLUMNS = (
    Column("rank"),
    Column("device"),
    Column("ts_ns", "ns", "time since the start of the run"),
    Column("allocated_bytes", "bytes", "used by tensors: the highest or the last value in an interval"),
    Column("reserved_bytes", "bytes", "held by the caching allocator at that time"),
)


def memory_curve(run: Run, scope: Scope, by: str | None = None) -> Result:
    """One or two rows per rank, device and interval in which something was allocated or freed."""
    rows = run.records(f"""
        WITH points AS (
            SELECT rank, {DEVICE_NAME} AS device, ts_ns, allocated_bytes, reserved_bytes
            FROM instants WHERE {IS_MEMORY_EVENT} AND {scope.where()}
        ), bounds AS (
            SELECT min(ts_ns) AS low, greatest(max(ts_ns) - min(ts_ns), 1) AS width FROM points
        )
        SELECT DISTINCT rank, device, p.ts_ns AS ts_ns, p.allocated_bytes AS allocated_bytes,
               p.reserved_bytes AS reserved_bytes
        FROM (SELECT rank, device, unnest([arg_max(p, allocated_bytes), arg_max(p, ts_ns)]) AS p
        FROM (
            SELECT *, (ts_ns - low) * {POINTS} // width AS interval_number,
                   {{'ts_ns': ts_ns, 'allocated_bytes': allocated_bytes, 'reserved_bytes': reserved_bytes}} AS p
            FROM points, bounds
        ) GROUP BY rank, device, interval_number) ORDER BY rank, device, ts_ns
    """)
    notes = left_out(run, scope)
    if not rows:
        notes.append(NO_MEMORY_EVENTS)
    return Result("memory_curve", "Memory over time", scope.window, COLUMNS, rows, notes=tuple(notes))
