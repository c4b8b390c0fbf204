"""The number of slices of each category: what a recording has, and what it lacks."""

from __future__ import annotations

from collections import Counter

from rankscope.analysis.core.cache import once_per_run
from rankscope.analysis.core.device_events import has_gpu
from rankscope.analysis.core.rollups import kept_per_rank
from rankscope.analysis.core.scope import Scope, cut_ranks
from rankscope.model import LAUNCH_CATEGORIES
from rankscope.records import dataclass
from rankscope.timeline.run import Run


@dataclass(frozen=True)
class RankSlices:
    """The number of slices of one rank, by category and step."""

    counts: tuple[tuple[str, int | None, int], ...]


@kept_per_rank("slice_counts", RankSlices, any_window=True)
def _rank_slices(run: Run, scope: Scope) -> dict[int, RankSlices]:
    of_rank: dict[int, list[tuple[str, int | None, int]]] = {}
    for rank, category, step, count in run.rows(
        f"SELECT rank, category, step, count(*) FROM slices WHERE {scope.where()} GROUP BY ALL ORDER BY ALL"
    ):
        of_rank.setdefault(rank, []).append((category, step, count))
    return {rank: RankSlices(tuple(counts)) for rank, counts in of_rank.items()}


@once_per_run
def slice_counts(run: Run, scope: Scope) -> dict[str, int]:
    """The number of slices of each category in scope, the most frequent first."""
    counts = Counter[str]()
    low, high = scope.steps or (None, None)
    for slices in _rank_slices(run, scope).values():
        for category, step, count in slices.counts:
            if low is None or high is None or (step is not None and low <= step <= high):
                counts[category] += count
    return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))


def has_launches(run: Run) -> bool:
    """Whether calls that launch work were recorded: without them, nobody knows why a GPU is idle."""
    return any(category in LAUNCH_CATEGORIES for category in slice_counts(run, Scope()))


def runs_on_cpu(run: Run) -> bool:
    """No GPU events in files that are whole: what a cut file lacks may have been there."""
    return not cut_ranks(run) and not has_gpu(run, Scope())
