"""The lines of planes as batches of events, with the categories, devices and streams that the analyses know."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from rankscope.readers.base import EventBatch, ReadReport, ReadyBatch
from rankscope.readers.columns import (
    IN_C,
    IN_PYTHON,
    NO_TEXT,
    NULL,
    Codes,
    EventColumns,
    Numbers,
    Texts,
    event_columns,
    joined_texts,
)
from rankscope.readers.xla.meanings import (
    ASYNC_LINE,
    COPY_STATS,
    CORRELATION_STAT,
    DEVICE_PLANE,
    HOST_PLANE,
    STEP_STAT,
    STEPS,
    LineKind,
    Meaning,
    arguments,
    copied_bytes,
    line_kind,
    meaning,
    step_name,
)
from rankscope.readers.xla.planes import Line, LineEvents, NamedTexts, Plane, read_events

_LARGEST_STEP = 999_999_999
_LONGEST_PS = 1 << 62


def plane_batches(planes: list[Plane], report: ReadReport) -> Iterator[EventBatch]:
    """The names of processes and threads, then the events line by line."""
    yield ReadyBatch(_names(planes))
    devices = {plane.name for plane in planes if DEVICE_PLANE.match(plane.name) and plane.lines}
    on_host = any(HOST_PLANE.match(plane.name) and STEP_STAT in plane.stat_names.values() for plane in planes)
    for plane in planes:
        about = PlaneMeanings(plane, len(devices) > 1, not on_host and plane.name == min(devices, default=""))
        for line in plane.lines:
            if line.damaged:
                report.lose(f"the last event of {plane.name} {line.name} is cut off by the end of the file")
            for piece in line.pieces:
                yield PieceBatch(about, line, piece, report)


@dataclass(frozen=True)
class PlaneMeanings:
    """A plane, and what is needed to understand its events."""

    plane: Plane
    many_devices: bool
    steps_of_device: bool
    """This device's line of steps is that of the run: no host has annotated its steps."""
    _shared: dict[LineKind, tuple[list[Meaning], NamedTexts]] = field(default_factory=dict)

    def shared(self, kind: LineKind) -> tuple[list[Meaning], NamedTexts]:
        """What each metadata means on a line, in the order of its ids, and its arguments as JSON without braces."""
        if kind in self._shared:
            return self._shared[kind]
        has_async = any(line.name == ASYNC_LINE for line in self.plane.lines)
        meanings: dict[int, Meaning] = {}
        texts: dict[int, str] = {}
        for id, about in self.plane.events.items():
            hlo = about.name if about.display_name else ""
            meanings[id] = meaning(kind, about.label, hlo, about.stats, has_async, self.many_devices)
            args = arguments(about.stats, meanings[id].collective)
            texts[id] = json.dumps(args, ensure_ascii=False, separators=(",", ":"))[1:-1]
        self._shared[kind] = [meanings[id] for id in sorted(meanings)], NamedTexts.of(texts)
        return self._shared[kind]

    @cached_property
    def picked(self) -> Numbers:
        """The ids of the stats that get columns: step, correlation, and what describes copies and fills."""
        ids = {name: id for id, name in self.plane.stat_names.items()}
        names = (STEP_STAT, CORRELATION_STAT, *COPY_STATS)
        absent = min(self.plane.stat_names, default=0) - 1
        return np.array([ids.get(name, absent - at) for at, name in enumerate(names)], dtype=np.int64)


class _Pool:
    """Texts and their codes."""

    def __init__(self) -> None:
        self._codes: dict[str, int] = {}

    def code(self, text: str) -> int:
        return self._codes.setdefault(text, len(self._codes))

    def codes(self, texts: Iterator[str | None]) -> Codes:
        return np.array([NO_TEXT if text is None else self.code(text) for text in texts], dtype=np.int32)

    def texts(self) -> Texts:
        return Texts.of(self._codes)


