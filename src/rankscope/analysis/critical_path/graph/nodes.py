"""What had to wait for what, on every rank: the graph behind the critical path and what-if.

Two kinds of nodes. A device node is a kernel, copy or fill: it starts when the one before it on its stream has
ended, when its launch has arrived, and when what it waits for on another stream has ended. A host node is a moment
of the host: a launch, the two ends of a synchronising call, of a collective on the host and of a wait for data, and
those of a step. The host goes from one moment to the next; a synchronising call returns when the device has done. The
thread that serves a collective on the host goes its own way until the host waits for it.

Times between a cause and its effect (launch latency, the gap on a stream) are the shortest seen on that rank. What
an event started later than all that is kept as its residual: played back unchanged, the graph gives the file's times.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rankscope.analysis.core.intervals import Ints
from rankscope.store.arrays import NONE as NONE
from rankscope.store.arrays import Mask as Mask

DEVICE_CLASSES = ("compute", "comm", "copy")
HOST_CLASSES = ("host", "dataloader", "sync", "between")
"""What the time before a host node went to; 'between' is from one step to the next."""
_TOLERANCE_NS = 2_000
"""A start that launch and stream order explain to within this needs no other cause."""


@dataclass(frozen=True)
class Device:
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
    """The device node before it on its stream."""
    other: Ints
    """The device node of another stream that it waits for; NONE where it needs none."""
    match: Ints
    """Number of its collective; NONE where it has none."""


@dataclass(frozen=True)
class Host:
    """Host nodes, by rank and time."""

    rank: Ints
    time: Ints
    kind: Ints
    """Index into HOST_CLASSES, of the time that ends here."""
    name: Ints
    target: Ints
    """The device node that a synchronising call waited for, at its end; else NONE."""
    before: Ints
    """The host node before it: of the same thread inside a collective, else of all other threads together."""
    match: Ints
    """At the end of a collective on the host that the host waited for, and within it once the data has come: its
    number; else NONE."""
    opens: Ints
    """At the start of a collective on the host: its number; else NONE."""
    step: Ints
    """Of the marks of a step; else NONE."""
    is_end: Mask
    """Among those: the end of the step."""


@dataclass(frozen=True)
class Lags:
    """Shortest times from cause to effect, by rank number."""

    launch: Ints
    stream: Ints
    other: Ints
    sync: Ints


@dataclass(frozen=True)
class Meetings:
    """Matched collectives: who came last, how long the transfer took. Members are nodes."""

    transfer: Ints
    last: Ints
    """The member that came last: a device node, or a host node when on_host."""
    on_host: Mask
    members: Ints
    """How many nodes of this graph take part."""
    bytes: Ints
    group: Ints
    kind: Ints


@dataclass(frozen=True)
class Graph:
    """All of it. Ranks are numbered 0, 1, … in the arrays; `ranks` has their real numbers."""

    ranks: tuple[int, ...]
    names: list[str]
    device: Device
    host: Host
    lags: Lags
    meetings: Meetings
    window: tuple[int, int]
    steps: tuple[int, ...]
    notes: tuple[str, ...]

    def constraints(self) -> tuple[Ints, Ints, Ints]:
        """When each device node could have started: by its launch, its stream, and the other stream."""
        device, lags = self.device, self.lags
        never = np.iinfo(np.int64).min // 2
        launch = follow(device.launch, self.host.time, never) + lags.launch[device.rank]
        stream = follow(device.before, device.end, never) + lags.stream[device.rank]
        other = follow(device.other, device.end, never) + lags.other[device.rank]
        return launch, stream, other


def follow(node: Ints, value: Ints, otherwise: int) -> Ints:
    """The value of each node; `otherwise` where there is no node."""
    if len(value) == 0:
        return np.full(len(node), otherwise)
    return np.where(node != NONE, value[np.maximum(node, 0)], otherwise)


def previous_on_stream(stream: Ints) -> Ints:
    """The node before each on its stream; nodes come in order of start."""
    order = np.argsort(stream, kind="stable")
    before = np.full(len(stream), NONE)
    same = stream[order][1:] == stream[order][:-1]
    before[order[1:][same]] = order[:-1][same]
    return before


def shortest(rank: Ints, lag: Ints, ranks: int) -> Ints:
    """The smallest lag of each rank that is not negative; 0 where there is none. Nodes come by rank."""
    least = np.full(ranks, np.iinfo(np.int64).max)
    real = np.flatnonzero(lag >= 0)
    if len(real):
        firsts = np.flatnonzero(np.diff(rank[real], prepend=NONE))
        least[rank[real[firsts]]] = np.minimum.reduceat(lag[real], firsts)
    return np.where(least == np.iinfo(np.int64).max, 0, least)


def latest_end_between(rank: Ints, end: Ints, of: Ints, low: Ints, high: Ints) -> Ints:
    """For each question (rank `of`), the node of that rank that ends last in (low, high]; NONE without one."""
    if len(end) == 0:
        return np.full(len(of), NONE)
    origin = int(min(end.min(), low.min(initial=0), high.min(initial=0)))
    width = int(max(end.max(), low.max(initial=0), high.max(initial=0))) - origin + 2
    placed = rank * width + (end - origin)
    order = np.argsort(placed, kind="stable")  # nearly in order already
    at = np.searchsorted(placed, of * width + (high - origin), side="right", sorter=order) - 1
    found = np.where(at >= 0, order[np.maximum(at, 0)], NONE)
    good = (found != NONE) & (rank[found] == of) & (end[found] > low)
    return np.where(good, found, NONE)


def cross_stream(rank: Ints, stream: Ints, start: Ints, end: Ints, known: Ints) -> Ints:
    """Which node of another stream a late start waited for.

    `known` is when launch and stream order let it start. Where it started later, the node of another stream that
    ended last before it is the cause, if it ended after `known`.
    """
    late = np.flatnonzero(start - known > _TOLERANCE_NS)
    other = np.full(len(rank), NONE)
    if len(late) == 0:
        return other
    found = latest_end_between(rank, end, rank[late], np.maximum(known[late], 0), start[late])
    good = (found != NONE) & (stream[np.maximum(found, 0)] != stream[late])
    other[late[good]] = found[good]
    return other
