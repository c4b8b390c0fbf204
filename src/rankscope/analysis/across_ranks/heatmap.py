"""Rank by time: the share of each stretch of time that a rank computes, communicates exposed, copies or idles.

The classes are those of the breakdown, so that a row of the map adds up to the breakdown of its rank.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rankscope.analysis.core.event_sets import (
    COMM,
    COMPUTE,
    COPY,
    Activity,
    device_activity,
    host_collectives,
    host_work,
)
from rankscope.analysis.core.intervals import Intervals, Ints, covered_before, join, subtract, union
from rankscope.analysis.core.scope import Scope
from rankscope.store.run import Run

CLASSES = ("compute", "comm", "copy")
"""What is drawn, in this order; the rest of a rank's span is idle."""

Shares = NDArray[np.float64]


@dataclass(frozen=True)
class RankTime:
    """When one rank did what: three disjoint sets of time, exposed communication and copies only."""

    rank: int
    compute: Intervals
    comm: Intervals
    copy: Intervals
    on_host: bool
    """There are no GPU events: compute is that of the host."""

    @property
    def bounds(self) -> tuple[int, int] | None:
        """First start and last end of anything; None where nothing ran."""
        everything = join(self.compute, self.comm, self.copy)
        return (int(everything.start[0]), int(everything.end[-1])) if len(everything.start) else None

    def shares(self, edges: Ints) -> Shares:
        """One row a class, one column a stretch between two edges."""
        widths = np.maximum(np.diff(edges), 1)
        return np.stack([np.diff(covered_before(getattr(self, name), edges)) / widths for name in CLASSES])


def rank_times(run: Run, scope: Scope, ranks: list[int]) -> list[RankTime]:
    """All that the breakdown of these ranks is made of, kept as times."""
    device = device_activity(run, scope)
    host = host_collectives(run, scope)
    bare = set(ranks) - set(np.unique(device.rank).tolist())
    work = host_work(run, Scope(frozenset(bare), scope.steps)) if bare else device
    return [_of_rank(rank, work if rank in bare else device, host, rank in bare) for rank in ranks]


def _of_rank(rank: int, everyone: Activity, hosts: Activity, on_host: bool) -> RankTime:
    mine, host = everyone.pick(everyone.rank == rank), hosts.pick(hosts.rank == rank)
    sets = {kind: union(mine.start[mine.kind == kind], mine.end[mine.kind == kind]) for kind in range(3)}
    comm = join(sets[COMM], union(host.start, host.end))
    exposed = subtract(comm, sets[COMPUTE])
    copies = subtract(subtract(sets[COPY], sets[COMPUTE]), comm)
    return RankTime(rank, sets[COMPUTE], exposed, copies, on_host)
