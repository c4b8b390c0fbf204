"""JAX's and XLA's .trace.json.gz: a Chrome trace that the profiler makes of its .xplane.pb, a million events at most.

Processes are planes and threads are lines, so their names tell what events mean, as in the .xplane.pb. Stats are
arguments, and all their values are text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rankscope.readers.base import EventBatch, Reader, TraceIdentity
from rankscope.readers.checked_values import json_object
from rankscope.readers.kineto.reader import KinetoReading
from rankscope.readers.xla.recordings import identity_of

if TYPE_CHECKING:
    from rankscope.readers.columns import EventColumns
    from rankscope.readers.edited_columns import EditedColumns
    from rankscope.readers.xla.meanings import LineKind, Meaning

_STATS = re.compile(
    rb'"(?:(correlation_id)":"?(\d{1,18})|(step_num)":"?(\d{1,9})|(?:memcpy|memset)_details":"[^"]*?size:(\d{1,18}))\b'
)
_MOST_EVENTS = 1_000_000
"""What XLA writes into such a file."""

_Lines = dict[tuple[str, str], "LineKind"]


class TraceJsonBatch(EventBatch):
    """The events of one block of JSON, with what they mean."""

    def __init__(self, batch: EventBatch, reading: TraceJsonReading) -> None:
        self._batch, self._reading = batch, reading

    def columns(self) -> EventColumns:
        from rankscope.readers.edited_columns import EditedColumns

        columns = self._batch.columns()
        edited = EditedColumns(columns)
        # The last event is {}: its list has a comma after every event.
        edited.phase[columns.phase == edited.code("")] = edited.code("M")
        is_slice = columns.phase == edited.code("X")
        self._reading.count(int(is_slice.sum()))
        self._translate(edited, is_slice, columns)
        self._read_stats(edited, columns)
        return edited.columns()

    def close(self) -> None:
        self._batch.close()

    def _translate(self, edited: EditedColumns, is_slice: Any, columns: EventColumns) -> None:
        """Categories, devices and streams: events with the same name on the same line mean the same."""
        import numpy as np

        from rankscope.readers.columns import NULL
        from rankscope.readers.xla.meanings import OTHER, LineKind

        slices = np.flatnonzero(is_slice & (columns.category == edited.code("")))  # XLA writes no categories
        keys = np.stack([column[slices] for column in (columns.pid, columns.tid, columns.name)], axis=1)
        distinct, first, kind_of = np.unique(keys, axis=0, return_index=True, return_inverse=True)
        kind_of = kind_of.reshape(-1)
        kinds, meanings = [], []
        for (pid, tid, name), example in zip(distinct.tolist(), slices[first].tolist(), strict=True):
            kind = self._reading.lines.get((edited.texts[pid], edited.texts[tid]), LineKind(OTHER))
            kinds.append(kind)
            meanings.append(self._meaning(kind, edited.texts[name], edited, example))
        edited.category[slices] = edited.codes_of(item.category for item in meanings)[kind_of]
        edited.name[slices] = edited.codes_of(item.name for item in meanings)[kind_of]
        for name in ("device", "stream"):
            numbers = (getattr(kind, name) for kind in kinds)
            values = np.array([NULL if number is None else number for number in numbers], dtype=np.int64)
            getattr(edited, name)[slices] = values[kind_of]
        communicates = np.array([bool(item.collective) for item in meanings], dtype=bool)[kind_of]
        for event, number in zip(slices[communicates].tolist(), kind_of[communicates].tolist(), strict=True):
            edited.add_collective(event, edited.arguments(event), meanings[number].collective)

    def _meaning(self, kind: LineKind, label: str, edited: EditedColumns, example: int) -> Meaning:
        from rankscope.readers.xla.meanings import ASYNC, OPS, STEPS, Meaning, meaning

        stats = edited.arguments(example) if kind.holds in (OPS, ASYNC) else {}
        hlo = str(stats.get("long_name", ""))
        has_async = (kind.device, ASYNC) in self._reading.devices
        many = len({device for device, _ in self._reading.devices}) > 1
        plain = meaning(kind, label, hlo, stats, has_async, many)
        if kind.holds == STEPS and kind.device == self._reading.step_device:
            return Meaning("user_annotation", plain.name)
        return plain

    def _read_stats(self, edited: EditedColumns, columns: EventColumns) -> None:
        from rankscope.readers.xla.meanings import step_name

        for event, match in edited.found_in_args(_STATS):
            if match[1]:
                edited.correlation[event] = int(match[2])
            elif match[5]:
                edited.bytes[event] = int(match[5])
            elif edited.texts[edited.category[event]] in ("cpu_op", "user_annotation"):
                edited.name[event] = edited.code(step_name(int(match[4])))
                edited.category[event] = edited.code("user_annotation")


class TraceJsonReading(KinetoReading):
    """One pass over one file; the names of its planes and lines are at its start."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._slices = 0
        self.lines: _Lines = {}
        self.devices: set[tuple[int, str]] = set()
        """The devices and what their lines hold."""
        self.step_device: int | None = None
        """The device whose line of steps is that of the run: where no host has annotated its steps."""

    def batches(self) -> Iterator[EventBatch]:  # type: ignore[override]
        self._read_names()
        for batch in super().batches():
            yield TraceJsonBatch(batch, self)

    def count(self, slices: int) -> None:
        """A file that has as many events as XLA writes has lost the others. Its last batch may not be the last read."""
        self._slices += slices
        if self._slices >= _MOST_EVENTS:
            more = "XLA leaves out what is more; the .xplane.pb beside it has all"
            self.report.damage = f"it has {self._slices:,} events: {more}"

    def _read_names(self) -> None:
        import numpy as np

        from rankscope.readers.xla.meanings import STEPS, line_kind

        batch = next(KinetoReading(self._path).batches())
        try:
            columns = batch.columns()
        finally:
            batch.close()
        texts = list(columns.texts)
        named = [code for code, text in enumerate(texts) if text in ("process_name", "thread_name")]
        planes: dict[str, str] = {}
        lines: dict[tuple[str, str], str] = {}
        for event in np.flatnonzero(np.isin(columns.name, named)).tolist():
            name = json_object(columns.args_of(event)).get("name")
            pid, tid = texts[columns.pid[event]], texts[columns.tid[event]]
            if isinstance(name, str) and texts[columns.name[event]] == "process_name":
                planes[pid] = name
            elif isinstance(name, str):
                lines[pid, tid] = name
        self.lines = {key: line_kind(planes.get(key[0], ""), name) for key, name in lines.items()}
        self.devices = {(line.device, line.holds) for line in self.lines.values() if line.device is not None}
        if b'"step_num"' not in bytes(columns.args):
            self.step_device = min((device for device, holds in self.devices if holds == STEPS), default=None)


class TraceJsonReader(Reader):
    """Chrome traces whose processes are XLA's planes."""

    name = "xla"
    reading = TraceJsonReading

    def recognises(self, path: Path, head: bytes) -> bool:
        return b'"traceEvents"' in head

    def identify_parts(self, path: Path) -> list[TraceIdentity]:
        return [identity_of(path)]


TRACE_JSON = TraceJsonReader()
