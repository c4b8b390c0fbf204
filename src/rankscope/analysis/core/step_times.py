"""Step times: `periods` covers host and device together, `step_windows` the host alone.

The store computes the times of a step once, when a trace is read (store/step_times.py); docs/definitions.md, section
"Steps", has the definition.
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
    """By rank and step, in order of time; in a run without steps, one per rank."""
    rows = run.rows(
        f"SELECT rank, step, end_ns - time_ns, end_ns FROM steps WHERE {scope.where()} ORDER BY rank, end_ns, step"
    )
    return tuple(Period(*row) for row in rows) or _whole(run, scope)


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
