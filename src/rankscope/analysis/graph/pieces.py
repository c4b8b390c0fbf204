"""The pieces of work of a run: events that are points of their own, and the small ones before a point together."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cached_property

import numpy as np

from rankscope.analysis.core.intervals import Ints, rounded
from rankscope.analysis.graph.events import NONE, PATH_CLASSES, Mask
from rankscope.analysis.graph.graph import WORK_CLASSES, Graph, Work
from rankscope.records import dataclass
from rankscope.store.arrays import count_before, grouped, number_rows, packed, quantile, ranges, unique_values

KINDS = np.array([*map(PATH_CLASSES.index, WORK_CLASSES)])
"""They ascend."""
_HOST_KINDS = KINDS[2:].tolist()
_LATE = np.iinfo(np.int64).max
_NO_INTS = np.empty(0, dtype=np.int64)


@dataclass(frozen=True)
class Pieces:
    """One entry for each piece in the window."""

    graph: Graph
    point: Ints
    """The point that it is, or before which it lies."""
    kind: Ints
    """Index into PATH_CLASSES, one of WORK_CLASSES."""
    is_own: Mask
    """It is the point; else it lies before it."""
    took: Ints
    rank: Ints
    step: Ints
    """Index of its step, the same on all ranks; NONE outside steps."""
    stretch: Ints
    """How many communications that other ranks have too were launched before it in its step."""
    name: Ints
    """Index into Graph.names; NONE for small ones on the device."""
    steps: Ints
    """By point of the graph, the index of its step."""

    @classmethod
    def of(cls, graph: Graph) -> Pieces:
        step, stretch = _stretches(graph)
        parts = []
        for kind in KINDS.tolist():
            time = graph.small(kind)
            small = np.flatnonzero((time > 0) & graph.inside)
            unnamed = kind not in _HOST_KINDS
            parts.append((small, kind, False, time[small], unnamed))
            if unnamed:
                events = np.flatnonzero(
                    (graph.kind == kind)
                    & ~graph.on_host
                    & (graph.match == NONE)
                    & graph.inside
                    & ~graph.is_strange
                )
                parts.append((events, kind, True, graph.work.own_ns[events], False))
        point = np.concatenate([part[0] for part in parts])
        sizes = [len(part[0]) for part in parts]
        name = np.where(np.repeat([part[4] for part in parts], sizes), NONE, graph.name[point])
        return cls(
            graph,
            point,
            np.repeat([part[1] for part in parts], sizes),
            np.repeat([part[2] for part in parts], sizes),
            np.concatenate([part[3] for part in parts]),
            graph.rank[point],
            step[point],
            stretch[point],
            name,
            step,
        )

    def places(self, used: Ints, member: Ints, stretch: Ints) -> Ints:
        """Of the pieces `used`: the same number for the n-th piece of its name in a stretch, of any member."""
        columns = (stretch, self.kind, self.is_own.astype(np.int64), self.name)
        keys = [column[used] for column in columns]
        if not len(used):
            return used
        whose = [column[used] for column in (self.rank, self.step, member)]
        order = count_before([*whose, *keys], self.graph.launched[self.point[used]])
        return number_rows([*keys, order])[1]

    def changed(self, work: Work, took: Ints) -> Work:
        """The work with pieces that take so long; `work` has them as recorded."""
        changed = np.flatnonzero(took != self.took)
        events = changed[self.is_own[changed]]
        own_ns, spent = work.own_ns.copy(), [*work.spent]
        own_ns[self.point[events]] = took[events]
        for kind, ways, _, new in self.on_ways(changed, self.took, took):
            spent[kind] = spent[kind].copy()
            spent[kind][ways] = new
        return replace(work, spent=tuple(spent), own_ns=own_ns)

    def on_ways(self, at: Ints, before: Ints, after: Ints) -> Iterator[tuple[int, Ints, Ints, Ints]]:
        """By class: the ways on which these pieces lie that are no points, and the time in that class on each with
        pieces as long as `before`, and as long as `after`."""
        ways, first = self._ways
        small = at[~self.is_own[at]]
        kinds = self.kind[small]
        for kind in unique_values(kinds).tolist():
            mine = small[kinds == kind]
            counts = first[mine + 1] - first[mine]
            on, piece = ways[ranges(first[mine], counts)], np.repeat(mine, counts)
            time = self.graph.work.spent[kind][on]
            old, new = (rounded(time * (took[piece] / self.took[piece])) for took in (before, after))
            yield kind, on, old, new

    @cached_property
    def matches(self) -> tuple[Ints, Ints]:
        """By match: the index of its step, and when one of its members was launched."""
        graph = self.graph
        met = np.flatnonzero(graph.match != NONE)
        step, launched = np.full((2, len(graph.collectives.transfer)), NONE)
        step[graph.match[met]], launched[graph.match[met]] = self.steps[met], graph.launched[met]
        return step, launched

    @cached_property
    def _ways(self) -> tuple[Ints, Ints]:
        """The ways that spend time in small pieces, piece by piece, and where those of each begin."""
        graph, found, of = self.graph, [_NO_INTS], [_NO_INTS]
        small = np.flatnonzero(~self.is_own)
        for kind in unique_values(self.kind[small]).tolist():
            mine = small[self.kind[small] == kind]
            piece = np.full(len(graph.rank), NONE)
            piece[self.point[mine]] = mine
            having = np.flatnonzero(graph.work.spent[kind] > 0)
            whose = piece[(graph.host_end if kind in _HOST_KINDS else graph.to)[having]]
            found.append(having[whose != NONE])
            of.append(whose[whose != NONE])
        order, first = grouped(np.concatenate(of), len(self.took))
        return np.concatenate(found)[order], first


def _stretches(graph: Graph) -> tuple[Ints, Ints]:
    """By point: the index of its step, and how many matched communications were launched before it in that step."""
    step = aligned_steps(graph)
    meets = np.flatnonzero(graph.match != NONE)
    places = packed([graph.rank, graph.launched])
    before = np.searchsorted(unique_values(places[meets]), places)
    if not len(step):
        return step, before
    first = np.full((len(graph.ranks), int(step.max(initial=0)) + 2), _LATE)
    np.minimum.at(first, (graph.rank, step), before)
    return step, before - first[graph.rank, step]


def aligned_steps(graph: Graph) -> Ints:
    """By point: the index of its step. Ranks may count differently: the steps in which they meet are the same."""
    steps = graph.step.copy()
    together = ~np.append(graph.collectives.is_message, True)[graph.match]
    met = np.flatnonzero(together & (graph.step != NONE))
    if len(met):
        order = met[np.lexsort((graph.rank[met], graph.match[met]))]
        first = order[
            np.searchsorted(graph.match[order], graph.match[order])
        ]  # the member of the lowest rank
        ahead = graph.step[order] - graph.step[first]
        if ahead.any():
            shift = np.zeros(len(graph.ranks), dtype=np.int64)
            for number in range(1, len(graph.ranks)):
                mine = (graph.rank[order] == number) & (order != first)
                if mine.any():
                    shift[number] = round(quantile(ahead[mine] + shift[graph.rank[first[mine]]], 0.5))
            steps = np.where(steps != NONE, steps - shift[graph.rank], NONE)
    inside = unique_values(steps[graph.inside & (steps != NONE)])
    number = np.searchsorted(inside, steps)
    return (
        np.where(np.append(inside, NONE)[number] == steps, number, NONE)
        if len(inside)
        else np.full(len(steps), NONE)
    )
