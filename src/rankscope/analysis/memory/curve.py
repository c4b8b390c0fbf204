"""Memory over time, from the allocator's events, thinned to what a chart can show."""

from __future__ import annotations

from rankscope.analysis.core.notes import left_out
from rankscope.analysis.core.result import Column, Result
from rankscope.analysis.core.scope import Scope
from rankscope.store.run import Run

POINTS = 300
"""Stretches of time a rank; of each, the most and the last: no peak is lost, and none lasts too long."""

COLUMNS = (
    Column("rank"),
    Column("device"),
    Column("ts_ns", "ns", "when, from the run's start"),
    Column("allocated_bytes", "bytes", "in use by tensors: the most in a stretch of time, or the last in it"),
    Column("reserved_bytes", "bytes", "held by the caching allocator then"),
)


def memory_curve(run: Run, scope: Scope, by: str | None = None) -> Result:
    """One or two rows a rank, device and stretch of time in which something was allocated or freed."""
    where = f"name = '[memory]' AND allocated_bytes IS NOT NULL AND {scope.where()}"
    rows = run.records(f"""
        WITH points AS (
            SELECT rank, CASE device_type WHEN 0 THEN 'CPU' ELSE concat('GPU ', device) END AS device, ts_ns,
                   allocated_bytes, reserved_bytes FROM instants WHERE {where}
        ), bounds AS (
            SELECT min(ts_ns) AS low, greatest(max(ts_ns) - min(ts_ns), 1) AS width FROM points
        )
        SELECT DISTINCT rank, device, p.ts_ns AS ts_ns, p.allocated_bytes AS allocated_bytes,
               p.reserved_bytes AS reserved_bytes
        FROM (SELECT rank, device, unnest([arg_max(p, allocated_bytes), arg_max(p, ts_ns)]) AS p
        FROM (
            SELECT *, (ts_ns - low) * {POINTS} // width AS stretch,
                   {{'ts_ns': ts_ns, 'allocated_bytes': allocated_bytes, 'reserved_bytes': reserved_bytes}} AS p
            FROM points, bounds
        ) GROUP BY rank, device, stretch) ORDER BY rank, device, ts_ns
    """)
    notes = left_out(run, scope)
    if not rows:
        notes.append("the trace has no [memory] events; rankscope profile --profile-memory records them")
    return Result("memory_curve", "Memory over time", scope.window, COLUMNS, rows, notes=tuple(notes))
