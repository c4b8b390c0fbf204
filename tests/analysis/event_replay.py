"""The replay of a run in the plainest way, event by event: what the one of its graph must agree with.

One pass over the nodes in the order in which they happened, one rank at a time, until that rank has to wait for a
collective or a message that the others have not reached.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, replace
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from rankscope.analysis.core.collective_waits import Peers, waits
from rankscope.analysis.core.intervals import Ints
from rankscope.analysis.core.scope import Scope, step_numbers
from rankscope.analysis.graph import reduce
from rankscope.analysis.graph.build import build_graph
from rankscope.analysis.graph.events import (
    HOST_CLASSES,
    NONE,
    EventGraph,
    HostNodes,
    Mask,
    follow,
)
from rankscope.analysis.graph.graph import (
    Graph,
    MatchedCollectives,
    Work,
    _by_class,
    _matched,
    graph_of,
    window_of,
)
from rankscope.analysis.graph.reduce import RankGraph, recording_cycles, reduced
from rankscope.records import dataclass
from rankscope.timeline.collectives.entries import Collectives
from rankscope.timeline.run import Run

_NEVER = -(1 << 62)


@dataclass(frozen=True)
class Visits:
    """Sends and receives that arrive at those of another rank: kernels, or starts on the host."""

    node: Ints
    """Device nodes first, then host nodes."""
    at: Ints
    """The number of the send or receive in MatchedCollectives."""
    shift: Ints
    """Added to the start of the node, it is the time on the clock of the other rank."""


_NO_INTS = np.empty(0, dtype=np.int64)
NO_VISITS = Visits(_NO_INTS, _NO_INTS, _NO_INTS)


@dataclass(frozen=True)
class RunEvents(EventGraph):
    """The events of all ranks, joined: nodes of one collective have its number. Of `collectives`, `last` is a node."""

    collectives: MatchedCollectives
    window: tuple[int, int]
    steps: tuple[int, ...]
    opened_ns: Ints
    """By host node: how long the host collective takes on this rank that starts there; else 0."""
    visits: Visits = NO_VISITS

    @property
    def meets(self) -> Mask:
        """By collective: whether an end is the arrival of the last member plus the transfer."""
        matched = self.collectives
        meets: Mask = (matched.members > 1) | (matched.is_message & (matched.members > 0))
        return meets


def events_of(run: Run, scope: Scope) -> RunEvents:
    """The events in scope."""
    all_waits = waits(run, scope)
    rows, count = all_waits.rows, len(all_waits.transfer)
    # The two ends of a message do not end together: each has a number, and may belong to several messages.
    match = np.where(rows.point_to_point, NONE, rows.match)
    messages = np.flatnonzero(rows.point_to_point & (all_waits.wait != NONE))
    match[messages] = count + np.arange(len(messages))
    rows, count = replace(rows, match=match), count + len(messages)
    ranks = tuple(scope.ranks_in(run))
    known = np.flatnonzero(np.isin(rows.rank, ranks) & (match != NONE))
    mine = rows.pick(np.isin(np.arange(len(match)), known))
    graph = build_graph(run, scope, mine)
    number = np.full(max(ranks, default=0) + 1, NONE)
    number[list(ranks)] = np.arange(len(ranks))
    on_host = mine.pick(~mine.on_device)
    opened_ns = _host_durations(on_host, number, graph.host)
    meetings = _matched_collectives(rows, count, opened_ns, graph)
    meetings, visits = _with_visits(meetings, rows, graph, all_waits.peers)
    device, host = graph.device, graph.host
    starts, ends = (
        np.concatenate([device.start, host.time]),
        np.concatenate([device.end, host.time]),
    )
    window = window_of(run, scope, starts, ends)
    return RunEvents(
        graph.ranks, graph.names, device, host, graph.lags, meetings, window, tuple(step_numbers(run, scope)),
        opened_ns, visits,
    )  # fmt: skip


def _matched_collectives(
    rows: Collectives, count: int, opened_ns: Ints, graph: EventGraph
) -> MatchedCollectives:
    """For each matched collective the node that arrived last (with the shortest duration) and the transfer time."""
    device, host = graph.device, graph.host
    last, members = np.full(count, NONE), np.zeros(count, dtype=np.int64)
    least = np.full(count, np.iinfo(np.int64).max)
    of_host = np.zeros(count, dtype=bool)
    sizes, group, kind = (np.full(count, NONE) for _ in range(3))
    matched = rows.match != NONE
    sizes[rows.match[matched]] = rows.bytes[matched]
    group[rows.match[matched]], kind[rows.match[matched]] = rows.group[matched], rows.kind[matched]
    nodes = np.flatnonzero(device.match != NONE)
    opened = np.flatnonzero(host.opens != NONE)
    for which, at, took, here in (
        (nodes, device.match[nodes], (device.end - device.start)[nodes], False),
        (opened, host.opens[opened], opened_ns[opened], True),
    ):
        if len(which) == 0:
            continue
        np.add.at(members, at, 1)
        order = np.lexsort((-which, -took))  # the shortest is written last; of equal ones the first
        better = took[order] <= least[at[order]]
        last[at[order][better]] = which[order][better]
        np.minimum.at(least, at, took)
        of_host[at] = here
    transfer = np.where(least == np.iinfo(np.int64).max, 0, least)
    return MatchedCollectives(transfer, last, of_host, members, sizes, group, kind)


def _host_durations(on_host: Collectives, number: Ints, host: HostNodes) -> Ints:
    columns = (number[on_host.rank], on_host.match, on_host.duration)
    took = {(rank, match): time for rank, match, time in zip(*(c.tolist() for c in columns), strict=True)}
    opened = zip(host.rank.tolist(), host.opens.tolist(), strict=True)
    return np.array([took.get(key, 0) for key in opened], dtype=np.int64)


def _with_visits(
    matched: MatchedCollectives, rows: Collectives, graph: EventGraph, peers: Peers
) -> tuple[MatchedCollectives, Visits]:
    """The sends and receives that others wait for, and the transfers of these without the waiting."""
    device, host = graph.device, graph.host
    count, devices = len(matched.transfer), len(device.rank)
    node_of = np.full(count, NONE)
    inside, opened = np.flatnonzero(device.match != NONE), np.flatnonzero(host.opens != NONE)
    node_of[device.match[inside]], node_of[host.opens[opened]] = inside, devices + opened
    start = np.concatenate([device.start, host.time])
    at, node = rows.match[peers.entry], node_of[rows.match[peers.peer]]
    both = (node != NONE) & (node_of[at] != NONE) if count else np.zeros(len(at), dtype=bool)
    visits = Visits(node[both], at[both], peers.shift[both])
    members, last, transfer = matched.members.copy(), matched.last.copy(), matched.transfer.copy()
    on_host = matched.on_host.copy()
    np.add.at(members, visits.at, 1)
    ready = start[visits.node] + visits.shift
    order = np.argsort(ready, kind="stable")  # the latest is written last
    order = order[ready[order] > start[node_of[visits.at[order]]]]
    of = visits.at[order]
    on_host[of] = visits.node[order] >= devices
    last[of] = visits.node[order] - np.where(on_host[of], devices, 0)
    transfer[of] = np.maximum(start[node_of[of]] + matched.transfer[of] - ready[order], 0)
    return replace(matched, members=members, last=last, transfer=transfer, on_host=on_host), visits


@dataclass(frozen=True)
class Durations:
    """The durations that a scenario may change; all times follow from them."""

    device: Ints
    """Of each device node; for collectives see transfer."""
    host: Ints
    """Host time before each host node; of one that begins a recording, by how much it begins later."""
    transfer: Ints
    """Of each collective, from the arrival of the last rank."""
    waits: Mask
    """Of each host node: whether it waits for the device node that it waited for."""


@dataclass(frozen=True)
class Times:
    """Start and end of each device node, and the time of each host node."""

    start: Ints
    end: Ints
    host: Ints

    @classmethod
    def as_recorded(cls, events: EventGraph) -> Times:
        return cls(events.device.start, events.device.end, events.host.time)

    def __iter__(self) -> Iterator[list[int]]:
        return iter([self.start.tolist(), self.end.tolist(), self.host.tolist()])

    def length(self, graph: EventGraph) -> float:
        """From the first step of a rank to its last event, by its own clock, cycle by cycle; the longest of all
        ranks."""
        on_host, on_device, cycles = recording_cycles(graph)
        groups = len(graph.ranks) * cycles
        marks = (graph.host.step != NONE) & ~graph.host.is_end
        first = np.full(groups, np.iinfo(np.int64).max)
        last = np.full(groups, np.iinfo(np.int64).min)
        if marks.any():
            np.minimum.at(first, on_host[marks], self.host[marks])
        else:
            np.minimum.at(first, on_host, self.host)
            np.minimum.at(first, on_device, self.start)
        events = (graph.host.step != NONE) | ~graph.host.is_end  # not the end of a recording
        np.maximum.at(last, on_host[events], self.host[events])
        np.maximum.at(last, on_device, self.end)
        there = (first != np.iinfo(np.int64).max) & (last != np.iinfo(np.int64).min)
        took = np.where(there, last - np.where(there, first, 0), 0).reshape(len(graph.ranks), cycles)
        return float(took.sum(axis=1).max())


def begins_recording(graph: EventGraph) -> Mask:
    """By host node: whether nothing is known before it. A cycle begins when it did, however long the one before takes:
    what lies between is not known."""
    begins: Mask = (graph.host.before == NONE) | (graph.host.kind == HOST_CLASSES.index("unrecorded"))
    return begins


def recorded(graph: RunEvents) -> Durations:
    """The recorded durations: replaying them gives the recorded times."""
    host = graph.host
    steps = np.where(begins_recording(graph), 0, host.time - follow(host.before, host.time, 0))
    waits = np.ones(len(host.time), dtype=bool)
    return Durations(graph.device.end - graph.device.start, steps, graph.collectives.transfer.copy(), waits)


def graph_of_events(events: RunEvents) -> Graph:
    """The graph of events that are of no run, without messages: all are points."""
    device, host = events.device, events.host
    inside, opened = np.flatnonzero(device.match != NONE), np.flatnonzero(host.opens != NONE)
    # Each member of a collective is an entry of its own.
    match = np.concatenate([device.match[inside], host.opens[opened]])
    entry = np.arange(len(match))
    rank = np.concatenate([device.rank[inside], host.rank[opened]])
    of_rank = {key: at for at, key in enumerate(zip(rank.tolist(), match.tolist(), strict=True))}
    closes = [of_rank.get(key, NONE) for key in zip(host.rank.tolist(), host.match.tolist(), strict=True)]
    of_device, of_host = np.full(len(device.rank), NONE), np.full(len(host.rank), NONE)
    of_device[inside], of_host[opened] = entry[: len(inside)], entry[len(inside) :]
    alone = EventGraph(
        events.ranks,
        events.names,
        replace(device, match=of_device),
        replace(host, opens=of_host, match=np.array(closes, dtype=np.int64)),
        events.lags,
    )
    rows: Any = SimpleNamespace(
        rank=rank, segment=0 * entry, slice=entry, match=match, point_to_point=entry < 0,
        end=np.concatenate([device.end[inside], (host.time + events.opened_ns)[opened]]),
        **dict.fromkeys(("bytes", "group", "kind"), entry * 0),
    )  # fmt: skip
    graphs = reduced(alone, rows, True, [0] * len(events.ranks))
    ranks = tuple(graphs)
    sizes = [len(graphs[each].start) for each in ranks]
    first = np.cumsum([0, *sizes])
    columns = {
        field.name: np.concatenate([getattr(graphs[each], field.name) for each in ranks])
        for field in fields(RankGraph)
        if field.name not in ("names", "lost", "unexplained_ns")
    }
    columns["name"] = np.concatenate(
        [np.array([events.names.index(name) for name in part.names])[part.name] for part in graphs.values()]
    )
    to = np.repeat(np.arange(first[-1]), columns.pop("ways"))
    origin = columns.pop("origin") + np.repeat(first[:-1], [len(graphs[each].origin) for each in ranks])
    columns.pop("segment")
    entries, start, end = columns.pop("slice"), columns["start"], columns["end"]
    everywhere = np.ones(first[-1], dtype=bool)
    number, matched = _matched(rows, entries, columns, start, end, everywhere)
    spent = tuple(_by_class(columns.pop("classes"), columns.pop("spent")))
    flags = {name: columns.pop(name).astype(bool) for name in ("on_host", "marks", "is_sync")}
    fixed = columns.pop("fixed").astype(bool) | (np.bincount(to, minlength=first[-1]) == 0)
    return Graph(
        ranks=ranks, names=tuple(events.names), rank=np.repeat(np.arange(len(ranks)), sizes), **columns, **flags,
        is_collective=entries != NONE, fixed=fixed, inside=everywhere, match=number, to=to, origin=origin,
        work=Work(spent, end - start, matched.transfer, np.ones(len(to), dtype=bool), np.zeros_like(start)),
        collectives=matched, window=events.window, scope=Scope(), steps=(), notes=(), unexplained_ns=0,
    )  # fmt: skip


def with_few_points(run: Run) -> Run:
    """Makes its graph with as few points as those of large runs have."""
    run.from_events = True
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reduce, "is_large", lambda run: True)
        patch.setattr(reduce, "_LARGEST", 0)
        patch.setattr(reduce, "_LEAST_OF_STEP", 0)
        graph_of(run, Scope().in_run(run))
    return run


def nodes_of(events: RunEvents, graph: Graph) -> Ints:
    """By node, device nodes first: its point in the graph, of which each is one."""
    device, host = events.device, events.host
    rank, start = np.concatenate([device.rank, host.rank]), np.concatenate([device.start, host.time])
    order = np.lexsort((start, rank))
    # A message has two points, of which the first is its start.
    is_message = np.append(graph.collectives.is_message, False)
    points = np.delete(np.arange(len(graph.rank)), np.flatnonzero(is_message[graph.match]) - 1)
    assert (graph.start[points] == start[order]).all()
    point = np.empty(len(order), dtype=np.int64)
    point[order] = points
    return point


def durations_of(events: RunEvents, graph: Graph, work: Work) -> Durations:
    """The durations of the events, where a scenario has changed the work of their graph."""
    point, devices = nodes_of(events, graph), len(events.device.rank)
    durations = recorded(events)
    own_ns, match = work.own_ns[point], graph.match[point]
    transfer = durations.transfer.copy()
    for of_node, took in ((events.device.match, own_ns[:devices]), (events.host.opens, own_ns[devices:])):
        transfer[of_node[of_node != NONE]] = took[of_node != NONE]
    met = np.flatnonzero(match != NONE)
    number = np.concatenate([events.device.match, events.host.opens])[met]
    transfer[number] = work.transfer[match[met]]
    before = events.host.before
    ways = {key: way for way, key in enumerate(zip(graph.to.tolist(), graph.origin.tolist(), strict=True))}
    time, waits = durations.host.copy(), durations.waits.copy()
    starts = begins_recording(events)
    time[starts] = work.begins_ns[point[devices:]][starts]
    chained = (before != NONE) & ~starts
    for node in np.flatnonzero(chained).tolist():
        way = ways.get((int(point[devices + node]), int(point[devices + before[node]])))
        if way is not None:
            time[node] = sum(int(spent[way]) for spent in work.spent)
    point_of = np.full(len(graph.rank), NONE)
    point_of[point] = np.arange(len(point))
    gone = point_of[graph.to[~work.waits]] - devices
    waits[gone] = False
    return Durations(own_ns[:devices], time, transfer, waits)


class EventReplay:
    """Plain lists: reading single elements of an array is slow."""

    def __init__(self, graph: RunEvents) -> None:
        self.graph = graph
        device = graph.device
        launch, stream, other = graph.constraints()
        latest = np.maximum(np.maximum(launch, stream), other)
        caused = (device.launch != NONE) | (device.before != NONE) | (device.other != NONE)
        # Without a cause, an event starts when it did.
        self._later = np.where(caused, device.start - latest, device.start).tolist()
        self._lags = [
            getattr(graph.lags, name)[device.rank].tolist() for name in ("launch", "stream", "other")
        ]
        self._causes = [array.tolist() for array in (device.launch, device.before, device.other)]
        meets = np.append(graph.meets, False)  # that of NONE is the last
        self._meets = np.where(meets[device.match], device.match, NONE).tolist()
        self._visits: dict[int, list[tuple[int, int]]] = {}
        visits = graph.visits
        for node, at, shift in zip(*(array.tolist() for array in vars(visits).values()), strict=True):
            self._visits.setdefault(node, []).append((at, shift))
        self._old_host = graph.host.time.tolist()
        self._prepare_host(graph)
        self._prepare_collectives(graph)
        self._queues = _queues(graph)

    def _prepare_host(self, graph: RunEvents) -> None:
        host = graph.host
        self._target, lag = graph.sync_targets
        self._waits, self._sync_lag = (host.target != NONE).tolist(), lag.tolist()
        self._host_before = np.where(begins_recording(graph), NONE, host.before).tolist()
        self._closes, self._opens = host.match.tolist(), host.opens.tolist()

    def _prepare_collectives(self, graph: RunEvents) -> None:
        """The offset of each member's end from the end of the collective: clock differences and time to return."""
        device, host, matched = graph.device, graph.host, graph.collectives
        count = len(matched.transfer)
        done = np.zeros(count, dtype=np.int64)
        has_last = matched.last != NONE
        on_device, on_host = has_last & ~matched.on_host, has_last & matched.on_host
        done[on_device] = device.end[matched.last[on_device]]
        done[on_host] = host.time[matched.last[on_host]] + matched.transfer[on_host]
        is_message = np.append(matched.is_message, False)
        alone = np.flatnonzero(is_message[device.match])
        done[device.match[alone]] = device.end[alone]
        begun = np.flatnonzero(is_message[host.opens])
        done[host.opens[begun]] = host.time[begun]
        visits = graph.visits
        times = np.concatenate([device.start, host.time])
        np.maximum.at(
            done, visits.at, times[visits.node] + visits.shift
        )  # of kernels never later than the end
        done[host.opens[begun]] += matched.transfer[host.opens[begun]]
        self._shift = (device.end - done[np.maximum(device.match, 0)] if count else device.end).tolist()
        closing = np.where(host.match != NONE, host.time - done[np.maximum(host.match, 0)] if count else 0, 0)
        self._close_shift = closing.tolist()
        # The start of a host collective gets the offset of its end on the same rank.
        opening = np.zeros(len(host.time), dtype=np.int64)
        together = np.flatnonzero((host.opens != NONE) & ~is_message[host.opens])
        ended = host.time[together] + graph.opened_ns[together]
        opening[together] = ended - done[host.opens[together]]
        self._open_shift = opening.tolist()
        self._members = matched.members.tolist()

    def length(self, durations: Durations) -> float:
        times = self.play(durations)
        assert times is not None  # its dependencies are those of any other replay
        return times.length(self.graph)

    def play(self, durations: Durations) -> Times | None:
        """The times with these durations; None when ranks wait for each other in a cycle."""
        hosts = len(self._old_host)
        state = _State(self, durations)
        at = [0] * len(self._queues)
        moved = True
        while moved:
            moved = False
            for number, queue in enumerate(self._queues):
                reached = state.play(queue, at[number], hosts)
                moved |= reached > at[number]
                at[number] = reached
        unfinished = any(reached < len(queue) for reached, queue in zip(at, self._queues, strict=True))
        if unfinished or None in state.end:
            return None
        return Times(*(np.array(values, dtype=np.int64) for values in (state.start, state.end, state.host)))