class PieceBatch(EventBatch):
    """The events of a piece of a line."""

    def __init__(self, about: PlaneMeanings, line: Line, piece: memoryview, report: ReadReport) -> None:
        self._about, self._line, self._piece, self._report = about, line, piece, report

    def columns(self) -> EventColumns:
        plane, line, about = self._about.plane, self._line, self._about
        kind = line_kind(plane.name, line.name)
        meanings, shared = about.shared(kind)
        events = read_events(self._piece, shared, plane.stat_texts, about.picked)
        self._count_losses(events)
        step, correlation, *details = events.picked.T
        pool = _Pool()
        category = pool.codes(item.category for item in meanings)[events.metadata]
        name = pool.codes(item.name for item in meanings)[events.metadata]
        told = pool.codes(item.collective.get("Collective name") for item in meanings)[events.metadata]
        if kind.holds == STEPS and about.steps_of_device:
            category[:] = pool.code("user_annotation")
        if kind.device is None:
            stepped = (step >= 0) & (step <= _LARGEST_STEP)
            numbers, number_of = np.unique(step[stepped], return_inverse=True)
            name[stepped] = pool.codes(step_name(item) for item in numbers.tolist())[number_of]
            category[stepped] = pool.code("user_annotation")
        size = self._sizes(details)
        begin, end = _times(line, events)
        same = np.zeros(len(name), dtype=np.int32)
        return event_columns(
            time=begin,
            duration=end - begin,
            numbers={
                "correlation": correlation,
                "bytes": size,
                "device": NULL if kind.device is None else kind.device,
                "stream": NULL if kind.stream is None else kind.stream,
            },
            collective=told,
            phase=same + pool.code("X"),
            category=category,
            name=name,
            pid=same + pool.code(plane.name),
            tid=same + pool.code(str(line.id)),
            args=events.args,
            args_offset=events.args_offset,
            read_by=IN_C,
            texts=pool.texts(),
        )

    def _sizes(self, details: list[Any]) -> Numbers:
        """Of copies and fills, from the texts that their stats refer to."""
        size = np.full(len(details[0]), NULL)
        for column in details:
            told = np.flatnonzero(column != NULL)
            ids, id_of = np.unique(column[told], return_inverse=True)
            sizes = [copied_bytes(self._about.plane.stat_names.get(id, "")) for id in ids.tolist()]
            size[told] = np.array([NULL if number is None else number for number in sizes], dtype=np.int64)[
                id_of
            ]
        return size

    def _count_losses(self, events: LineEvents) -> None:
        where = f"{self._about.plane.name} {self._line.name}"
        for count, why in (
            (events.without_time, "has no time, only a number of occurrences"),
            (events.without_metadata, "has no name: the metadata of its plane is missing"),
            (events.damaged, "is damaged"),
        ):
            if count:
                self._report.lose(f"an event of {where} {why}", count)
        if events.without_args:
            self._report.repaired(
                f"arguments of {where} were left out: they are too long", events.without_args
            )

    def close(self) -> None:
        self._piece = memoryview(b"")


def _times(line: Line, events: LineEvents) -> tuple[Numbers, Numbers]:
    """Starts and ends in ns. Both are rounded down, so that events that follow each other still do."""
    offset = np.clip(events.offset_ps, -_LONGEST_PS, _LONGEST_PS)
    duration = np.clip(events.duration_ps, 0, _LONGEST_PS)
    begin = offset // 1000
    base = max(-_LONGEST_PS, min(line.timestamp_ns, _LONGEST_PS))
    return base + begin, base + begin + (offset % 1000 + duration) // 1000


def _names(planes: list[Plane]) -> EventColumns:
    """Metadata events: the names of planes and lines, and the order in which the file has them."""
    rows: list[tuple[str, str, str]] = []
    texts: list[bytes] = []
    for order, plane in enumerate(planes):
        about: list[tuple[str, dict[str, Any]]]
        about = [("process_name", {"name": plane.name}), ("process_sort_index", {"sort_index": order})]
        named = [(name, plane.lines[0], args) for name, args in about] if plane.lines else []
        named += [("thread_name", line, {"name": line.name or f"line {line.id}"}) for line in plane.lines]
        for name, line, args in named:
            rows.append((name, plane.name, str(line.id)))
            text = json.dumps(args, ensure_ascii=False, separators=(",", ":"))
            texts.append(text.encode("utf-8", "replace"))
    pool, no_time = _Pool(), np.full(len(rows), NULL)
    names, pids, tids = (pool.codes(row[column] for row in rows) for column in range(3))
    joined, args_offset = joined_texts(texts)
    same = np.zeros(len(rows), dtype=np.int32)
    return event_columns(
        time=no_time,
        duration=no_time,
        numbers={},
        phase=same + pool.code("M"),
        category=same + pool.code(""),
        name=names,
        pid=pids,
        tid=tids,
        args=joined,
        args_offset=args_offset,
        read_by=IN_PYTHON,
        texts=pool.texts(),
    )
