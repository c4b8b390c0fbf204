"""The events of a trace_view.json, in two passes.

The first finds which process is which layer, and what launched each task of the device: the names of processes may come
after their events, and a task refers to its launch by a flow only. The second translates the events.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rankscope.collective_kinds import kind_of
from rankscope.readers.ascend.recording import Recording
from rankscope.readers.base import EventBatch
from rankscope.readers.checked_values import json_object
from rankscope.readers.columns import NULL, Codes, EventColumns, Numbers
from rankscope.readers.edited_columns import EditedColumns

HOST_TO_DEVICE, FROM_OP = "HostToDevice", "async_npu"
"""Categories of flows: from a call of CANN to its task, and from an op of the framework to it."""
CANN, HARDWARE, HCCL = "CANN", "Ascend Hardware", ("HCCL", "Communication")
_MOST_STEPS_BACK = 64
"""How many calls that have ended are passed over to find the one around a flow's start."""


@dataclass
class Survey:
    """What the second pass needs."""

    layers: dict[str, str] = field(default_factory=dict)
    """The names of processes, by pid."""
    threads: dict[tuple[str, str], str] = field(default_factory=dict)
    labels: dict[str, str] = field(default_factory=dict)
    first_event: list[int] = field(default_factory=list)
    """The number of the first event of each batch."""
    correlation: tuple[Numbers, Numbers] = (np.empty(0, np.int64), np.empty(0, np.int64))
    """Numbers of events in ascending order, and what joins a task with its launch."""
    external_id: tuple[Numbers, Numbers] = (np.empty(0, np.int64), np.empty(0, np.int64))
    """The same for what joins a task with its op."""
    hccl_tasks: NDArray[Any] = field(default_factory=lambda: np.empty((0, 2), np.int64))
    """Starts and durations of the tasks that HCCL lists, in ascending order."""

    def in_batch(self, batch: int, column: tuple[Numbers, Numbers], size: int) -> tuple[Numbers, Numbers]:
        """The entries of the events of one batch, by their place in it."""
        first = self.first_event[batch]
        begin, end = np.searchsorted(column[0], (first, first + size))
        return column[0][begin:end] - first, column[1][begin:end]

    def pids(self, *names: str) -> list[str]:
        return [pid for pid, name in self.layers.items() if name in names]


_Points = Numbers
"""Events, or ends of flows: four rows, of numbers or flow ids, threads, times and durations."""


def _joined_points(pieces: list[Numbers]) -> _Points:
    return np.concatenate(pieces, axis=1) if pieces else np.empty((4, 0), np.int64)


def survey(batches: Iterable[EventColumns]) -> Survey:
    """`batches` are the events of a file, in order."""
    surveyed = Survey()
    threads: dict[tuple[str, str], int] = {}
    slices: list[Numbers] = []
    ops: list[Numbers] = []
    flows: dict[tuple[str, str], list[Numbers]] = {
        (category, phase): [] for category in (HOST_TO_DEVICE, FROM_OP) for phase in "sf"
    }
    total = 0
    for columns in batches:
        surveyed.first_event.append(total)
        texts = list(columns.texts)
        codes = {text: code for code, text in enumerate(texts)}
        _read_names(columns, texts, codes, surveyed)
        pairs, inverse = np.unique(
            columns.pid.astype(np.int64) << 32 | columns.tid.astype(np.int64), return_inverse=True
        )
        keys = [(texts[pair >> 32], texts[pair & 0xFFFFFFFF]) for pair in pairs.tolist()]
        thread = np.array([threads.setdefault(key, len(threads)) for key in keys], np.int64)[inverse]
        number = np.arange(total, total + len(columns))
        duration = np.where(columns.duration == NULL, 0, columns.duration)
        points = np.stack([number, thread, columns.time, duration])
        timed = columns.time != NULL
        is_slice = timed & (columns.phase == codes.get("X", -2))
        unnamed, op = (columns.category == codes.get(text, -2) for text in ("", "cpu_op"))
        slices.append(points[:, is_slice & unnamed])
        ops.append(points[:, is_slice & op])
        points[0] = columns.flow
        for (category, phase), ends in flows.items():
            is_end = (columns.category == codes.get(category, -2)) & (columns.phase == codes.get(phase, -2))
            ends.append(points[:, timed & is_end])
        total += len(columns)
    ends_of = {key: _joined_points(ends) for key, ends in flows.items()}
    _resolve(surveyed, threads, _joined_points(slices), _joined_points(ops), ends_of)
    return surveyed


