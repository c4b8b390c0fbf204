"""The way back from the last end to the first start, cause by cause.

Device and host nodes share one numbering here: first the device's, then the host's. What each node hung on is worked
out for all at once; the loop only follows the numbers, and the pieces are made for the nodes it visited.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rankscope.analysis.core.intervals import Ints
from rankscope.analysis.critical_path.graph.nodes import DEVICE_CLASSES, HOST_CLASSES, NONE, Graph

PATH_CLASSES = (*DEVICE_CLASSES, *HOST_CLASSES, "launch", "gap")
_COMM, _HOST, _SYNC, _LAUNCH, _GAP = map(PATH_CLASSES.index, ("comm", "host", "sync", "launch", "gap"))
_ABSENT = np.iinfo(np.int64).max
"""Instead of a time, where there is no such piece."""


@dataclass(frozen=True)
class Path:
    """Pieces of the path, the last first: each starts where the next one ends."""

    kind: Ints
    """Index into PATH_CLASSES."""
    rank: Ints
    name: Ints
    start: Ints
    end: Ints


def walk(graph: Graph) -> Path:
    """From the last end back to the window's start."""
    low, high = graph.window
    came_last, cause = _came_last(graph), _causes(graph)
    chain = _chain(cause[came_last], _last_node(graph))
    first = came_last[chain]
    each = [_running(graph, chain, first), _waiting(graph, chain, first, cause[first])]
    when, kind, rank, name = np.stack(each, axis=2).reshape(4, -1)
    # Clocks that disagree never make a piece negative: time only goes back, and not beyond the window.
    start = np.minimum.accumulate(np.clip(when, low, max(low, high)))
    end = np.concatenate([[high], start])[:-1]
    in_window = np.repeat(end[::2] > low, 2)  # a node is visited whole, or not at all
    kept = np.flatnonzero((when != _ABSENT) & in_window)
    columns = [column[kept] for column in (kind, rank, name, start, end)]
    if len(kept) and start[kept[-1]] > low:
        rest = (_HOST, rank[kept[-1]], name[kept[-1]], low, start[kept[-1]])
        columns = [np.append(column, value) for column, value in zip(columns, rest, strict=True)]
    return Path(*columns)


def _came_last(graph: Graph) -> Ints:
    """Of each node's collective the member that came last; the node itself where it waited for nobody."""
    device, host, met = graph.device, graph.host, graph.meetings
    devices = len(device.rank)
    last = np.arange(devices + len(host.rank))
    inside = np.flatnonzero(device.match != NONE)
    match = device.match[inside]
    waited = (met.members[match] > 1) & (met.last[match] != NONE) & ~met.on_host[match]
    last[inside[waited]] = met.last[match[waited]]
    inside = np.flatnonzero((host.match != NONE) & (host.target == NONE))
    opener = met.last[host.match[inside]]
    # Where ranks use different backends for one collective, a kernel may have come last: it has no number here.
    on_host = np.take(host.opens, opener, mode="clip") == host.match[inside]
    last[devices + inside[on_host]] = devices + opener[on_host]
    return last


def _causes(graph: Graph) -> Ints:
    """What each node hung on: a device node on its launch, its stream or another stream, whichever came last."""
    device, host = graph.device, graph.host
    launch, stream, other = graph.constraints()
    cause = np.where(stream > launch, device.before, _on_host(graph, device.launch))
    cause = np.where(other > np.maximum(launch, stream), device.other, cause)
    return np.concatenate([cause, np.where(host.target != NONE, host.target, _on_host(graph, host.before))])


def _on_host(graph: Graph, node: Ints) -> Ints:
    return np.where(node != NONE, node + len(graph.device.rank), NONE)


def _chain(following: Ints, node: int) -> Ints:
    """The nodes on the way, from the last one back; no more than there are, should ranks wait in a circle."""
    chain: list[int] = []
    after = following.data  # reads single numbers faster than an array, and is no copy
    for _ in range(len(after)):
        if node == NONE:
            break
        chain.append(node)
        node = after[node]
    return np.array(chain, dtype=np.int64)


def _running(graph: Graph, chain: Ints, came_last: Ints) -> Ints:
    """Of each node since when it ran (in a collective: since all were there), as what, its rank and name."""
    device, host = graph.device, graph.host
    when = _pick(came_last, device.start, host.time)
    lasts = (chain < len(device.rank)) | (came_last != chain)  # but for collectives, a host node is a moment
    kind = np.where(chain < len(device.rank), _pick(chain, device.kind, host.kind), _COMM)
    rank, name = _pick(chain, device.rank, host.rank), _pick(chain, device.name, host.name)
    return np.stack([np.where(lasts, when, _ABSENT), kind, rank, name])


def _waiting(graph: Graph, chain: Ints, came_last: Ints, cause: Ints) -> Ints:
    """Before that: since when its cause was there, what the time went to, the rank and name."""
    device, host = graph.device, graph.host
    devices = len(device.rank)
    on_device = chain < devices
    of_host = np.where(cause < devices, _SYNC, len(DEVICE_CLASSES) + _pick(came_last, device.kind, host.kind))
    kind = np.where(on_device, np.where(cause < devices, _GAP, _LAUNCH), of_host)
    rank = _pick(came_last, device.rank, host.rank)
    name = _pick(np.where(on_device, came_last, chain), device.name, host.name)
    return np.stack([_pick(cause, device.end, host.time), kind, rank, name])


def _pick(nodes: Ints, of_device: Ints, of_host: Ints) -> Ints:
    """The value of each node in the numbering of both."""
    devices = len(of_device)
    picked = np.full(len(nodes), _ABSENT)
    on_device, on_host = (nodes != NONE) & (nodes < devices), nodes >= devices
    picked[on_device] = of_device[nodes[on_device]]
    picked[on_host] = of_host[nodes[on_host] - devices]
    return picked


def _last_node(graph: Graph) -> int:
    end, time = graph.device.end, graph.host.time
    if len(end) and (not len(time) or end.max() > time.max()):
        return int(end.argmax())
    return len(end) + int(time.argmax()) if len(time) else NONE
