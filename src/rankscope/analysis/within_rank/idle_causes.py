"""The gaps between the events of a GPU, with each nanosecond of idle time assigned to one cause."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields

import numpy as np

from rankscope.analysis.core.cache import once_per_run
from rankscope.analysis.core.device_events import KEPT_EVENTS, UNKNOWN, DeviceEvents, device_events, gpu_ranks
from rankscope.analysis.core.host_spans import dataloader_spans, sync_spans
from rankscope.analysis.core.intervals import Intervals, Ints, intersect, subtract, union
from rankscope.analysis.core.rank_activity import host_collectives
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
    span: int
    """The length of the window."""

    def total(self, cause: str) -> int:
        return int(getattr(self.gaps, cause).sum())


@once_per_run
def _in_memory(run: Run, scope: Scope) -> list[DeviceIdle]:
    """What `idle_by_device` returned, where all of it fits into memory."""
    return []


def idle_by_device(run: Run, scope: Scope) -> Iterator[DeviceIdle]:
    """Rank by rank, device by device; what fits into memory is kept for the next report."""
    devices = _in_memory(run, scope)
    if devices:
        yield from devices
        return
    seen, events = [], 0
    for device in _idle_by_device(run, scope):
        events += len(device.events)
        if events <= KEPT_EVENTS:
            seen.append(device)
        yield device
    if events <= KEPT_EVENTS:
        devices += seen


def _idle_by_device(run: Run, scope: Scope) -> Iterator[DeviceIdle]:
    for rank in scope.ranks_in(run):
        window = windows(run, rank, scope)
        if rank not in gpu_ranks(run) or len(window.step) == 0:
            continue
        on_host, dataloader, sync = (
            host_collectives(run)[rank],
            dataloader_spans(run, rank),
            sync_spans(run, rank),
        )
        for device, events in device_events(run, rank, scope.only_ranks()).devices():
            gaps = find_gaps(events, window.intervals, on_host, dataloader, sync)
            inside = len(events) if scope.steps is None else int(np.isin(events.step, window.step).sum())
            yield DeviceIdle(rank, device, events, inside, gaps, window.span)