def _queues(graph: RunEvents) -> list[list[int]]:
    """The nodes of each rank in the order in which they happened: host nodes first, then device nodes."""
    hosts = len(graph.host.time)
    time = np.concatenate([graph.host.time, graph.device.start])
    rank = np.concatenate([graph.host.rank, graph.device.rank])
    is_device = np.arange(len(time)) >= hosts
    order = np.lexsort((np.arange(len(time)), is_device, time, rank))
    bounds = np.searchsorted(rank[order], np.arange(len(graph.ranks) + 1))
    return [order[low:high].tolist() for low, high in pairwise(bounds.tolist())]


class _State:
    """One replay: the times that are known so far."""

    def __init__(self, replay: EventReplay, durations: Durations) -> None:
        self.fixed = replay
        self.took, self.steps = durations.device.tolist(), durations.host.tolist()
        self.transfer = durations.transfer.tolist()
        self.target = np.where(durations.waits, replay._target, NONE).tolist()
        count = len(self.transfer)
        self.arrived, self.latest = [0] * count, [np.iinfo(np.int64).min // 2] * count
        self.done: list[int | None] = [None] * count
        self.inside: list[list[int]] = [[] for _ in range(count)]
        self.start: list[int | None] = [None] * len(self.took)
        self.end: list[int | None] = [None] * len(self.took)
        self.host: list[int | None] = [None] * len(self.steps)

    def play(self, queue: list[int], at: int, hosts: int) -> int:
        """Go on with a rank from here until it must wait for another; returns how far it got."""
        play_host, play_device = self._play_host, self._play_device
        while at < len(queue):
            node = queue[at]
            if not (play_host(node) if node < hosts else play_device(node - hosts)):
                break
            at += 1
        return at

    def _play_device(self, node: int) -> bool:
        """False when the time of one of its causes is not known yet."""
        fixed, end = self.fixed, self.end
        launch, before, other = fixed._causes
        lags = fixed._lags
        first = _NEVER
        if (cause := launch[node]) != NONE:
            when = self.host[cause]
            if when is None:
                return False
            first = when + lags[0][node]
        if (cause := before[node]) != NONE:
            when = end[cause]
            if when is None:
                return False
            if (when := when + lags[1][node]) > first:
                first = when
        if (cause := other[node]) != NONE:
            when = end[cause]
            if when is None:
                return False
            if (when := when + lags[2][node]) > first:
                first = when
        started = fixed._later[node] if first == _NEVER else first + fixed._later[node]
        self.start[node] = started
        match = fixed._meets[node]
        if match == NONE:
            end[node] = started + self.took[node]
        else:
            self.inside[match].append(node)
            self._arrive(match, started - fixed._shift[node])
        if node in fixed._visits:
            for at, shift in fixed._visits[node]:
                self._arrive(at, started + shift)
        return True

    def _play_host(self, node: int) -> bool:
        fixed = self.fixed
        if (preceding := fixed._host_before[node]) == NONE:
            now: int = fixed._old_host[node] + self.steps[node]
        else:
            before = self.host[preceding]
            if before is None:
                return False
            if (closes := fixed._closes[node]) != NONE:
                done = self.done[closes]
                if done is None:
                    return False
                now = max(before, done + fixed._close_shift[node])
            elif (target := self.target[node]) != NONE:
                ended = self.end[target]
                if ended is None:
                    return False
                chain = before if fixed._waits[node] else before + self.steps[node]
                now = max(chain, ended + fixed._sync_lag[node])
            else:
                now = before + self.steps[node]
        self.host[node] = now
        if (opens := fixed._opens[node]) != NONE:
            self._arrive(opens, now - fixed._open_shift[node])
            for at, shift in fixed._visits.get(node + len(self.took), ()):
                self._arrive(at, now + shift)
        return True

    def _arrive(self, match: int, when: int) -> None:
        self.arrived[match] += 1
        self.latest[match] = max(self.latest[match], when)
        if self.arrived[match] == self.fixed._members[match]:
            done = self.latest[match] + self.transfer[match]
            self.done[match] = done
            for node in self.inside[match]:
                self.end[node] = done + self.fixed._shift[node]
