"""The gaps between the events of a GPU, with each nanosecond of idle time assigned to one cause."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, fields

import numpy as np

from rankscope.analysis.core.cache import once_per_run
from rankscope.analysis.core.device_events import KEPT_EVENTS, UNKNOWN, DeviceEvents, device_events, ranks_in
from rankscope.analysis.core.host_spans import dataloader_spans, rank_collectives, sync_spans
from rankscope.analysis.core.intervals import Intervals, Ints, intersect, subtract, union
from rankscope.analysis.core.scope import Scope
from rankscope.store.run import Run

CAUSES = ("host_bound", "launch_latency", "sync", "dataloader", "other")
"""Names as in the output; docs/reports/idle.md defines them."""


@dataclass(frozen=True)
class Gaps:
    """Intervals in which no event runs on a device, each up to the event that ends it, split by cause."""

    start: Ints
    end: Ints
    before: Ints
    """Index of the event that ends the gap."""
    host_bound: Ints
    launch_latency: Ints
    sync: Ints
    dataloader: Ints
    other: Ints

    @property
    def idle(self) -> Ints:
        total: Ints = np.sum([getattr(self, cause) for cause in CAUSES], axis=0)
        return total

    def pick(self, order: Ints) -> Gaps:
        return Gaps(*(getattr(self, f.name)[order] for f in fields(self)))


def find_gaps(events: DeviceEvents, busy: Intervals, dataloader: Intervals, sync: Intervals) -> Gaps:
    """The gaps of one device. Time in `busy` (collectives on the host) is not idle."""
    last_end = np.maximum.accumulate(events.end)
    before = np.flatnonzero(events.start[1:] > last_end[:-1]) + 1
    start, end, launch = last_end[before - 1], events.start[before], events.launch_start[before]
    late_launch = (launch != UNKNOWN) & (launch > start)
    launch = np.minimum(launch, end)

    def by_gap(pieces: Intervals) -> Ints:
        gap = np.searchsorted(start, pieces.start, side="right") - 1
        return np.bincount(gap, weights=pieces.end - pieces.start, minlength=len(start)).astype(np.int64)

    idle = subtract(Intervals(start, end), busy)
    loading, idle = intersect(idle, dataloader), subtract(idle, dataloader)
    waiting, idle = intersect(idle, sync), subtract(idle, sync)
    bound = by_gap(intersect(idle, Intervals(start[late_launch], launch[late_launch])))
    latency = by_gap(intersect(idle, Intervals(launch[late_launch], end[late_launch])))
    other = by_gap(idle) - bound - latency
    return Gaps(start, end, before, bound, latency, by_gap(waiting), by_gap(loading), other)


@dataclass(frozen=True)
class DeviceIdle:
    """The events and gaps of one device of one rank."""

    rank: int
    device: int
    events: DeviceEvents
    gaps: Gaps
    spans: Intervals
    """The idle time: the gaps without the collectives on the host."""

    @property
    def span(self) -> int:
        return int(self.events.end.max() - self.events.start.min())

    def total(self, cause: str) -> int:
        return int(getattr(self.gaps, cause).sum())


@dataclass
class _Kept:
    """What `idle_by_device` found, where all of it fits into memory."""

    complete: bool = False
    devices: list[DeviceIdle] = field(default_factory=list)


@once_per_run
def _kept(run: Run, scope: Scope) -> _Kept:
    return _Kept()


def idle_by_device(run: Run, scope: Scope) -> Iterator[DeviceIdle]:
    """Rank by rank, device by device; what fits into memory is kept for the next report."""
    kept = _kept(run, scope)
    if kept.complete:
        yield from kept.devices
        return
    found, events = [], 0
    for device in _idle_by_device(run, scope):
        events += len(device.events)
        if events <= KEPT_EVENTS:
            found.append(device)
        yield device
    if events <= KEPT_EVENTS:
        kept.complete, kept.devices = True, found


def _idle_by_device(run: Run, scope: Scope) -> Iterator[DeviceIdle]:
    for rank in ranks_in(run, scope):
        events = device_events(run, rank, scope)
        if len(events) == 0:
            continue
        collectives = rank_collectives(run, rank, scope)
        busy = union(collectives.start, collectives.end)
        dataloader, sync = dataloader_spans(run, rank), sync_spans(run, rank)
        for device, own in events.devices():
            gaps = find_gaps(own, busy, dataloader, sync)
            yield DeviceIdle(rank, device, own, gaps, subtract(Intervals(gaps.start, gaps.end), busy))


def idle_by_rank(run: Run, scope: Scope) -> dict[int, Intervals]:
    """The times at which all devices of a rank are idle."""
    idle: dict[int, Intervals] = {}
    for found in idle_by_device(run, scope):
        idle[found.rank] = intersect(idle[found.rank], found.spans) if found.rank in idle else found.spans
    return idle
