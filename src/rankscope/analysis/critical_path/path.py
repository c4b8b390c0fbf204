"""Find the critical path: from the last end back to the first start, from each node to its cause.

Device and host nodes share one numbering here: device nodes first, then host nodes. The causes of all nodes are
computed at once; a loop follows them, and pieces are made only for the nodes on the path.
"""

from __future__ import annotations

import numpy as np

from rankscope.analysis.core.intervals import Ints
from rankscope.analysis.critical_path.graph.nodes import DEVICE_CLASSES, HOST_CLASSES, NONE, Graph
from rankscope.records import dataclass
from rankscope.store.separate_runs import SESSION_GAP_NS

PATH_CLASSES = (*DEVICE_CLASSES, *HOST_CLASSES, "launch", "gap")
_COMM, _HOST, _SYNC, _LAUNCH, _GAP, _UNRECORDED = map(
    PATH_CLASSES.index, ("comm", "host", "sync", "launch", "gap", "unrecorded")
)
_ABSENT = np.iinfo(np.int64).max
"""Stands for the time where there is no piece."""


@dataclass(frozen=True)
class CriticalPath:
    """Pieces of the path, in reverse order: each starts where the next one ends."""

    kind: Ints
    """Index into PATH_CLASSES."""
    rank: Ints
    name: Ints
    start: Ints
    end: Ints


def find_critical_path(graph: Graph) -> CriticalPath:
    """Walk from the last end back to the start of the window."""
    low, high = graph.window
    last_member, cause = _last_members(graph), causes(graph)
    chain = _chain(cause[last_member], _last_node(graph))
    first = last_member[chain]
    each = [_running(graph, chain, first), _waiting(graph, chain, first, cause[first])]
    when, kind, rank, name = np.stack(each, axis=2).reshape(4, -1)
    # Where clocks disagree, a piece is cut to length 0 rather than negative.
    start = np.minimum.accumulate(np.clip(when, low, max(low, high)))
    end = np.concatenate([[high], start])[:-1]
    in_window = np.repeat(end[::2] > low, 2)  # both pieces of a node, or none
    shown = np.flatnonzero((when != _ABSENT) & in_window)
    columns = [column[shown] for column in (kind, rank, name, start, end)]
    if len(shown) and start[shown[-1]] > low:
        # A rank that begins later than this was recorded later: nothing is known of its time before.
        kind_of_rest = _UNRECORDED if start[shown[-1]] - low > SESSION_GAP_NS else _HOST
        rest = (kind_of_rest, rank[shown[-1]], name[shown[-1]], low, start[shown[-1]])
        columns = [np.append(column, value) for column, value in zip(columns, rest, strict=True)]
    return CriticalPath(*columns)


def _last_members(graph: Graph) -> Ints:
    """For each node the member of its collective that arrived last; the node itself where it did not wait."""
    device, host, matched = graph.device, graph.host, graph.collectives
    devices = len(device.rank)
    last = np.arange(devices + len(host.rank))
    inside = np.flatnonzero(device.match != NONE)
    match = device.match[inside]
    waited = matched.meets[match] & (matched.last[match] != NONE) & ~matched.on_host[match]
    last[inside[waited]] = matched.last[match[waited]]
    inside = np.flatnonzero((host.match != NONE) & (host.target == NONE))
    opener = matched.last[host.match[inside]]
    # Where ranks use different backends for one collective, the last member may be a kernel: it is skipped.
    on_host = np.take(host.opens, opener, mode="clip") == host.match[inside]
    on_host |= matched.is_message[host.match[inside]] & matched.on_host[host.match[inside]]
    last[devices + inside[on_host]] = devices + opener[on_host]
    return last


def causes(graph: Graph) -> Ints:
    """The cause of each node: for a device node the latest of its launch, its stream and another stream."""
    device, host = graph.device, graph.host
    launch, stream, other = graph.constraints()
    cause = np.where(stream > launch, device.before, _on_host(graph, device.launch))
    cause = np.where(other > np.maximum(launch, stream), device.other, cause)
    return np.concatenate([cause, np.where(host.target != NONE, host.target, _on_host(graph, host.before))])


def _on_host(graph: Graph, node: Ints) -> Ints:
    return np.where(node != NONE, node + len(graph.device.rank), NONE)


def _chain(following: Ints, node: int) -> Ints:
    """The nodes of the path, from the last one back. Limited to the number of nodes, in case of a cycle."""
    chain: list[int] = []
    after = following.data  # a memoryview: faster to index than an array
    for _ in range(len(after)):
        if node == NONE:
            break
        chain.append(node)
        node = after[node]
    return np.array(chain, dtype=np.int64)


def _running(graph: Graph, chain: Ints, last_member: Ints) -> Ints:
    """The running piece of each node: start (of a collective: the last arrival), class, rank and name."""
    device, host = graph.device, graph.host
    when = _pick(last_member, device.start, host.time)
    has_length = (chain < len(device.rank)) | (last_member != chain)  # only host collectives have a length
    kind = np.where(chain < len(device.rank), _pick(chain, device.kind, host.kind), _COMM)
    rank, name = _pick(chain, device.rank, host.rank), _pick(chain, device.name, host.name)
    return np.stack([np.where(has_length, when, _ABSENT), kind, rank, name])


def _waiting(graph: Graph, chain: Ints, last_member: Ints, cause: Ints) -> Ints:
    """The waiting piece before it: end of the cause, class, rank and name."""
    device, host = graph.device, graph.host
    devices = len(device.rank)
    on_device = chain < devices
    of_host = np.where(
        cause < devices, _SYNC, len(DEVICE_CLASSES) + _pick(last_member, device.kind, host.kind)
    )
    kind = np.where(on_device, np.where(cause < devices, _GAP, _LAUNCH), of_host)
    rank = _pick(last_member, device.rank, host.rank)
    name = _pick(np.where(on_device, last_member, chain), device.name, host.name)
    return np.stack([_pick(cause, device.end, host.time), kind, rank, name])


def _pick(nodes: Ints, of_device: Ints, of_host: Ints) -> Ints:
    """The value of each node, in the common numbering."""
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
