"""The events of one file on its timeline: times from the earliest one, today's categories, numbered tracks."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rankscope.model import CATEGORY_ALIASES, KNOWN_CATEGORIES, LAUNCH_CATEGORIES, SNAPSHOT_CATEGORY
from rankscope.readers.columns import NULL, Codes, Numbers
from rankscope.store.arrays import NONE, Ints, Mask, number_rows
from rankscope.store.event_log import Events
from rankscope.text.json_values import arguments, integer_of, text_at

_WITH_DURATION = ("X", "B", "E", "b", "e")
_OPS_OF_AUTOGRAD = "cpu functions"
_KERNELS_OF_AUTOGRAD = re.compile(r"(?i)^(?:CUDA|HIP|XPU) functions$", re.ASCII)
"""The process ids in the export of torch.autograd.profiler (torch before 1.8); it has no categories."""
_DEVICE = re.compile(
    r"(?i)^(?:/device:)?(?:gpu|cuda|hip|rocm|mtia|xpu|hpu|npu|tpu|mlu)[ :#_-]*(\d+)\b", re.ASCII
)
"""Process names and labels of devices: 'GPU 0' and 'MTIA 3' of Kineto, '/device:GPU:0' of XLA."""
_STREAM = re.compile(r"(?i)^(?:(?:cuda|hip|gpu|compute) )?stream\b[ #:]*(\d*)", re.ASCII)
_PROTON_STREAM = re.compile(r"^GPU Stream \d+$", re.ASCII)
"""Threads with the kernels of Triton's Proton, which gives them neither a device nor a stream."""
_PROTON_GRAPH = re.compile(r"^Graph: Stream (\d+)$", re.ASCII)
"""Threads with the scopes around kernels of a replayed graph."""
_PROTON_BLOCK = re.compile(r" Core\d+ CTA\d+$", re.ASCII)
"""Processes that stand for blocks of one kernel: Proton's intra-kernel traces, whose times are cycles."""
_DERIVED = re.compile(r"(?i)module|step|scope|source|framework|annotation|name|launch stats", re.ASCII)
"""Threads of a device that group its work by something else; XLA writes several."""
_COPY = re.compile(r"(?i)^\[?(?:cuda |hip |gpu )?(?:memcpy|dma_request)", re.ASCII)
_FILL = re.compile(r"(?i)^\[?(?:cuda |hip |gpu )?memset", re.ASCII)
_WAIT = re.compile(r"(?i)^event_(?:wait|record)$", re.ASCII)
_ANNOTATION = re.compile(
    r"^(?:ProfilerStep#|Optimizer\.|enumerate\(DataLoader\)|DistributedDataParallel\."
    r"|(?:nccl|gloo|mpi|ucc|hccl):)"
)
"""Annotations that older versions record as ops."""
_OP = re.compile(r"^(?:aten|autograd|c10d|prim|torch|torchvision|quantized|profiler)::")
_LAUNCH = re.compile(r"^(?:cuda|hip)[A-Z]\w*$", re.ASCII)


@dataclass(frozen=True)
class Names:
    """What the metadata events say of a thread; all None if there are none."""

    process: str | None = None
    label: str | None = None
    thread: str | None = None
    sort_index: int | None = None


_TOLD_BY = {"process_name": "process", "process_labels": "label", "thread_name": "thread"}
"""Names of metadata events, and the field of Names that each tells."""

Thread = tuple[str, str]
"""pid and tid."""


def named_threads(events: Events) -> dict[Thread, Names]:
    """The names that the file gives to processes and threads, by pid and tid."""
    texts = events.texts
    told: dict[Thread, dict[str, list[Any]]] = {}
    index = np.flatnonzero(events.phase.equals(events.code("M")))
    columns = (index, events.pid[index], events.tid[index], events.name[index])
    for event, pid, tid, name in zip(*(column.tolist() for column in columns), strict=True):
        what = texts[name]
        field = _TOLD_BY.get(what, "sort_index" if what.endswith("sort_index") else "")
        of_thread = told.setdefault((texts[pid], texts[tid]), {})
        if field:
            args = arguments(events.args.get(event))
            of_thread.setdefault(field, []).append(_value(field, args))
    return {
        key: Names(**{field: _largest(*values) for field, values in of_thread.items()})
        for key, of_thread in told.items()
    }


