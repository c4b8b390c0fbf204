"""Runtime calls in which the host waits for its device; several reports need them."""

from __future__ import annotations

from typing import Any

from rankscope.analysis.core.cache import once_per_run
from rankscope.analysis.core.device_events import sql_names, vocabulary
from rankscope.analysis.core.host_spans import sync_names
from rankscope.analysis.core.scope import Scope
from rankscope.model import LAUNCH_CATEGORIES
from rankscope.store.run import Run

_NAMES = "SELECT rank, segment, id, name FROM slices WHERE category = '{category}' AND id IN (SELECT {link} FROM calls)"


@once_per_run
def waiting_calls(run: Run, scope: Scope) -> dict[str, Any]:
    """The calls in scope by rank and time, with the op and the line of Python that made them ('' where unknown).

    `waits` is 0 for copies of pageable memory, which wait although their name does not show it.
    """
    waits = f"name IN ({sql_names(sync_names(run))})"
    pageable = [name for name in vocabulary(run, "gpu_memcpy") if "ageable" in name]
    return run.arrays(f"""
        WITH calls AS MATERIALIZED (
            SELECT rank, segment, track, id, start_ns, dur_ns, name, {waits} AS waits, step, op, python FROM slices
            WHERE category IN ({sql_names(LAUNCH_CATEGORIES)}) AND {scope.where()}
            AND ({waits} OR (rank, segment, id) IN (
                SELECT (rank, segment, launch) FROM gpu
                WHERE category = 'gpu_memcpy' AND name IN ({sql_names(pageable)}) AND launch IS NOT NULL
            ))
        )
        SELECT c.rank::BIGINT AS rank, c.segment::BIGINT AS segment, c.track::BIGINT AS track, c.start_ns AS start,
               c.start_ns + greatest(c.dur_ns, 0) AS stop, c.name, c.waits::BIGINT AS waits,
               coalesce(c.step, -1)::BIGINT AS step, coalesce(o.name, '') AS op, coalesce(l.name, '') AS line
        FROM calls c
        LEFT JOIN ({_NAMES.format(category="cpu_op", link="op")}) o
        ON o.rank = c.rank AND o.segment = c.segment AND o.id = c.op
        LEFT JOIN ({_NAMES.format(category="python_function", link="python")}) l
        ON l.rank = c.rank AND l.segment = c.segment AND l.id = c.python
        ORDER BY c.rank, c.start_ns, c.id
    """)
