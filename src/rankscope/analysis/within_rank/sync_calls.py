"""Runtime calls in which the host waits for its device; several reports need them."""

from __future__ import annotations

from typing import Any

from rankscope.analysis.core.cache import once_per_run
from rankscope.analysis.core.device_events import UNKNOWN
from rankscope.analysis.core.host_spans import sync_names
from rankscope.analysis.core.names import sql_names, vocabulary
from rankscope.analysis.core.run_steps import NO_STEP
from rankscope.analysis.core.scope import Scope
from rankscope.model import LAUNCH_CATEGORIES
from rankscope.timeline.run import Run


@once_per_run
def waiting_calls(run: Run, scope: Scope) -> dict[str, Any]:
    """The calls in scope by rank and time, with the op and the line of Python that made them.

    `name`, `op` and `line` are indices into names.all_names, or UNKNOWN. `waits` is 0 for copies of pageable memory,
    which wait although their name does not show it.
    """
    waits = wanted = f"name IN ({sql_names(sync_names(run))})"
    if pageable := [name for name in vocabulary(run, "gpu_memcpy") if "ageable" in name]:
        wanted = f"""({waits} OR (rank, segment, id) IN (
            SELECT (rank, segment, launch) FROM gpu
            WHERE category = 'gpu_memcpy' AND name IN ({sql_names(pageable)}) AND launch IS NOT NULL
        ))"""
    return run.arrays(f"""
        WITH calls AS MATERIALIZED (
            SELECT rank, segment, track, id, start_ns, dur_ns, category, name, {waits} AS waits, step, op, python
            FROM slices WHERE category IN ({sql_names(LAUNCH_CATEGORIES)}) AND {scope.where()} AND {wanted}
        ), callers AS MATERIALIZED (
            SELECT s.rank, s.segment, s.id, n.code
            FROM slices s JOIN internal.names n ON n.category = s.category AND n.name = s.name
            WHERE s.category IN ('cpu_op', 'python_function')
            AND s.id IN (SELECT unnest([op, python]) FROM calls)
        )
        SELECT c.rank::BIGINT AS rank, c.segment::BIGINT AS segment, c.track::BIGINT AS track, c.start_ns AS start,
               c.start_ns + greatest(c.dur_ns, 0) AS stop, n.code AS name, coalesce(c.waits, false)::BIGINT AS waits,
               coalesce(c.step, {NO_STEP})::BIGINT AS step, coalesce(o.code, {UNKNOWN}) AS op,
               coalesce(l.code, {UNKNOWN}) AS line
        FROM calls c JOIN internal.names n ON n.category = c.category AND n.name = c.name
        LEFT JOIN callers o ON o.rank = c.rank AND o.segment = c.segment AND o.id = c.op
        LEFT JOIN callers l ON l.rank = c.rank AND l.segment = c.segment AND l.id = c.python
        ORDER BY c.rank, c.start_ns, c.id
    """)
