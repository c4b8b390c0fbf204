"""Python functions by name, where stacks were recorded: calls, self and total time."""

from __future__ import annotations

from rankscope.analysis.core.advice import how_to_record
from rankscope.analysis.core.device_events import slice_counts
from rankscope.analysis.core.notes import slices_outside_steps
from rankscope.analysis.core.result import Column, Result
from rankscope.analysis.core.scope import Scope
from rankscope.timeline.run import Run

_FRAME = "category = 'python_function'"
_NAME = "regexp_replace(slices.name, ' at 0x[0-9a-f]+', '')"
"""Every process has other addresses: <built-in method acquire of _thread.lock object at 0x7fb9457e5ac0>."""
COLUMNS = (
    Column("calls", "count"),
    Column("self_host_ns", "ns", "time outside the functions, ops and runtime calls that it calls"),
    Column("total_host_ns", "ns", "time inside it; a call of itself is counted once"),
    Column("name", help="file(line): function", at_end=True),
)


def python_functions(run: Run, scope: Scope, by: str | None = None) -> Result:
    """One row per function, most self time first."""
    keys = "rank, name" if by == "rank" else "name"
    rows = run.records(f"""
        SELECT {keys}, count(*) AS calls, sum(self_ns)::BIGINT AS self_host_ns,
               (sum(dur_ns) FILTER (outer_end IS NULL OR start_ns >= outer_end))::BIGINT AS total_host_ns
        FROM (
            SELECT rank, {_NAME} AS name, start_ns, dur_ns, self_ns, max(start_ns + dur_ns) OVER (
                PARTITION BY rank, segment, track, {_NAME} ORDER BY start_ns, dur_ns DESC, id
                ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
            ) AS outer_end
            FROM slices WHERE {_FRAME} AND {scope.where()}
        ) GROUP BY {keys} ORDER BY self_host_ns DESC, {keys}
    """)
    notes = slices_outside_steps(run, scope, sum(row["calls"] for row in rows), ("python_function",), "calls")
    recorded = "python_function" in slice_counts(run, Scope())
    if not recorded:
        notes.append(f"no Python functions were recorded: {how_to_record(run, 'stacks')}")
    columns = (*((Column("rank"),) if by == "rank" else ()), *COLUMNS)
    title, unknown = "Python functions", "" if recorded else None
    return Result("ops.python", title, scope.window, columns, rows, notes=tuple(notes), unknown=unknown)
