"""Replays a reduced graph with changed durations.

Points are computed level by level: a level has the points whose causes are all in earlier ones, of all ranks. What one
level takes does not depend on the number of ranks by much, since its points are computed together.
"""

from __future__ import annotations

import numpy as np

from rankscope.analysis.core.intervals import Ints
from rankscope.analysis.critical_path.graph.nodes import NONE
from rankscope.analysis.critical_path.reduced.run_graph import ReducedGraph, Work
from rankscope.store.arrays import starts_group

_NEVER = -(1 << 62)


class ReducedPlayer:
    """A reduced graph that is replayed again and again."""

    def __init__(self, graph: ReducedGraph) -> None:
        self.graph = graph
        count = len(graph.rank)
        matches = len(graph.collectives.transfer)
        self._unit = np.where(graph.match != NONE, graph.match, matches + np.arange(count))
        # A point that stays where it is has one way, from a point at time 0.
        stays = np.flatnonzero(graph.inside & graph.fixed)
        moves = np.flatnonzero(~graph.fixed[graph.to])
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
        cause, effect = unit[origin[inner]], unit[to[inner]]
        order = np.argsort(cause, kind="stable")
        cause, effect = cause[order], effect[order]
        missing = np.bincount(effect, minlength=len(level))
        first = np.searchsorted(cause, np.arange(len(level) + 1))
        units = np.unique(unit[graph.inside])
        ready = units[missing[units] == 0]
        reached, depth = 0, 0
        while len(ready):
            level[ready] = depth
            reached, depth = reached + len(ready), depth + 1
            sizes = first[ready + 1] - first[ready]
            at = np.repeat(first[ready] - np.cumsum(sizes) + sizes, sizes) + np.arange(int(sizes.sum()))
            following, times = np.unique(effect[at], return_counts=True)
            missing[following] -= times
            ready = following[missing[following] == 0]
        return level if reached == len(units) else None

    def _prepare(self, level: Ints, to: Ints, origin: Ints, moves: Ints, stays: Ints) -> None:
        graph, unit = self.graph, self._unit
        points = np.flatnonzero(graph.inside)
        points = points[np.lexsort((unit[points], level[unit[points]]))]
        outside = np.flatnonzero(~graph.inside)
        place = np.empty(len(graph.rank) + 1, dtype=np.int64)
        place[np.concatenate([points, outside, [len(graph.rank)]])] = np.arange(len(place))
        self._points, self._moves = points, moves
        self._rest = np.concatenate([graph.end[outside], [0]])
        order = np.argsort(place[to], kind="stable")
        self._order, self._origin = order, place[origin[order]]
        self._stays = graph.start[stays]
        done = (
            graph.end[graph.collectives.last] if len(graph.collectives.last) else np.zeros(1, dtype=np.int64)
        )
        self._shift = np.where(
            graph.match[points] != NONE, graph.end[points] - done[np.maximum(graph.match[points], 0)], 0
        )
        heads = np.flatnonzero(starts_group([unit[points]])) if len(points) else points
        self._heads = points[heads]
        of_way, of_point = place[to[order]], level[unit[points]]
        ways = np.flatnonzero(starts_group([of_way])) if len(of_way) else of_way
        depth = np.arange(int(level.max(initial=NONE)) + 2)
        bounds = np.searchsorted(of_point, depth)
        unit_bounds = np.searchsorted(heads, bounds)
        way_bounds = np.append(ways, len(of_way))[bounds]
        self._rounds = []
        for low, high, first, last, begin, stop in zip(
            bounds[:-1].tolist(), bounds[1:].tolist(), unit_bounds[:-1].tolist(), unit_bounds[1:].tolist(),
            way_bounds[:-1].tolist(), way_bounds[1:].tolist(), strict=True,
        ):  # fmt: skip
            starts = heads[first:last] - low
            sizes = np.diff(starts, append=high - low)
            self._rounds.append(
                (
                    slice(low, high),
                    slice(first, last),
                    slice(begin, stop),
                    ways[low:high] - begin,
                    starts,
                    sizes,
                )
            )
        key = graph.rank[points] * (int(graph.cycle.max(initial=0)) + 1) + graph.cycle[points]
        self._by_cycle = np.argsort(key, kind="stable")
        self._cycles = np.flatnonzero(starts_group([key[self._by_cycle]])) if len(key) else key

    def ends(self, work: Work) -> Ints:
        """The end of each point in the window, in the order of `_points`."""
        weight = work.spent[0].copy()
        for times in work.spent[1:]:
            weight += times
        weight[~work.waits] = _NEVER
        weight = np.concatenate([weight[self._moves], self._stays])[self._order]
        took = np.where(
            self.graph.match[self._heads] != NONE,
            _or_zero(work.transfer)[np.maximum(self.graph.match[self._heads], 0)],
            work.own[self._heads],
        )
        end = np.concatenate([np.zeros(len(self._points), dtype=np.int64), self._rest])
        for points, units, ways, of_points, of_units, sizes in self._rounds:
            arrival = np.maximum.reduceat(end[self._origin[ways]] + weight[ways], of_points)
            arrival -= self._shift[points]
            done = np.maximum.reduceat(arrival, of_units) + took[units]
            end[points] = np.repeat(done, sizes) + self._shift[points]
        return end[: len(self._points)]

    def last_ns(self, work: Work) -> float:
        """When the last event of a rank ends, cycle by cycle; the mean over ranks."""
        return self._last(self.ends(work))

    @property
    def recorded_last_ns(self) -> float:
        """As it was recorded."""
        return self._last(self.graph.end[self._points])

    def _last(self, ends: Ints) -> float:
        if not len(ends):
            return 0.0
        last = np.maximum.reduceat(ends[self._by_cycle], self._cycles)
        return float(last.sum()) / len(np.unique(self.graph.rank[self._points]))


def _or_zero(values: Ints) -> Ints:
    return values if len(values) else np.zeros(1, dtype=np.int64)
