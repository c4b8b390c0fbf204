"""How many GPU events there are, and how long they take: by rank, file, step and class, in one pass over the table.

From these numbers also: ranks whose profiler stopped recording kernels while the job went on.
"""

from __future__ import annotations

from typing import NamedTuple

from rankscope.analysis.core.cache import once_per_run
from rankscope.analysis.core.grouping import split_by_rank
from rankscope.analysis.core.rollups import kept_per_rank
from rankscope.analysis.core.scope import Scope, steps_in_scope
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


_LEAST_STEPS = 2
"""So many steps without a kernel, at the end of a recording with GPU events, are no accident."""


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
    by_rank: dict[int, list[GpuCount]] = {}
    for row in sorted(rows, key=lambda row: (*row[:2], row[2] is None, *row[2:])):
        by_rank.setdefault(row[0], []).append(GpuCount(*row))
    return {rank: RankCounts(tuple(counts)) for rank, counts in by_rank.items()}


@once_per_run
def _counts(run: Run) -> list[GpuCount]:
    return [count for record in _rank_counts(run, Scope()).values() for count in record.counts]


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


def kernels_end_in(run: Run, scope: Scope) -> dict[int, int | None]:
    """By rank, the last step with kernels, where the later ones have none at all; None where no step has one.

    All recorded steps are compared, not only those in scope.
    """
    return _kernels_end_in(run, scope.only_ranks())  # once for all windows of these ranks


@once_per_run
def _kernels_end_in(run: Run, ranks: Scope) -> dict[int, int | None]:
    counts = gpu_counts(run, ranks)
    with_events = sorted({count.rank for count in counts if count.step is not None})
    with_kernels = {(c.rank, c.segment, c.step) for c in counts if c.category == "kernel"}
    last_steps: dict[int, int | None] = {}
    for rank, columns in split_by_rank(steps_in_scope(run, ranks), with_events).items():
        steps = [*zip(*(columns[name].tolist() for name in ("start", "segment", "step")), strict=True)]
        having = [(start, step) for start, segment, step in steps if (rank, segment, step) in with_kernels]
        last = max((start for start, _ in having), default=None)
        if sum(last is None or start > last for start, _, _ in steps) >= _LEAST_STEPS:
            last_steps[rank] = max((step for start, step in having if start == last), default=None)
    return last_steps
