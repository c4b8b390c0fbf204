"""How much ranks have computed by a time, as recorded and with other durations of their segments."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import NamedTuple

import numpy as np

from rankscope.analysis.across_ranks.segments import Segments
from rankscope.records import dataclass
from rankscope.store.arrays import Floats, Ints


class Moments(NamedTuple):
    """Times of ranks among the segments of each: between two of their ends."""

    at: Ints
    """The end before it, of all ranks together."""
    part: Floats
    """Of the time from there to the next end."""


@dataclass(frozen=True)
class ComputeClock:
    """The segments of some ranks. Where each begins and ends in time does not depend on the durations asked for."""

    segments: Segments
    order: Ints
    """The segments by rank and start."""
    key: Ints
    """Of the ends of segments, two for each, and one before those of each rank: rank and time as one number."""
    first: Ints
    """By rank: the one before its segments."""
    origin_ns: int
    width_ns: int

    @classmethod
    def of(cls, segments: Segments, ranks: Sequence[int]) -> ComputeClock:
        """`ranks` ascend."""
        number = np.searchsorted(ranks, segments.rank)
        used = np.flatnonzero(np.append(ranks, -1)[number] == segments.rank)
        order = used[np.lexsort((segments.end[used], segments.start[used], number[used]))]
        number = number[order]
        start, end = segments.start[order], segments.end[order]
        origin = int(start.min(initial=0)) - 1
        width = int(end.max(initial=0)) - origin + 2
        first = 2 * np.searchsorted(number, np.arange(len(ranks) + 1)) + np.arange(len(ranks) + 1)
        key = np.empty(2 * len(order) + len(ranks), dtype=np.int64)
        key[first[:-1]] = np.arange(len(ranks)) * width
        ends = np.delete(np.arange(len(key)), first[:-1])
        times = np.stack([start, end], axis=1) - origin + number[:, None] * width
        key[ends] = times.reshape(-1)
        return cls(segments, order, np.maximum.accumulate(key), first, origin, width)

    @cached_property
    def _ends(self) -> Ints:
        """Where the end of each segment is in `key`, in their order."""
        ends: Ints = np.delete(np.arange(len(self.key)), self.first[:-1])[1::2]
        return ends

    def moments(self, number: Ints, time: Ints) -> Moments:
        """Of times of ranks, which are given by their places among all."""
        key = np.clip(time - self.origin_ns, 0, self.width_ns - 1) + number * self.width_ns
        at = np.searchsorted(self.key, key, side="right") - 1
        after = np.minimum(at + 1, self.first[number + 1] - 1)
        gap = self.key[after] - self.key[at]
        return Moments(at, np.where(gap > 0, (key - self.key[at]) / np.maximum(gap, 1), 0.0))

    def between(self, begin: Moments, end: Moments, took: Floats | Ints) -> Floats:
        """The compute from one time to another of the same rank, where the segments last so long."""
        step = np.zeros(len(self.key) + 1)
        step[self._ends] = took[self.order]
        sums = np.cumsum(step)

        def by(moments: Moments) -> Floats:
            value: Floats = sums[moments.at] + moments.part * step[moments.at + 1]
            return value

        return by(end) - by(begin)


@dataclass(frozen=True)
class Computing:
    """Parts of a graph that have compute of a rank."""

    at: Ints
    """Their numbers in the graph."""
    clock: ComputeClock
    begin: Moments
    end: Moments
    recorded: Floats
    """The compute in each."""

    @classmethod
    def of(cls, clock: ComputeClock, at: Ints, rank: Ints, start: Ints, end: Ints) -> Computing:
        times = clock.moments(rank, start), clock.moments(rank, end)
        return cls(at, clock, *times, clock.between(*times, clock.segments.duration_ns))

    def scaled(self, times: Ints, took: Floats) -> Ints:
        """Times of all parts of the graph, in which these are longer or shorter as segments that last so long are."""
        target = self.clock.between(self.begin, self.end, took)
        some = self.recorded > 0
        factor = np.where(some, target / np.where(some, self.recorded, 1), 1.0)
        times = times.copy()
        times[self.at] = np.rint(times[self.at] * factor)
        return times

    def shifted(self, times: Ints, took: Floats) -> Ints:
        """The same of parts that have other time too: only the compute in them changes."""
        target = self.clock.between(self.begin, self.end, took)
        times = times.copy()
        times[self.at] = np.maximum(times[self.at] + np.rint(target - self.recorded), 0)
        return times
