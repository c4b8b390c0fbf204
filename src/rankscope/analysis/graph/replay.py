"""The replay of a graph: when each of its points would have ended with other durations.

A unit, a point or the members of a collective, is done when the last way to it has arrived. Units are sorted so that
their causes come before them, and gone through once.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

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


class Part(NamedTuple):
    """Entries of the durations."""

    ways: Ints
    units: Ints
    begins_ns: Ints
    """By rank, how much later it begins with these as they are elsewhere."""


MOST_LANES = 8
"""Replayed at once."""
_Lanes = np.ndarray[Any, np.dtype[np.int8]]
"""NONE in none of them."""


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
        self._points = points
        self._rest = np.concatenate([graph.end[outside], [0]])
        # Every point has a way.
        order, first = grouped(position[to], len(points))
        self._origin, self._first_way = position[origin[order]], first
        self.place, self._stays = np.full(len(graph.to), NONE), stays
        place = np.empty(len(order), dtype=np.int64)
        place[order] = np.arange(len(order))
        self.place[moves], self._place_of_stays = place[: len(moves)], place[len(moves) :]
        self.way_points = to[order]
        """By entry of the weights: the point that it leads to."""
        done = (
            graph.end[graph.collectives.last] if len(graph.collectives.last) else np.zeros(1, dtype=np.int64)
        )
        match = graph.match[points]
        # A message ends by its own clock.
        together = np.append(~graph.collectives.is_message, False)[match]
        self._shift = np.where(together, graph.end[points] - done[np.maximum(match, 0)], 0)
        heads = np.flatnonzero(starts_group([unit[points]])) if len(points) else points
        self.unit_points = points[heads]
        """By unit: its first point."""
        self.unit_of_point = np.full(len(graph.rank), NONE)
        """Of points that meet no other rank."""
        self.unit_of_point[self.unit_points] = np.arange(len(heads))
        self._met = graph.match[self.unit_points] != NONE
        took = graph.work.own_ns[self.unit_points]
        took[self._met] = graph.work.transfer[graph.match[self.unit_points[self._met]]]
        weight = np.concatenate([sum(time[moves] for time in graph.work.spent), graph.start[stays]])[order]
        self._recorded = Played(weight, took, np.zeros(len(graph.ranks), dtype=np.int64))
        self._first_point = np.append(heads, len(points))
        cycle = graph.rank * (int(graph.cycle.max(initial=0)) + 1) + graph.cycle
        by_cycle, first = _parts(cycle[points])
        self._rank_of_cycle = graph.rank[points[by_cycle[first]]]
        start = np.where(graph.marks[points], graph.start[points], _LATE)[by_cycle]
        first_ns = np.minimum.reduceat(start, first) if len(points) else start
        earliest = np.minimum.reduceat(graph.start[points][by_cycle], first) if len(points) else start
        self._first = np.where(first_ns == _LATE, earliest, first_ns)
        # The last to end in its cycle is one that nothing in it waits for.
        waits = moves[(cycle[graph.origin[moves]] == cycle[graph.to[moves]]) & ~graph.is_sync[moves]]
        waits = waits[(self._recorded.weight[self.place[waits]] >= 0)]
        waits = waits[np.append(graph.collectives.transfer, 0)[graph.match[graph.to[waits]]] >= 0]
        may_be_last = ~graph.is_strange
        may_be_last[graph.origin[waits]] = False
        # Where only strange ones are left, all of the cycle count.
        may_be_last |= ~np.isin(cycle, cycle[may_be_last & graph.inside])
        last = np.flatnonzero(may_be_last[points])
        order, self._cycles = _parts(cycle[points[last]])
        self._lasts = last[order]

    def arrays(self, work: Work) -> Played:
        """The durations as they are replayed."""
        graph, recorded = self.graph, self.graph.work
        weight, took = self._recorded.weight.copy(), self._recorded.took.copy()
        for now, before in zip(work.spent, recorded.spent, strict=True):
            if now is not before:
                changed = np.flatnonzero((now != before) & (self.place != NONE))
                weight[self.place[changed]] += now[changed] - before[changed]
        if work.waits is not recorded.waits:
            weight[self.place[~work.waits & (self.place != NONE)]] = _NEVER
        if work.begins_ns.any():
            weight[self._place_of_stays] += work.begins_ns[self._stays]
        if work.transfer is not recorded.transfer:
            took[self._met] = work.transfer[graph.match[self.unit_points[self._met]]]
        if work.own_ns is not recorded.own_ns:
            took[~self._met] = work.own_ns[self.unit_points[~self._met]]
        later = np.bincount(graph.rank, weights=work.begins_ns, minlength=len(graph.ranks))
        return Played(weight, took, later.astype(np.int64))

    def ends(self, played: Played) -> Ints:
        """The end of each point in the window, in the order of `_points`."""
        ways, units = (np.full(len(column), NONE, dtype=np.int8) for column in played[:2])
        ends: Ints = self._ends(played, played, ways, units, 1)[:, 0]
        return ends

    def _ends(self, played: Played, other: Played, ways: _Lanes, units: _Lanes, lanes: int) -> Ints:
        """[point, lane]; `other` has the durations of the ways and units that are in a lane, in that lane."""
        count = len(self._points)
        start = np.empty((count + len(self._rest), lanes), dtype=np.int64)
        start[count:] = self._rest[:, None]
        if native.functions is not None:
            columns = (self._origin, self._first_way, self._shift, self._first_point)
            durations = (played.weight, other.weight, played.took, other.took)
            native.functions.replay(start, lanes, *columns, *durations, ways, units)
            return start[:count]
        each = [
            self._one_by_one(
                start[:, lane],
                np.where(ways == lane, other.weight, played.weight),
                np.where(units == lane, other.took, played.took),
            )
            for lane in range(lanes)
        ]
        return np.stack(each, axis=1)[:count]

    def _one_by_one(self, start: Ints, weight: Ints, took: Ints) -> Ints:
        """As the C part."""
        columns = (start, self._origin, weight, self._first_way, self._shift, self._first_point)
        end, origin, spent, ways, shift, heads = (column.tolist() for column in columns)
        for (first, last), time in zip(pairwise(heads), took.tolist(), strict=True):
            done = time + max(
                end[origin[way]] + spent[way] - shift[point]
                for point in range(first, last)
                for way in range(ways[point], ways[point + 1])
            )
            end[first:last] = [done + each for each in shift[first:last]]
        return np.array(end, dtype=np.int64)

    def length_ns(self, work: Work) -> float:
        """From the begin of a rank to its last event, by its own clock, cycle by cycle; the longest of all ranks: what
        a rank does after it has met the others for the last time, delays them in the step that follows."""
        return self.played_ns(self.arrays(work))

    def played_ns(self, played: Played) -> float:
        return self._length(self.ends(played), played.begins_ns)

    def lengths_ns(self, played: Played, other: Played, parts: Sequence[Part]) -> list[float]:
        """For each part, which share nothing: that of the replay with the durations of `other` there."""
        lengths = list[float]()
        for at in range(0, len(parts), MOST_LANES):
            some = parts[at : at + MOST_LANES]
            ways, units = (np.full(len(column), NONE, dtype=np.int8) for column in played[:2])
            for lane, part in enumerate(some):
                ways[part.ways], units[part.units] = lane, lane
            ends = self._ends(played, other, ways, units, len(some))
            lengths += [self._length(ends[:, lane], part.begins_ns) for lane, part in enumerate(some)]
        return lengths

    @property
    def recorded_ns(self) -> float:
        """As it was recorded."""
        return self._length(self.graph.end[self._points], np.zeros(len(self.graph.ranks), dtype=np.int64))

    def _length(self, ends: Ints, begins_ns: Ints) -> float:
        if not len(ends):
            return 0.0
        took = np.maximum.reduceat(ends[self._lasts], self._cycles) - self._first
        of_rank = np.bincount(self._rank_of_cycle, weights=took, minlength=len(begins_ns))
        return float((of_rank - begins_ns).max())  # a rank that begins earlier does not take longer


def _parts(number: Ints) -> tuple[Ints, Ints]:
    """An order in which those with the same number are together, and where each part begins."""
    order = np.argsort(number, kind="stable")
    return order, np.flatnonzero(starts_group([number[order]])) if len(order) else order
