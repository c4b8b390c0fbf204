"""The device nodes of the graph, with the nodes that each waits for."""

from __future__ import annotations

from typing import Any

import numpy as np

from rankscope.analysis.core.intervals import Ints
from rankscope.analysis.critical_path.graph.nodes import (
    DEVICE_CLASSES,
    NONE,
    DeviceNodes,
    Lags,
    Mask,
    cross_stream,
    event_key,
    follow,
    previous_on_stream,
    shortest,
)
from rankscope.store.arrays import number_rows
from rankscope.timeline.collectives.entries import Collectives


def device_nodes(
    raw: dict[str, Any], launch: Ints, host: dict[str, Ints], on_device: Collectives, number: Ints, ranks: int
) -> tuple[DeviceNodes, Lags]:
    """The nodes of the events in `raw`, and the shortest delays from cause to effect."""
    rank, start, end = raw["rank"], raw["start"], raw["end"]
    _, stream = number_rows([rank, raw["segment"], raw["track"]])
    before = previous_on_stream(stream)
    never = np.iinfo(np.int64).min // 2
    ready, ended = follow(launch, host["time"], never), follow(before, end, never)
    after_launch = np.where(launch != NONE, start - ready, NONE)
    lag_launch = shortest(rank, after_launch, ranks)
    # Only where an event was launched before the one ahead of it ended does the gap belong to the stream.
    queued = (before != NONE) & (ready + lag_launch[rank] <= ended)
    lag_stream = shortest(rank, np.where(queued, start - ended, NONE), ranks)
    known = np.maximum(ready + lag_launch[rank], ended + lag_stream[rank])
    is_comm = raw["kind"] == DEVICE_CLASSES.index("comm")
    other = cross_stream(rank, stream, start, end, known)
    other = np.where((other == NONE) & is_comm, _computed_before(rank, launch, start, end, is_comm), other)
    # An event of an earlier cycle of the profiler is not the cause: what ran since was not recorded.
    other = np.where(follow(other, raw["segment"], NONE) == raw["segment"], other, NONE)
    after_other = np.where(other != NONE, start - follow(other, end, 0), NONE)
    match = _matches(raw, on_device, number)
    device = DeviceNodes(
        rank, raw["step"], stream, start, end, raw["kind"], raw["name"], launch, before, other, match
    )
    return device, Lags(
        lag_launch, lag_stream, shortest(rank, after_other, ranks), np.zeros(ranks, dtype=np.int64)
    )


def _computed_before(rank: Ints, launch: Ints, start: Ints, end: Ints, is_comm: Mask) -> Ints:
    """For the kernel of a collective, the work launched last before it: c10d makes the kernel wait for that."""
    found = np.full(len(rank), NONE)
    work = np.flatnonzero(~is_comm & (launch != NONE))
    comm = np.flatnonzero(is_comm & (launch != NONE))
    if len(work) == 0 or len(comm) == 0:
        return found
    order = work[np.argsort(launch[work], kind="stable")]  # host nodes are sorted by rank and time
    at = np.searchsorted(launch[order], launch[comm]) - 1
    before = order[np.maximum(at, 0)]
    good = (at >= 0) & (rank[before] == rank[comm]) & (end[before] <= start[comm])
    found[comm[good]] = before[good]
    return found


def _matches(raw: dict[str, Any], on_device: Collectives, number: Ints) -> Ints:
    """The number of each device event's collective."""
    match = np.full(len(raw["rank"]), NONE)
    if len(on_device.rank) == 0 or len(match) == 0:
        return match
    theirs = event_key(number[on_device.rank], on_device.segment, on_device.slice)
    ours = event_key(raw["rank"], raw["segment"], raw["id"])
    order = np.argsort(ours, kind="stable")  # nearly in order already
    at = np.minimum(np.searchsorted(ours, theirs, sorter=order), len(ours) - 1)
    good = ours[order[at]] == theirs
    match[order[at[good]]] = on_device.match[good]
    return match
