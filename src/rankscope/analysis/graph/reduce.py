"""The graph of each rank, made from its events and kept in the store.

Points are the nodes that it keeps: those where a way can go on along the host or along the device, or can wait for
something else. Between two of them there is only the work of one stream or of the host, so that the edges are the ways
that a replay may need, with the time that each spends in each class. Of the ways that leave the host at one of the
launches between two points, those are kept that take longest as recorded, and with kernels twice as fast.

The longest pieces of work are points of their own, so that a change meets them and not what lies around them. Where a
run is small, all its events are.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from rankscope.analysis.core.intervals import Ints
from rankscope.analysis.core.rollups import chunks, is_large, kept_per_rank
from rankscope.analysis.core.scope import Scope
from rankscope.analysis.graph.build import build_graph
from rankscope.analysis.graph.events import (
    DEVICE_CLASSES,
    HOST_CLASSES,
    NONE,
    PATH_CLASSES,
    EventGraph,
    Mask,
    follow,
)
from rankscope.records import dataclass
from rankscope.store.arrays import number_rows, packed, starts_group, unique_values
from rankscope.timeline.collectives.entries import Collectives
from rankscope.timeline.run import Run

_HOST_PLACE = len(DEVICE_CLASSES)
_HOST_KINDS = slice(_HOST_PLACE, _HOST_PLACE + len(HOST_CLASSES))
_COMM, _SYNC, _LAUNCH, _GAP = map(PATH_CLASSES.index, ("comm", "sync", "launch", "gap"))
_UNRECORDED = HOST_CLASSES.index("unrecorded")
_LARGEST, _LEAST_OF_STEP = 512, 16
"""In large runs, the longest device events of a rank and the longest delays of its host that are points of their own,
over all steps; in each step at least so many. Chosen: 1,024 ranks have a million of them."""


@dataclass(frozen=True)
class Edges:
    """Edges by the point they lead to. The first to each point determined its recorded time."""

    to: Ints
    """A node: device nodes first, then host nodes."""
    origin: Ints
    """The point where it begins, at its end."""
    is_sync: Mask
    """Whether it ends with a synchronising call."""
    spent: Ints
    """[class, way]: the time in each of PATH_CLASSES, from the end of `origin` to the start of `to`."""

    def pick(self, order: Ints) -> Edges:
        return Edges(self.to[order], self.origin[order], self.is_sync[order], self.spent[:, order])


def anchors_of(graph: EventGraph) -> Mask:
    """By node: what ranks that do the same have in common: collectives, what was launched last before them, bounds of
    steps and recordings, the last event of each stream in a step, and what has no cause."""
    device, host = graph.device, graph.host
    order = graph.stream_order
    last_of_step = np.zeros(len(order), dtype=bool)
    last_of_step[order] = (np.diff(device.stream[order], append=NONE) != 0) | (
        np.diff(device.step[order], append=NONE) != 0
    )
    on_device = (device.match != NONE) | (device.before == NONE) | last_of_step
    launched = np.flatnonzero((device.match == NONE) & (device.launch != NONE))
    # Host nodes are sorted by rank and time.
    launched = launched[np.argsort(device.launch[launched], kind="stable")]
    collective = np.flatnonzero((device.match != NONE) & (device.launch != NONE))
    at = np.searchsorted(device.launch[launched], device.launch[collective]) - 1
    on_device[launched[at[at >= 0]]] = True
    number = np.arange(len(host.rank))
    on_host = (host.opens != NONE) | (host.match != NONE) | (host.step != NONE) | host.is_end
    on_host |= host.kind == HOST_CLASSES.index("unrecorded")
    # The first of a rank, and where threads part and meet: between two points, each node follows the one before it.
    parts = (host.before == NONE) | (host.before != number - 1)
    parting = host.before[parts | (host.opens != NONE)]
    on_host[parting[parting != NONE]] = True
    on_host |= parts
    on_host |= np.diff(host.rank, append=NONE) != 0
    return np.concatenate([on_device, on_host])


def _host_delays(graph: EventGraph) -> Ints:
    """The time before each host node; a call that waits takes no time of its own."""
    host = graph.host
    waits = (host.target != NONE) | (host.match != NONE) | (host.before == NONE)
    return np.where(waits, 0, host.time - follow(host.before, host.time, 0))


def points_of(graph: EventGraph, whole: bool) -> Mask:
    """Also where the host waits for data or the device, what it waits for, what another stream waits for, the first
    event on each stream that was launched after a point of the host, the launches of collectives, and the longest
    pieces of work. `whole`: all nodes."""
    device, host = graph.device, graph.host
    is_point = anchors_of(graph)
    if whole:
        return np.ones(len(is_point), dtype=bool)
    on_device, on_host = is_point[: len(device.rank)], is_point[len(device.rank) :]
    launched = device.launch[(device.match != NONE) & (device.launch != NONE)]
    on_host[launched] = True
    on_device[_longest(device.rank, device.step, device.end - device.start)] = True
    delayed = _longest(host.rank, _steps_of(graph), _host_delays(graph))
    on_host[delayed] = True
    on_host[host.before[delayed]] = True
    target, _ = graph.sync_targets
    on_host |= np.isin(host.kind, [HOST_CLASSES.index(kind) for kind in ("dataloader", "sync")])
    on_device |= device.other != NONE
    for cause in (target, device.other):
        on_device[cause[cause != NONE]] = True
    order = graph.stream_order
    launched = _last_at(device.launch[order] != NONE)
    launch = np.where(launched != NONE, device.launch[order][launched], NONE)
    region = follow(launch, np.cumsum(on_host), NONE)
    on_device[order] |= np.diff(region, prepend=NONE) != 0
    return is_point


def _longest(rank: Ints, step: Ints, took: Ints) -> Ints:
    """The longest nodes of each step of a rank that take any time."""
    steps = np.bincount(number_rows([rank, step])[0][:, 0]) if len(rank) else rank
    most = np.maximum(_LARGEST // np.maximum(steps, 1), _LEAST_OF_STEP)
    order = np.lexsort((-took, step, rank))
    order = order[took[order] > 0]
    begins = starts_group([rank[order], step[order]])
    first = np.maximum.accumulate(np.where(begins, np.arange(len(order)), 0))
    longest: Ints = order[np.arange(len(order)) - first < most[rank[order]]]
    return longest


def edges_between(graph: EventGraph, is_point: Mask, end: Ints) -> Edges:
    """The ways between the points; `end` has the end of each node. Of each point, the latest arrival first."""
    kinds = list(_Walker(graph, is_point, end).edges())
    to, origin, is_sync = (
        np.concatenate([getattr(kind, name) for kind in kinds]) for name in ("to", "origin", "is_sync")
    )
    edges = Edges(to, origin, is_sync, np.concatenate([kind.spent for kind in kinds], axis=1))
    edges = edges.pick(_needed(edges))
    arrival = end[edges.origin] + edges.spent.sum(axis=0)
    return edges.pick(np.lexsort((-arrival, edges.to)))


def _needed(edges: Edges) -> Ints:
    """Without a way that spends in every class at most what another one between the same points spends."""
    order = np.lexsort((edges.origin, edges.to))
    to, origin, is_sync, spent = (
        column[..., order] for column in (edges.to, edges.origin, edges.is_sync, edges.spent)
    )
    gone = np.zeros(len(order), dtype=bool)
    for distance in range(1, len(order)):
        same = (to[distance:] == to[:-distance]) & (origin[distance:] == origin[:-distance])
        if not same.any():
            break
        a, b = np.flatnonzero(same), np.flatnonzero(same) + distance
        more = (spent[:, a] >= spent[:, b]).all(axis=0) & (~is_sync[a] | is_sync[b])
        gone[b[more & ~gone[a]]] = True
        less = (spent[:, a] <= spent[:, b]).all(axis=0) & (~is_sync[b] | is_sync[a])
        gone[a[less & ~gone[b]]] = True
    return np.sort(order[~gone])


class _Walker:
    """The graph with one numbering: device nodes first, then host nodes."""

    def __init__(self, graph: EventGraph, is_point: Mask, end: Ints) -> None:
        self.graph, self.is_point, self.end = graph, is_point, end
        self.devices = len(graph.device.rank)
        self._prepare_device()
        self._prepare_host()

    def _prepare_device(self) -> None:
        """Sums along each stream, up to the start of each of its nodes."""
        device, lags = self.graph.device, self.graph.lags
        later = self.graph.residuals
        self.launch_delay, self.stream_delay, self.other_delay = (
            lag[device.rank] + later for lag in (lags.launch, lags.stream, lags.other)
        )
        self.order = self.graph.stream_order
        self.place = np.empty(self.devices, dtype=np.int64)
        self.place[self.order] = np.arange(self.devices)
        took = (device.end - device.start)[self.order]
        self.sums = np.zeros((len(PATH_CLASSES), self.devices + 1), dtype=np.int64)
        for kind in range(len(DEVICE_CLASSES)):
            self.sums[kind, 1:] = np.cumsum(np.where(device.kind[self.order] == kind, took, 0))
        delay = np.where(device.before != NONE, self.stream_delay, 0)[self.order]
        self.gaps = np.cumsum(delay)

    def _prepare_host(self) -> None:
        """Sums along the host, up to each of its nodes; a call that waits takes no time of its own."""
        host = self.graph.host
        target, _ = self.graph.sync_targets
        closes = host.match != NONE
        opener = np.full(int(max(host.opens.max(initial=0), host.match.max(initial=0))) + 1, NONE)
        opener[host.opens[host.opens != NONE]] = np.flatnonzero(host.opens != NONE)
        self.opened = np.where(closes, opener[np.maximum(host.match, 0)], NONE)
        # The first node of a rank stays where it is.
        self.target = np.where(closes | (host.before == NONE), NONE, target)
        # What follows the start of a host collective on its thread waits for the end of it.
        chained = (host.before != NONE) & (follow(host.before, host.opens, NONE) == NONE)
        self.chained = np.where(chained, host.before, NONE)
        self.host_delay = delay = _host_delays(self.graph)
        self.host_sums = np.stack(
            [np.cumsum(np.where(host.kind == kind, delay, 0)) for kind in range(len(HOST_CLASSES))]
        )
        self.host_point = _last_at(self.is_point[self.devices :])

    def edges(self) -> Iterator[Edges]:
        """By kind. Of ways that arrive at the same time, the one of an earlier kind determined the recorded time."""
        device, host, devices = self.graph.device, self.graph.host, self.devices
        points = np.flatnonzero(self.is_point)
        nodes, moments = points[points < devices], points[points >= devices] - devices
        target, (_, lag) = self.target, self.graph.sync_targets
        closing = moments[self.opened[moments] != NONE]
        opener = self.opened[closing] + devices
        since = host.time[closing] - self.end[opener]
        # The clocks' difference and the time to return: no change makes it shorter.
        yield self._direct(closing + devices, opener, since, _GAP)
        yield self._launched(nodes, nodes)
        for speed in (1, 2):
            yield self._launched(*self._best_launches(nodes, speed))
        yield self._along_stream(nodes[device.before[nodes] != NONE])
        others = nodes[device.other[nodes] != NONE]
        yield self._direct(others, device.other[others], self.other_delay[others], _GAP)
        chained = moments[self.chained[moments] != NONE]
        spent = np.zeros((len(PATH_CLASSES), len(chained)), dtype=np.int64)
        spent[_HOST_PLACE + host.kind[chained], np.arange(len(chained))] = self.host_delay[chained]
        is_sync = host.kind[chained] == HOST_CLASSES.index("sync")
        yield replace(self._from_host(chained + devices, self.chained[chained], spent), is_sync=is_sync)
        # A call that ended just after the device did need not have waited for it.
        syncs = moments[target[moments] != NONE]
        yield self._direct(syncs + devices, target[syncs], lag[syncs], _SYNC)

    def _direct(self, to: Ints, origin: Ints, delay: Ints, kind: int) -> Edges:
        """From one point to another, with nothing between them."""
        spent = np.zeros((len(PATH_CLASSES), len(to)), dtype=np.int64)
        spent[kind, np.arange(len(to))] = delay
        return Edges(to, origin, np.full(len(to), kind == _SYNC), spent)

    def _from_host(self, to: Ints, moment: Ints, spent: Ints) -> Edges:
        """From the last point of the host at or before each moment; adds the time between to `spent`."""
        point = self.host_point[moment]
        spent[_HOST_KINDS] += self.host_sums[:, moment] - self.host_sums[:, point]
        return Edges(to, point + self.devices, np.zeros(len(to), dtype=bool), spent)

    def _launched(self, nodes: Ints, launched: Ints) -> Edges:
        """From the host by the launch of a node on the same stream, then along the stream."""
        launch = self.graph.device.launch[launched]
        nodes, launched, launch = (values[launch != NONE] for values in (nodes, launched, launch))
        spent = self._on_stream(launched, nodes)
        spent[_LAUNCH] = self.launch_delay[launched]
        return self._from_host(nodes, launch, spent)

    def _best_launches(self, nodes: Ints, speed: int) -> tuple[Ints, Ints]:
        """Of the events between each point and the one before it on its stream, the one whose launch makes it latest,
        if all ran so many times as fast; points with nothing between them are left out."""
        device = self.graph.device
        # The same up to the next point.
        segment = np.cumsum(self.is_point[: self.devices][self.order][::-1])[::-1]
        between = self.order[~self.is_point[self.order] & (device.launch[self.order] != NONE)]
        position = self.place[between]
        before = self.sums[: len(DEVICE_CLASSES), position].sum(axis=0) // speed + self.gaps[position]
        arrival = self.graph.host.time[device.launch[between]] + self.launch_delay[between] - before
        order = np.lexsort((position, arrival, segment[position]))
        last = order[np.diff(segment[position][order], append=NONE) != 0]
        ends = np.full(len(nodes) + 1, NONE)
        ends[segment[self.place[nodes]]] = nodes
        return ends[segment[position[last]]], between[last]

    def _along_stream(self, nodes: Ints) -> Edges:
        """From the point before it on its stream."""
        previous = _last_at(self.is_point[self.order])[self.place[nodes] - 1]
        origin = self.order[previous]
        spent = self._on_stream(origin, nodes)
        device = self.graph.device
        spent[device.kind[origin], np.arange(len(nodes))] -= (device.end - device.start)[origin]
        return Edges(nodes, origin, np.zeros(len(nodes), dtype=bool), spent)

    def _on_stream(self, first: Ints, last: Ints) -> Ints:
        """The time in each class from the start of one node to the start of another on the same stream."""
        early, late = self.place[first], self.place[last]
        spent: Ints = self.sums[:, late] - self.sums[:, early]
        spent[_GAP] += self.gaps[late] - self.gaps[early]
        return spent


def _last_at(mask: Mask) -> Ints:
    """The last place at or before each at which the mask is set."""
    last: Ints = np.maximum.accumulate(np.where(mask, np.arange(len(mask)), NONE))
    return last


@dataclass(frozen=True)
class RankGraph:
    """Points in order of their start, and the ways between them. Times count from run.origin_ns(rank)."""

    segment: Ints
    """Of a collective; NONE for other points."""
    slice: Ints
    """Id of a collective in its segment; NONE for other points."""
    step: Ints
    cycle: Ints
    """The recording of the rank that it is in."""
    launched: Ints
    """When the host launched it, or reached it; of an event without a launch in the file, its start."""
    start: Ints
    end: Ints
    kind: Ints
    """Class of the time from start to end, an index into PATH_CLASSES."""
    name: Ints
    """Index into `names`."""
    on_host: Ints
    marks: Ints
    """1 where a step begins on the host."""
    fixed: Ints
    """1 where a recording begins: what was before is not known, so it stays where it is."""
    ways: Ints
    """By point: the number of ways that lead to it. The first determined its recorded time."""
    origin: Ints
    """By way, as the next two: the point where it begins."""
    is_sync: Ints
    """1 where it ends with a synchronising call."""
    classes: Ints
    """The classes in which it spends time: bit N for the class N of PATH_CLASSES."""
    spent: Ints
    """The times in these classes, way by way: most have two or three of ten."""
    names: tuple[str, ...]
    lost: int
    """GPU events without a launch in the file."""
    unexplained_ns: int
    """How much later GPU events start than their causes explain, all together."""


@kept_per_rank("graph", RankGraph)
def rank_graphs(run: Run, scope: Scope) -> dict[int, RankGraph]:
    """Ranks with events in the window."""
    graphs: dict[int, RankGraph] = {}
    rows = run.own_collectives()
    rows = rows.pick(scope.mask(rows.step))
    whole = not is_large(run)
    for chunk in chunks(run, scope.ranks_in(run)):
        alone = rows.of_ranks(chunk)
        # Each collective is a match of its own: what it is matched with on other ranks is not asked here.
        alone = replace(alone, match=np.arange(len(alone.rank)))
        part = replace(scope, ranks=frozenset(chunk))
        graph = build_graph(run, part, alone)
        graphs |= reduced(graph, alone, whole, [run.origin_ns(rank) for rank in graph.ranks])
    return graphs


def reduced(
    graph: EventGraph, rows: Collectives, whole: bool, origins: Sequence[int]
) -> dict[int, RankGraph]:
    """By rank; `rows` are its collectives, and `origins` the times from which those of each rank count."""
    device, host = graph.device, graph.host
    is_point = points_of(graph, whole)
    if not is_point.any():
        return {}
    start = np.concatenate([device.start, host.time])
    end = np.concatenate([device.end, host.time])
    entry = np.concatenate([device.match, host.opens])
    end = np.where(entry != NONE, follow(entry, rows.end, 0), end)
    edges = edges_between(graph, is_point, end)
    rank = np.concatenate([device.rank, host.rank])
    points = np.flatnonzero(is_point)
    points = points[np.lexsort((points, start[points], rank[points]))]
    number_of = np.full(len(is_point), NONE)
    number_of[points] = np.arange(len(points))
    firsts = np.searchsorted(rank[points], np.arange(len(graph.ranks) + 1))
    edges = replace(edges, to=number_of[edges.to], origin=number_of[edges.origin])
    edges = edges.pick(np.argsort(edges.to, kind="stable"))
    edge_firsts = np.searchsorted(edges.to, firsts)
    on_host, on_device, most = recording_cycles(graph)
    nothing = np.zeros(len(device.rank), dtype=bool)
    is_collective = entry[points] != NONE
    launched = np.where(device.launch != NONE, follow(device.launch, host.time, 0), device.start)
    kind = np.concatenate([device.kind, len(DEVICE_CLASSES) + host.kind])
    columns = {
        "segment": follow(entry[points], rows.segment, NONE),
        "slice": follow(entry[points], rows.slice, NONE),
        "step": np.concatenate([device.step, _steps_of(graph)])[points],
        "cycle": np.concatenate([on_device, on_host])[points] % most,
        "launched": np.concatenate([launched, host.time])[points],
        "start": start[points],
        "end": end[points],
        "kind": np.where(is_collective, _COMM, kind[points]),
        "name": np.concatenate([device.name, host.name])[points],
        "on_host": (points >= len(device.rank)).astype(np.int64),
        "marks": np.concatenate([nothing, (host.step != NONE) & ~host.is_end])[points].astype(np.int64),
        "fixed": np.concatenate([nothing, host.kind == _UNRECORDED])[points].astype(np.int64),
    }
    lost = np.bincount(device.rank[device.launch == NONE], minlength=len(graph.ranks))
    unexplained = np.bincount(device.rank, weights=graph.residuals, minlength=len(graph.ranks))
    graphs = {}
    for number, of_rank in enumerate(graph.ranks):
        mine, its_edges = slice(*firsts[number : number + 2]), slice(*edge_firsts[number : number + 2])
        if mine.start == mine.stop:
            continue
        values = {name: column[mine] for name, column in columns.items()}
        for name in ("launched", "start", "end"):
            values[name] = values[name] - origins[number]
        names = unique_values(values["name"])
        values["name"] = np.searchsorted(names, values["name"])
        spent = edges.spent[:, its_edges].T
        spends = spent != 0
        graphs[of_rank] = RankGraph(
            **values,
            ways=np.bincount(edges.to[its_edges] - mine.start, minlength=mine.stop - mine.start),
            origin=edges.origin[its_edges] - mine.start,
            is_sync=edges.is_sync[its_edges].astype(np.int64),
            classes=spends @ (1 << np.arange(spends.shape[1])),
            spent=spent[spends],
            names=tuple(graph.names[name] for name in names.tolist()),
            lost=int(lost[number]),
            unexplained_ns=int(unexplained[number]),
        )
    return graphs


def recording_cycles(graph: EventGraph) -> tuple[Ints, Ints, int]:
    """The recording cycle of each host and device node, as rank * cycles + cycle, and the largest number of cycles."""
    host, device = graph.host, graph.device
    starts = np.flatnonzero(host.kind == _UNRECORDED)
    cycles = int(np.bincount(host.rank[starts]).max(initial=0)) + 1
    rank = np.append(host.rank, device.rank)
    places = packed([rank, np.append(host.time, device.start)])
    begun = np.searchsorted(places[starts], places, side="right") - np.searchsorted(host.rank[starts], rank)
    on_host, on_device = np.split(rank * cycles + begun, [len(host.rank)])
    return on_host, on_device, cycles


def _steps_of(graph: EventGraph) -> Ints:
    """By host node, the step that began last on its rank; NONE before the first."""
    host = graph.host
    last = _last_at((host.step != NONE) & ~host.is_end)
    has_begun = (last != NONE) & (host.rank[last] == host.rank)
    return np.where(has_begun, host.step[last], NONE)
