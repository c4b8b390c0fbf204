"""The graph of a run: the graphs of its ranks, joined at their matched collectives.

Points are pieces of work, on the device or on the host; a way leads to a point from each that it waits for, with the
time that it spends in each class. All times are on the axis of the run.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np

from rankscope.analysis.core.cache import once_per_run
from rankscope.analysis.core.collective_waits import Waits, waits
from rankscope.analysis.core.grouping import joined
from rankscope.analysis.core.intervals import Ints
from rankscope.analysis.core.scope import Scope, step_numbers
from rankscope.analysis.core.step_times import periods
from rankscope.analysis.graph.events import NONE, PATH_CLASSES, Mask, entries_of, event_key
from rankscope.analysis.graph.reduce import rank_graphs
from rankscope.collective_kinds import BATCHED, KINDS, POINT_TO_POINT
from rankscope.records import dataclass
from rankscope.store.arrays import starts_group
from rankscope.timeline.collectives.entries import Collectives
from rankscope.timeline.run import Run

WORK_CLASSES = ("compute", "copy", "host", "dataloader")
"""Classes in which pieces are compared: the others are waiting, or delays that a rank does not choose."""
_HOST, _DATALOADER, _GAP = map(PATH_CLASSES.index, ("host", "dataloader", "gap"))


@dataclass(frozen=True)
class MatchedCollectives:
    """The matched collectives; their members are points. A send or receive is one of its own: its kernel or its start
    on the host, and those that it may wait for, which arrive at it but do not end with it."""

    transfer: Ints
    last: Ints
    """The member that arrived last."""
    on_host: Mask
    members: Ints
    """Number of nodes in this graph."""
    bytes: Ints
    group: Ints
    kind: Ints

    @property
    def is_message(self) -> Mask:
        """Of sends and receives."""
        return np.isin(self.kind, [KINDS.index(kind) for kind in (*POINT_TO_POINT, BATCHED)])


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
    begins_ns: Ints
    """By point that stays where it is: how much later it is than recorded."""


@dataclass(frozen=True)
class Graph:
    """Points of all ranks, by rank and start, and the ways between them. Ranks are indices into `ranks`."""

    ranks: tuple[int, ...]
    names: tuple[str, ...]
    rank: Ints
    step: Ints
    cycle: Ints
    launched: Ints
    start: Ints
    end: Ints
    kind: Ints
    name: Ints
    """Index into `names`."""
    on_host: Mask
    is_collective: Mask
    marks: Mask
    """Where a step begins on the host."""
    fixed: Mask
    """Stays where it is: a recording begins there, or nothing is known before it."""
    inside: Mask
    """In the window. Other points stay where they are."""
    match: Ints
    """Number of its collective where at least two ranks meet, or of its send or receive; or NONE."""
    to: Ints
    origin: Ints
    is_sync: Mask
    """By way: whether it ends with a synchronising call, which has the name of the point."""
    work: Work
    """As recorded."""
    collectives: MatchedCollectives
    window: tuple[int, int]
    scope: Scope
    steps: tuple[int, ...]
    notes: tuple[str, ...]
    unexplained_ns: float
    """How much later GPU events of a rank start than their causes explain, per step; the mean over ranks and all
    steps."""

    @cached_property
    def host_end(self) -> Ints:
        """By way: the point up to which its time on the host is one small piece."""
        host = np.flatnonzero(self.on_host)
        following = np.arange(len(self.rank))
        following[host[:-1]] = host[1:]
        # A way from the host to the device leaves it after the point where it begins.
        return np.where(self.on_host[self.to], self.to, following[self.origin])

    @cached_property
    def is_alone(self) -> Mask:
        """By rank: it has no device."""
        alone = np.ones(len(self.ranks), dtype=bool)
        alone[self.rank[~self.on_host]] = False
        return alone

    @cached_property
    def is_strange(self) -> Mask:
        """By point: work on the device of which no launch was recorded, unlike that of others of its rank. Nothing is
        known of its causes."""
        on_device = ~self.on_host & (self.match == NONE)
        is_known = on_device & (self.launched != self.start)
        strange: Mask = (
            on_device
            & ~is_known
            & (np.bincount(self.rank[is_known], minlength=len(self.ranks))[self.rank] > 0)
        )
        return strange

    def small(self, kind: int) -> Ints:
        """By point, the time in small pieces of this class since the point before it on its stream or on the host."""
        time = np.zeros(len(self.rank), dtype=np.int64)
        np.maximum.at(time, self.to, self.work.spent[kind])
        return np.where((self.on_host == (kind in (_HOST, _DATALOADER))) & ~self.is_strange, time, 0)


@once_per_run
def graph_of(run: Run, scope: Scope) -> Graph:
    """Of the ranks and steps in scope."""
    whole = replace(scope, steps=None).in_run(run)  # what is kept is of all steps
    graphs = rank_graphs(run, whole)
    ranks = tuple(rank for rank in run.ranks if rank in graphs)
    parts = [graphs[rank] for rank in ranks]
    sizes = [len(part.start) for part in parts]
    first = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    shift = np.repeat([run.origin_ns(rank) for rank in ranks], sizes).astype(np.int64)
    points: dict[str, Any] = {name: joined(parts, name) for name in _COLUMNS}
    for name in ("launched", "start", "end"):
        points[name] += shift
    rank = np.repeat(np.arange(len(ranks)), sizes)
    inside = scope.mask(points["step"])
    if scope.steps is not None:
        # The first step of a rank begins when it did.
        marks = np.flatnonzero(inside & (points["marks"] == 1))
        points["fixed"][marks[starts_group([rank[marks]])]] = 1
    to = np.repeat(np.arange(len(rank)), joined(parts, "ways"))
    origin = joined(parts, "origin") + np.repeat(first[:-1], [len(part.origin) for part in parts])
    names = tuple(sorted({name for part in parts for name in part.names}))
    number = {name: at for at, name in enumerate(names)}
    codes = [np.array([number[name] for name in part.names], dtype=np.int64) for part in parts]
    points["name"] = np.concatenate(
        [first[:0], *(code[part.name] for code, part in zip(codes, parts, strict=True))]
    )
    all_waits = waits(run)
    rows, entry = all_waits.rows, np.full(len(rank), NONE)
    known = np.flatnonzero(points["slice"] != NONE)
    of_rank = np.array(ranks, dtype=np.int64)[rank[known]]
    entry[known] = entries_of(
        event_key(rows.rank, rows.segment, rows.slice),
        event_key(of_rank, points["segment"][known], points["slice"][known]),
    )
    start, end = points["start"], points["end"]
    match, matched = _matched(rows, entry, points, start, end, inside)
    steps = tuple(step_numbers(run, scope))
    graph = Graph(
        ranks=ranks,
        names=names,
        rank=rank,
        is_collective=points.pop("slice") != NONE,
        **{name: points.pop(name).astype(bool) for name in ("on_host", "marks")},
        fixed=points.pop("fixed").astype(bool) | (np.bincount(to, minlength=len(rank)) == 0),
        **{name: values for name, values in points.items() if name != "segment"},
        inside=inside,
        match=match,
        to=to,
        origin=origin,
        is_sync=joined(parts, "is_sync").astype(bool),
        work=Work(
            tuple(_by_class(joined(parts, "classes"), joined(parts, "spent"))),
            end - start,
            matched.transfer,
            np.ones(len(to), dtype=bool),
            np.zeros(len(rank), dtype=np.int64),
        ),
        collectives=matched,
        window=window_of(run, scope, start[inside], end[inside]),
        scope=scope,
        steps=steps,
        notes=_notes(sum(part.lost for part in parts), steps),
        unexplained_ns=sum(part.unexplained_ns for part in parts)
        / (max(len(parts), 1) * max(len(step_numbers(run, whole)), 1)),
    )
    return _with_messages(graph, all_waits, entry)


_COLUMNS = (
    "segment", "slice", "step", "cycle", "launched", "start", "end", "kind", "on_host", "marks", "fixed",
)  # fmt: skip


def window_of(run: Run, scope: Scope, starts: Ints, ends: Ints) -> tuple[int, int]:
    """From the earliest begin of a step to the latest end of one; without steps, of all nodes."""
    steps = periods(run, scope)
    if steps.has_steps and scope.steps is not None:
        starts, ends = steps.intervals
    return (int(starts.min()), int(ends.max())) if len(ends) else (0, 0)


def _notes(lost: int, steps: tuple[int, ...]) -> tuple[str, ...]:
    """What is not known of a graph; `lost` GPU events have no launch."""
    notes = []
    if lost:
        notes.append(
            f"{lost:,} GPU event{'s have' if lost > 1 else ' has'} no launch in the file: host time before "
            f"{'them' if lost > 1 else 'it'} is not known"
        )
    if not steps:
        notes.append("no steps: the window is the whole file (call profiler.step() in the loop)")
    return tuple(notes)


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


def _with_messages(graph: Graph, all_waits: Waits, entry: Ints) -> Graph:
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
        for name in ("rank", "step", "cycle", "launched", "kind", "name", "on_host", "inside", "start")
    }
    columns["end"] = spread(graph.end, graph.start[ends])
    no_time = np.zeros(len(ends), dtype=np.int64)
    for name in ("is_collective", "marks"):
        columns[name] = spread(getattr(graph, name), no_time.astype(bool))
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
    new_to = np.concatenate([moved[ends], waiting])
    new_origin = np.concatenate([moved[count:], visitor])
    delay = np.concatenate([no_time, shift])
    nothing = np.zeros(len(delay), dtype=np.int64)
    work = graph.work
    return replace(
        graph,
        **columns,
        to=np.concatenate([to, new_to]),
        origin=np.concatenate([moved[graph.origin], new_origin]),
        is_sync=np.concatenate([graph.is_sync, np.zeros(len(delay), dtype=bool)]),
        work=Work(
            tuple(_longer(time, delay if kind == _GAP else nothing) for kind, time in enumerate(work.spent)),
            columns["end"] - columns["start"],
            messages.transfer,
            np.concatenate([work.waits, np.ones(len(delay), dtype=bool)]),
            np.zeros(len(columns["start"]), dtype=np.int64),
        ),
        collectives=messages,
    )


def _longer(time: Ints, more: Ints) -> Ints:
    """One after the other. Most classes have no time in most runs: an array of zeros takes no memory."""
    if time.any() or more.any():
        return np.concatenate([time, more])
    return np.zeros(len(time) + len(more), dtype=np.int64)
