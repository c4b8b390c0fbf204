"""Launch delay and queue depth of each stream: how far the host is ahead of the device."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from rankscope.analysis.core.device_events import UNKNOWN, DeviceEvents, device_events
from rankscope.analysis.core.intervals import Ints, length, union
from rankscope.analysis.core.notes import gpu_notes
from rankscope.analysis.core.result import Column, Result, left_out_note
from rankscope.analysis.core.rollups import kept_per_rank
from rankscope.analysis.core.scope import Scope
from rankscope.store.arrays import number_rows, unique_values
from rankscope.timeline.run import Run

QUEUE_SLOTS = 1024
"""Launches that a CUDA stream queues before the next call blocks (observed, not documented; HTA uses it too)."""

COLUMNS = (
    Column("rank"),
    Column("device"),
    Column("stream"),
    Column("launches", "count", "events with a launch in the file"),
    Column(
        "delay_avg_ns",
        "ns",
        "mean time from the start of the launch call to the start of the event",
        title="Delay avg",
    ),
    Column("delay_med_ns", "ns", "median of that time", title="Delay med"),
    Column("delay_max_ns", "ns", "longest such time", title="Delay max"),
    Column("depth_avg", help="mean number of queued events (launched, not started) over time"),
    Column("depth_max", "count", "most queued events at any time"),
    Column("empty_pct", "percent", "share of the time with no queued event"),
    Column("full_ns", "ns", f"time with {QUEUE_SLOTS} or more queued events: the host may block"),
)


class StreamQueue(NamedTuple):
    """One stream; the fields are columns of the report."""

    device: int | None
    stream: int | None
    launches: int
    delay_avg_ns: float
    delay_med_ns: float
    delay_max_ns: int
    depth_avg: float
    depth_max: int
    empty_pct: float
    full_ns: int


@kept_per_rank("launches", list[StreamQueue])
def rank_queues(run: Run, scope: Scope) -> dict[int, list[StreamQueue]]:
    """By rank, of the events with a launch in the file."""
    queues = {}
    for rank in scope.ranks_in(run):
        events = device_events(run, rank, scope)
        queues[rank] = [*_streams(events.pick(events.launch_start != UNKNOWN))]
    return queues


def launches(run: Run, scope: Scope, by: str | None = None) -> Result:
    """One row per rank, device and stream, most launches first."""
    rows = [
        {"rank": rank, **stream._asdict()}
        for rank, streams in rank_queues(run, scope).items()
        for stream in streams
    ]
    rows.sort(key=lambda row: -row["launches"])
    inside, notes = gpu_notes(run, scope)
    if without := inside - sum(row["launches"] for row in rows):
        notes.append(left_out_note(f"{without:,} of {inside:,} GPU events that have no launch in the file"))
    return Result("idle.launches", "Launches and queues", scope.window, COLUMNS, rows, notes=tuple(notes))


def _streams(events: DeviceEvents) -> Iterator[StreamQueue]:
    streams, number = number_rows([events.device, events.stream])
    for at, (device, stream) in enumerate(streams.tolist()):
        mine = number == at
        launch, start = events.launch_start[mine], events.start[mine]
        delay = start - launch
        # From the first launch to the last start, cycle by cycle: between two cycles nothing was recorded.
        cycle, window = events.segment[mine], 0
        for segment in unique_values(cycle):
            inside = cycle == segment
            window += int(max(launch[inside].max(), start[inside].max()))
            window -= int(min(launch[inside].min(), start[inside].min()))
        waiting = union(launch, start)
        queued = int(np.maximum(delay, 0).sum())
        most, full = queue_depth(launch, start, QUEUE_SLOTS)
        yield StreamQueue(
            device=device if device != UNKNOWN else None,
            stream=stream if stream != UNKNOWN else None,
            launches=len(launch),
            delay_avg_ns=float(delay.mean()),
            delay_med_ns=float(np.median(delay)),
            delay_max_ns=int(delay.max()),
            depth_avg=queued / window if window else 0.0,
            depth_max=most,
            empty_pct=100 * (window - length(waiting)) / window if window else 0.0,
            full_ns=full,
        )


def queue_depth(launch: Ints, start: Ints, limit: int) -> tuple[int, int]:
    """The highest number of events in [launch, start) at any time, and the time with `limit` or more of them."""
    queued = start > launch
    launch, start = np.sort(launch[queued]), np.sort(start[queued])
    if len(launch) == 0:
        return 0, 0
    # After launch i, i + 1 events are launched; those with an earlier or equal start have left the queue.
    depth = np.arange(1, len(launch) + 1) - np.searchsorted(start, launch, side="right")
    times = np.concatenate([launch, start])
    change = np.concatenate([np.ones(len(launch)), -np.ones(len(start))]).astype(np.int64)
    order = np.argsort(times, kind="stable")
    times, level = times[order], np.cumsum(change[order])
    full = (level[:-1] >= limit) * np.diff(times)
    return int(depth.max()), int(full.sum())
