"""Runtime calls in which the host waits for its device, as a small table that several reports ask."""

from __future__ import annotations

from rankscope.analysis.core.cache import once_per_run
from rankscope.analysis.core.device_events import sql_names, vocabulary
from rankscope.analysis.core.host_spans import sync_names
from rankscope.analysis.core.scope import Scope
from rankscope.model import LAUNCH_CATEGORIES
from rankscope.store.run import Run

_NAMES = "SELECT rank, segment, id, name FROM slices WHERE category = '{category}' AND id IN (SELECT {link} FROM calls)"


@once_per_run
def prepare_waiting_calls(run: Run, scope: Scope) -> None:
    """Make the temporary table `waiting_calls` of the calls in scope.

    `waits` is false for copies of pageable memory, which wait although their name does not say so.
    """
    waits = f"name IN ({sql_names(sync_names(run))})"
    pageable = [name for name in vocabulary(run, "gpu_memcpy") if "ageable" in name]
    run.connection.execute(f"""
        CREATE OR REPLACE TEMP TABLE waiting_calls AS
        WITH calls AS MATERIALIZED (
            SELECT rank, segment, track, id, start_ns, dur_ns, name, {waits} AS waits, step, op, python FROM slices
            WHERE category IN ({sql_names(LAUNCH_CATEGORIES)}) AND {scope.where()}
            AND ({waits} OR (rank, segment, id) IN (
                SELECT (rank, segment, launch) FROM gpu
                WHERE category = 'gpu_memcpy' AND name IN ({sql_names(pageable)}) AND launch IS NOT NULL
            ))
        )
        SELECT c.*, o.name AS op_name, l.name AS line FROM calls c
        LEFT JOIN ({_NAMES.format(category="cpu_op", link="op")}) o
        ON o.rank = c.rank AND o.segment = c.segment AND o.id = c.op
        LEFT JOIN ({_NAMES.format(category="python_function", link="python")}) l
        ON l.rank = c.rank AND l.segment = c.segment AND l.id = c.python
    """)
