"""The events of one file on its timeline: times from the earliest one, today's categories, numbered tracks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rankscope.model import SNAPSHOT_CATEGORY
from rankscope.readers.columns import NULL, Codes, Numbers
from rankscope.store.arrays import NONE, Ints, Mask
from rankscope.store.event_log import Events
from rankscope.timeline.categories import Names, Thread, named_threads, translated
from rankscope.timeline.json_arguments import integer_of

_LONGEST_FILE_NS = 1 << 46
"""About 20 hours. A timestamp farther from the median is treated as broken."""

_KIND_OF_CATEGORY = {
    "kernel": "stream",
    "gpu_memcpy": "stream",
    "gpu_memset": "stream",
    "gpu_user_annotation": "annotation",
    "cuda_sync": "sync",
    "overhead": "overhead",
    "Trace": "span",
}
_KIND_OF_PHASE = {"b": "async", "e": "async", "n": "async", "C": "counter"}
_ON_DEVICE = ("stream", "annotation")
_EVENTS_AT_ONCE = 1 << 18
FLOW_PHASES = ("s", "t", "f")
INSTANT_PHASES = ("i", "I", "R")
COUNTER_PHASES = ("C",)


@dataclass(frozen=True)
class Track:
    """A thread, a stream, or another row of the timeline."""

    kind: str
    pid: str
    tid: str
    device: int | None
    stream: int | None


@dataclass(frozen=True)
class Points:
    """Events at one moment: instants, counters, and both ends of flows."""

    event: NDArray[Any]
    group: NDArray[Any]
    track: Codes
    time: Ints
    name: Codes


@dataclass(frozen=True)
class Recording:
    """Columns have an entry for each event of the file; those of events that are not placed mean nothing."""

    events: Events
    """With today's categories, times from origin_ns, and durations of 0 for events that have none."""
    threads: Mapping[Thread, Names]
    origin_ns: int
    timed: int
    """Events with a usable time."""
    misplaced: int
    """Events without one: ts = 0, or years away from the others."""
    placed: Mask
    track: Codes
    """NONE for flows, which belong to a slice of another track."""
    tracks: list[Track]
    points: Points

    def code(self, text: str) -> int:
        """The code of a text, or one that no event has."""
        return self.events.code(text)

    def with_phase(self, *phases: str) -> Ints:
        """The placed events of some phases, in file order."""
        return _with_phase(self.events, self.placed, phases)

    def points_with_phase(self, phases: tuple[str, ...]) -> Points:
        """The points of some phases, in file order."""
        points = self.points
        wanted = self.events.has_text(self.events.groups[:, 0], phases)[points.group]
        if wanted.all():
            return points
        return Points(*(column[wanted] for column in vars(points).values()))


def arrange(events: Events) -> Recording:
    """Put the events of a file on its timeline. Their times and durations are changed in place, to save memory."""
    threads = named_threads(events)
    events = translated(events, threads)
    is_metadata = events.phase.equals(events.code("M"))
    has_time = ~is_metadata & (events.time != NULL)
    low, high = _usable_range(events.time, has_time)
    placed = has_time & (events.time >= low) & (events.time <= high)
    origin = int(events.time.min(initial=high, where=placed)) if placed.any() else 0
    # Memory snapshots of older versions of torch have no times; their order is sufficient.
    counted = ~is_metadata & (has_time | ~events.category.equals(events.code(SNAPSHOT_CATEGORY)))
    timed = int(placed.sum())
    events.duration[events.duration == NULL] = 0
    np.clip(events.duration, -_LONGEST_FILE_NS, _LONGEST_FILE_NS, out=events.duration)
    np.subtract(events.time, origin, out=events.time)
    track, tracks = _tracks(events, placed)
    return Recording(
        events=events,
        threads=threads,
        origin_ns=origin,
        timed=timed,
        misplaced=int(counted.sum()) - timed,
        placed=placed,
        track=track,
        tracks=tracks,
        points=_points(events, placed, track),
    )


def _points(events: Events, placed: Mask, track: Codes) -> Points:
    points = _with_phase(events, placed, (*INSTANT_PHASES, *COUNTER_PHASES, *FLOW_PHASES))
    columns = (events.group, track, events.time, events.name)
    if len(points) == len(events):  # as in a memory snapshot: none is copied
        return Points(points.astype(np.int32), *columns)
    return Points(points, *(column[points] for column in columns))


def _with_phase(events: Events, placed: Mask, phases: tuple[str, ...]) -> Ints:
    return np.flatnonzero(events.has_text(events.phase, phases) & placed)


def _usable_range(time: Numbers, has_time: Mask) -> tuple[int, int]:
    if not has_time.any():
        return 0, 0
    limits = np.iinfo(np.int64)
    low = int(time.min(initial=limits.max, where=has_time))
    high = int(time.max(initial=limits.min, where=has_time))
    if high - low <= _LONGEST_FILE_NS:
        return low, high
    times = time[has_time]
    middle = int(np.partition(times, (len(times) - 1) // 2)[(len(times) - 1) // 2])
    return middle - _LONGEST_FILE_NS, middle + _LONGEST_FILE_NS


def _track_key(phase: str, category: str, pid: str, tid: str) -> tuple[str, str, str]:
    """Kind, pid and tid of a group's track: async events have one per category, counters one per process."""
    kind = _KIND_OF_CATEGORY.get(category) or _KIND_OF_PHASE.get(phase) or "thread"
    return kind, pid, {"async": category, "counter": ""}.get(kind, tid)


def _tracks(events: Events, placed: Mask) -> tuple[Codes, list[Track]]:
    """The track of each event, and the tracks in the order of their kinds, pids and tids."""
    texts = events.texts
    occurs = np.zeros(len(events.groups), dtype=bool)
    occurs[events.group if placed.all() else events.group[placed]] = True
    occurs &= ~events.has_text(events.groups[:, 0], FLOW_PHASES)
    keys = [_track_key(*(texts[code] for code in row)) for row in events.groups.tolist()]
    names = sorted({key for key, wanted in zip(keys, occurs, strict=True) if wanted})
    number = {key: index for index, key in enumerate(names)}
    of_group = np.array(
        [number[key] if wanted else NONE for key, wanted in zip(keys, occurs, strict=True)], dtype=np.int32
    ).reshape(-1)
    track: Codes = of_group[events.group]
    if not placed.all():
        track[~placed] = NONE
    has_device = np.array([key[0] in _ON_DEVICE for key in names], dtype=bool)
    on_device = np.flatnonzero(np.append(has_device, False)[track])
    device, stream = (
        _least(events, column, on_device, track, [integer_of(key[part]) for key in names])
        for part, column in ((1, "device"), (2, "stream"))
    )
    return track, [
        Track(*key, *((at, lane) if key[0] in _ON_DEVICE else (None, None)))
        for key, at, lane in zip(names, device, stream, strict=True)
    ]


def _least(
    events: Events, column: str, on_device: Ints, track: Codes, named: list[int | None]
) -> list[int | None]:
    """For each track its least value. An event without one counts as the track's name, where that is a number."""
    of_names = np.array([NULL if number is None else number for number in named], dtype=np.int64)
    missing = np.iinfo(np.int64).max
    least = np.full(len(named), missing)
    for begin in range(0, len(on_device), _EVENTS_AT_ONCE):
        piece = on_device[begin : begin + _EVENTS_AT_ONCE]
        values = events.number(column, piece)
        values = np.where(values == NULL, of_names[track[piece]], values)
        there = values != NULL
        np.minimum.at(least, track[piece][there], values[there])
    return [None if value == missing else value for value in least.tolist()]
