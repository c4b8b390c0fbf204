"""The events of one file on its timeline: times from the earliest one, today's categories, numbered tracks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rankscope.model import SNAPSHOT_CATEGORY
from rankscope.readers.columns import NULL, Codes, Numbers
from rankscope.store.arrays import NONE, Ints, Mask, distinct
from rankscope.store.categories import Names, Thread, named_threads, translated
from rankscope.store.event_log import Events
from rankscope.store.json_arguments import integer_of

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
_KINDS = ("annotation", "async", "counter", "overhead", "span", "stream", "sync", "thread")
"""In alphabetical order, which is that of the tracks."""
_FLOWS = ("s", "t", "f")


@dataclass(frozen=True)
class Track:
    """A thread, a stream, or another row of the timeline."""

    kind: str
    pid: str
    tid: str
    device: int | None
    stream: int | None


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

    def code(self, text: str) -> int:
        """The code of a text, or one that no event has."""
        return self.events.code(text)

    def with_phase(self, *phases: str) -> Ints:
        """The placed events of some phases, in file order."""
        return np.flatnonzero(self.events.has_text(self.events.phase, phases) & self.placed)


def arrange(events: Events) -> Recording:
    """Put the events of a file on its timeline. Their times and durations are changed in place, to save memory."""
    threads = named_threads(events)
    events = translated(events, threads)
    is_metadata = events.phase == events.code("M")
    known = ~is_metadata & (events.time != NULL)
    low, high = _usable_range(events.time[known])
    placed = known & (events.time >= low) & (events.time <= high)
    origin = int(events.time[placed].min()) if placed.any() else 0
    # Memory snapshots of older versions of torch have no times; their order is sufficient.
    counted = ~is_metadata & (known | (events.category != events.code(SNAPSHOT_CATEGORY)))
    timed = int(placed.sum())
    events.duration[events.duration == NULL] = 0
    np.clip(events.duration, -_LONGEST_FILE_NS, _LONGEST_FILE_NS, out=events.duration)
    np.subtract(events.time, origin, out=events.time)
    kind, tid, texts = _kinds(events)
    track, tracks = _tracks(events, placed, kind, tid, texts)
    return Recording(
        events=events,
        threads=threads,
        origin_ns=origin,
        timed=timed,
        misplaced=int(counted.sum()) - timed,
        placed=placed,
        track=track,
        tracks=tracks,
    )


def _usable_range(times: Numbers) -> tuple[int, int]:
    if len(times) == 0:
        return 0, 0
    low, high = int(times.min()), int(times.max())
    if high - low <= _LONGEST_FILE_NS:
        return low, high
    middle = int(np.partition(times, (len(times) - 1) // 2)[(len(times) - 1) // 2])
    return middle - _LONGEST_FILE_NS, middle + _LONGEST_FILE_NS


def _kinds(events: Events) -> tuple[NDArray[Any], Codes, list[str]]:
    """The kind of each event's track, and its tid there: a track per category for async events, one for all counters.

    Also the texts that the codes of the tids refer to.
    """
    texts = events.texts if "" in events.codes else [*events.texts, ""]
    phases, phase = distinct(events.phase, len(texts))
    categories, category = distinct(events.category, len(texts))
    table = np.array(
        [
            [_KINDS.index(_kind(texts[category_code], texts[phase_code])) for phase_code in phases]
            for category_code in categories
        ],
        dtype=np.int8,
    ).reshape(len(categories), len(phases))
    kind = table[category, phase]
    tid = events.tid
    in_category, in_process = kind == _KINDS.index("async"), kind == _KINDS.index("counter")
    if in_category.any() or in_process.any():
        tid = np.where(in_category, events.category, np.where(in_process, np.int32(texts.index("")), tid))
    return kind, tid, texts


def _kind(category: str, phase: str) -> str:
    return _KIND_OF_CATEGORY.get(category) or _KIND_OF_PHASE.get(phase) or "thread"


def _tracks(
    events: Events, placed: Mask, kind: NDArray[Any], tid: Codes, texts: list[str]
) -> tuple[Codes, list[Track]]:
    is_flow = events.has_text(events.phase, _FLOWS)
    wanted = placed & ~is_flow
    everything = bool(wanted.all())
    own = slice(None) if everything else np.flatnonzero(wanted)
    pids, pid = distinct(events.pid[own], len(texts))
    tids, lane = distinct(tid[own], len(texts))
    packed = (kind[own].astype(np.int64) * len(pids) + pid) * len(tids) + lane
    used, number = distinct(packed, len(_KINDS) * len(pids) * len(tids))
    keys = [
        (_KINDS[rest // len(pids)], texts[pids[rest % len(pids)]], texts[tids[code % len(tids)]])
        for code, rest in ((code, code // len(tids)) for code in used.tolist())
    ]
    order = sorted(range(len(keys)), key=keys.__getitem__)
    place = np.empty(len(keys), dtype=np.int32)
    place[order] = np.arange(len(keys), dtype=np.int32)
    track = np.full(len(events), NONE, dtype=np.int32)
    track[own] = place[number]
    keys = [keys[index] for index in order]
    on_device = np.flatnonzero(
        wanted & ((kind == _KINDS.index("stream")) | (kind == _KINDS.index("annotation")))
    )
    device = _least(
        events.number("device", on_device), track[on_device], [integer_of(key[1]) for key in keys]
    )
    stream = _least(
        events.number("stream", on_device), track[on_device], [integer_of(key[2]) for key in keys]
    )
    tracks = []
    for (name, pid_text, tid_text), at, lane_number in zip(keys, device, stream, strict=True):
        on = name in ("stream", "annotation")
        tracks.append(Track(name, pid_text, tid_text, at if on else None, lane_number if on else None))
    return track, tracks


def _least(values: Numbers, track: Codes, named: list[int | None]) -> list[int | None]:
    """For each track its least value. An event without one counts as the track's name, where that is a number."""
    own = np.array([NULL if number is None else number for number in named], dtype=np.int64)
    values = np.where(values == NULL, own[track], values)
    least = np.full(len(named), np.iinfo(np.int64).max)
    there = values != NULL
    np.minimum.at(least, track[there], values[there])
    has = np.zeros(len(named), dtype=bool)
    has[track[there]] = True
    return [int(value) if known else None for value, known in zip(least, has, strict=True)]
