"""Rank by time: the share of each interval that a rank spends in compute, exposed communication and exposed copies.

The classes are those of the breakdown, so that a row of the heat map adds up to the breakdown of its rank.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from rankscope.analysis.core.event_sets import (
    Activity,
    device_activity,
    host_collectives,
    host_work,
)
from rankscope.analysis.core.intervals import (
    Intervals,
    Ints,
    covered_before,
    intersect,
    join,
    length,
    subtract,
    union,
)
from rankscope.analysis.core.scope import Scope
from rankscope.analysis.core.step_times import recordings, windows
from rankscope.analysis.within_rank.breakdown import sets_of
from rankscope.store.arrays import unique_values
from rankscope.store.run import Run

CLASSES = ("compute", "comm", "copy")
"""The classes that are drawn, in this order; the rest of the time in which a rank was recorded is idle."""

Shares = NDArray[np.float64]


@dataclass(frozen=True)
class RankTime:
    """Three disjoint sets of time of one rank; communication and copies only where they are exposed."""

    rank: int
    compute: Intervals
    comm: Intervals
    copy: Intervals
    on_host: bool
    """The rank has no GPU events, so compute is that of the host."""
    recorded: Intervals
    """The time that the rank's figures cover. Time between two cycles of the profiler is not in it, and not idle."""

    @property
    def bounds(self) -> tuple[int, int] | None:
        """The first start and the last end; None where nothing ran."""
        everything = join(self.compute, self.comm, self.copy)
        return (int(everything.start[0]), int(everything.end[-1])) if len(everything.start) else None

    def shares(self, edges: Ints) -> Shares:
        """One row for each class, one column for each interval between two edges."""
        return np.stack([_share(getattr(self, name), edges) for name in CLASSES])

    def unrecorded(self, edges: Ints) -> Shares:
        """The share of each interval between two edges in which nothing was recorded."""
        return 1 - _share(self.recorded, edges)

    @property
    def idle_ns(self) -> int:
        """Between the first start and the last end."""
        bounds = self.bounds
        if bounds is None:
            return 0
        here = intersect(self.recorded, Intervals(*(np.array([time], dtype=np.int64) for time in bounds)))
        return length(subtract(here, join(self.compute, self.comm, self.copy)))


def _share(parts: Intervals, edges: Ints) -> Shares:
    share: Shares = np.diff(covered_before(parts, edges)) / np.maximum(np.diff(edges), 1)
    return share


def rank_times(run: Run, scope: Scope, ranks: list[int]) -> list[RankTime]:
    """The sets behind the breakdown of these ranks, in its windows."""
    everything = scope.only_ranks()
    device = device_activity(run, everything)
    host = host_collectives(run, everything)
    no_gpu = set(ranks) - set(unique_values(device.rank).tolist())
    work = host_work(run, Scope(frozenset(no_gpu))) if no_gpu else device
    found = [
        _of_rank(rank, work if rank in no_gpu else device, host, rank in no_gpu, recordings(run)[rank])
        for rank in ranks
    ]
    if scope.steps is None:
        return found
    return [_clipped(one, windows(run, one.rank, scope).intervals) for one in found]


def _clipped(one: RankTime, window: Intervals) -> RankTime:
    compute, comm, copy = (intersect(part, window) for part in (one.compute, one.comm, one.copy))
    return replace(one, compute=compute, comm=comm, copy=copy, recorded=union(*window))


def _of_rank(
    rank: int, work: Activity, collectives: Activity, on_host: bool, recorded: Intervals
) -> RankTime:
    sets = sets_of(work.pick(work.rank == rank), collectives.pick(collectives.rank == rank))
    return RankTime(rank, sets.compute, sets.exposed_comm, sets.exposed_copy, on_host, recorded)
