"""The sets of events that definitions use: device activity by class, collectives on the host, work on the host."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from rankscope.analysis.core.cache import once_per_run
from rankscope.analysis.core.intervals import Ints
from rankscope.analysis.core.scope import Scope
from rankscope.model import HOST_COLLECTIVE_PATTERN, SYNC_CALL_PATTERN, WAITING_PATTERN
from rankscope.records import dataclass
from rankscope.timeline.run import Run

# Ops that only check a flag. Some builds of torch call them inside aten::mm, which does the work.
_FLAG_CHECKS = "('aten::resolve_conj', 'aten::resolve_neg')"

NO_STEP = -1
COMPUTE, COMM, COPY = range(3)
"""The classes of activity, as numbers in arrays."""


@dataclass(frozen=True)
class Activity:
    """Intervals with the rank, step (NO_STEP for none) and class of each."""

    rank: Ints
    step: Ints
    kind: Ints
    start: Ints
    end: Ints

    def pick(self, mask: NDArray[np.bool_]) -> Activity:
        return Activity(self.rank[mask], self.step[mask], self.kind[mask], self.start[mask], self.end[mask])


NO_ACTIVITY = Activity(*(np.empty(0, dtype=np.int64) for _ in range(5)))

_COLUMNS = f"rank::BIGINT AS rank, coalesce(step, {NO_STEP})::BIGINT AS step"


def _activity(run: Run, sql: str) -> Activity:
    columns = run.arrays(sql)
    return Activity(*(columns[name] for name in ("rank", "step", "kind", "start", "stop")))


@once_per_run
def device_activity(run: Run, scope: Scope) -> Activity:
    """Kernels, copies and fills; an event of negative length counts as empty."""
    return _activity(
        run,
        f"""
        SELECT {_COLUMNS}, start_ns AS start, start_ns + greatest(dur_ns, 0) AS stop,
               CASE class WHEN 'COMPUTE' THEN {COMPUTE} WHEN 'COMM' THEN {COMM} ELSE {COPY} END::BIGINT AS kind
        FROM gpu WHERE {scope.where()}
        """,
    )


def host_collectives(run: Run, scope: Scope) -> Activity:
    """Collectives on the host, from the end of the synchronising calls at their start.

    Until those calls return, the rank waits for its own GPU, and that is not communication.
    """
    return _activity(
        run,
        f"""
        WITH collectives AS (
            SELECT rank, segment, id, step, start_ns, dur_ns FROM slices
            WHERE category = 'user_annotation' AND regexp_matches(name, '{HOST_COLLECTIVE_PATTERN}')
            AND {scope.where()}
        ), children AS (
            SELECT c.rank, c.segment, c.id, k.start_ns, k.start_ns + k.dur_ns AS end_ns,
                   regexp_matches(k.name, '{SYNC_CALL_PATTERN}') AS waits
            FROM collectives c
            JOIN slices k ON k.rank = c.rank AND k.segment = c.segment AND k.parent = c.id
        ), work AS (
            SELECT rank, segment, id, min(start_ns) AS work_ns FROM children WHERE NOT waits GROUP BY ALL
        ), waiting AS (
            SELECT k.rank, k.segment, k.id, max(k.end_ns) AS ready_ns
            FROM children k
            LEFT JOIN work w ON w.rank = k.rank AND w.segment = k.segment AND w.id = k.id
            WHERE k.waits AND (w.work_ns IS NULL OR k.start_ns < w.work_ns) GROUP BY ALL
        )
        SELECT c.rank::BIGINT AS rank, coalesce(c.step, {NO_STEP})::BIGINT AS step, {COMM}::BIGINT AS kind,
               greatest(c.start_ns, coalesce(w.ready_ns, c.start_ns)) AS start,
               c.start_ns + greatest(c.dur_ns, 0) AS stop
        FROM collectives c
        LEFT JOIN waiting w ON w.rank = c.rank AND w.segment = c.segment AND w.id = c.id
        """,
    )


def host_work(run: Run, scope: Scope) -> Activity:
    """Ops of any thread with no other op inside: the compute of a run without a GPU."""
    return _activity(
        run,
        f"""
        SELECT {_COLUMNS}, {COMPUTE}::BIGINT AS kind, start_ns AS start, start_ns + greatest(dur_ns, 0) AS stop
        FROM slices s
        WHERE category = 'cpu_op' AND {scope.where()} AND NOT regexp_matches(name, '{WAITING_PATTERN}')
        AND NOT EXISTS (
            SELECT 1 FROM slices c
            WHERE c.category = 'cpu_op' AND c.rank = s.rank AND c.segment = s.segment AND c.op = s.id
            AND c.name NOT IN {_FLAG_CHECKS}
        )
        """,
    )