def _read_names(columns: EventColumns, texts: list[str], codes: dict[str, int], surveyed: Survey) -> None:
    for event in np.flatnonzero(columns.phase == codes.get("M", -2)).tolist():
        what = texts[columns.name[event]]
        if what not in ("process_name", "thread_name", "process_labels"):
            continue
        args = json_object(columns.args_of(event))
        value = args.get("labels" if what == "process_labels" else "name")
        if not isinstance(value, str):
            continue
        pid, tid = texts[columns.pid[event]], texts[columns.tid[event]]
        if what == "process_name":
            surveyed.layers[pid] = value
        elif what == "thread_name":
            surveyed.threads[pid, tid] = value
        else:
            surveyed.labels[pid] = value


def _resolve(
    surveyed: Survey,
    threads: dict[tuple[str, str], int],
    slices: _Points,
    ops: _Points,
    flows: dict[tuple[str, str], _Points],
) -> None:
    """Follow the flows from calls and ops to tasks."""
    layer = np.array([surveyed.layers.get(pid, "") for pid, _ in threads] or [""])[slices[1]]
    calls, tasks = slices[:, layer == CANN], slices[:, np.isin(layer, (HARDWARE, *HCCL))]
    source, target = _both_ends(flows[HOST_TO_DEVICE, "s"], flows[HOST_TO_DEVICE, "f"])
    surveyed.correlation = _joined(calls, _open_at(calls, source), tasks, _starting_at(tasks, target))
    source, target = _both_ends(flows[FROM_OP, "s"], flows[FROM_OP, "f"])
    surveyed.external_id = _joined(ops, _starting_at(ops, source), tasks, _starting_at(tasks, target))
    on_plane = np.array(
        [
            surveyed.layers.get(pid, "") in HCCL
            and not is_communication(surveyed.threads.get((pid, tid), ""))
            for pid, tid in threads
        ]
        or [False]
    )[slices[1]]
    surveyed.hccl_tasks = np.unique(slices[2:, on_plane].T, axis=0)


def is_communication(thread: str) -> bool:
    """True for HCCL's threads of whole operations, 'Group dp Communication'; the others show the tasks of planes."""
    return "Communication" in thread


def _both_ends(sources: _Points, targets: _Points) -> tuple[_Points, _Points]:
    """Sources and targets of the flows that have both."""
    ids, first = np.unique(sources[0], return_index=True)
    at = np.minimum(np.searchsorted(ids, targets[0]), max(len(ids) - 1, 0))
    has_source = ids[at] == targets[0] if len(ids) else np.zeros(len(at), bool)
    return sources[:, first[at[has_source]]], targets[:, has_source]


def _starting_at(events: _Points, points: _Points) -> Numbers:
    """For each point the event that starts then on its thread, or -1."""
    _, threads, all_times, _ = np.concatenate([events, points], axis=1)
    times, width = np.unique(all_times), int(threads.max(initial=0)) + 1
    key, wanted = (np.searchsorted(times, side[2]) * width + side[1] for side in (events, points))
    order = np.argsort(key, kind="stable")
    if not len(order):
        return np.full(len(wanted), -1)
    at = np.minimum(np.searchsorted(key[order], wanted), len(order) - 1)
    return np.where(key[order][at] == wanted, order[at], -1)


def _open_at(events: _Points, points: _Points) -> Numbers:
    """For each point the innermost event around it on its thread, or -1."""
    _, wanted, moment, _ = points
    if not events.size:
        return np.full(len(moment), -1)
    order = np.lexsort((-events[3], events[2], events[1]))
    _, thread, start, duration = events[:, order]
    times, end = np.unique(np.concatenate([start, moment])), start + duration
    key, wanted_key = (
        each * (len(times) + 1) + np.searchsorted(times, time)
        for each, time in ((thread, start), (wanted, moment))
    )
    at = np.searchsorted(key, wanted_key, "right") - 1
    for _ in range(_MOST_STEPS_BACK):
        position = np.maximum(at, 0)
        over = (at >= 0) & (thread[position] == wanted) & (end[position] < moment)
        if not over.any():
            break
        at = np.where(over, at - 1, at)
    position = np.maximum(at, 0)
    is_around = (at >= 0) & (thread[position] == wanted) & (end[position] >= moment)
    return np.where(is_around, order[position], -1)


