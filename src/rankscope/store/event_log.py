"""The events of one file in memory, while its tables are made: columns of codes and numbers, without the arguments.

Batches are read in parallel and added in file order. Their arguments go to events.parquet at once; only those that
tables are made from are kept.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rankscope.model import EVENTS, HOST_COLLECTIVE_PATTERN
from rankscope.readers.columns import NO_TEXT, NULL, Codes, EventColumns, Numbers, Texts
from rankscope.store.parquet_writer import Chunk, Coded, EncodedColumn, PlainTexts, encode
from rankscope.store.parquet_writer import Numbers as NumberChunk

_WITH_ARGS_PHASES = ("M", "C")
_WITH_ARGS_NAMES = re.compile(rf"(?:{HOST_COLLECTIVE_PATTERN.removeprefix('(?i)')})|^c10d::", re.IGNORECASE)
"""Names of threads and processes, counters, and collectives: tables are made from the arguments of these events."""
_CODES = ("phase", "category", "name", "pid", "tid", "flow")
_SPARSE = ("correlation", "external_id", "device", "stream", "bytes")


@dataclass(frozen=True)
class Events:
    """All events of a file; the columns are those of EventColumns, with codes for the whole file."""

    texts: list[str]
    phase: Codes
    category: Codes
    name: Codes
    pid: Codes
    tid: Codes
    flow: Codes
    time: Numbers
    duration: Numbers
    linked: Codes
    correlation: Numbers
    external_id: Numbers
    device: Numbers
    stream: Numbers
    bytes: Numbers
    collective: Codes
    memory_events: Codes
    memory: Numbers
    computing: Codes
    shapes: Codes
    args: dict[int, str]
    """Of those events that tables are made from."""

    def __len__(self) -> int:
        return len(self.phase)

    @cached_property
    def coded_texts(self) -> Texts:
        return Texts.of(self.texts)

    def number(self, column: str, events: NDArray[Any]) -> Numbers:
        """A sparse column for these events: `correlation`, `device`, …; NULL where they have none."""
        return _looked_up(self.linked, getattr(self, column), events, NULL)

    def collective_of(self, events: NDArray[Any]) -> Codes:
        """The codes of their collectives' names, or NO_TEXT."""
        return _looked_up(self.linked, self.collective, events, NO_TEXT)


def _looked_up(keys: Codes, values: NDArray[Any], wanted: NDArray[Any], missing: int) -> NDArray[Any]:
    found = np.full(len(wanted), missing, dtype=values.dtype)
    if len(keys):
        at = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
        there = keys[at] == wanted
        found[there] = values[at[there]]
    return found


@dataclass(frozen=True)
class ReadBatch:
    """A batch that a worker thread has read and encoded."""

    columns: EventColumns
    texts: list[str]
    encoded: list[EncodedColumn]
    args: dict[int, str]


def read_batch(columns: EventColumns) -> ReadBatch:
    """Encode a batch for events.parquet, and take out the arguments that are needed later."""
    texts = list(columns.texts)
    encoded = [encode(field, _chunk(columns, field.name)) for field in EVENTS.fields]
    return ReadBatch(columns, texts, encoded, _kept(columns, texts))


def _chunk(columns: EventColumns, name: str) -> Chunk:
    if name == "args" and columns.shared_args is not None:
        return Coded(columns.shared_args.codes, columns.shared_args.texts)
    if name == "args":
        return PlainTexts(columns.args, columns.args_offset)
    name = {"ph": "phase", "ts_ns": "time", "dur_ns": "duration"}.get(name, name)
    values = getattr(columns, name)
    missing = NO_TEXT if name in (*_CODES, "collective") else NULL
    if name in (*_SPARSE, "collective"):
        values = np.full(len(columns), missing, dtype=values.dtype)
        values[columns.linked] = getattr(columns, name)
    return Coded(values, columns.texts) if missing == NO_TEXT else NumberChunk(values, NULL)


def _kept(columns: EventColumns, texts: list[str]) -> dict[int, str]:
    phases = [code for code, text in enumerate(texts) if text in _WITH_ARGS_PHASES]
    named = np.fromiter((_WITH_ARGS_NAMES.search(text) is not None for text in texts), bool, len(texts))
    wanted = np.isin(columns.phase, phases) | named[columns.name]
    wanted[columns.linked[columns.collective != NO_TEXT]] = True
    kept = ((index, columns.args_of(index)) for index in np.flatnonzero(wanted).tolist())
    return {index: args for index, args in kept if args is not None}


class EventLog:
    """Collects batches in file order."""

    def __init__(self) -> None:
        self._pool: dict[str, int] = {}
        self._pieces: dict[str, list[NDArray[Any]]] = {}
        self._args: dict[int, str] = {}
        self._count = 0

    def add(self, batch: ReadBatch) -> None:
        columns, pool = batch.columns, self._pool
        code_of = [pool.setdefault(text, len(pool)) for text in batch.texts]
        codes = np.array([*code_of, NO_TEXT], dtype=np.int32)  # NO_TEXT is the last place, and stays itself
        for name in (*_CODES, "collective", "shapes"):
            self._add(name, codes[getattr(columns, name)])
        for name in ("time", "duration", *_SPARSE, "memory"):
            self._add(name, getattr(columns, name))
        for name in ("linked", "memory_events", "computing"):
            self._add(name, getattr(columns, name) + np.int32(self._count))
        for index, args in batch.args.items():
            self._args[self._count + index] = args
        self._count += len(columns)

    @property
    def is_empty(self) -> bool:
        """True if no batch was added; one may have no events."""
        return not self._pieces

    def _add(self, name: str, piece: NDArray[Any]) -> None:
        self._pieces.setdefault(name, []).append(piece)

    def events(self) -> Events:
        """What was collected. The log is empty afterwards: its pieces are freed one by one."""
        columns = {}
        for name in list(self._pieces):
            pieces = self._pieces.pop(name)
            columns[name] = pieces[0] if len(pieces) == 1 else np.concatenate(pieces)
        return Events(texts=list(self._pool), args=self._args, **columns)
