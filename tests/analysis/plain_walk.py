"""The critical path in the plainest way, one step at a time: what the fast one must agree with, piece by piece."""

from __future__ import annotations

import random
from typing import Any, NamedTuple

import numpy as np

from rankscope.analysis.critical_path.graph.nodes import (
    DEVICE_CLASSES,
    HOST_CLASSES,
    NONE,
    DeviceNodes,
    Graph,
    HostNodes,
    Lags,
    MatchedCollectives,
)
from rankscope.analysis.critical_path.path import PATH_CLASSES, CriticalPath


class Piece(NamedTuple):
    """A stretch of the path."""

    kind: str
    rank: int
    name: int
    start: int
    end: int


def pieces(path: CriticalPath) -> list[Piece]:
    columns = (path.kind, path.rank, path.name, path.start, path.end)
    rows = zip(*(column.tolist() for column in columns), strict=True)
    return [Piece(PATH_CLASSES[kind], *rest) for kind, *rest in rows]


def plain_walk(graph: Graph) -> list[Piece]:
    """Back from the last end, cause by cause. Pieces meet end to end."""
    device, host = graph.device, graph.host
    low, high = graph.window
    bind, cause = _binding(graph)
    path: list[Piece] = []
    time = high
    node, on_device = _last_node(graph)

    def step_to(when: int, kind: str, rank: int, name: int) -> int:
        """A piece from `when` to now; clocks that disagree never make one negative."""
        reached = min(max(when, low), time)
        path.append(Piece(kind, rank, name, reached, time))
        return reached

    while node != NONE and time > low:
        if on_device:
            rank, name = int(device.rank[node]), int(device.name[node])
            first = _last_member(graph, int(device.match[node]), node)
            kind = DEVICE_CLASSES[device.kind[node]]
            time = step_to(int(device.start[first]), kind, rank, name)
            node, rank = first, int(device.rank[first])
            how, by = bind[node], int(cause[node])
            if how == NONE:
                break
            if how == 0:
                time = step_to(int(host.time[by]), "launch", rank, int(device.name[node]))
                node, on_device = by, False
            else:
                time = step_to(int(device.end[by]), "gap", rank, int(device.name[node]))
                node = by
            continue
        rank, name = int(host.rank[node]), int(host.name[node])
        if host.target[node] != NONE:
            node = int(host.target[node])
            time = step_to(int(device.end[node]), "sync", rank, name)
            on_device = True
        elif host.match[node] != NONE:
            opener = int(graph.collectives.last[host.match[node]])
            time = step_to(int(host.time[opener]), "comm", rank, name)
            node = int(host.before[opener])
            if node != NONE:
                time = step_to(int(host.time[node]), _host_kind(graph, opener), int(host.rank[opener]), name)
        else:
            before = int(host.before[node])
            if before == NONE:
                break
            time = step_to(int(host.time[before]), _host_kind(graph, node), rank, name)
            node = before
    if time > low and path:
        last = path[-1]
        step_to(low, "host", last.rank, last.name)
    return path


def _host_kind(graph: Graph, node: int) -> str:
    return HOST_CLASSES[graph.host.kind[node]]


def _binding(graph: Graph) -> tuple[Any, Any]:
    """What each device node's start hung on: 0 its launch, 1 its stream, 2 another stream; and that node."""
    launch, stream, other = graph.constraints()
    stack = np.stack([launch, stream, other])
    bind = stack.argmax(axis=0) if stack.shape[1] else np.zeros(0, dtype=np.int64)
    nodes = np.stack([graph.device.launch, graph.device.before, graph.device.other])
    cause = np.take_along_axis(nodes, bind[None, :], axis=0)[0] if len(bind) else bind
    return np.where(cause == NONE, NONE, bind), cause


def _last_node(graph: Graph) -> tuple[int, bool]:
    device_end = int(graph.device.end.max()) if len(graph.device.end) else NONE
    host_end = int(graph.host.time.max()) if len(graph.host.time) else NONE
    if device_end == NONE and host_end == NONE:
        return NONE, True
    if device_end > host_end:
        return int(graph.device.end.argmax()), True
    return int(graph.host.time.argmax()), False


def _last_member(graph: Graph, match: int, node: int) -> int:
    """Who came last to the collective of a device node: the node itself where it is none, or came last."""
    matched = graph.collectives
    if match == NONE or matched.members[match] < 2 or matched.last[match] == NONE or matched.on_host[match]:
        return node
    return int(matched.last[match])


def random_graph(seed: int) -> Graph:
    """Causes, collectives and clocks as they come, also such as no program has; but never a circle.

    Nodes happen in turns. A cause is of an earlier turn; the members of a collective share one.
    """
    source = random.Random(seed)
    ranks, turns = source.randint(1, 3), source.randint(1, 12)
    device: list[dict[str, Any]] = []
    host: list[dict[str, Any]] = []
    collectives: list[dict[str, Any]] = []
    for turn in range(turns):
        devices, hosts = len(device), len(host)
        kind = source.choice(("device", "device", "host", "host", "device collective", "host collective"))
        members = source.randint(1, ranks) if "collective" in kind else 1
        match = NONE
        if "collective" in kind:
            match = len(collectives)
            here = hosts if kind == "host collective" else devices
            last = here + source.randrange(members)
            collectives.append({"last": last, "on_host": kind == "host collective", "members": members})
        for _ in range(members):
            row = {"rank": source.randrange(ranks), "name": source.randrange(5), "step": NONE, "match": NONE}
            now = 1_000 * turn + source.randint(0, 3_000)
            if kind in ("device", "device collective"):
                causes = {"launch": _earlier(source, hosts)}
                causes |= {key: _earlier(source, devices) for key in ("before", "other")}
                row |= {"start": now, "end": now + source.randint(0, 2_000), "kind": source.randrange(3)}
                device.append({**row, **causes, "stream": 0, "match": match})
            else:
                row |= {"time": now, "kind": source.randrange(4), "target": NONE, "opens": match, "is_end": 0}
                row["before"] = _earlier(source, hosts)
                opened = [
                    number
                    for number, matched in enumerate(collectives[: match if match != NONE else None])
                    if matched["on_host"]
                ]
                if kind == "host" and opened and source.random() < 0.5:
                    row["match"] = source.choice(opened)
                if kind == "host" and source.random() < 0.3:
                    row["target"] = _earlier(source, devices)
                host.append(row)
    lags = Lags(*(np.array([source.randint(0, 50) for _ in range(ranks)]) for _ in range(4)))
    none = np.full(len(collectives), NONE)
    latest, on_host, size = (
        np.array([matched[key] for matched in collectives], dtype=np.int64)
        for key in ("last", "on_host", "members")
    )
    matched = MatchedCollectives(none, latest, on_host.astype(bool), size, none, none, none)
    moments = _columns(host, HostNodes)
    nodes = DeviceNodes(**_columns(device, DeviceNodes))
    ends = [*nodes.end.tolist(), *moments["time"].tolist()]
    window = (source.randint(0, 8_000), max(ends))
    names = [str(i) for i in range(5)]
    moments["is_end"] = moments["is_end"].astype(bool)
    return Graph(tuple(range(ranks)), names, nodes, HostNodes(**moments), lags, matched, window, (), ())


def _earlier(source: random.Random, count: int) -> int:
    return source.randrange(count) if count and source.random() < 0.8 else NONE


def _columns(rows: list[dict[str, Any]], kind: type) -> dict[str, Any]:
    return {key: np.array([row[key] for row in rows], dtype=np.int64) for key in kind.__annotations__}
