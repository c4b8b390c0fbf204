"""The reduced graph of each rank, made from its events and kept in the store.

Points are the nodes that it keeps. Between two of them the graph of events has many ways; those become edges that a
replay may need, with the time that each spends in each class: the way that determined the recorded time, and those
along one stream, along the device and along the host, which determine the time when others become shorter.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import permutations

import numpy as np

from rankscope.analysis.core.intervals import Ints
from rankscope.analysis.core.rollups import chunks, kept_per_rank
from rankscope.analysis.core.scope import Scope
from rankscope.analysis.critical_path.graph.build import build_graph
from rankscope.analysis.critical_path.graph.nodes import (
    DEVICE_CLASSES,
    HOST_CLASSES,
    NONE,
    Graph,
    Mask,
    follow,
)
from rankscope.analysis.critical_path.path import PATH_CLASSES, causes
from rankscope.analysis.critical_path.replay import recording_cycles
from rankscope.records import dataclass
from rankscope.store.arrays import unique_values
from rankscope.timeline.collectives.entries import Collectives
from rankscope.timeline.run import Run

_HOST_PLACE = len(DEVICE_CLASSES)
_HOST_KINDS = slice(_HOST_PLACE, _HOST_PLACE + len(HOST_CLASSES))
_SYNC, _LAUNCH, _GAP = map(PATH_CLASSES.index, ("sync", "launch", "gap"))


@dataclass(frozen=True)
class Edges:
    """Edges by the point they lead to. The first to each point determined its recorded time."""

    to: Ints
    """A node: device nodes first, then host nodes."""
    origin: Ints
    """The point where it begins, at its end."""
    sync: Ints
    """Name of the last synchronising call on the way that waited for the device, or NONE."""
    spent: Ints
    """[class, way]: the time in each of PATH_CLASSES, from the end of `origin` to the start of `to`."""

    def pick(self, order: Ints) -> Edges:
        return Edges(self.to[order], self.origin[order], self.sync[order], self.spent[:, order])


@dataclass(frozen=True)
class _Hop:
    """For each node its cause, the delay after it and the class of the delay."""

    cause: Ints
    delay: Ints
    kind: Ints

    def pick(self, nodes: Ints) -> _Hop:
        return _Hop(self.cause[nodes], self.delay[nodes], self.kind[nodes])


def points_of(graph: Graph) -> Mask:
    """By node: collectives, bounds of steps and recordings, the last event of each stream in a step, and what has no
    cause."""
    device, host = graph.device, graph.host
    order = np.argsort(device.stream, kind="stable")
    last_of_step = np.zeros(len(order), dtype=bool)
    last_of_step[order] = (np.diff(device.stream[order], append=NONE) != 0) | (
        np.diff(device.step[order], append=NONE) != 0
    )
    on_device = (device.match != NONE) | (device.before == NONE) | last_of_step
    number = np.arange(len(host.rank))
    on_host = (host.opens != NONE) | (host.match != NONE) | (host.step != NONE) | host.is_end
    on_host |= host.kind == HOST_CLASSES.index("unrecorded")
    on_host |= host.before != number - 1  # the first of a rank, and where threads meet
    on_host |= np.diff(host.rank, append=NONE) != 0
    return np.concatenate([on_device, on_host])


def edges_between(graph: Graph, is_point: Mask, end: Ints) -> Edges:
    """The ways between the points; `end` has the end of each node."""
    kinds = list(_Walker(graph, is_point, end).edges())
    points = np.flatnonzero(is_point)
    needed = _needed(kinds)
    pairs = list(zip(kinds, needed, strict=True))
    to = np.concatenate([points[mask] for mask in needed])
    origin = np.concatenate([edges.origin[mask] for edges, mask in pairs])
    sync = np.concatenate([edges.sync[mask] for edges, mask in pairs])
    spent = np.concatenate([edges.spent[:, mask] for edges, mask in pairs], axis=1)
    return Edges(to, origin, sync, spent).pick(np.argsort(to, kind="stable"))


def _needed(kinds: list[Edges]) -> list[Mask]:
    """Without a way that spends in every class at most what another one from the same point spends."""
    needed = [edges.origin != NONE for edges in kinds]
    for (i, a), (j, b) in permutations(enumerate(kinds), 2):
        same = needed[i] & needed[j] & (a.origin == b.origin) & ((b.sync == NONE) | (a.sync == b.sync))
        less = same & (a.spent <= b.spent).all(axis=0)
        needed[i] &= ~(less if j < i else less & (a.spent < b.spent).any(axis=0))
    return needed


class _Walker:
    """The graph with one numbering: device nodes first, then host nodes."""

    def __init__(self, graph: Graph, is_point: Mask, end: Ints) -> None:
        self.graph, self.is_point, self.end = graph, is_point, end
        device, host = graph.device, graph.host
        self.devices = len(device.rank)
        self.start = np.concatenate([device.start, host.time])
        self._prepare_device()
        self._prepare_streams()
        self._prepare_host()

    def _prepare_device(self) -> None:
        device, lags = self.graph.device, self.graph.lags
        _, stream, other = self.graph.constraints()
        later = self.graph.residuals()
        gap = np.full(self.devices, _GAP)
        on_host = np.where(device.launch != NONE, device.launch + self.devices, NONE)
        self.by_launch = _Hop(on_host, lags.launch[device.rank] + later, np.full(self.devices, _LAUNCH))
        self.by_stream = _Hop(device.before, lags.stream[device.rank] + later, gap)
        self.by_other = _Hop(device.other, lags.other[device.rank] + later, gap)
        self.by_device = _either(other > stream, self.by_other, self.by_stream)

    def _prepare_streams(self) -> None:
        """Sums along each stream, up to the start of each of its nodes."""
        device = self.graph.device
        order = np.argsort(device.stream, kind="stable")
        self._place = np.empty(self.devices, dtype=np.int64)
        self._place[order] = np.arange(self.devices)
        took = (device.end - device.start)[order]
        self._on_stream = np.zeros((len(PATH_CLASSES), self.devices + 1), dtype=np.int64)
        for kind in range(len(DEVICE_CLASSES)):
            self._on_stream[kind, 1:] = np.cumsum(np.where(device.kind[order] == kind, took, 0))
        delay = np.where(device.before != NONE, self.by_stream.delay, 0)[order]
        self._on_stream[_GAP, 1:] = np.cumsum(delay)
        self._stream_order = order
        self._point_before = np.append(NONE, _last_at(self.is_point[: self.devices][order]))[: self.devices]

    def _prepare_host(self) -> None:
        """Sums along the host, up to each of its nodes; a call that waits takes no time of its own."""
        host, devices = self.graph.host, self.devices
        waits = host.target != NONE
        opener = np.full(int(max(host.opens.max(initial=0), host.match.max(initial=0))) + 1, NONE)
        opener[host.opens[host.opens != NONE]] = np.flatnonzero(host.opens != NONE) + devices
        opened = np.where((host.match != NONE) & ~waits, opener[np.maximum(host.match, 0)], NONE)
        own_ns = host.time - follow(host.before, host.time, 0)
        # What follows the start of a host collective on its thread waits for the end of it.
        chained = (host.before != NONE) & (follow(host.before, host.opens, NONE) == NONE)
        self.by_host = _Hop(
            np.where(chained, host.before + devices, NONE),
            np.where(waits | (opened != NONE) | (host.before == NONE), 0, own_ns),
            _HOST_PLACE + host.kind,
        )
        cause = causes(self.graph)
        cause[devices:] = np.where(opened != NONE, opened, cause[devices:])
        on_device = cause < devices
        kind = np.where(on_device[devices:], _SYNC, _HOST_PLACE + host.kind)
        kind = np.concatenate([np.where(on_device[:devices], _GAP, _LAUNCH), kind])
        self.recorded = _Hop(cause, self.start - follow(cause, self.end, 0), kind)
        self._on_host = np.stack(
            [
                np.cumsum(np.where(host.kind == kind, self.by_host.delay, 0))
                for kind in range(len(HOST_CLASSES))
            ]
        )
        self._host_point = _last_at(self.is_point[devices:])
        self._host_stop = _last_at(self.is_point[devices:] | waits)

    def _along_device(self) -> _Hop:
        """On the device never by the launch; on the host as recorded."""
        both = (
            np.concatenate([getattr(self.by_device, name), getattr(self.recorded, name)[self.devices :]])
            for name in ("cause", "delay", "kind")
        )
        hop = _Hop(*both)
        return _either(hop.cause == NONE, self.recorded, hop)

    def edges(self) -> Iterator[Edges]:
        """Each has one entry for every point; those without this way have no origin."""
        points = np.flatnonzero(self.is_point)
        on_device = points < self.devices
        device, host = points[on_device], points[~on_device] - self.devices
        yield self._walk(points, self.recorded.pick(points), self.recorded)
        launched, stream, other, along = (
            hop.pick(device) for hop in (self.by_launch, self.by_stream, self.by_other, self.by_device)
        )
        yield self._placed(points, on_device, self._walk(device, launched, self.recorded))
        yield self._placed(points, on_device, self._walk(device, along, self._along_device()))
        yield self._placed(points, on_device, self._along_host(launched))
        yield self._placed(points, ~on_device, self._along_host(self.by_host.pick(host)))
        for hop in (stream, other):
            yield self._placed(points, on_device, self._along_stream(hop))

    def _placed(self, points: Ints, where: Mask, edges: Edges) -> Edges:
        """With entries for all points."""
        spent = np.zeros((len(PATH_CLASSES), len(points)), dtype=np.int64)
        spent[:, where] = edges.spent
        origin, sync = (np.full(len(points), NONE) for _ in range(2))
        origin[where], sync[where] = edges.origin, edges.sync
        return Edges(points, origin, sync, spent)

    def _walk(self, points: Ints, first: _Hop, then: _Hop) -> Edges:
        """From each point back to another, by these hops; all walks advance together."""
        spent = np.zeros((len(PATH_CLASSES), len(points)), dtype=np.int64)
        origin, sync = np.full(len(points), NONE), np.full(len(points), NONE)
        live = np.flatnonzero(first.cause != NONE)
        at, hop = points[live], first.pick(live)
        device = self.graph.device
        while len(live):
            spent[hop.kind, live] += hop.delay
            waited = (at >= self.devices) & (hop.cause < self.devices) & (sync[live] == NONE)
            sync[live[waited]] = self.graph.host.name[at[waited] - self.devices]
            at = self._back_on_host(hop.cause, live, spent, self._host_stop)
            there = self.is_point[at]
            origin[live[there]] = at[there]
            live, at = live[~there], at[~there]
            running = at < self.devices
            node = at[running]
            spent[device.kind[node], live[running]] += (device.end - device.start)[node]
            hop = then.pick(at)
        return Edges(points, origin, sync, spent)

    def _back_on_host(self, nodes: Ints, columns: Ints, spent: Ints, stop: Ints) -> Ints:
        """The last node of `stop` at or before each host node; device nodes stay. Adds the time between."""
        on_host = np.flatnonzero(nodes >= self.devices)
        late = nodes[on_host] - self.devices
        early = stop[late]
        spent[_HOST_KINDS, columns[on_host]] += self._on_host[:, late] - self._on_host[:, early]
        reached: Ints = nodes.copy()
        reached[on_host] = early + self.devices
        return reached

    def _along_host(self, first: _Hop) -> Edges:
        """Back to a point of the host, whatever its calls waited for."""
        live = np.flatnonzero(first.cause != NONE)
        spent = np.zeros((len(PATH_CLASSES), len(first.cause)), dtype=np.int64)
        spent[first.kind[live], live] = first.delay[live]
        origin = np.full(len(first.cause), NONE)
        origin[live] = self._back_on_host(first.cause[live], live, spent, self._host_point)
        return Edges(origin, origin, np.full(len(origin), NONE), spent)

    def _along_stream(self, first: _Hop) -> Edges:
        """Back to a point of the stream of the first cause, whatever its events waited for."""
        live = np.flatnonzero(first.cause != NONE)
        spent = np.zeros((len(PATH_CLASSES), len(first.cause)), dtype=np.int64)
        spent[_GAP, live] = first.delay[live]
        node = first.cause[live]
        late = self._place[node]
        between = ~self.is_point[node]
        early = np.where(between, self._point_before[late], late)
        sums = self._on_stream
        after = late[between] + 1
        spent[:, live[between]] += sums[:, after] - sums[:, early[between] + 1]
        origin = np.full(len(first.cause), NONE)
        origin[live] = self._stream_order[early]
        return Edges(origin, origin, np.full(len(origin), NONE), spent)


def _either(mask: Mask, a: _Hop, b: _Hop) -> _Hop:
    return _Hop(*(np.where(mask, getattr(a, name), getattr(b, name)) for name in ("cause", "delay", "kind")))


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
    start: Ints
    end: Ints
    kind: Ints
    """Class of the time from start to end, an index into PATH_CLASSES."""
    on_host: Ints
    fixed: Ints
    """1 where a recording begins: what was before is not known, so it stays where it is."""
    ways: Ints
    """By point: the number of ways that lead to it. The first determined its recorded time."""
    origin: Ints
    """By way, as the next two: the point where it begins."""
    sync: Ints
    """The synchronising call on the way that waited for the device: an index into `syncs`, or NONE."""
    classes: Ints
    """The classes in which it spends time: bit N for the class N of PATH_CLASSES."""
    spent: Ints
    """The times in these classes, way by way: most have two or three of ten."""
    syncs: tuple[str, ...]
    lost: int
    """GPU events without a launch in the file."""
    unexplained_ns: int
    """How much later GPU events start than their causes explain, all together."""


@kept_per_rank("graph", RankGraph)
def rank_graphs(run: Run, scope: Scope) -> dict[int, RankGraph]:
    """Ranks with events in the window."""
    graphs: dict[int, RankGraph] = {}
    rows = run.own_collectives()
    if scope.steps is not None:
        rows = rows.pick((rows.step >= scope.steps[0]) & (rows.step <= scope.steps[1]))
    for chunk in chunks(run, scope.ranks_in(run)):
        alone = rows.of_ranks(chunk)
        # Each collective is a match of its own: what it is matched with on other ranks is not asked here.
        alone = replace(alone, match=np.arange(len(alone.rank)))
        part = replace(scope, ranks=frozenset(chunk))
        graphs |= _of_graph(run, build_graph(run, part, alone, len(alone.rank)), alone)
    return graphs


def _of_graph(run: Run, graph: Graph, rows: Collectives) -> dict[int, RankGraph]:
    device, host = graph.device, graph.host
    is_point = points_of(graph)
    if not is_point.any():
        return {}
    start = np.concatenate([device.start, host.time])
    end = np.concatenate([device.end, host.time])
    entry = np.concatenate([device.match, host.opens])
    end = np.where(entry != NONE, rows.end[np.maximum(entry, 0)], end) if len(rows.rank) else end
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
    of_host = points >= len(device.rank)
    unrecorded = np.concatenate(
        [np.zeros(len(device.rank), dtype=bool), host.kind == HOST_CLASSES.index("unrecorded")]
    )
    is_collective = entry[points] != NONE
    columns = {
        "segment": np.where(is_collective, _of_rows(rows.segment, entry[points]), NONE),
        "slice": np.where(is_collective, _of_rows(rows.slice, entry[points]), NONE),
        "step": np.concatenate([device.step, _steps_of(graph)])[points],
        "cycle": np.concatenate([on_device, on_host])[points] % most,
        "start": start[points],
        "end": end[points],
        "kind": np.concatenate([device.kind, len(DEVICE_CLASSES) + host.kind])[points],
        "on_host": of_host.astype(np.int64),
        "fixed": unrecorded[points].astype(np.int64),
    }
    lost = np.bincount(device.rank[device.launch == NONE], minlength=len(graph.ranks))
    unexplained = np.bincount(device.rank, weights=graph.residuals(), minlength=len(graph.ranks))
    graphs = {}
    for number, of_rank in enumerate(graph.ranks):
        mine, its_edges = slice(*firsts[number : number + 2]), slice(*edge_firsts[number : number + 2])
        if mine.start == mine.stop:
            continue
        values = {name: column[mine] for name, column in columns.items()}
        for name in ("start", "end"):
            values[name] = values[name] - run.origin_ns(of_rank)
        syncs, spent = edges.sync[its_edges], edges.spent[:, its_edges].T
        names = unique_values(syncs[syncs != NONE])
        spends = spent != 0
        graphs[of_rank] = RankGraph(
            **values,
            ways=np.bincount(edges.to[its_edges] - mine.start, minlength=mine.stop - mine.start),
            origin=edges.origin[its_edges] - mine.start,
            sync=np.where(syncs == NONE, NONE, np.searchsorted(names, syncs)),
            classes=spends @ (1 << np.arange(spends.shape[1])),
            spent=spent[spends],
            syncs=tuple(graph.names[name] for name in names.tolist()),
            lost=int(lost[number]),
            unexplained_ns=int(unexplained[number]),
        )
    return graphs


def _of_rows(column: Ints, entry: Ints) -> Ints:
    return column[np.maximum(entry, 0)] if len(column) else np.full(len(entry), NONE)


def _steps_of(graph: Graph) -> Ints:
    """By host node, the step that began last on its rank; NONE before the first."""
    host = graph.host
    begins = (host.step != NONE) & ~host.is_end
    last = np.maximum.accumulate(np.where(begins, np.arange(len(begins)), NONE))
    has_begun = (last != NONE) & (host.rank[last] == host.rank)
    return np.where(has_begun, host.step[last], NONE)