def _joined(sources: _Points, source: Numbers, targets: _Points, target: Numbers) -> tuple[Numbers, Numbers]:
    """One number for each source and its targets, counted from 1, by the numbers of the events."""
    both = (source >= 0) & (target >= 0)
    sources_of, id = np.unique(source[both], return_inverse=True)
    events = np.concatenate([sources[0, sources_of], targets[0, target[both]]])
    ids = np.concatenate([np.arange(len(sources_of)), id.reshape(-1)]) + 1
    events, first = np.unique(events, return_index=True)
    return events, ids[first]


_TASK_TYPE = re.compile(rb'"Task Type":"([^"\\]*)"')
_COPIES = re.compile("(?i)^(?:SDMA|PCIE_DMA|MEMCPY)")
_WAITS = re.compile("(?i)EVENT|NOTIFY|PLACE_HOLDER|WAIT|WRITE_VALUE|STREAM_LOCK")
_STEP = re.compile(r"^ProfilerStep#\d+$")
_NUMBER = re.compile(r"\d{1,9}")
_HCCL_STREAMS, _OVERLAP_STREAMS = 100_000, 200_000
"""Where the numbers of rows begin that are no streams: HCCL's operations, which run on several, and the overlap."""
_DTYPES = {
    "FP16": "half", "FP32": "float", "FP64": "double", "BFP16": "bfloat16", "BF16": "bfloat16", "INT8": "char",
    "INT16": "short", "INT32": "int", "INT64": "long", "UINT8": "byte",
}  # fmt: skip
"""HCCL's names of types, and torch's."""


