"""The events of ranks as nodes, each with what it waits for.

There are two kinds of nodes. A device node is a kernel, copy or fill. It starts after the previous node of its
stream, after its launch, and after the node of another stream that it waits for. A host node is a point in time: a
launch, or the start or end of a synchronising call, a host collective, a wait for data or a step. Host nodes follow
each other in time; a synchronising call ends after the device node that it waits for. The thread that runs a host
collective has a chain of its own until the host waits for the collective. A collective ends on all ranks when the last
one has arrived, plus its transfer; a send or receive when the kernels at the other ends have started, plus its own.

The delay between a cause and its effect (launch latency, gap on a stream) is the shortest on that rank. The rest of
the delay of an event is kept as its residual, so that a replay without changes gives the recorded times.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np

from rankscope.analysis.core.device_events import CLASSES
from rankscope.analysis.core.grouping import last_before
from rankscope.analysis.core.intervals import Ints
from rankscope.records import dataclass
from rankscope.store.arrays import NONE as NONE
from rankscope.store.arrays import Mask as Mask

DEVICE_CLASSES = CLASSES
HOST_CLASSES = ("host", "dataloader", "sync", "between", "unrecorded")
"""The class of the time before a host node; 'between' is the time from one step to the next, 'unrecorded' that from one
cycle of the profiler to the next."""
PATH_CLASSES = (*DEVICE_CLASSES, *HOST_CLASSES, "launch", "gap")
"""What a way from one node to another consists of."""
_TOLERANCE_NS = 2_000
"""A start that is at most this much later than launch and stream order allow needs no other cause. Chosen."""


@dataclass(frozen=True)
class DeviceNodes:
    """Device nodes, by rank and start."""

    rank: Ints
    step: Ints
    stream: Ints
    """A number for each (rank, stream)."""
    start: Ints
    end: Ints
    kind: Ints
    """Index into DEVICE_CLASSES."""
    name: Ints
    """Index into Graph.names."""
    launch: Ints
    """Host node; NONE where the launch is not in the file."""
    before: Ints
    """The previous device node on its stream."""
    other: Ints
    """The device node of another stream that it waits for, or NONE."""
    match: Ints
    """Number of its collective, or NONE."""


@dataclass(frozen=True)
class HostNodes:
    """Host nodes, by rank and time."""

    rank: Ints
    time: Ints
    kind: Ints
    """Index into HOST_CLASSES, for the time before this node."""
    name: Ints
    target: Ints
    """At the end of a synchronising call, the device node that it waited for; else NONE."""
    before: Ints
    """The previous host node: inside a host collective that of the same thread, else that of all other threads."""
    match: Ints
    """At the end of a host collective that the host waited for, and inside it after the data has arrived: the number
    of the collective; else NONE."""
    opens: Ints
    """At the start of a host collective, its number; else NONE."""
    step: Ints
    """At the start or end of a step, its number; else NONE."""
    is_end: Mask
    """Whether this is the end of a step."""


@dataclass(frozen=True)
class Lags:
    """The shortest delays from cause to effect, by index of the rank."""

    launch: Ints
    stream: Ints
    other: Ints
    sync: Ints


@dataclass(frozen=True)
class EventGraph:
    """The events of some ranks. The arrays hold indices into `ranks`, not rank numbers."""

    ranks: tuple[int, ...]
    names: list[str]
    device: DeviceNodes
    host: HostNodes
    lags: Lags

    def constraints(self) -> tuple[Ints, Ints, Ints]:
        """The earliest start of each device node by its launch, its stream, and the other stream."""
        device, lags = self.device, self.lags
        never = np.iinfo(np.int64).min // 2
        launch = follow(device.launch, self.host.time, never) + lags.launch[device.rank]
        stream = follow(device.before, device.end, never) + lags.stream[device.rank]
        other = follow(device.other, device.end, never) + lags.other[device.rank]
        return launch, stream, other

    @cached_property
    def stream_order(self) -> Ints:
        """The device nodes stream by stream, each in order of start."""
        return np.argsort(self.device.stream, kind="stable")

    @cached_property
    def sync_targets(self) -> tuple[Ints, Ints]:
        """By host node: the device node whose end a synchronising call waits for, or NONE; and the time from that
        end to the end of the call.

        A call that did not wait has a target too, the device node that ended last before it: when the host is faster or
        kernels are slower, it waits for that.
        """
        device, host = self.device, self.host
        waits = host.target != NONE
        target = host.target.copy()
        quiet = np.flatnonzero((host.kind == HOST_CLASSES.index("sync")) & ~waits)
        if len(quiet) and len(device.end):
            low = np.full(len(quiet), int(device.end.min()) - 1)
            target[quiet] = ended_last(device, host.rank[quiet], low, host.time[quiet])
        passed = host.time - follow(target, device.end, 0)
        return target, np.where(waits, passed, np.minimum(passed, self.lags.sync[host.rank]))

    @cached_property
    def residuals(self) -> Ints:
        """How much later each device node starts than its causes explain; 0 where it has none."""
        device = self.device
        launch, stream, other = self.constraints()
        caused = (device.launch != NONE) | (device.before != NONE) | (device.other != NONE)
        return np.where(caused, device.start - np.maximum(np.maximum(launch, stream), other), 0)


def event_key(rank: Ints, segment: Ints, id: Ints) -> Ints:
    """One key for an event of any file: ids take 40 bits, segments 8."""
    return (rank << 48) | (segment << 40) | id


def entries_of(keys: Ints, wanted: Ints) -> Ints:
    """The entry that has each key that is wanted, or NONE."""
    if not len(keys):
        return np.full(len(wanted), NONE)
    order = np.argsort(keys, kind="stable")
    at = order[np.minimum(np.searchsorted(keys, wanted, sorter=order), len(keys) - 1)]
    return np.where(keys[at] == wanted, at, NONE)


def follow(node: Ints, value: Ints, otherwise: int) -> Ints:
    """The value of each node; `otherwise` where there is no node."""
    return np.append(value, otherwise)[node]


def previous_on_stream(stream: Ints) -> Ints:
    """The previous node on the same stream. Nodes are sorted by start."""
    order = np.argsort(stream, kind="stable")
    before = np.full(len(stream), NONE)
    same = stream[order][1:] == stream[order][:-1]
    before[order[1:][same]] = order[:-1][same]
    return before


def shortest(rank: Ints, lag: Ints, ranks: int) -> Ints:
    """The smallest non-negative lag of each rank, or 0. Nodes are sorted by rank."""
    least = np.full(ranks, np.iinfo(np.int64).max)
    real = np.flatnonzero(lag >= 0)
    if len(real):
        firsts = np.flatnonzero(np.diff(rank[real], prepend=NONE))
        least[rank[real[firsts]]] = np.minimum.reduceat(lag[real], firsts)
    return np.where(least == np.iinfo(np.int64).max, 0, least)


def ended_last(device: DeviceNodes, of: Ints, low: Ints, high: Ints) -> Ints:
    """For each query, the node of rank `of` that ends last in (low, high], or NONE. Those of which no launch was
    recorded, unlike that of others of their rank, are no causes."""
    causes = may_be_causes(device.rank, device.launch, device.match != NONE)
    last = np.append(causes, NONE)[last_before(device.rank[causes], device.end[causes], of, high)]
    return np.where(follow(last, device.end, NONE) > low, last, NONE)


def may_be_causes(rank: Ints, launch: Ints, is_comm: Mask) -> Ints:
    has_launches = np.bincount(rank[launch != NONE], minlength=int(rank.max(initial=0)) + 1) > 0
    return np.flatnonzero((launch != NONE) | is_comm | ~has_launches[rank])


def cross_stream(rank: Ints, stream: Ints, start: Ints, end: Ints, expected: Ints, causes: Ints) -> Ints:
    """The node of another stream that a node waited for, of those that may be `causes`.

    `expected` is the earliest start by launch and stream order. For a node that started later, the cause is the node
    of another stream that ended last before its start, if that was after `expected`.
    """
    late = np.flatnonzero(start - expected > _TOLERANCE_NS)
    other = np.full(len(rank), NONE)
    last = np.append(causes, NONE)[last_before(rank[causes], end[causes], rank[late], start[late])]
    good = follow(last, end, NONE) > np.maximum(expected[late], 0)
    good &= follow(last, stream, NONE) != stream[late]
    other[late[good]] = last[good]
    return other
