"""The lines of planes as batches of events, with the categories, devices and streams that the analyses know."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from rankscope import native
from rankscope.readers.base import EventBatch, ReadReport, ReadyBatch
from rankscope.readers.columns import (
    IN_C,
    IN_PYTHON,
    NULL,
    EventColumns,
    Numbers,
    Texts,
    event_columns,
    joined_texts,
    text_codes,
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
from rankscope.readers.xla.planes import Line, NamedTexts, Plane

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


class PieceBatch(EventBatch):
    """The events of a piece of a line."""

    def __init__(self, about: PlaneMeanings, line: Line, piece: memoryview, report: ReadReport) -> None:
        self._about, self._line, self._piece, self._report = about, line, piece, report

    def columns(self) -> EventColumns:
        plane, line, about = self._about.plane, self._line, self._about
        kind = line_kind(plane.name, line.name)
        meanings, shared = about.shared(kind)
        # Places among the ids of the metadata, times in ps, and a row of the picked stats for each event.
        columns, without_time, without_metadata, damaged, without_args = native.functions.line_events(
            self._piece, shared.buffers, plane.stat_texts.buffers, about.picked
        )
        metadata, offset, duration, picked = map(
            np.frombuffer, columns, (np.int32, np.int64, np.int64, np.int64)
        )
        where = f"{plane.name} {line.name}"
        for count, why in (
            (without_time, "has no time, only a number of occurrences"),
            (without_metadata, "has no name: the metadata of its plane is missing"),
            (damaged, "is damaged"),
        ):
            if count:
                self._report.lose(f"an event of {where} {why}", count)
        if without_args:
            self._report.repaired(f"arguments of {where} were left out: they are too long", without_args)
        step, correlation, *details = picked.reshape(-1, len(about.picked)).T
        # The first texts are those that all events have.
        pool = {text: code for code, text in enumerate(dict.fromkeys(("X", plane.name, str(line.id))))}
        category = text_codes(pool, [item.category for item in meanings])[metadata]
        name = text_codes(pool, [item.name for item in meanings])[metadata]
        told = text_codes(pool, [item.collective.get("Collective name") for item in meanings])[metadata]
        annotation = pool.setdefault("user_annotation", len(pool))
        if kind.holds == STEPS and about.steps_of_device:
            category[:] = annotation
        if kind.device is None:
            stepped = (step >= 0) & (step <= _LARGEST_STEP)
            numbers, number_of = np.unique(step[stepped], return_inverse=True)
            name[stepped] = text_codes(pool, [step_name(item) for item in numbers.tolist()])[number_of]
            category[stepped] = annotation
        size = self._sizes(details)
        begin, end = _times(line.timestamp_ns, offset, duration)
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
            phase=same + pool["X"],
            category=category,
            name=name,
            pid=same + pool[plane.name],
            tid=same + pool[str(line.id)],
            args=columns[4],
            args_offset=np.frombuffer(columns[5], np.uint32),
            read_by=IN_C,
            texts=Texts.of(pool),
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

    def close(self) -> None:
        self._piece = memoryview(b"")


def _times(start: int, offset_ps: Numbers, duration_ps: Numbers) -> tuple[Numbers, Numbers]:
    """Starts and ends in ns. Both are rounded down, so that events that follow each other still do."""
    offset = np.clip(offset_ps, -_LONGEST_PS, _LONGEST_PS)
    duration = np.clip(duration_ps, 0, _LONGEST_PS)
    begin = offset // 1000 + max(-_LONGEST_PS, min(start, _LONGEST_PS))
    return begin, begin + (offset % 1000 + duration) // 1000


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
    pool, no_time = {"M": 0, "": 1}, np.full(len(rows), NULL)
    names, pids, tids = (text_codes(pool, [row[column] for row in rows]) for column in range(3))
    joined, args_offset = joined_texts(texts)
    same = np.zeros(len(rows), dtype=np.int32)
    return event_columns(
        time=no_time,
        duration=no_time,
        numbers={},
        phase=same,
        category=same + 1,
        name=names,
        pid=pids,
        tid=tids,
        args=joined,
        args_offset=args_offset,
        read_by=IN_PYTHON,
        texts=Texts.of(pool),
    )