def _value(field: str, args: Any) -> Any:
    if field == "sort_index":
        return integer_of(text_at(args, "sort_index"))
    value = text_at(args, "labels" if field == "label" else "name")
    return value.strip(" ") if field == "thread" and value is not None else value


def _largest(*values: Any) -> Any:
    return max((value for value in values if value is not None), default=None)


def translated(events: Events, threads: Mapping[Thread, Names]) -> Events:
    """The events with today's categories, and devices and streams for those whose track tells them.

    A file that has only known categories, the usual case, is returned as it is.
    """
    texts = events.texts
    kinds = {(texts[phase], texts[category]) for phase, category in events.groups[:, :2].tolist()}
    begun = {category for phase, category in kinds if phase in _WITH_DURATION and phase != "E"}
    unknown = sorted(begun - set(KNOWN_CATEGORIES))
    misleading = _misleading_groups(events, threads)
    if not unknown and not misleading and ("E", "") not in kinds:
        return events
    timed = events.has_text(events.phase, _WITH_DURATION)
    is_end = events.phase.equals(events.code("E"))
    is_unknown = events.has_text(events.category, unknown) | np.isin(events.group, misleading)
    wanted = np.flatnonzero(timed & (is_unknown | is_end))
    meanings = _track_meanings(events, threads, timed & ~is_end & is_unknown)
    columns = (events.pid[wanted], events.tid[wanted], events.category[wanted], is_end[wanted])
    rows, group = number_rows([column.astype(np.int64) for column in columns])
    of_rows = [
        meanings.get((texts[pid], texts[tid], texts[category], bool(end)))
        for pid, tid, category, end in rows.tolist()
    ]
    raw = [texts[category] for _, _, category, _ in rows.tolist()]
    return _with_meanings(events, wanted, group, of_rows, raw)


def _misleading_groups(events: Events, threads: Mapping[Thread, Names]) -> list[int]:
    """Groups of events of Proton whose category is known, but not all that it stands for."""
    texts, known_codes = events.texts, {events.code(category) for category in KNOWN_CATEGORIES}
    return [
        number
        for number, (_, category, pid, tid) in enumerate(events.groups.tolist())
        if category in known_codes
        and (
            _PROTON_STREAM.search(threads.get((texts[pid], texts[tid]), Names()).thread or "")
            or _PROTON_BLOCK.search(texts[pid])
        )
    ]


@dataclass(frozen=True)
class _Meaning:
    """What a category on a track means here (None: not known), and where it runs."""

    category: str | None
    device: int | None = None
    stream: int | None = None


def _with_meanings(
    events: Events, wanted: NDArray[Any], group: NDArray[Any], meanings: list[_Meaning | None], raw: list[str]
) -> Events:
    pool = {text: code for code, text in enumerate(events.texts)}
    pairs, pair = number_rows([group, events.name[wanted].astype(np.int64)])
    chosen = [
        pool.setdefault(text, len(pool))
        for text in (
            _category(meanings[number], raw[number], events.texts[name]) for number, name in pairs.tolist()
        )
    ]
    category = events.category[:]
    category[wanted] = np.array(chosen, dtype=np.int32)[pair]
    pairs_of, new_group = number_rows([events.group.astype(np.int64), category.astype(np.int64)])
    groups = events.groups[pairs_of[:, 0]]
    groups[:, 1] = pairs_of[:, 1]
    changed = _with_places(
        events,
        wanted,
        _numbers(meaning.device if meaning else None for meaning in meanings)[group],
        _numbers(meaning.stream if meaning else None for meaning in meanings)[group],
    )
    return replace(changed, group=new_group, groups=groups, texts=list(pool))


