"""Device memory as the allocator reported it: peaks, and when."""

from __future__ import annotations

from rankscope.analysis.notes import left_out
from rankscope.analysis.result import Column, Result
from rankscope.analysis.scope import Scope
from rankscope.store.run import Run

COLUMNS = (
    Column("rank"),
    Column("device"),
    Column("peak_allocated_bytes", "bytes", "most memory in use by tensors", per_row_unit=True),
    Column("peak_reserved_bytes", "bytes", "most memory held by the caching allocator", per_row_unit=True),
    Column("at_ns", "ns", "when the allocated peak was reached, from the run's start"),
)


def memory(run: Run, scope: Scope, by: str | None = None) -> Result:
    """One row a rank and device, from the trace's [memory] events."""
    rows = run.records(
        "SELECT rank, CASE device_type WHEN 0 THEN 'CPU' ELSE concat('GPU ', device) END AS device, "
        "max(allocated_bytes) AS peak_allocated_bytes, max(reserved_bytes) AS peak_reserved_bytes, "
        "arg_max(ts_ns, (allocated_bytes, -ts_ns)) AS at_ns FROM instants WHERE name = '[memory]' "
        f"AND allocated_bytes IS NOT NULL AND {scope.where()} GROUP BY ALL ORDER BY rank, device"
    )
    notes = left_out(run, scope)
    if not rows:
        notes.append("the trace has no [memory] events; profile_memory=True records them")
    return Result("memory", "Memory", scope.window, COLUMNS, rows, notes=tuple(notes))
