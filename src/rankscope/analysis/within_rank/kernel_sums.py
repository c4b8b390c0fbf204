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


@kept_per_rank("kernels", RankKernels)
def _rank_kernels(run: Run, scope: Scope) -> dict[int, RankKernels]:
    ranks = scope.ranks_in(run)
    if len(name_codes(run, "kernel")) > _MOST_NAMES:
        return {rank: RankKernels(None) for rank in ranks}
    found: dict[int, list[KernelSum]] = {rank: [] for rank in ranks}
    for rank, *row in _sums(run, scope):
        found[rank].append(KernelSum._make(row))
    return {rank: RankKernels(tuple(sums)) for rank, sums in found.items()}


def _sums(run: Run, scope: Scope) -> list[tuple[Any, ...]]:
    return run.rows(
        "SELECT rank, name, class, count(*), sum(dur_ns)::BIGINT FROM gpu "
        f"WHERE category = 'kernel' AND {scope.where()} GROUP BY ALL ORDER BY ALL"
    )


def kernel_sums(run: Run, scope: Scope) -> dict[int, tuple[KernelSum, ...]] | None:
    """By rank; None for a run with too many names."""
    found = {rank: kernels.sums for rank, kernels in _rank_kernels(run, scope).items()}
    known = {rank: sums for rank, sums in found.items() if sums is not None}
    return known if len(known) == len(found) else None


def compute_time(run: Run, scope: Scope, chosen: Callable[[str], bool]) -> dict[int, int]:
    """By rank: the time of the kernels that compute and whose name is chosen."""
    known = kernel_sums(run, scope)
    rows = (
        _sums(run, scope) if known is None else ((rank, *one) for rank, sums in known.items() for one in sums)
    )
    times: dict[int, int] = {}
    for rank, name, kind, _, total in rows:
        if kind == "COMPUTE" and chosen(name):
            times[rank] = times.get(rank, 0) + total
    return times
