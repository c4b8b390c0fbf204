"""How many GPU events there are, and how long they take: by rank, file, step and class, in one pass over the table."""

from __future__ import annotations

from typing import NamedTuple

from rankscope.analysis.core.cache import once_per_run
from rankscope.analysis.core.rollups import kept_per_rank
from rankscope.analysis.core.scope import Scope
from rankscope.records import dataclass
from rankscope.timeline.run import Run


class GpuCount(NamedTuple):
    """The GPU events of one rank, file, step, category and class."""

    rank: int
    segment: int
    step: int | None
    category: str
    kind: str
    """COMPUTE, COMM or COPY."""
    events: int
    time_ns: int
    """Sum of their durations; a negative one counts as 0."""


@dataclass(frozen=True)
class RankCounts:
    """Of one rank, by file and step."""

    counts: tuple[GpuCount, ...]


@kept_per_rank("gpu_counts", RankCounts, any_window=True)
def _rank_counts(run: Run, scope: Scope) -> dict[int, RankCounts]:
    rows = run.rows(
        "SELECT rank, segment, step, category, class, count(*), sum(greatest(dur_ns, 0))::BIGINT FROM gpu "
        f"WHERE {scope.where()} GROUP BY ALL"
    )
    found: dict[int, list[GpuCount]] = {}
    for row in sorted(rows, key=lambda row: (*row[:2], row[2] is None, *row[2:])):
        found.setdefault(row[0], []).append(GpuCount(*row))
    return {rank: RankCounts(tuple(counts)) for rank, counts in found.items()}


@once_per_run
def _counts(run: Run) -> list[GpuCount]:
    return [count for own in _rank_counts(run, Scope()).values() for count in own.counts]


def gpu_counts(run: Run, scope: Scope) -> list[GpuCount]:
    """Those of the ranks and steps in scope, by rank, file and step."""
    return [
        count
        for count in _counts(run)
        if (scope.ranks is None or count.rank in scope.ranks)
        and (
            scope.steps is None or (count.step is not None and scope.steps[0] <= count.step <= scope.steps[1])
        )
    ]


def has_gpu(run: Run, scope: Scope) -> bool:
    """Whether there are GPU events in scope."""
    return bool(gpu_counts(run, scope))
