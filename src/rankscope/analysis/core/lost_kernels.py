"""Ranks whose profiler stopped recording kernels while the job went on."""

from __future__ import annotations

from rankscope.analysis.core.cache import once_per_run
from rankscope.analysis.core.scope import Scope
from rankscope.store.run import Run

_LEAST_STEPS = 2
"""So many steps without a kernel, at the end of a recording with GPU events, are no accident."""


def kernels_end_in(run: Run, scope: Scope) -> dict[int, int | None]:
    """By rank, the last step with kernels, where the later ones have none at all; None where no step has one.

    All recorded steps are compared, not only those in scope.
    """
    return _kernels_end_in(run, scope.only_ranks())  # once for all windows of these ranks


@once_per_run
def _kernels_end_in(run: Run, ranks: Scope) -> dict[int, int | None]:
    rows = run.rows(f"""
        WITH counts AS (
            SELECT s.rank, s.start_ns, s.step, count(g.id) AS events,
                   count(g.id) FILTER (g.category = 'kernel') AS kernels
            FROM steps s LEFT JOIN gpu g ON g.rank = s.rank AND g.segment = s.segment AND g.step = s.step
            WHERE {ranks.where("s")} GROUP BY ALL
        ), ended AS (
            SELECT rank, coalesce(max(start_ns) FILTER (kernels > 0), min(start_ns) - 1) AS last_ns
            FROM counts GROUP BY rank
        )
        SELECT c.rank, max(c.step) FILTER (c.start_ns = e.last_ns) FROM counts c JOIN ended e USING (rank)
        GROUP BY c.rank HAVING sum(c.events) > 0 AND count(*) FILTER (c.start_ns > e.last_ns) >= {_LEAST_STEPS}
        ORDER BY c.rank
    """)
    return dict(rows)
