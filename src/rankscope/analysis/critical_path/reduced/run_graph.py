"""The reduced graphs of a run's ranks, joined at their matched collectives."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property

import numpy as np

from rankscope.analysis.core.cache import once_per_run
from rankscope.analysis.core.intervals import Ints
from rankscope.analysis.core.scope import Scope, step_numbers
from rankscope.analysis.critical_path.graph.build import graph_notes, window_of
from rankscope.analysis.critical_path.graph.nodes import NONE, Mask, MatchedCollectives, event_key
from rankscope.analysis.critical_path.path import PATH_CLASSES
from rankscope.analysis.critical_path.reduced.rank_graph import RankGraph, rank_graphs
from rankscope.analysis.within_rank.event_tables import compute_time
from rankscope.records import dataclass
from rankscope.store.arrays import Floats, count_before, number_rows, starts_group
from rankscope.timeline.collectives.entries import Collectives
from rankscope.timeline.run import Run

_COMPARED = tuple(map(PATH_CLASSES.index, ("compute", "copy", "host", "dataloader")))
"""Classes in which ranks are compared: the others are waiting, or delays that a rank does not choose."""
_MOST_PEERS = 64
"""The median is taken over so many of them, evenly chosen."""


@dataclass(frozen=True)
class Work:
    """The durations that a scenario may change."""

    spent: tuple[Ints, ...]
    """By class, then by way."""
    own: Ints
    """By point: from its start to its end, where it meets no other rank."""
    transfer: Ints
    """By match, from the arrival of the last rank."""
    waits: Mask
    """By way: whether it is waited for."""


@dataclass(frozen=True)
class ReducedGraph:
    """Points of all ranks, by rank and start, and the ways between them. Ranks are indices into `ranks`."""

    ranks: tuple[int, ...]
    rank: Ints
    step: Ints
    cycle: Ints
    start: Ints
    end: Ints
    kind: Ints
    on_host: Mask
    is_collective: Mask
    fixed: Mask
    """Stays where it is: a recording begins there, or nothing is known before it."""
    inside: Mask
    """In the window. Other points stay where they are."""
    match: Ints
    """Number of its collective where at least two ranks meet, or NONE."""
    to: Ints
    origin: Ints
    sync: Ints
    """Index into `syncs`, or NONE."""
    work: Work
    """As recorded."""
    syncs: tuple[str, ...]
    collectives: MatchedCollectives
    window: tuple[int, int]
    steps: tuple[int, ...]
    notes: tuple[str, ...]
    kernel_shares: Callable[[Callable[[str], bool]], Floats]
    """By rank: the share of compute time in kernels whose name fulfils the condition."""

    @cached_property
    def _place(self) -> tuple[Ints, Ints]:
        """By point: what it is, and the how many-th of these in its step: the same for ranks that do the same."""
        matched, met = self.collectives, self.match != NONE
        kind, size = np.full(len(self.rank), NONE), np.full(len(self.rank), NONE)
        kind[met], size[met] = matched.kind[self.match[met]], matched.bytes[self.match[met]]
        _, name = number_rows([self.is_collective.astype(np.int64), self.kind, kind, size])
        return name, count_before([self.rank, self.step, name], np.arange(len(name)))

    def at_median(self, work: Work, ranks: Sequence[int], peers: Mapping[int, Sequence[int]]) -> Work:
        """The work of each of `ranks` limited to the median of its peers that are not among them, or of all others.

        Ways are compared that lead between the same places, class by class.
        """
        slow = {self.ranks.index(rank) for rank in ranks if rank in self.ranks}
        spent, own = [*work.spent], work.own
        for who in sorted(slow):
            known = {self.ranks.index(one) for one in peers.get(self.ranks[who], ()) if one in self.ranks}
            others = sorted(known - slow) or sorted(set(range(len(self.ranks))) - slow)
            if not others:
                continue
            others = others[:: -(-len(others) // _MOST_PEERS)]
            compared = np.isin(self.rank, [who, *others])
            ways = np.flatnonzero(compared[self.to])
            name, nth = self._place
            to, origin = self.to[ways], self.origin[ways]
            ends = [column[points] for points in (to, origin) for column in (self.step, name, nth)]
            pair = _Compared(self.rank[to], ends, who, others)
            for kind in _COMPARED:
                spent[kind] = spent[kind].copy()
                mine = ways[pair.mine]
                spent[kind][mine] = np.minimum(spent[kind][mine], pair.median(spent[kind][ways]))
            points = np.flatnonzero(compared & np.isin(self.kind, _COMPARED) & ~self.on_host)
            one = _Compared(self.rank[points], [self.step[points], name[points], nth[points]], who, others)
            own = own.copy()
            mine = points[one.mine]
            own[mine] = np.minimum(own[mine], one.median(own[points]))
        return replace(work, spent=tuple(spent), own=own)


class _Compared:
    """Entries that several ranks have at the same place."""

    def __init__(self, rank: Ints, place: Sequence[Ints], who: int, others: Sequence[int]) -> None:
        self.mine = np.flatnonzero(rank == who)
        _, number = number_rows(place)
        wanted, self._column = np.unique(number[self.mine], return_inverse=True)
        at = np.minimum(np.searchsorted(wanted, number), max(len(wanted) - 1, 0))
        there = (wanted[at] == number) & (rank != who) if len(wanted) else np.zeros(len(rank), dtype=bool)
        self._entries = np.flatnonzero(there)
        self._cell = np.searchsorted(others, rank[there]), at[there]
        self._shape = len(others), len(wanted)

    def median(self, value: Ints) -> Ints:
        """By entry of `mine`: the median over the others; a missing entry counts as 0, of several the largest."""
        table = np.zeros(self._shape, dtype=np.int64)
        np.maximum.at(table, self._cell, value[self._entries])
        found = (
            np.rint(np.median(table, axis=0)).astype(np.int64) if table.size else np.zeros(0, dtype=np.int64)
        )
        return found[self._column.reshape(-1)]


@once_per_run
def reduced_graph(run: Run, scope: Scope) -> ReducedGraph:
    """Of the ranks and steps in scope."""
    whole = replace(scope, steps=None).in_run(run)  # what is kept is of all steps
    known = rank_graphs(run, whole)
    ranks = tuple(rank for rank in run.ranks if rank in known)
    parts = [known[rank] for rank in ranks]
    sizes = [len(part.start) for part in parts]
    first = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    shift = np.repeat([run.origin_ns(rank) for rank in ranks], sizes).astype(np.int64)
    rank = np.repeat(np.arange(len(ranks)), sizes)
    points = {name: _joined(parts, name) for name in ("segment", "slice", "step", "cycle", "kind", "on_host")}
    start, end = _joined(parts, "start") + shift, _joined(parts, "end") + shift
    inside = np.ones(len(rank), dtype=bool)
    if scope.steps is not None:
        inside = (points["step"] >= scope.steps[0]) & (points["step"] <= scope.steps[1])
    to = np.repeat(np.arange(len(rank)), _joined(parts, "ways"))
    origin = _joined(parts, "origin") + np.repeat(first[:-1], [len(part.origin) for part in parts])
    used = inside[to]
    syncs = tuple(sorted({name for part in parts for name in part.syncs}))
    spent = tuple(time[used] for time in _by_class(_joined(parts, "classes"), _joined(parts, "spent")))
    match, collectives = _matched(run.collectives, ranks, rank, points, start, end, inside)
    fixed = _joined(parts, "fixed").astype(bool)
    fixed |= np.bincount(to, minlength=len(rank)) == 0
    steps = tuple(step_numbers(run, scope))
    sync = np.concatenate([_NO_INTS, *(_renumbered(part, syncs) for part in parts)])[used]
    return ReducedGraph(
        ranks=ranks,
        rank=rank,
        step=points["step"],
        cycle=points["cycle"],
        start=start,
        end=end,
        kind=points["kind"],
        on_host=points["on_host"].astype(bool),
        is_collective=points["slice"] != NONE,
        fixed=fixed,
        inside=inside,
        match=match,
        to=to[used],
        origin=origin[used],
        sync=sync,
        work=Work(spent, end - start, collectives.transfer, np.ones(int(used.sum()), dtype=bool)),
        syncs=syncs,
        collectives=collectives,
        window=window_of(run, scope, start[inside], end[inside]),
        steps=steps,
        notes=graph_notes(sum(part.lost for part in parts), steps),
        kernel_shares=lambda chosen: _kernel_shares(run, scope, ranks, chosen),
    )


_NO_INTS = np.empty(0, dtype=np.int64)


def _joined(parts: Sequence[RankGraph], name: str) -> Ints:
    return np.concatenate([_NO_INTS, *(getattr(part, name) for part in parts)])


def _by_class(classes: Ints, spent: Ints) -> Iterator[Ints]:
    """For each class the time of all ways, from the times that are not 0."""
    place = np.zeros(len(classes), dtype=np.int64)
    counts = sum((classes >> kind) & 1 for kind in range(len(PATH_CLASSES)))
    place[1:] = np.cumsum(counts)[:-1]
    for kind in range(len(PATH_CLASSES)):
        has = ((classes >> kind) & 1).astype(bool)
        time = np.zeros(len(classes), dtype=np.int64)
        time[has] = spent[place[has]]
        place += has
        yield time


def _renumbered(part: RankGraph, syncs: Sequence[str]) -> Ints:
    codes = np.array([*map(syncs.index, part.syncs), NONE], dtype=np.int64)
    return codes[part.sync]


def _matched(
    rows: Collectives,
    ranks: Sequence[int],
    rank: Ints,
    points: dict[str, Ints],
    start: Ints,
    end: Ints,
    inside: Mask,
) -> tuple[Ints, MatchedCollectives]:
    """By point its match, where at least two ranks meet; and the matches."""
    match, row = np.full(len(rank), NONE), np.full(len(rank), NONE)
    wanted = np.flatnonzero(inside & (points["slice"] != NONE))
    if len(wanted) and len(rows.rank):
        theirs = event_key(rows.rank, rows.segment, rows.slice)
        number = np.array(ranks, dtype=np.int64)[rank[wanted]]
        ours = event_key(number, points["segment"][wanted], points["slice"][wanted])
        order = np.argsort(theirs, kind="stable")
        at = order[np.minimum(np.searchsorted(theirs, ours, sorter=order), len(theirs) - 1)]
        good = (theirs[at] == ours) & (rows.match[at] != NONE)
        match[wanted[good]], row[wanted[good]] = rows.match[at[good]], at[good]
    members = np.bincount(match[match != NONE], minlength=1)
    number = np.where(members > 1, np.cumsum(members > 1) - 1, NONE)
    match = np.where(match != NONE, number[match], NONE)
    met = np.flatnonzero(match != NONE)
    order = met[np.lexsort((met, (end - start)[met], match[met]))]  # of equal durations the first
    last = order[starts_group([match[order]])]
    of = row[last]
    return match, MatchedCollectives(
        transfer=(end - start)[last],
        last=last,
        on_host=points["on_host"][last].astype(bool),
        members=members[members > 1],
        bytes=rows.bytes[of],
        group=rows.group[of],
        kind=rows.kind[of],
    )


def _kernel_shares(run: Run, scope: Scope, ranks: Sequence[int], chosen: Callable[[str], bool]) -> Floats:
    named, every = compute_time(run, scope, chosen), compute_time(run, scope, lambda name: True)
    return np.array([named.get(rank, 0) / every[rank] if every.get(rank) else 0.0 for rank in ranks])
