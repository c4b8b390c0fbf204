"""The replay of a graph: when each of its points would have ended with other durations.

A unit, a point or the members of a collective, is done when the last way to it has arrived. Units are sorted so that
their causes come before them; the C part goes through them once, numpy level by level.
"""

from __future__ import annotations

from functools import cached_property
from typing import NamedTuple

import numpy as np

from rankscope import native
from rankscope.analysis.core.intervals import Ints
from rankscope.analysis.graph.events import NONE
from rankscope.analysis.graph.graph import Graph, Work
from rankscope.store.arrays import grouped, ranges, starts_group, unique_values

_NEVER = -(1 << 62)
_LATE = np.iinfo(np.int64).max


class Played(NamedTuple):
    """Durations in the order in which they are replayed."""

    weight: Ints
    """By way, those to one point together."""
    took: Ints
    """By unit: a transfer, or what the point itself takes."""
    begins_ns: Ints
    """By rank, how much later it begins."""


class Replay:
    """A graph that is replayed again and again."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        count = len(graph.rank)
        matches = len(graph.collectives.transfer)
        self._unit = np.where(graph.match != NONE, graph.match, matches + np.arange(count))
        # A point that stays where it is has one way, from a point at time 0.
        stays = np.flatnonzero(graph.inside & graph.fixed)
        moves = np.flatnonzero(graph.inside[graph.to] & ~graph.fixed[graph.to])
        to = np.concatenate([graph.to[moves], stays])
        origin = np.concatenate([graph.origin[moves], np.full(len(stays), count)])
        level = self._levels(to, origin)
        self.has_cycle = level is None
        if level is not None:
            self._prepare(level, to, origin, moves, stays)

    def _levels(self, to: Ints, origin: Ints) -> Ints | None:
        """By unit (a match, or a point that meets no other rank): its level; None where they wait in a cycle."""
        graph, unit = self.graph, self._unit
        level = np.full(len(graph.collectives.transfer) + len(graph.rank), NONE)
        inner = origin < len(graph.rank)
        inner[inner] = graph.inside[origin[inner]]
        order, first = grouped(unit[origin[inner]], len(level))
        effect = unit[to[inner]][order]
        is_unit = np.zeros(len(level), dtype=bool)
        is_unit[unit[graph.inside]] = True
        if native.functions is not None:
            level = np.frombuffer(native.functions.levels(first, effect), np.int64)
            return level if (level[is_unit] != NONE).all() else None
        missing = np.bincount(effect, minlength=len(level))
        ready = np.flatnonzero(is_unit & (missing == 0))
        depth = 0
        while len(ready):
            level[ready] = depth
            depth += 1
            sizes = first[ready + 1] - first[ready]
            following = effect[ranges(first[ready], sizes)]
            np.subtract.at(missing, following, 1)
            ready = unique_values(following[missing[following] == 0])
        return level if (level[is_unit] != NONE).all() else None

    def _prepare(self, level: Ints, to: Ints, origin: Ints, moves: Ints, stays: Ints) -> None:
        graph, unit = self.graph, self._unit
        points = np.flatnonzero(graph.inside)
        points = points[grouped(unit[points], len(level))[0]]
        points = points[grouped(level[unit[points]], int(level.max(initial=NONE)) + 1)[0]]
        outside = np.flatnonzero(~graph.inside)
        position = np.empty(len(graph.rank) + 1, dtype=np.int64)
        position[np.concatenate([points, outside, [len(graph.rank)]])] = np.arange(len(position))
        self._points, self._moves = points, moves
        self._rest = np.concatenate([graph.end[outside], [0]])
        # Every point has a way.
        order, first = grouped(position[to], len(points))
        self._order, self._origin, self._first_way = order, position[origin[order]], first
        self._stays = stays
        done = (
            graph.end[graph.collectives.last] if len(graph.collectives.last) else np.zeros(1, dtype=np.int64)
        )
        match = graph.match[points]
        # A message ends by its own clock.
        together = np.append(~graph.collectives.is_message, False)[match]
        self._shift = np.where(together, graph.end[points] - done[np.maximum(match, 0)], 0)
        heads = np.flatnonzero(starts_group([unit[points]])) if len(points) else points
        self._heads = points[heads]
        self._first_point = np.append(heads, len(points))
        self._level = level[unit[points]]
        cycles = int(graph.cycle.max(initial=0)) + 1
        key = graph.rank[points] * cycles + graph.cycle[points]
        self._by_cycle, first = grouped(key, len(graph.ranks) * cycles)
        self._cycles = first[:-1][np.diff(first) > 0]
        self._rank_of_cycle = np.flatnonzero(np.diff(first) > 0) // cycles
        start = np.where(graph.marks[points], graph.start[points], _LATE)[self._by_cycle]
        first_ns = np.minimum.reduceat(start, self._cycles) if len(points) else start
        earliest = (
            np.minimum.reduceat(graph.start[points][self._by_cycle], self._cycles) if len(points) else start
        )
        self._first = np.where(first_ns == _LATE, earliest, first_ns)

    def arrays(self, work: Work) -> Played:
        """The durations as they are replayed."""
        weight = work.spent[0].copy()
        for times in work.spent[1:]:
            weight += times
        weight[~work.waits] = _NEVER
        stays = self.graph.start[self._stays] + work.begins_ns[self._stays]
        weight = np.concatenate([weight[self._moves], stays])[self._order]
        match = self.graph.match[self._heads]
        transfer = np.append(work.transfer, 0)[match]  # of NONE the last, which is not used
        took = np.where(match != NONE, transfer, work.own_ns[self._heads])
        return Played(weight, took, self.begins_of(work.begins_ns))

    def begins_of(self, begins_ns: Ints) -> Ints:
        """By rank, from the points that stay where they are."""
        return np.bincount(self.graph.rank, weights=begins_ns, minlength=len(self.graph.ranks)).astype(
            np.int64
        )

    @cached_property
    def way_points(self) -> Ints:
        """By entry of the weights: the point that it leads to."""
        return np.concatenate([self.graph.to[self._moves], self._stays])[self._order]

    @property
    def unit_points(self) -> Ints:
        """By unit: its first point."""
        return self._heads

    def ends(self, played: Played) -> Ints:
        """The end of each point in the window, in the order of `_points`."""
        weight, took = played.weight, played.took
        end = np.concatenate([np.zeros(len(self._points), dtype=np.int64), self._rest])
        if native.functions is not None:
            columns = (self._origin, weight, self._first_way, self._shift, self._first_point, took)
            native.functions.replay(end, *columns)
            return end[: len(self._points)]
        for low, high, first, last in self._rounds:
            begin, heads = self._first_way[low], self._first_point[first:last]
            ways = slice(begin, self._first_way[high])
            arrival = np.maximum.reduceat(
                end[self._origin[ways]] + weight[ways], self._first_way[low:high] - begin
            )
            arrival -= self._shift[low:high]
            done = np.maximum.reduceat(arrival, heads - low) + took[first:last]
            end[low:high] = np.repeat(done, np.diff(heads, append=high)) + self._shift[low:high]
        return end[: len(self._points)]

    @cached_property
    def _rounds(self) -> list[tuple[int, int, int, int]]:
        """By level, the bounds of its points and of its units."""
        bounds = np.searchsorted(self._level, np.arange(int(self._level.max(initial=NONE)) + 2))
        units = np.searchsorted(self._first_point[:-1], bounds)
        columns = (bounds[:-1], bounds[1:], units[:-1], units[1:])
        return [*zip(*(column.tolist() for column in columns), strict=True)]

    def length_ns(self, work: Work) -> float:
        """From the begin of a rank to its last event, by its own clock, cycle by cycle; the longest of all ranks: what
        a rank does after it has met the others for the last time, delays them in the step that follows."""
        return self.played_ns(self.arrays(work))

    def played_ns(self, played: Played) -> float:
        return self._length(self.ends(played), played.begins_ns)

    @property
    def recorded_ns(self) -> float:
        """As it was recorded."""
        return self._length(self.graph.end[self._points], np.zeros(len(self.graph.ranks), dtype=np.int64))

    def _length(self, ends: Ints, begins_ns: Ints) -> float:
        if not len(ends):
            return 0.0
        took = np.maximum.reduceat(ends[self._by_cycle], self._cycles) - self._first
        of_rank = np.bincount(self._rank_of_cycle, weights=took, minlength=len(begins_ns))
        return float((of_rank - begins_ns).max())  # a rank that begins earlier does not take longer
