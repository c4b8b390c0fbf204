"""Count and time of each rank's kernels by name: what tables over all ranks add up."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from rankscope.analysis.core.names import name_codes
from rankscope.analysis.core.rollups import kept_per_rank
from rankscope.analysis.core.scope import Scope
from rankscope.records import dataclass
from rankscope.timeline.run import Run

_MOST_NAMES = 2_000
"""Of runs with more names (a trace may have a million) the sums are not kept."""


class KernelSum(NamedTuple):
    """The kernels of one name."""

    name: str
    kind: str
    """COMPUTE or COMM."""
    kernels: int
    total_ns: int


@dataclass(frozen=True)
class RankKernels:
    """Of one rank."""

    sums: tuple[KernelSum, ...] | None
    """None where there are too many names."""


@kept_per_rank("kernels", RankKernels, version=2)
def _rank_kernels(run: Run, scope: Scope) -> dict[int, RankKernels]:
    ranks = scope.ranks_in(run)
    if len(name_codes(run, "kernel")) > _MOST_NAMES:
        return {rank: RankKernels(None) for rank in ranks}
    by_rank: dict[int, list[KernelSum]] = {rank: [] for rank in ranks}
    for rank, *row in _sums(run, scope):
        by_rank[rank].append(KernelSum._make(row))
    return {rank: RankKernels(tuple(sums)) for rank, sums in by_rank.items()}


def _sums(run: Run, scope: Scope) -> list[tuple[Any, ...]]:
    return run.rows(
        "SELECT rank, name, class, count(*), sum(dur_ns)::BIGINT FROM gpu "
        f"WHERE category = 'kernel' AND {scope.where()} GROUP BY ALL ORDER BY ALL"
    )


def kernel_sums(run: Run, scope: Scope) -> dict[int, tuple[KernelSum, ...]] | None:
    """By rank; None for a run with too many names."""
    records = _rank_kernels(run, scope)
    sums = {rank: record.sums for rank, record in records.items() if record.sums is not None}
    return sums if len(sums) == len(records) else None


def kernel_totals(run: Run, scope: Scope, by_rank: bool) -> dict[tuple[int | None, str], tuple[int, int]]:
    """Number and time by rank (None unless `by_rank`) and name, whatever the number of names."""
    sums = kernel_sums(run, scope)
    if sums is None:
        rows = run.rows(
            f"SELECT {'rank' if by_rank else 'NULL'}, name, count(*), sum(dur_ns)::BIGINT FROM gpu "
            f"WHERE category = 'kernel' AND {scope.where()} GROUP BY ALL"
        )
        return {(rank, name): (count, time) for rank, name, count, time in rows}
    totals: dict[tuple[int | None, str], tuple[int, int]] = {}
    for rank, kernels in sums.items():
        for kernel in kernels:
            key = rank if by_rank else None, kernel.name
            count, time = totals.get(key, (0, 0))
            totals[key] = count + kernel.kernels, time + kernel.total_ns
    return totals


def compute_time(run: Run, scope: Scope, chosen: Callable[[str], bool]) -> dict[int, int]:
    """By rank: the time of the kernels that compute and whose name is chosen."""
    sums = kernel_sums(run, scope)
    rows = _sums(run, scope) if sums is None else [(rank, *kernel) for rank in sums for kernel in sums[rank]]
    times: dict[int, int] = {}
    for rank, name, kind, _, time in rows:
        if kind == "COMPUTE" and chosen(name):
            times[rank] = times.get(rank, 0) + time
    return times
