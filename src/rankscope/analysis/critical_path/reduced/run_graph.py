"""The reduced graphs of a run's ranks, joined at their matched collectives; its critical path, and its replay.

The path is by class and rank, without the names of kernels. A replay computes points level by level: a level has the
points whose causes are all in earlier ones, of all ranks. What one level takes depends little on the number of ranks,
since its points are computed together.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from rankscope import native
from rankscope.analysis.across_ranks.segments import Segments, segments
from rankscope.analysis.core.cache import once_per_run
from rankscope.analysis.core.collective_waits import Waits, waits
from rankscope.analysis.core.intervals import Ints
from rankscope.analysis.core.scope import Scope, step_numbers
from rankscope.analysis.critical_path.compute_clock import ComputeClock, Computing
from rankscope.analysis.critical_path.graph.build import graph_notes, window_of
from rankscope.analysis.critical_path.graph.nodes import (
    DEVICE_CLASSES,
    NONE,
    Mask,
    MatchedCollectives,
    event_key,
)
from rankscope.analysis.critical_path.path import PATH_CLASSES
from rankscope.analysis.critical_path.reduced.rank_graph import COMPARED, RankGraph, rank_graphs
from rankscope.analysis.within_rank.event_tables import compute_time
from rankscope.collective_kinds import KINDS
from rankscope.records import dataclass
from rankscope.store.arrays import (
    Floats,
    count_before,
    grouped,
    number_rows,
    ranges,
    starts_group,
    unique_values,
)
from rankscope.store.separate_runs import SESSION_GAP_NS
from rankscope.timeline.collectives.entries import Collectives
from rankscope.timeline.run import Run

_MOST_PEERS = 64
"""The median is taken over so many of them, evenly chosen."""


@dataclass(frozen=True)
class Work:
    """The durations that a scenario may change."""

    spent: tuple[Ints, ...]
    """By class, then by way."""
    own_ns: Ints
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
    anchor: Ints
    """The next point at or after it, on its stream or on the host, that ranks which do the same have in common."""
    totals: Mapping[str, Ints]
    """By class of COMPARED and anchor: the time since the anchor before it."""
    inside: Mask
    """In the window. Other points stay where they are."""
    match: Ints
    """Number of its collective where at least two ranks meet, or of its send or receive; or NONE."""
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
    segments: Callable[[], Segments]
    """The compute segments of its ranks."""
    unexplained_ns: float
    """How much later GPU events of a rank start than their causes explain, per step; the mean over ranks and all
    steps."""

    @cached_property
    def _place(self) -> list[Ints]:
        """By anchor: its step, what it is, and the how many-th of these in its step: the same for ranks that do the
        same."""
        matched, met = self.collectives, self.match != NONE
        kind, size = np.full(len(self.rank), NONE), np.full(len(self.rank), NONE)
        kind[met], size[met] = matched.kind[self.match[met]], matched.bytes[self.match[met]]
        at = self._anchors[0]
        columns = (self.is_collective.astype(np.int64), self.kind, kind, size)
        _, name = number_rows([column[at] for column in columns])
        return [self.step[at], name, count_before([self.rank[at], self.step[at], name], at)]

    @cached_property
    def _compared(self) -> dict[str, Ints]:
        """By way: the anchor whose time since the one before it includes the way's time in each class."""
        host = np.flatnonzero(self.on_host)
        following = np.arange(len(self.rank))
        following[host[:-1]] = host[1:]
        # A way from the host to the device leaves it after the point where it begins.
        moment = np.where(self.on_host[self.to], self.to, following[self.origin])
        return {name: self.anchor[self.to if name in DEVICE_CLASSES else moment] for name in COMPARED}

    def at_median(self, work: Work, ranks: Sequence[int], peers: Mapping[int, Sequence[int]]) -> Work:
        """The work of each of `ranks` limited to the median of its peers that are not among them, or of all others.

        Compared is the time between two anchors, by class; the ways between them become shorter by the same share.
        """
        number = {rank: number for number, rank in enumerate(self.ranks)}
        slow = {number[rank] for rank in ranks if rank in number}
        changed = {PATH_CLASSES.index(name) for name in COMPARED}
        spent = [time.copy() if kind in changed else time for kind, time in enumerate(work.spent)]
        own_ns = work.own_ns.copy()
        for who in sorted(slow):
            near = {number[peer] for peer in peers.get(self.ranks[who], ()) if peer in number}
            others = sorted(near - slow) or sorted(set(range(len(self.ranks))) - slow)
            if others:
                for kind, ways, of_ways, points, of_points in self._shares(
                    who, tuple(others[:: -(-len(others) // _MOST_PEERS)])
                ):
                    spent[kind][ways] = np.rint(spent[kind][ways] * of_ways)
                    own_ns[points] = np.rint(own_ns[points] * of_points)
        return replace(work, spent=tuple(spent), own_ns=own_ns)

    @cached_property
    def _kept_shares(self) -> dict[tuple[int, tuple[int, ...]], list[_Shares]]:
        """The answers of `_shares`, which depend on the recording alone."""
        return {}

    def _shares(self, who: int, others: tuple[int, ...]) -> list[_Shares]:
        """How a rank's ways and points on the device become shorter at the median of others."""
        if (who, others) in self._kept_shares:
            return self._kept_shares[who, others]
        anchors, of_anchors = self._anchors
        used = np.concatenate([np.arange(*of_anchors[each : each + 2]) for each in sorted((who, *others))])
        compared = _Compared(self.rank[anchors[used]], [column[used] for column in self._place], who, others)
        mine = anchors[used[compared.mine]]
        by_rank, bounds = self.ways_of
        ways, points = (
            by_rank[slice(*bounds[who : who + 2])],
            np.arange(*np.searchsorted(self.rank, (who, who + 1))),
        )
        share = self._unchanged
        shares = self._kept_shares[who, others] = []
        for name in COMPARED:
            kind = PATH_CLASSES.index(name)
            took, usual = self.totals[name][mine], compared.median(self.totals[name][anchors[used]])
            share[mine] = np.where(took > usual, usual / np.maximum(took, 1), 1.0)
            shorter = points[(self.kind[points] == kind) & ~self.on_host[points]]
            of_ways = share[self._compared[name][ways]]
            shares.append(_Shares(kind, ways, of_ways, shorter, share[self.anchor[shorter]]))
        share[mine] = 1.0
        return shares

    @cached_property
    def _unchanged(self) -> Floats:
        """By point, the share of its time that is left: all. Whoever changes it restores it."""
        return np.ones(len(self.rank))

    @cached_property
    def _anchors(self) -> tuple[Ints, Ints]:
        """The anchors, by rank; and where those of each rank begin."""
        anchors = np.flatnonzero(self.anchor == np.arange(len(self.rank)))
        return anchors, np.searchsorted(self.rank[anchors], np.arange(len(self.ranks) + 1))

    @cached_property
    def compute_clock(self) -> ComputeClock:
        return ComputeClock.of(self.segments(), self.ranks)

    @cached_property
    def computing(self) -> tuple[Computing, Computing]:
        """The ways that have compute, and the points that are compute."""
        clock, compute = self.compute_clock, PATH_CLASSES.index("compute")
        ways = np.flatnonzero(self.work.spent[compute])
        points = np.flatnonzero(self.kind == compute)
        to, origin = self.to[ways], self.origin[ways]
        return (
            Computing.of(clock, ways, self.rank[to], self.end[origin], self.start[to]),
            Computing.of(clock, points, self.rank[points], self.start[points], self.end[points]),
        )

    @cached_property
    def ways_of(self) -> tuple[Ints, Ints]:
        """The ways, by rank; and where those of each rank begin."""
        return grouped(self.rank[self.to], len(self.ranks))


class _Shares(NamedTuple):
    """What is left of the time of a class, by way and by point of a rank."""

    kind: int
    ways: Ints
    of_ways: Floats
    points: Ints
    of_points: Floats


class _Compared:
    """Entries that several ranks have at the same place."""

    def __init__(self, rank: Ints, position: Sequence[Ints], who: int, others: Sequence[int]) -> None:
        self.mine = np.flatnonzero(rank == who)
        _, number = number_rows(position)
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
        middle = np.rint(np.median(table, axis=0)).astype(np.int64) if table.size else _NO_INTS
        return middle[self._column.reshape(-1)]


@once_per_run
def reduced_graph(run: Run, scope: Scope) -> ReducedGraph:
    """Of the ranks and steps in scope."""
    whole = replace(scope, steps=None).in_run(run)  # what is kept is of all steps
    graphs = rank_graphs(run, whole)
    ranks = tuple(rank for rank in run.ranks if rank in graphs)
    parts = [graphs[rank] for rank in ranks]
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
    by_class = _by_class(_joined(parts, "classes"), _joined(parts, "spent"))
    spent = tuple(by_class if used.all() else (time[used] for time in by_class))
    all_waits = waits(run)
    collectives, entry = all_waits.rows, _entries(all_waits.rows, ranks, rank, points)
    match, matched = _matched(collectives, entry, points, start, end, inside)
    fixed = _joined(parts, "fixed").astype(bool)
    fixed |= np.bincount(to, minlength=len(rank)) == 0
    steps = tuple(step_numbers(run, scope))
    codes = [np.array([*map(syncs.index, part.syncs), NONE], dtype=np.int64) for part in parts]
    sync = np.concatenate([_NO_INTS, *(code[part.sync] for code, part in zip(codes, parts, strict=True))])[
        used
    ]

    def kernel_shares(chosen: Callable[[str], bool]) -> Floats:
        named, every = compute_time(run, scope, chosen), compute_time(run, scope, lambda name: True)
        return np.array([named.get(rank, 0) / every[rank] if every.get(rank) else 0.0 for rank in ranks])

    graph = ReducedGraph(
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
        anchor=_joined(parts, "anchor") + np.repeat(first[:-1], sizes),
        totals={name: _joined(parts, name) for name in COMPARED},
        inside=inside,
        match=match,
        to=to[used],
        origin=origin[used],
        sync=sync,
        work=Work(spent, end - start, matched.transfer, np.ones(int(used.sum()), dtype=bool)),
        syncs=syncs,
        collectives=matched,
        window=window_of(run, scope, start[inside], end[inside]),
        steps=steps,
        notes=graph_notes(sum(part.lost for part in parts), steps),
        kernel_shares=kernel_shares,
        segments=lambda: segments(run, scope),
        unexplained_ns=sum(part.unexplained_ns for part in parts)
        / (max(len(parts), 1) * max(len(step_numbers(run, whole)), 1)),
    )
    return _with_messages(graph, all_waits, entry)


_NO_INTS = np.empty(0, dtype=np.int64)


def _joined(parts: Sequence[RankGraph], name: str) -> Ints:
    return np.concatenate([_NO_INTS, *(getattr(part, name) for part in parts)])


def _by_class(classes: Ints, spent: Ints) -> Iterator[Ints]:
    """For each class the time of all ways, from the times that are not 0."""
    having = [(classes >> kind) & 1 == 1 for kind in range(len(PATH_CLASSES))]
    counts = np.sum(having, axis=0, dtype=np.int64)
    at = np.cumsum(counts) - counts
    for has in having:
        time = np.zeros(len(classes), dtype=np.int64)
        time[has] = spent[at[has]]
        at += has
        yield time


def _entries(rows: Collectives, ranks: Sequence[int], rank: Ints, points: dict[str, Ints]) -> Ints:
    """By point: its entry in `rows`, or NONE."""
    entry = np.full(len(rank), NONE)
    wanted = np.flatnonzero(points["slice"] != NONE)
    if len(wanted) and len(rows.rank):
        theirs = event_key(rows.rank, rows.segment, rows.slice)
        number = np.array(ranks, dtype=np.int64)[rank[wanted]]
        ours = event_key(number, points["segment"][wanted], points["slice"][wanted])
        order = np.argsort(theirs, kind="stable")
        at = order[np.minimum(np.searchsorted(theirs, ours, sorter=order), len(theirs) - 1)]
        good = theirs[at] == ours
        entry[wanted[good]] = at[good]
    return entry


def _matched(
    rows: Collectives, entry: Ints, points: dict[str, Ints], start: Ints, end: Ints, inside: Mask
) -> tuple[Ints, MatchedCollectives]:
    """By point its match, where at least two ranks meet; and the matches. Sends and receives follow."""
    match = np.full(len(entry), NONE)
    here = np.flatnonzero(inside & (entry != NONE))
    match[here] = np.where(rows.point_to_point, NONE, rows.match)[entry[here]]
    members = np.bincount(match[match != NONE], minlength=1)
    number = np.where(members > 1, np.cumsum(members > 1) - 1, NONE)
    match = np.where(match != NONE, number[match], NONE)
    met = np.flatnonzero(match != NONE)
    order = met[np.lexsort((met, (end - start)[met], match[met]))]  # of equal durations the first
    last = order[starts_group([match[order]])]
    of = entry[last]
    return match, MatchedCollectives(
        transfer=(end - start)[last],
        last=last,
        on_host=points["on_host"][last].astype(bool),
        members=members[members > 1],
        bytes=rows.bytes[of],
        group=rows.group[of],
        kind=rows.kind[of],
    )


def _with_messages(graph: ReducedGraph, all_waits: Waits, entry: Ints) -> ReducedGraph:
    """Split each send and receive in two points, its start and its end: others wait for the start, and its end for
    the starts of others. The point of the start comes before that of the end."""
    rows, peers = all_waits.rows, all_waits.peers
    has_wait = rows.point_to_point & (all_waits.wait != NONE) if len(rows.rank) else np.zeros(0, dtype=bool)
    ends = np.flatnonzero(np.append(has_wait, False)[entry])  # that of NONE is the last
    if len(ends) == 0:
        return graph
    count, matches = len(graph.rank), len(graph.collectives.transfer)
    position = np.argsort(np.concatenate([2 * np.arange(count) + 1, 2 * ends]), kind="stable")
    moved = np.empty(count + len(ends), dtype=np.int64)
    moved[position] = np.arange(len(moved))
    begin_of = np.full(len(rows.rank), NONE)
    begin_of[entry[ends]] = moved[count:]
    end_of = np.full(len(rows.rank), NONE)
    end_of[entry[ends]] = moved[ends]

    def spread(of_ends: Any, of_begins: Any) -> Any:
        return np.concatenate([of_ends, of_begins])[position]

    columns: dict[str, Any] = {
        name: spread(getattr(graph, name), getattr(graph, name)[ends])
        for name in ("rank", "step", "cycle", "kind", "on_host", "inside", "start")
    }
    columns["end"] = spread(graph.end, graph.start[ends])
    columns["anchor"] = spread(moved[graph.anchor], moved[graph.anchor[ends]])
    no_time = np.zeros(len(ends), dtype=np.int64)
    columns["totals"] = {name: spread(time, no_time) for name, time in graph.totals.items()}
    columns["is_collective"] = spread(graph.is_collective, np.zeros(len(ends), dtype=bool))
    columns["fixed"] = spread(graph.fixed & ~np.isin(np.arange(count), ends), graph.fixed[ends])
    # Each message is a collective of its own.
    number = np.full(count, NONE)
    number[ends] = matches + np.arange(len(ends))
    columns["match"] = spread(np.where(number != NONE, number, graph.match), np.full(len(ends), NONE))
    visits = (begin_of[peers.peer] != NONE) & (end_of[peers.entry] != NONE)
    waiting, visitor, shift = end_of[peers.entry[visits]], begin_of[peers.peer[visits]], peers.shift[visits]
    begins = np.full(count, NONE)
    begins[ends] = moved[count:]
    ready = np.concatenate([graph.start[ends], columns["end"][visitor] + shift])
    at = np.concatenate([np.arange(len(ends)), columns["match"][waiting] - matches])
    arrived = np.concatenate([moved[count:], visitor])
    order = np.lexsort((-np.arange(len(at)), ready))  # the latest is written last; of equal ones the first
    last, latest = np.empty(len(ends), dtype=np.int64), np.empty(len(ends), dtype=np.int64)
    last[at[order]], latest[at[order]] = arrived[order], ready[order]
    of = entry[ends]
    matched = graph.collectives
    messages = MatchedCollectives(
        transfer=np.concatenate([matched.transfer, graph.end[ends] - latest]),
        last=np.concatenate([moved[matched.last], last]),
        on_host=np.concatenate([matched.on_host, np.zeros(len(ends), dtype=bool)]),
        members=np.concatenate([matched.members, np.bincount(at, minlength=len(ends))]),
        bytes=np.concatenate([matched.bytes, rows.bytes[of]]),
        group=np.concatenate([matched.group, rows.group[of]]),
        kind=np.concatenate([matched.kind, rows.kind[of]]),
    )
    to = np.where(begins[graph.to] != NONE, begins[graph.to], moved[graph.to])
    used = columns["inside"][np.concatenate([moved[ends], waiting])]
    new_to = np.concatenate([moved[ends], waiting])[used]
    new_origin = np.concatenate([moved[count:], visitor])[used]
    delay = np.concatenate([np.zeros(len(ends), dtype=np.int64), shift])[used]
    nothing = np.zeros(len(delay), dtype=np.int64)
    work = graph.work
    return replace(
        graph,
        **columns,
        to=np.concatenate([to, new_to]),
        origin=np.concatenate([moved[graph.origin], new_origin]),
        sync=np.concatenate([graph.sync, np.full(len(delay), NONE)]),
        work=Work(
            tuple(_longer(time, delay if kind == _GAP else nothing) for kind, time in enumerate(work.spent)),
            columns["end"] - columns["start"],
            messages.transfer,
            np.concatenate([work.waits, np.ones(len(delay), dtype=bool)]),
        ),
        collectives=messages,
    )


def _longer(time: Ints, more: Ints) -> Ints:
    """One after the other. Most classes have no time in most runs: an array of zeros takes no memory."""
    if time.any() or more.any():
        return np.concatenate([time, more])
    return np.zeros(len(time) + len(more), dtype=np.int64)


_COMM, _HOST, _UNRECORDED, _GAP = map(PATH_CLASSES.index, ("comm", "host", "unrecorded", "gap"))

Piece = tuple[int, int, str | None]
"""Class, rank, and the kind of a collective."""


def reduced_path(graph: ReducedGraph) -> Counter[Piece]:
    """The time of each piece on the path, from the last end back to the start of the window."""
    time: Counter[Piece] = Counter()
    inside = np.flatnonzero(graph.inside)
    if not len(inside):
        return time
    low, high = graph.window
    first_way = np.full(len(graph.rank), NONE)
    first_way[graph.to[::-1]] = np.arange(len(graph.to))[::-1]
    matched = graph.collectives
    spent = graph.work.spent
    at = int(inside[graph.end[inside].argmax()])
    now = high
    for _ in range(len(graph.rank)):  # in case of a cycle
        if now <= low:
            break
        match = int(graph.match[at])
        arrived = int(matched.last[match]) if match != NONE else at
        name = KINDS[matched.kind[match]] if match != NONE else None
        begun = max(int(graph.start[arrived]), low)
        time[_COMM if match != NONE else int(graph.kind[at]), int(graph.rank[at]), name] += now - begun
        now, at = begun, arrived
        way = int(first_way[at])
        if way == NONE:
            break
        origin, rank = int(graph.origin[way]), int(graph.rank[at])
        if not graph.inside[origin]:  # the rest of the way to the start of the window is not known by class
            break
        begun = int(graph.end[origin])
        for kind, times in enumerate(spent):
            took = int(times[way])
            # Of a way that begins before the window, each class counts by the same share.
            time[kind, rank, None] += took if begun >= low else took * (now - low) // (now - begun)
        now, at = begun, origin
    if now > low:
        # A rank that begins later than this was recorded later: nothing is known of its time before.
        kind = _UNRECORDED if now - low > SESSION_GAP_NS else _HOST
        time[kind, int(graph.rank[at]), None] += now - low
    return +time


_NEVER = -(1 << 62)


class ReducedReplay:
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
        self._stays = graph.start[stays]
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

    def ends(self, work: Work) -> Ints:
        """The end of each point in the window, in the order of `_points`."""
        weight = work.spent[0].copy()
        for times in work.spent[1:]:
            weight += times
        weight[~work.waits] = _NEVER
        weight = np.concatenate([weight[self._moves], self._stays])[self._order]
        match = self.graph.match[self._heads]
        transfer = np.append(work.transfer, 0)[match]  # of NONE the last, which is not used
        took = np.where(match != NONE, transfer, work.own_ns[self._heads])
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
        return float(last.sum()) / np.count_nonzero(np.bincount(self.graph.rank[self._points]))