def _category(meaning: _Meaning | None, raw: str, name: str) -> str:
    if meaning is not None and meaning.category is not None:
        if meaning.category == "kernel":
            kinds = ((_COPY, "gpu_memcpy"), (_FILL, "gpu_memset"), (_WAIT, "cuda_sync"))
            return next((kind for pattern, kind in kinds if pattern.search(name)), "kernel")
        is_annotation = meaning.category == "cpu_op" and _ANNOTATION.search(name)
        return "user_annotation" if is_annotation else meaning.category
    if meaning is None or raw:
        return raw
    kinds = ((_ANNOTATION, "user_annotation"), (_OP, "cpu_op"), (_LAUNCH, "cuda_runtime"))
    return next((kind for pattern, kind in kinds if pattern.search(name)), "")


def _with_places(events: Events, wanted: NDArray[Any], device: NDArray[Any], stream: NDArray[Any]) -> Events:
    """The events with the devices and streams of their tracks where they have none of their own."""
    placed = wanted[(device != NULL) | (stream != NULL)]
    linked = np.union1d(events.linked, placed).astype(np.int32)
    places = np.append(events.places(linked), np.int32(len(events.linked)))
    columns: dict[str, Any] = {
        name: events.number(name, places)
        for name in ("correlation", "external_id", "device", "stream", "bytes")
    }
    for name, told in (("device", device), ("stream", stream)):
        at = np.searchsorted(linked, wanted[told != NULL])
        column = columns[name]
        column[at] = np.where(column[at] == NULL, told[told != NULL], column[at])
    return replace(events, linked=linked, collective=events.at("collective", places), **columns)


def _track_meanings(
    events: Events, threads: Mapping[Thread, Names], begins: Mask
) -> dict[tuple[str, str, str, bool], _Meaning]:
    """By pid, tid, category, and whether it is the end of a pair."""
    texts = events.texts
    placed = {
        (pid, tid, category): meaning
        for pid, tid, category, meaning in _begun_meanings(events, threads, begins)
    }
    meanings = {(*key, False): meaning for key, meaning in placed.items()}
    meanings |= {(*key, True): meaning for key, meaning in placed.items() if key[2]}
    # The end of a pair may have neither a category nor a name: it belongs to the track of its begin.
    pairs = np.flatnonzero(events.phase.equals(events.code("B")))
    columns = (events.pid[pairs], events.tid[pairs], events.category[pairs])
    first: dict[Thread, str] = {}
    for pid, tid, category in number_rows([column.astype(np.int64) for column in columns])[0].tolist():
        key = texts[pid], texts[tid]
        first[key] = min(first.get(key, texts[category]), texts[category])
    for (pid, tid), category in first.items():
        begun = placed.get((pid, tid, category), _Meaning(None))
        meaning = category if begun.category is None else begun.category
        meanings[pid, tid, "", True] = replace(begun, category=meaning)
    return meanings


