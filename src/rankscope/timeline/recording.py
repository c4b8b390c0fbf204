"""The events of one file on its timeline: times from the earliest one, today's categories, numbered tracks."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Executor
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
_EVENTS_AT_ONCE = 1 << 17
"""By one thread, so that what it computes stays in its cache."""

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

    def with_phase(self, pool: Executor, *phases: str) -> Ints:
        """The placed events of some phases, in file order."""
        return _with_phase(self.events, self.placed, phases, pool)

    def points_with_phase(self, phases: tuple[str, ...]) -> Points:
        """The points of some phases, in file order."""
        points = self.points
        wanted = self.events.has_text(self.events.groups[:, 0], phases)[points.group]
        if wanted.all():
            return points
        return Points(*(column[wanted] for column in vars(points).values()))


def arrange(events: Events, pool: Executor) -> Recording:
    """Put the events of a file on its timeline. Their times and durations are changed in place, to save memory."""
    threads = named_threads(events)
    events = translated(events, threads)
    group, time, duration = events.group, events.time, events.duration
    is_metadata = events.groups[:, 0] == events.code("M")
    # Memory snapshots of older versions of torch have no times; their order is sufficient.
    needs_time = ~is_metadata & (events.groups[:, 1] != events.code(SNAPSHOT_CATEGORY))
    pieces = _pieces(len(events))
    placed = np.empty(len(events), dtype=bool)

    def find_timed(piece: slice) -> tuple[Numbers, Ints, int]:
        """The earliest and the latest time; how many events of each group have one, and how many have none that
        should."""
        has_time = (time[piece] != NULL) & ~is_metadata[group[piece]]
        placed[piece] = has_time
        times = time[piece][has_time]
        ends = times if len(times) < 2 else np.array([times.min(), times.max()])
        untimed = needs_time[group[piece][~has_time]]
        return ends, np.bincount(group[piece][has_time], minlength=len(events.groups)), int(untimed.sum())

    def place(piece: slice) -> None:
        lasting = duration[piece]
        lasting[lasting == NULL] = 0
        np.clip(lasting, -_LONGEST_FILE_NS, _LONGEST_FILE_NS, out=lasting)
        time[piece] -= origin
        track[piece] = track_of_group[group[piece]]
        track[piece][~placed[piece]] = NONE

    ends, of_groups, untimed = zip(*pool.map(find_timed, pieces or [slice(0)]), strict=True)
    limits, in_group = np.concatenate(ends), np.sum(of_groups, axis=0)
    misplaced = sum(untimed)
    if len(limits) and int(limits.max()) - int(limits.min()) > _LONGEST_FILE_NS:
        timed = int(placed.sum())
        low, high = _usable_range(time[placed])
        placed &= (time >= low) & (time <= high)
        misplaced += timed - int(placed.sum())
        limits = time[placed]
        in_group = np.bincount(group[placed], minlength=len(events.groups))
    origin = int(limits.min()) if len(limits) else 0
    track = np.empty(len(events), dtype=np.int32)
    track_of_group, names = _tracks(events, in_group > 0)
    list(pool.map(place, pieces))
    tracks = pool.submit(_with_devices, events, track, names)
    points = _points(events, placed, track, pool)
    return Recording(
        events=events,
        threads=threads,
        origin_ns=origin,
        timed=int(in_group.sum()),
        misplaced=misplaced,
        placed=placed,
        track=track,
        tracks=tracks.result(),
        points=points,
    )


def _pieces(count: int) -> list[slice]:
    return [slice(at, at + _EVENTS_AT_ONCE) for at in range(0, count, _EVENTS_AT_ONCE)]


def _points(events: Events, placed: Mask, track: Codes, pool: Executor) -> Points:
    points = _with_phase(events, placed, (*INSTANT_PHASES, *COUNTER_PHASES, *FLOW_PHASES), pool)
    columns: tuple[NDArray[Any], ...] = (events.group, track, events.time, events.name)
    if len(points) == len(events):  # as in a memory snapshot: none is copied
        return Points(points.astype(np.int32), *columns)
    return Points(points, *pool.map(lambda column: column[points], columns))


def _with_phase(events: Events, placed: Mask, phases: tuple[str, ...], pool: Executor) -> Ints:
    wanted = events.has_text(events.groups[:, 0], phases)
    if not wanted.any():
        return np.empty(0, dtype=np.int64)

    def indices(piece: slice) -> Ints:
        members: Ints = np.flatnonzero(wanted[events.group[piece]] & placed[piece])
        members += piece.start
        return members

    return np.concatenate([*pool.map(indices, _pieces(len(events)))])


def _usable_range(times: Numbers) -> tuple[int, int]:
    """Of a file with times that are too far apart."""
    middle = int(np.partition(times, (len(times) - 1) // 2)[(len(times) - 1) // 2])
    return middle - _LONGEST_FILE_NS, middle + _LONGEST_FILE_NS


TrackKey = tuple[str, str, str]
"""Kind, pid and tid."""


def _track_key(phase: str, category: str, pid: str, tid: str) -> TrackKey:
    """Kind, pid and tid of a group's track: async events have one per category, counters one per process."""
    kind = _KIND_OF_CATEGORY.get(category) or _KIND_OF_PHASE.get(phase) or "thread"
    return kind, pid, {"async": category, "counter": ""}.get(kind, tid)


def _tracks(events: Events, occurs: Mask) -> tuple[Codes, list[TrackKey]]:
    """The track of each group, and the tracks in the order of their kinds, pids and tids. `occurs`: which groups have
    events that are placed."""
    texts = events.texts
    occurs = occurs & ~events.has_text(events.groups[:, 0], FLOW_PHASES)
    keys = [_track_key(*(texts[code] for code in row)) for row in events.groups.tolist()]
    names = sorted({key for key, wanted in zip(keys, occurs, strict=True) if wanted})
    number = {key: index for index, key in enumerate(names)}
    of_group = np.array(
        [number[key] if wanted else NONE for key, wanted in zip(keys, occurs, strict=True)], dtype=np.int32
    ).reshape(-1)
    return of_group, names


def _with_devices(events: Events, track: Codes, names: list[TrackKey]) -> list[Track]:
    has_device = np.array([key[0] in _ON_DEVICE for key in names], dtype=bool)
    on_device = np.flatnonzero(np.append(has_device, False)[track])
    device, stream = (
        _least(events, column, on_device, track, [integer_of(key[part]) for key in names])
        for part, column in ((1, "device"), (2, "stream"))
    )
    return [
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
