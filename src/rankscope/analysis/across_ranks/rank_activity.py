"""What a rank did in a given interval: compute, wait in a collective, copy, load data, or none of these.

The sets of each rank are computed once, disjoint and sorted. The part of a set inside an interval is then the
difference of two cumulative sums, for many intervals at once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from rankscope.analysis.core.event_sets import COMPUTE, COPY, Activity, device_activity, host_work
from rankscope.analysis.core.host_spans import dataloader_spans
from rankscope.analysis.core.intervals import Intervals, Ints, covered_before, join, subtract, union
from rankscope.analysis.core.scope import Scope
from rankscope.records import dataclass
from rankscope.store.run import Run

_RANKS_AT_ONCE = 16
"""Bounds the memory: events are loaded for this many ranks at a time."""

PARTS = ("compute", "waiting", "link", "copy", "dataloader", "host")
"""The classes of a rank's time. Each moment belongs to the first that applies; link is the transfer of a collective,
waiting the rest of it, host what is left."""


@dataclass(frozen=True)
class RankCover:
    """The disjoint sets of one rank."""

    rank: int
    compute: Intervals
    waiting: Intervals
    link: Intervals
    copy: Intervals
    dataloader: Intervals

    def split(self, start: Ints, end: Ints) -> dict[str, Ints]:
        """Split the intervals from start to end into PARTS; an interval that ends before it starts is empty."""
        end = np.maximum(start, end)
        parts = {name: within(getattr(self, name), start, end) for name in PARTS[:-1]}
        return parts | {"host": end - start - sum(parts.values())}


def within(a: Intervals, start: Ints, end: Ints) -> Ints:
    """The part of a set inside each interval, in ns."""
    return covered_before(a, end) - covered_before(a, start)


def covers(run: Run, ranks: Sequence[int], transfer: Ints) -> Iterator[RankCover]:
    """The sets of these ranks, with a few ranks in memory at a time.

    `transfer` is the time of each collective, by entry, that is not waiting: the end of it.
    """
    rows = run.collectives
    moves = rows.end - transfer
    for first in range(0, len(ranks), _RANKS_AT_ONCE):
        some = ranks[first : first + _RANKS_AT_ONCE]
        scope = Scope(frozenset(some))
        device = device_activity(run, scope)
        if len(device.rank) == 0:  # without GPU events, host ops count as compute
            device = host_work(run, scope)
        for rank in some:
            compute = _union(device, rank, COMPUTE)
            mine = rows.rank == rank
            waiting = subtract(union(rows.start[mine], moves[mine]), compute)
            link = subtract(union(moves[mine], rows.end[mine]), join(compute, waiting))
            copy = subtract(_union(device, rank, COPY), join(compute, waiting, link))
            data = subtract(dataloader_spans(run, rank), join(compute, waiting, link, copy))
            yield RankCover(rank, compute, waiting, link, copy, data)


def _union(activity: Activity, rank: int, kind: int) -> Intervals:
    mine = (activity.rank == rank) & (activity.kind == kind)
    return union(activity.start[mine], activity.end[mine])
