"""A first pass over a trace_view.json: which process is which layer, and what launched each task of the device.

The names of processes may come after their events, and a task refers to its launch by a flow only. So what the second
pass needs is found first, by the number of the event.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rankscope.readers.checked_values import json_object
from rankscope.readers.columns import NULL, EventColumns, Numbers

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


@dataclass(frozen=True)
class _Points:
    """Events, or ends of flows: number or flow id, thread, time, duration."""

    number: Numbers
    thread: Numbers
    time: Numbers
    duration: Numbers

    @staticmethod
    def of(rows: list[Numbers]) -> _Points:
        """Rows of arrays with four columns."""
        joined = np.concatenate(rows) if rows else np.empty((0, 4), np.int64)
        return _Points(*joined.T)

    def pick(self, mask: Any) -> _Points:
        return _Points(self.number[mask], self.thread[mask], self.time[mask], self.duration[mask])


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
        rows = np.stack([number, thread, columns.time, duration], axis=1)
        timed = columns.time != NULL
        is_slice = timed & (columns.phase == codes.get("X", -2))
        unnamed, op = (columns.category == codes.get(text, -2) for text in ("", "cpu_op"))
        slices.append(rows[is_slice & unnamed])
        ops.append(rows[is_slice & op])
        rows[:, 0] = columns.flow
        for (category, phase), ends in flows.items():
            is_end = (columns.category == codes.get(category, -2)) & (columns.phase == codes.get(phase, -2))
            ends.append(rows[timed & is_end])
        total += len(columns)
    _resolve(
        surveyed, threads, _Points.of(slices), _Points.of(ops), {k: _Points.of(v) for k, v in flows.items()}
    )
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
    layer = np.array([surveyed.layers.get(pid, "") for pid, _ in threads] or [""])[slices.thread]
    calls, tasks = slices.pick(layer == CANN), slices.pick(np.isin(layer, (HARDWARE, *HCCL)))
    launched = _Flow(flows[HOST_TO_DEVICE, "s"], flows[HOST_TO_DEVICE, "f"])
    around = _open_at(calls, launched.source)
    surveyed.correlation = _joined(calls, around, tasks, _starting_at(tasks, launched.target))
    called = _Flow(flows[FROM_OP, "s"], flows[FROM_OP, "f"])
    surveyed.external_id = _joined(
        ops, _starting_at(ops, called.source), tasks, _starting_at(tasks, called.target)
    )
    on_plane = np.array(
        [
            surveyed.layers.get(pid, "") in HCCL
            and not is_communication(surveyed.threads.get((pid, tid), ""))
            for pid, tid in threads
        ]
        or [False]
    )[slices.thread]
    planes = slices.pick(on_plane)
    surveyed.hccl_tasks = np.unique(np.stack([planes.time, planes.duration], axis=1), axis=0)


def is_communication(thread: str) -> bool:
    """True for HCCL's threads of whole operations, 'Group dp Communication'; the others show the tasks of planes."""
    return "Communication" in thread


class _Flow:
    """Both ends of the flows that have both."""

    def __init__(self, sources: _Points, targets: _Points) -> None:
        ids, first = np.unique(sources.number, return_index=True)
        at = np.minimum(np.searchsorted(ids, targets.number), max(len(ids) - 1, 0))
        has_source = ids[at] == targets.number if len(ids) else np.zeros(len(targets.number), bool)
        self.source, self.target = sources.pick(first[at[has_source]]), targets.pick(has_source)


def _starting_at(events: _Points, points: _Points) -> Numbers:
    """For each point the event that starts then on its thread, or -1."""
    times = np.unique(np.concatenate([events.time, points.time]))
    width = int(max(events.thread.max(initial=0), points.thread.max(initial=0))) + 1
    key, wanted = (np.searchsorted(times, side.time) * width + side.thread for side in (events, points))
    order = np.argsort(key, kind="stable")
    if not len(order):
        return np.full(len(wanted), -1)
    at = np.minimum(np.searchsorted(key[order], wanted), len(order) - 1)
    return np.where(key[order][at] == wanted, order[at], -1)


def _open_at(events: _Points, points: _Points) -> Numbers:
    """For each point the innermost event around it on its thread, or -1."""
    if not len(events.time):
        return np.full(len(points.time), -1)
    order = np.lexsort((-events.duration, events.time, events.thread))
    times = np.unique(np.concatenate([events.time, points.time]))
    key = events.thread[order] * (len(times) + 1) + np.searchsorted(times, events.time[order])
    at = (
        np.searchsorted(key, points.thread * (len(times) + 1) + np.searchsorted(times, points.time), "right")
        - 1
    )
    thread, end = events.thread[order], (events.time + events.duration)[order]
    for _ in range(_MOST_STEPS_BACK):
        position = np.maximum(at, 0)
        over = (at >= 0) & (thread[position] == points.thread) & (end[position] < points.time)
        if not over.any():
            break
        at = np.where(over, at - 1, at)
    position = np.maximum(at, 0)
    is_around = (at >= 0) & (thread[position] == points.thread) & (end[position] >= points.time)
    return np.where(is_around, order[position], -1)


def _joined(sources: _Points, source: Numbers, targets: _Points, target: Numbers) -> tuple[Numbers, Numbers]:
    """One number for each source and its targets, counted from 1, by the numbers of the events."""
    both = (source >= 0) & (target >= 0)
    sources_of, id = np.unique(source[both], return_inverse=True)
    events = np.concatenate([sources.number[sources_of], targets.number[target[both]]])
    ids = np.concatenate([np.arange(len(sources_of)), id.reshape(-1)]) + 1
    events, first = np.unique(events, return_index=True)
    return events, ids[first]
