"""When each rank's steps were, on the host; read once a run."""

from __future__ import annotations

from dataclasses import dataclass

from rankscope.analysis.core.cache import once_per_run
from rankscope.analysis.core.grouping import split_by_rank
from rankscope.analysis.core.intervals import Ints
from rankscope.analysis.core.scope import Scope
from rankscope.store.run import Run


@dataclass(frozen=True)
class StepWindows:
    """A rank's steps in order of time."""

    step: Ints
    start: Ints
    end: Ints


@once_per_run
def _of_ranks(run: Run) -> dict[int, StepWindows]:
    found = run.arrays(
        "SELECT rank::BIGINT AS rank, step::BIGINT AS step, start_ns AS start, start_ns + dur_ns AS end "
        "FROM steps ORDER BY rank, start_ns"
    )
    return {rank: StepWindows(**own) for rank, own in split_by_rank(found, run.ranks).items()}


def step_windows(run: Run, rank: int, scope: Scope) -> StepWindows:
    mine = _of_ranks(run)[rank]
    if scope.steps is None:
        return mine
    inside = (mine.step >= scope.steps[0]) & (mine.step <= scope.steps[1])
    return StepWindows(mine.step[inside], mine.start[inside], mine.end[inside])