def _begun_meanings(
    events: Events, threads: Mapping[Thread, Names], begins: Mask
) -> Iterable[tuple[str, str, str, _Meaning]]:
    texts = events.texts
    devices, have_streams = _processes(threads)
    calls = np.fromiter((_LAUNCH.search(text) is not None for text in texts), bool, len(texts))
    launching = events.has_text(events.category[events.linked], (*LAUNCH_CATEGORIES, "Runtime"))
    launches = events.linked[launching | calls[events.name[events.linked]]]
    launched = events.number("correlation", events.places(launches))
    unknown = np.flatnonzero(begins)
    places = events.places(unknown)
    device, stream, correlation = (
        events.number(name, places) for name in ("device", "stream", "correlation")
    )
    is_launched = (correlation > 0) & np.isin(correlation, launched) & ~calls[events.name[unknown]]
    columns = (events.pid[unknown], events.tid[unknown], events.category[unknown])
    rows, group = number_rows([column.astype(np.int64) for column in columns])
    members = np.split(
        np.argsort(group, kind="stable"), np.cumsum(np.bincount(group, minlength=len(rows)))[:-1]
    )
    for mine, (pid_code, tid_code, category_code) in zip(members, rows.tolist(), strict=False):
        pid, tid, category = texts[pid_code], texts[tid_code], texts[category_code]
        thread = threads.get((pid, tid), Names()).thread
        device_name = devices.get(pid)
        of_autograd = category == "" and _KERNELS_OF_AUTOGRAD.search(pid) is not None
        on_device, on_stream = device[mine] != NULL, stream[mine] != NULL
        graph = _number_in(_PROTON_GRAPH, thread)
        if _PROTON_BLOCK.search(pid):
            meaning: str | None = "intra_kernel"
        elif graph is not None:
            meaning = "gpu_user_annotation"
        elif category in CATEGORY_ALIASES:
            meaning = CATEGORY_ALIASES[category]
        elif category == "" and pid.lower() == _OPS_OF_AUTOGRAD:
            meaning = "cpu_op"
        elif of_autograd or _STREAM.search(tid if thread is None else thread):
            meaning = "kernel"
        elif device_name is not None and (
            have_streams.get(pid) or (thread is not None and _DERIVED.search(thread))
        ):
            meaning = "gpu_user_annotation"
        elif device_name is not None or is_launched[mine].any() or (on_device.all() and on_stream.all()):
            meaning = "kernel"
        else:
            meaning = None
        if meaning not in ("kernel", "gpu_user_annotation"):
            yield pid, tid, category, _Meaning(meaning)
            continue
        at, lane = device[mine][on_device], stream[mine][on_stream]
        told = integer_of(tid) if of_autograd else _number_in(_DEVICE, device_name)
        if told is None and not of_autograd:
            told = integer_of(pid)
        shown = 0 if of_autograd else _number_in(_STREAM, tid if thread is None else thread)
        shown = graph if shown is None else shown
        yield (
            pid,
            tid,
            category,
            _Meaning(meaning, int(at.min()) if len(at) else told, int(lane.min()) if len(lane) else shown),
        )


def _processes(threads: Mapping[Thread, Names]) -> tuple[dict[str, str | None], dict[str, bool]]:
    """By pid: the name of its device (None for a process that is none), and whether it has threads named as streams."""
    labels: dict[str, str | None] = {}
    names: dict[str, str | None] = {}
    streams: dict[str, bool] = {}
    for (pid, _), thread_names in threads.items():
        for devices, name in ((labels, thread_names.label), (names, thread_names.process)):
            if name is not None and _DEVICE.search(name):
                devices[pid] = _largest(devices.get(pid), name)
        is_stream = thread_names.thread is not None and _STREAM.search(thread_names.thread) is not None
        streams[pid] = streams.get(pid, False) or is_stream
    return names | labels, streams


def _number_in(pattern: re.Pattern[str], text: str | None) -> int | None:
    match = pattern.search(text) if text is not None else None
    return integer_of(match[1]) if match else None


def _numbers(values: Iterable[int | None]) -> NDArray[Any]:
    return np.array([NULL if value is None else value for value in values], dtype=np.int64)


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
        times, at_middle = time[placed], (timed - 1) // 2
        middle = int(np.partition(times, at_middle)[at_middle])
        placed &= (time >= middle - _LONGEST_FILE_NS) & (time <= middle + _LONGEST_FILE_NS)
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
        values = events.number(column, events.places(piece))
        values = np.where(values == NULL, of_names[track[piece]], values)
        there = values != NULL
        np.minimum.at(least, track[piece][there], values[there])
    return [None if value == missing else value for value in least.tolist()]
