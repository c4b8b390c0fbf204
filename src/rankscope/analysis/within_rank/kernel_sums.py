"""Count and time of each rank's kernels by name: what tables over all ranks add up."""

from __future__ import annotations

from typing import NamedTuple

from rankscope.analysis.core.names import name_codes
from rankscope.analysis.core.rollups import kept_per_rank
from rankscope.analysis.core.scope import Scope
from rankscope.records import dataclass
from rankscope.store.run import Run

_MOST_NAMES = 2_000
"""Of runs with more names (a trace may have a million) the sums are not kept."""


class KernelSum(NamedTuple):
    """The kernels of one name."""

    name: str
    kernels: int
    total_ns: int


@dataclass(frozen=True)
class RankKernels:
    """Of one rank."""

    sums: tuple[KernelSum, ...] | None
    """None where there are too many names."""


@kept_per_rank("kernels", RankKernels, version=1)
def _rank_kernels(run: Run, scope: Scope) -> dict[int, RankKernels]:
    ranks = scope.ranks_in(run)
    if len(name_codes(run, "kernel")) > _MOST_NAMES:
        return {rank: RankKernels(None) for rank in ranks}
    found: dict[int, list[KernelSum]] = {rank: [] for rank in ranks}
    for rank, *row in run.rows(
        "SELECT rank, name, count(*), sum(dur_ns)::BIGINT FROM gpu "
        f"WHERE category = 'kernel' AND {scope.where()} GROUP BY ALL ORDER BY ALL"
    ):
        found[rank].append(KernelSum._make(row))
    return {rank: RankKernels(tuple(sums)) for rank, sums in found.items()}


def kernel_sums(run: Run, scope: Scope) -> dict[int, tuple[KernelSum, ...]] | None:
    """By rank; None for a run with too many names."""
    found = {rank: kernels.sums for rank, kernels in _rank_kernels(run, scope).items()}
    known = {rank: sums for rank, sums in found.items() if sums is not None}
    return known if len(known) == len(found) else None
