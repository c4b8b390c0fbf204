"""What a rank runs beside its peers, name by name: kernels, or the ops of ranks without a GPU.

It tells how the work differs where pieces do not: in large runs most kernels are in pieces of many.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

import numpy as np

from rankscope.analysis.core.intervals import Ints
from rankscope.analysis.core.rollups import part_of
from rankscope.analysis.core.scope import Scope
from rankscope.analysis.faults.axes import Axis
from rankscope.analysis.faults.targets import peer_groups
from rankscope.analysis.within_rank.event_tables import kernel_sums
from rankscope.records import dataclass
from rankscope.timeline.run import Run

_MOST_PEERS = 8
"""Their median is as good as that of all: the ranks of one node are apart from each other by less than others."""

Sums = dict[str, tuple[int, int]]
"""By name: how many there are, and their time."""


@dataclass(frozen=True)
class Beside:
    """Of one rank, and the lower median of its peers; one entry a name."""

    names: tuple[str, ...]
    count: Ints
    usual_count: Ints
    took: Ints
    usual: Ints

    @property
    def excess(self) -> Ints:
        excess: Ints = np.maximum(self.took - self.usual, 0)
        return excess

    @property
    def of_more(self) -> Ints:
        """The part of the excess that more calls take."""
        more = np.maximum(self.count - self.usual_count, 0) * self.took // np.maximum(self.count, 1)
        part: Ints = np.minimum(more, self.excess)
        return part


def beside_peers(axis: Axis, subject: int, on_host: bool) -> Beside | None:
    """None where it has no peers."""
    run, scope, ranks = axis.replays.run, axis.replays.scope, axis.replays.graph.ranks
    group = peer_groups(run, ranks)
    peers = np.flatnonzero((group == group[subject]) & (np.arange(len(group)) != subject))
    if axis.name != "rank" or not len(peers):
        return None
    chosen = [ranks[peer] for peer in peers[:: -(-len(peers) // _MOST_PEERS)].tolist()]
    sums = (_op_sums if on_host else _kernel_sums)(run, scope, [ranks[subject], *chosen])
    names = tuple(sorted({name for each in sums.values() for name in each}))
    table = np.array(
        [[sums.get(rank, {}).get(name, (0, 0)) for name in names] for rank in (ranks[subject], *chosen)],
        dtype=np.int64,
    ).reshape(-1, len(names), 2)
    usual = np.sort(table[1:], axis=0)[(len(chosen) - 1) // 2]
    return Beside(names, table[0, :, 0], usual[:, 0], table[0, :, 1], usual[:, 1])


def _kernel_sums(run: Run, scope: Scope, ranks: Collection[int]) -> dict[int, Sums]:
    """Of those that compute."""
    kept = kernel_sums(run, replace(scope, ranks=frozenset(ranks))) or {}
    return {
        rank: {each.name: (each.kernels, each.total_ns) for each in sums if each.kind == "COMPUTE"}
        for rank, sums in kept.items()
    }


def _op_sums(run: Run, scope: Scope, ranks: Collection[int]) -> dict[int, Sums]:
    """Of outermost ops."""
    those = replace(scope, ranks=frozenset(ranks))
    sums: dict[int, Sums] = {}
    for rank, name, count, time in part_of(run, those.ranks).rows(
        "SELECT rank, name, count(*), sum(greatest(dur_ns, 0))::BIGINT FROM slices WHERE category = 'cpu_op' "
        f"AND op IS NULL AND NOT regexp_matches(name, '^(c10d|gloo|nccl|record_param_comms)') AND {those.where()} "
        "GROUP BY ALL"
    ):
        sums.setdefault(rank, {})[name] = (count, time)
    return sums
