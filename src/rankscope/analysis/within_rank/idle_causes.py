"""The gaps between the events of a GPU, with each nanosecond of idle time assigned to one cause."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import field, fields

import numpy as np

from rankscope.analysis.core.cache import once_per_run
from rankscope.analysis.core.device_events import KEPT_EVENTS, UNKNOWN, DeviceEvents, device_events, ranks_in
from rankscope.analysis.core.host_spans import dataloader_spans, rank_collectives, sync_spans
from rankscope.analysis.core.intervals import Intervals, Ints, intersect, subtract, union
from rankscope.analysis.core.scope import Scope
from rankscope.analysis.core.step_times import windows
from rankscope.records import dataclass
from rankscope.timeline.run import Run

CAUSES = ("host_bound", "launch_latency", "sync", "dataloader", "other")
"""Names as in the output; docs/reports/idle.md defines them."""


@dataclass(frozen=True)
class Gaps:
    """Stretches of the window in which no event runs on a device, each up to the next event, split by cause."""

    start: Ints
    end: Ints
    before: Ints
    """Index of the next event; UNKNOWN where there is none."""
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


def find_gaps(
    events: DeviceEvents, window: Intervals, busy: Intervals, dataloader: Intervals, sync: Intervals
) -> Gaps:
    """The gaps of one device in the window. Time in `busy` (collectives on the host) is not idle."""
    start, end = subtract(window, union(events.start, events.end))
    following = np.searchsorted(events.start, end, side="left")
    has_next, had_before = following < len(events), following > 0
    after, earlier = np.minimum(following, len(events) - 1), np.maximum(following - 1, 0)
    # What follows in the rank's next recording does not end a gap of this one.
    has_next &= (events.start[after] == end) | (events.segment[after] == events.segment[earlier])
    before = np.where(has_next, following, UNKNOWN)
    last_end = np.maximum.accumulate(events.end)
    previous = np.where(had_before, last_end[earlier], np.iinfo(np.int64).min)
    launch = np.where(has_next, events.launch_start[after], end)
    late_launch = ~has_next | ((launch != UNKNOWN) & (launch > previous))
    launch = np.clip(launch, start, end)

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
    """All of the device, also those outside the window: a gap may end with one of them."""
    inside: int
    """The number of events in the window."""
    gaps: Gaps
    spans: Intervals
    """The idle time: the gaps without the collectives on the host."""
    span: int
    """The length of the window."""

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
        events, found = device_events(run, rank, scope.only_ranks()), windows(run, rank, scope)
        if len(events) == 0 or len(found.step) == 0:
            continue
        collectives = rank_collectives(run, rank, Scope())
        busy = union(collectives.start, collectives.end)
        dataloader, sync = dataloader_spans(run, rank), sync_spans(run, rank)
        for device, own in events.devices():
            gaps = find_gaps(own, found.intervals, busy, dataloader, sync)
            idle = subtract(Intervals(gaps.start, gaps.end), busy)
            inside = len(own) if scope.steps is None else int(np.isin(own.step, found.step).sum())
            yield DeviceIdle(rank, device, own, inside, gaps, idle, found.span)


def idle_by_rank(run: Run, scope: Scope) -> dict[int, Intervals]:
    """The times at which all devices of a rank are idle."""
    idle: dict[int, Intervals] = {}
    for found in idle_by_device(run, scope):
        idle[found.rank] = intersect(idle[found.rank], found.spans) if found.rank in idle else found.spans
    return idle
