"""What each rank did in each step and before each collective: compute, wait in a collective, copy, load data, or none.

The sets of some ranks are laid side by side on one axis, disjoint and sorted. The part of a set inside an interval is
then the difference of two cumulative sums, for all intervals of these ranks at once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from rankscope.analysis.core.cache import once_per_run
from rankscope.analysis.core.collective_waits import waits
from rankscope.analysis.core.event_sets import COMPUTE, COPY, Activity, device_activity, host_work
from rankscope.analysis.core.gpu_counts import has_gpu
from rankscope.analysis.core.host_spans import dataloader_spans
from rankscope.analysis.core.intervals import Axis, Intervals, Ints, covered_before, join, subtract, union
from rankscope.analysis.core.scope import Scope
from rankscope.analysis.core.step_times import Period, periods
from rankscope.records import dataclass
from rankscope.store.arrays import NONE
from rankscope.store.collectives.entries import Collectives
from rankscope.store.run import Run

_RANKS_AT_ONCE = 64
"""Bounds the memory: events are loaded for this many ranks at a time."""

PARTS = ("compute", "waiting", "link", "copy", "dataloader", "host")
"""The classes of a rank's time. Each moment belongs to the first that applies; link is the transfer of a collective,
waiting the rest of it, host what is left."""
_DATA = 3
"""In place of a class of activity: the training loop waits for a batch."""


@dataclass(frozen=True)
class TimeSplit:
    """How the time of all ranks splits into PARTS."""

    periods: tuple[Period, ...]
    """All steps of all ranks; of a run without steps, all cycles."""
    of_periods: Ints
    """[part, period]"""
    opened: Ints
    """By entry of `run.collectives`: when the time before its arrival begins."""
    of_entries: Ints
    """[part, entry], of the time from `opened` to the arrival."""
    hidden: Ints
    """By entry: how long the collective overlapped with compute on its own rank."""


@once_per_run
def time_split(run: Run) -> TimeSplit:
    """Computed for the whole run; callers select steps and ranks from it."""
    found = waits(run)
    rows = found.rows  # by rank
    # The time of a collective that is not waiting is the end of it.
    moves = rows.end - found.entry_transfer
    steps = periods(run, Scope())
    who = np.array([period.rank for period in steps], dtype=np.int64)
    begin = np.array([period.start_ns for period in steps], dtype=np.int64)
    end = np.array([period.end_ns for period in steps], dtype=np.int64)
    opened = window_starts(run, rows)
    of_periods = np.zeros((len(PARTS), len(steps)), dtype=np.int64)
    of_entries = np.zeros((len(PARTS), len(opened)), dtype=np.int64)
    hidden = np.zeros(len(opened), dtype=np.int64)
    for ranks, activity in _activities(run, sorted({*who.tolist(), *rows.rank.tolist()})):
        mine = slice(*np.searchsorted(rows.rank, [ranks[0], ranks[-1] + 1]))
        own = np.flatnonzero((who >= ranks[0]) & (who <= ranks[-1]))
        ends = np.concatenate([activity.end, rows.end[mine], end[own]])
        starts = np.concatenate([activity.start, opened[mine], rows.start[mine], begin[own]])
        axis = Axis.over(starts, ends, len(ranks))
        entry, period = np.searchsorted(ranks, rows.rank[mine]), np.searchsorted(ranks, who[own])
        start, stop = axis.place(rows.start[mine], entry), axis.place(rows.end[mine], entry)
        cover = _cover(axis, ranks, activity, start, axis.place(moves[mine], entry), stop)
        of_periods[:, own] = cover.split(axis.place(begin[own], period), axis.place(end[own], period))
        of_entries[:, mine] = cover.split(axis.place(opened[mine], entry), start)
        hidden[mine] = _within(cover.compute, start, stop)
    return TimeSplit(steps, of_periods, opened, of_entries, hidden)


def _activities(run: Run, ranks: Sequence[int]) -> Iterator[tuple[Ints, Activity]]:
    """Compute, copies and waits for data of a few ranks at a time."""
    # Without GPU events, host ops count as compute.
    load = device_activity if has_gpu(run, Scope()) else host_work
    for first in range(0, len(ranks), _RANKS_AT_ONCE):
        some = ranks[first : first + _RANKS_AT_ONCE]
        device = load(run, Scope(frozenset(some)))
        data = [dataloader_spans(run, rank) for rank in some]
        counts = [len(own.start) for own in data]
        waiting = Activity(
            np.repeat(some, counts),
            np.full(sum(counts), NONE),
            np.full(sum(counts), _DATA),
            np.concatenate([own.start for own in data]),
            np.concatenate([own.end for own in data]),
        )
        yield np.array(some, dtype=np.int64), device.with_more(waiting)


@dataclass(frozen=True)
class _Cover:
    """The disjoint sets of some ranks, on one axis."""

    compute: Intervals
    waiting: Intervals
    link: Intervals
    copy: Intervals
    dataloader: Intervals

    def split(self, start: Ints, end: Ints) -> Ints:
        """[part, interval]: the intervals from start to end, split; one that ends before it starts is empty."""
        end = np.maximum(start, end)
        parts = [_within(getattr(self, name), start, end) for name in PARTS[:-1]]
        return np.stack([*parts, end - start - sum(parts)])


def _cover(axis: Axis, ranks: Ints, activity: Activity, start: Ints, moves: Ints, end: Ints) -> _Cover:
    """The sets of these ranks; start, transfer and end of their collectives are on the axis already."""
    place = np.searchsorted(ranks, activity.rank)

    def of_kind(kind: int) -> Intervals:
        mine = activity.kind == kind
        own = place[mine]
        return union(axis.place(activity.start[mine], own), axis.place(activity.end[mine], own))

    compute = of_kind(COMPUTE)
    waiting = subtract(union(start, moves), compute)
    link = subtract(union(moves, end), join(compute, waiting))
    copy = subtract(of_kind(COPY), join(compute, waiting, link))
    data = subtract(of_kind(_DATA), join(compute, waiting, link, copy))
    return _Cover(compute, waiting, link, copy, data)


def _within(a: Intervals, start: Ints, end: Ints) -> Ints:
    """The part of a set inside each interval, in ns."""
    return covered_before(a, end) - covered_before(a, start)


def window_starts(run: Run, rows: Collectives) -> Ints:
    """By entry: the end of the group's previous collective on that rank; for the first one of a cycle, the start of its
    step.
    """
    order = np.lexsort((rows.start, rows.group, rows.segment, rows.rank))
    before = np.full(len(order), NONE)
    same = np.ones(max(len(order) - 1, 0), dtype=bool)
    for key in (rows.rank, rows.segment, rows.group):
        same &= np.diff(key[order]) == 0
    before[order[1:][same]] = order[:-1][same]
    opened = np.minimum(rows.end[np.maximum(before, 0)], rows.start) if len(order) else rows.start
    first = before == NONE
    if not first.any():
        return opened
    steps = run.rows("SELECT rank, step, min(start_ns) FROM steps GROUP BY ALL")
    began = {(int(rank), int(step)): int(start) for rank, step, start in steps}
    files: dict[tuple[int, int], int] = {}
    for i in np.flatnonzero(first).tolist():
        rank, step, file = int(rows.rank[i]), int(rows.step[i]), int(rows.segment[i])
        if (rank, step) not in began and not files:  # reads all slices, so only when needed
            found = run.rows("SELECT rank, segment, min(start_ns) FROM slices GROUP BY ALL")
            files = {(rank, file): start for rank, file, start in found}
        opened[i] = min(began.get((rank, step), files.get((rank, file), 0)), int(rows.start[i]))
    return opened
