"""Translates the categories of other versions and programs into those of today's Kineto.

By name where the category is known under another name (model.CATEGORY_ALIASES), else by structure: tracks of devices,
correlation with a launch call, names of torch's ops. What is not recognised keeps its own category.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rankscope.model import CATEGORY_ALIASES, KNOWN_CATEGORIES, LAUNCH_CATEGORIES
from rankscope.readers.columns import NULL
from rankscope.store.arrays import Mask, number_rows
from rankscope.store.event_log import Events
from rankscope.timeline.json_arguments import arguments, integer_of, text_at

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
        name: events.number_at(name, places)
        for name in ("correlation", "external_id", "device", "stream", "bytes")
    }
    for name, told in (("device", device), ("stream", stream)):
        at = np.searchsorted(linked, wanted[told != NULL])
        column = columns[name]
        column[at] = np.where(column[at] == NULL, told[told != NULL], column[at])
    return replace(events, linked=linked, collective=events.collective_at(places), **columns)


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
    launched = events.number("correlation", launches)
    unknown = np.flatnonzero(begins)
    device, stream = events.number("device", unknown), events.number("stream", unknown)
    correlation = events.number("correlation", unknown)
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
