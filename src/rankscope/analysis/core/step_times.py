"""Step times: `periods` covers host and device together, `step_windows` the host alone.

The host may run far ahead of the GPU, so that a step on the host can be a tenth as long as the work it launches. A
period begins when the step begins on the host or when the GPU has finished the previous step, whichever is later. It
ends where the next period begins; the last one ends with its step on the host or its last GPU event, whichever is
later. So the periods of consecutive steps have no gap between them. Work launched before the recording does not belong
to the first period. Without a GPU, periods are the steps on the host.
"""

from __future__ import annotations

from dataclasses import dataclass

from rankscope.analysis.core.cache import once_per_run
from rankscope.analysis.core.grouping import split_by_rank
from rankscope.analysis.core.intervals import Ints
from rankscope.analysis.core.scope import Scope
from rankscope.store.run import Run


@dataclass(frozen=True)
class Period:
    """One step of one rank; in a run without steps, one period (step None) from the first event to the last."""

    rank: int
    step: int | None
    start_ns: int
    end_ns: int

    @property
    def dur_ns(self) -> int:
        return self.end_ns - self.start_ns


@once_per_run
def periods(run: Run, scope: Scope) -> tuple[Period, ...]:
    """By rank and step."""
    rows = run.rows(f"""
        WITH host AS (
            SELECT rank, step, min(start_ns) AS host_start, max(start_ns + dur_ns) AS host_end
            FROM steps WHERE {scope.where()} GROUP BY ALL
        ), device AS (
            SELECT rank, step, max(start_ns + greatest(dur_ns, 0)) AS stop
            FROM gpu WHERE step IS NOT NULL AND {scope.where()} GROUP BY ALL
        )
        SELECT h.rank, h.step, host_start, greatest(host_end, coalesce(d.stop, host_end)), coalesce(d.stop, host_start)
        FROM host h LEFT JOIN device d ON d.rank = h.rank AND d.step = h.step
        ORDER BY h.rank, host_start
    """)
    if not rows:
        return _whole(run, scope)
    backlog = _backlog(run, scope)
    begins: list[int] = []
    for before, (rank, step, host_start, _, _) in zip([None, *rows[:-1]], rows, strict=True):
        follows = before is not None and before[:2] == (rank, step - 1)
        if before and follows:
            begins.append(max(host_start, before[4], begins[-1]))
        else:
            first = before is None or before[0] != rank
            begins.append(max(host_start, backlog.get(rank, host_start)) if first else host_start)
    found = []
    for i, (rank, step, _, end, _) in enumerate(rows):
        goes_on = i + 1 < len(rows) and rows[i + 1][:2] == (rank, step + 1)
        found.append(Period(rank, step, begins[i], begins[i + 1] if goes_on else max(end, begins[i])))
    return tuple(found)


def _backlog(run: Run, scope: Scope) -> dict[int, int]:
    """By rank, when the GPU finished work launched before the recording, which has no launch in the file."""
    return dict(
        run.rows(f"""
            WITH own AS (SELECT rank, min(start_ns) AS start FROM gpu
                         WHERE launch IS NOT NULL AND {scope.only_ranks().where()} GROUP BY rank)
            SELECT g.rank, max(g.start_ns + greatest(g.dur_ns, 0)) FROM gpu g JOIN own o ON o.rank = g.rank
            WHERE g.launch IS NULL AND g.start_ns < o.start GROUP BY g.rank
        """)
    )


def _whole(run: Run, scope: Scope) -> tuple[Period, ...]:
    for table, where in (("gpu", "true"), ("slices", "category = 'cpu_op'")):
        rows = run.rows(
            f"SELECT rank, min(start_ns), max(start_ns + greatest(dur_ns, 0)) FROM {table} "
            f"WHERE {where} AND {scope.where()} GROUP BY rank ORDER BY rank"
        )
        if rows:
            return tuple(Period(rank, None, start, end) for rank, start, end in rows)
    return ()


def step_count(run: Run, scope: Scope) -> int:
    """The largest number of steps of any rank in scope, at least 1. Costs are divided by it."""
    counts: dict[int, int] = {}
    for period in periods(run, scope):
        counts[period.rank] = counts.get(period.rank, 0) + (period.step is not None)
    return max(counts.values(), default=0) or 1


@dataclass(frozen=True)
class StepWindows:
    """The steps of one rank on the host, in order of time; one entry a step."""

    step: Ints
    start: Ints
    end: Ints


@once_per_run
def _windows_of_ranks(run: Run) -> dict[int, StepWindows]:
    found = run.arrays(
        "SELECT rank::BIGINT AS rank, step::BIGINT AS step, start_ns AS start, start_ns + dur_ns AS end "
        "FROM steps ORDER BY rank, start_ns"
    )
    return {rank: StepWindows(**own) for rank, own in split_by_rank(found, run.ranks).items()}


def step_windows(run: Run, rank: int, scope: Scope) -> StepWindows:
    """The steps of a rank in the window; read once for all ranks."""
    mine = _windows_of_ranks(run)[rank]
    if scope.steps is None:
        return mine
    inside = (mine.step >= scope.steps[0]) & (mine.step <= scope.steps[1])
    return StepWindows(mine.step[inside], mine.start[inside], mine.end[inside])
