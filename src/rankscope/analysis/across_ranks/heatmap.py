"""Rank by time: the share of each interval that a rank spends in compute, exposed communication and exposed copies.

The classes are those of the breakdown, so that a row of the heat map adds up to the breakdown of its rank.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rankscope.analysis.across_ranks.time_split import own_times
from rankscope.analysis.core.device_events import CLASSES
from rankscope.analysis.core.intervals import (
    Intervals,
    Ints,
    covered_before,
    intersect,
    join,
    length,
    shifted,
    subtract,
    union,
)
from rankscope.analysis.core.rank_activity import rank_activity
from rankscope.analysis.core.rollups import in_store, kept_per_rank
from rankscope.analysis.core.scope import Scope
from rankscope.analysis.core.step_times import recordings, windows
from rankscope.ranges import as_ranges
from rankscope.timeline.run import Run

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

    def later(self, ns: int) -> RankTime:
        """The same, later by so much."""
        sets = (self.compute, self.comm, self.copy, self.recorded)
        compute, comm, copy, recorded = (shifted(part, ns) for part in sets)
        return RankTime(self.rank, compute, comm, copy, self.on_host, recorded)


def rank_times(run: Run, scope: Scope, ranks: Sequence[int]) -> list[RankTime]:
    """The activity of these ranks in the windows of the breakdown; without steps, in all that was recorded."""
    times = []
    for rank in ranks:
        activity, recorded = rank_activity(run, rank), recordings(run)[rank]
        compute, comm, copy = activity.compute, activity.exposed_communication, activity.exposed_copy
        if scope.steps is not None:
            recorded = union(*windows(run, scope).of(rank).intervals)
            compute, comm, copy = (intersect(each, recorded) for each in (compute, comm, copy))
        times.append(RankTime(rank, compute, comm, copy, not activity.has_gpu, recorded))
    return times


_MOST_KEPT = 20_000
"""Intervals of a rank: of longer recordings the viewer reads what it draws."""


@kept_per_rank("rank_time", RankTime, any_window=True)
def _kept_times(run: Run, scope: Scope) -> dict[int, RankTime]:
    """Of ranks with few events. Times count from run.origin_ns(rank)."""
    times = rank_times(run, scope, scope.ranks_in(run))
    return {
        time.rank: time.later(-run.origin_ns(time.rank))
        for time in times
        if sum(len(getattr(time, name).start) for name in CLASSES) <= _MOST_KEPT
    }


def rank_times_in_store(run: Run, ranks: Sequence[int]) -> dict[int, RankTime]:
    """Those that were kept when the ranks were read."""
    kept_times = in_store(run, "rank_time")
    return {rank: kept_times[rank].later(run.origin_ns(rank)) for rank in ranks if kept_times.get(rank)}


MAP_INTERVALS = 480
"""The resolution of what the store keeps of a rank's time."""
_EDGES = MAP_INTERVALS + 1


@dataclass(frozen=True)
class TimeMap:
    """The sets of a rank at a fixed resolution. Times count from run.origin_ns(rank)."""

    low: int
    high: int
    compute: Ints
    """Time in the set before each of _EDGES evenly spaced times from low to high."""
    comm: Ints
    copy: Ints
    on_host: bool
    idle_ns: int
    """Between low and high, where it was recorded."""
    recorded: Intervals

    def shares(self, edges: Ints) -> Shares:
        """One row for each class, one column for each interval between two edges."""
        times = np.linspace(self.low, self.high, _EDGES)
        width = np.maximum(np.diff(edges), 1)
        parts = (np.interp(edges, times, getattr(self, name)) for name in CLASSES)
        return np.stack([np.diff(part) / width for part in parts])


@kept_per_rank("time_map", TimeMap)
def time_maps(run: Run, scope: Scope) -> dict[int, TimeMap]:
    """Of the ranks that did something."""
    maps: dict[int, TimeMap] = {}
    for rank in scope.ranks_in(run):
        (time,), origin = rank_times(run, scope, [rank]), run.origin_ns(rank)
        sets = (time.compute, time.comm, time.copy)
        busy = join(*sets)
        if len(busy.start):
            low, high = int(busy.start[0]), int(busy.end[-1])
            edges = np.linspace(low, high, _EDGES).astype(np.int64)
            maps[rank] = TimeMap(
                low=low - origin,
                high=high - origin,
                **{name: covered_before(times, edges) for name, times in zip(CLASSES, sets, strict=True)},
                on_host=time.on_host,
                idle_ns=length(subtract(intersect(time.recorded, union(edges[:1], edges[-1:])), busy)),
                recorded=shifted(time.recorded, -origin),
            )
    return maps


def buckets(run: Run, ranks: Sequence[int], most: int) -> dict[str, list[int]]:
    """Ranks that share a row where there are too many: those of a node, else neighbours."""
    hosts = run.hosts
    by_node: dict[str, list[int]] = {}
    for rank in ranks:
        by_node.setdefault(hosts.get(rank, ""), []).append(rank)
    if "" not in by_node and 1 < len(by_node) <= most:
        return by_node
    size = -(-len(ranks) // most)
    chunks = [list(ranks[first : first + size]) for first in range(0, len(ranks), size)]
    return {f"ranks {as_ranges(chunk)}": chunk for chunk in chunks}


def late_by_rank(run: Run, scope: Scope) -> dict[int, float]:
    """How much longer each rank takes than its peers, over the steps in scope."""
    times = own_times(run, Scope(steps=scope.steps))
    return dict(zip(times.ranks, times.excess.sum(axis=1).tolist(), strict=True))