class AscendBatch(EventBatch):
    """The events of one block of JSON, with what they mean."""

    def __init__(self, batch: EventBatch, number: int, survey: Survey, recording: Recording) -> None:
        self._batch, self._number, self._survey, self._recording = batch, number, survey, recording

    def columns(self) -> EventColumns:
        columns = self._batch.columns()
        edited = EditedColumns(columns)
        is_slice = columns.phase == edited.code("X")
        # torch_npu records steps as ops.
        steps = [code for code, text in enumerate(edited.texts) if _STEP.match(text)]
        is_step = np.isin(edited.name, steps) & (edited.category == edited.code("cpu_op"))
        edited.category[is_step] = edited.code("user_annotation")
        # CANN's calls have a process of their own with the threads of the Python process.
        calls = is_slice & self._of_layer(edited, CANN)
        edited.category[calls] = edited.code("privateuse1_runtime")
        if len(python := self._survey.pids("Python")) == 1:
            edited.pid[calls] = edited.code(python[0])
        self._translate_tasks(edited, is_slice, columns)
        self._translate_operations(edited, is_slice, columns.tid)
        # The overlap is computed from the other layers: shown, and not counted.
        derived = is_slice & self._of_layer(edited, "Overlap Analysis")
        edited.category[derived] = edited.code("gpu_user_annotation")
        self._put_on_device(edited, derived, columns.tid, _OVERLAP_STREAMS)
        for name in ("correlation", "external_id"):
            events, ids = self._survey.in_batch(self._number, getattr(self._survey, name), len(columns))
            np.put(getattr(edited, name), events, ids)
        return edited.columns()

    def close(self) -> None:
        self._batch.close()

    def _of_layer(self, edited: EditedColumns, *names: str) -> Any:
        return np.isin(edited.pid, edited.codes_of(self._survey.pids(*names)))

    def _put_on_device(self, edited: EditedColumns, events: Any, tid: Codes, first_stream: int = 0) -> None:
        """A process has one device, whose number is in the label of the hardware's process ('NPU 3'). The stream is the
        number of the thread; 0 for one that has another name."""
        labels = (self._survey.labels.get(pid, "") for pid in self._survey.pids(HARDWARE))
        numbers = (match for label in labels if (match := _NUMBER.search(label)))
        edited.device[events] = next((int(match[0]) for match in numbers), 0)
        codes, index = np.unique(tid[events], return_inverse=True)
        threads = (_NUMBER.fullmatch(edited.texts[code]) for code in codes.tolist())
        streams = np.array([int(match[0]) if match else 0 for match in threads], dtype=np.int64)
        edited.stream[events] = streams[index] + first_stream

    def _translate_tasks(self, edited: EditedColumns, is_slice: Any, columns: EventColumns) -> None:
        tasks = is_slice & self._of_layer(edited, HARDWARE)
        if not tasks.any():
            return
        category = np.where(tasks, edited.code("kernel"), edited.category)
        task_types = edited.found_in_args(_TASK_TYPE)
        kinds = {kind: edited.code(_category(kind)) for kind in {match[1] for _, match in task_types}}
        events = np.array([event for event, _ in task_types], dtype=np.int64)
        of_tasks = tasks[events]
        category[events[of_tasks]] = np.array([kinds[match[1]] for _, match in task_types], np.int32)[
            of_tasks
        ]
        # HCCL's own tasks are part of an operation, which is counted as a whole.
        listed = _are_among(columns.time, columns.duration, self._survey.hccl_tasks)
        category[tasks & listed] = edited.code("gpu_user_annotation")
        edited.category[:] = category
        self._put_on_device(edited, tasks, columns.tid)

    def _translate_operations(self, edited: EditedColumns, is_slice: Any, tid: Codes) -> None:
        hccl = np.flatnonzero(is_slice & self._of_layer(edited, *HCCL))
        edited.category[hccl] = edited.code("gpu_user_annotation")
        self._put_on_device(edited, hccl, tid, _HCCL_STREAMS)
        for event in hccl.tolist():
            thread = self._survey.threads.get((edited.texts[edited.pid[event]], edited.texts[tid[event]]), "")
            name = edited.texts[edited.name[event]]
            kind = kind_of(name)
            if kind is None or not (is_communication(thread) or name.startswith("hcom_")):
                continue
            edited.category[event] = edited.code("kernel")
            args = edited.arguments(event)
            edited.add_collective(event, args, self._metadata(kind, name, thread, args))

    def _metadata(self, kind: str, name: str, thread: str, args: dict[str, Any]) -> dict[str, Any]:
        """Of an operation, under torch's names."""
        metadata: dict[str, Any] = {"Collective name": kind}
        group = self._recording.group(name)
        if group is not None:
            metadata["Process Group Name"] = group.hash
            metadata["Process Group Description"] = group.name or thread
        size = len(group.ranks) if group is not None else 0
        if group is not None and size:
            metadata["Process Group Ranks"] = str(list(group.ranks))
            metadata["Group size"] = size
        count = args.get("count")
        if isinstance(count, int) and not isinstance(count, bool) and 0 <= count < 1 << 48:
            # HCCL counts what a rank sends, of a reduce-scatter what it receives.
            metadata["In msg nelems"] = count * size if kind == "reduce_scatter" and size else count
            metadata["Out msg nelems"] = count * size if kind == "all_gather" and size else count
        dtype = _DTYPES.get(str(args.get("data_type", "")).upper())
        if dtype is not None:
            metadata["dtype"] = dtype
        return metadata


def _category(task_type: bytes) -> str:
    kind = task_type.decode("utf-8", "replace")
    if _COPIES.search(kind):
        return "gpu_memcpy"
    return "cuda_sync" if _WAITS.search(kind) else "kernel"


def _are_among(time: Any, duration: Any, listed: Any) -> Any:
    """Which events have a start and a duration that are listed."""
    if not len(listed):
        return np.zeros(len(time), bool)
    starts = listed[:, 0]
    begin, end = np.searchsorted(starts, time), np.searchsorted(starts, time, side="right")
    are_listed = np.zeros(len(time), bool)
    for step in range(int((end - begin).max(initial=0))):
        at = np.minimum(begin + step, len(starts) - 1)
        are_listed |= (begin + step < end) & (listed[at, 1] == duration)
    return are_listed
