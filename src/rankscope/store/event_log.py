"""The events of one file in memory, while its tables are made: columns of codes and numbers, without the arguments.

Batches are read in parallel and added in file order. Their arguments go to events.parquet at once; only those that
tables are made from are kept.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rankscope import native
from rankscope.model import EVENTS, HOST_COLLECTIVE_PATTERN
from rankscope.readers.columns import NO_TEXT, NULL, Codes, EventColumns, Numbers, Texts, joined_texts
from rankscope.store.arrays import Mask, number_rows
from rankscope.store.packing import number_texts
from rankscope.store.parquet_writer import Chunk, Coded, EncodedColumn, PlainTexts, encode
from rankscope.store.parquet_writer import Numbers as NumberChunk
from rankscope.store.scratch import Scratch

_WITH_ARGS_PHASES = ("M", "C")
_WITH_ARGS_NAMES = re.compile(rf"(?:{HOST_COLLECTIVE_PATTERN.removeprefix('(?i)')})|^c10d::", re.IGNORECASE)
"""Names of threads and processes, counters, and collectives: tables are made from the arguments of these events."""
_GROUPED = ("phase", "category", "pid", "tid")
_MOST_IN_TWO_BYTES = 1 << 15
_NARROW_NULL = -(1 << 31)
"""Stands for null in a sparse column of four bytes each."""
_EVENTS_AT_ONCE = 1 << 18
_RELEASED_EVERY = 1 << 20
"""Events, after which the memory of the columns is given back."""
_CODES = (*_GROUPED, "name")
_SPARSE = ("correlation", "external_id", "device", "stream", "bytes")
_CHANGED_LATER = ("time", "duration")
_EVENTS_OF_SPARSE = ("linked", "memory_events", "computing")


@dataclass(frozen=True)
class GroupColumn:
    """A column that is equal for all events of a group: the group of each event, and the code of each group."""

    group: NDArray[Any]
    codes: Codes

    def __getitem__(self, events: Any) -> Codes:
        """The codes of some events; all of them with [:]."""
        codes: Codes = self.codes[self.group[events]]
        return codes

    def among(self, is_wanted: Mask) -> Mask:
        """Which events are of a wanted group."""
        wanted: Mask = is_wanted[self.group]
        return wanted

    def equals(self, code: int) -> Mask:
        return self.among(self.codes == code)


@dataclass(frozen=True)
class Events:
    """All events of a file; the columns are those of EventColumns, with codes for the whole file.

    Events with the same phase, category, pid and tid are a group: there are some hundred groups, and one column of
    their numbers instead of four of codes.
    """

    texts: list[str]
    group: NDArray[Any]
    groups: NDArray[np.int32]
    """A row for each group: its codes of phase, category, pid and tid."""
    name: Codes
    flow_events: Codes
    """Those that have an id of a flow."""
    flow: Numbers
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
        return len(self.group)

    @property
    def phase(self) -> GroupColumn:
        return GroupColumn(self.group, self.groups[:, 0])

    @property
    def category(self) -> GroupColumn:
        return GroupColumn(self.group, self.groups[:, 1])

    @property
    def pid(self) -> GroupColumn:
        return GroupColumn(self.group, self.groups[:, 2])

    @property
    def tid(self) -> GroupColumn:
        return GroupColumn(self.group, self.groups[:, 3])

    @cached_property
    def codes(self) -> dict[str, int]:
        """Text -> code."""
        return {text: code for code, text in enumerate(self.texts)}

    def code(self, text: str) -> int:
        """The code of a text, or one that no event has."""
        return self.codes.get(text, -2)

    @cached_property
    def coded_texts(self) -> Texts:
        return Texts.of(self.texts)

    def number(self, column: str, events: NDArray[Any]) -> Numbers:
        """A sparse column for these events: `correlation`, `device`, …; NULL where they have none."""
        return self.number_at(column, self.places(events))

    def collective_of(self, events: NDArray[Any]) -> Codes:
        """The codes of their collectives' names, or NO_TEXT."""
        return self.collective_at(self.places(events))

    def ids(self, column: str, events: NDArray[Any]) -> NDArray[Any]:
        """As `number`, in as few bytes as the column has; below 1 where they have none."""
        return self._at(column, self.places(events))

    def places(self, events: NDArray[Any]) -> Codes:
        """Where these events are in the sparse columns; the place after the last for those that are not."""
        places = np.empty(len(events), dtype=np.int32)
        for begin in range(0, len(events), _EVENTS_AT_ONCE):
            piece = slice(begin, begin + _EVENTS_AT_ONCE)
            places[piece] = self._places(events[piece])
        return places

    def _places(self, events: NDArray[Any]) -> Codes:
        first, last = int(events.min()), int(events.max())
        # Bounds of another type would make numpy convert the whole column for every piece.
        bounds = np.array((first, last + 1), dtype=self.linked.dtype)
        low, high = np.searchsorted(self.linked, bounds).tolist()
        of_each = np.full(last - first + 1, len(self.linked), dtype=np.int32)
        of_each[self.linked[low:high] - first] = np.arange(low, high, dtype=np.int32)
        places: Codes = of_each[events - first]
        return places

    def number_at(self, column: str, places: Codes) -> Numbers:
        """The numbers at some places of a sparse column."""
        return _wide(self._at(column, places))

    def _at(self, column: str, places: Codes) -> NDArray[Any]:
        values: NDArray[Any] = getattr(self, column)
        return _or_missing(values, places, _NARROW_NULL if values.dtype == np.int32 else NULL)

    def collective_at(self, places: Codes) -> Codes:
        return _or_missing(self.collective, places, NO_TEXT)

    def flow_of(self, events: NDArray[Any]) -> Numbers:
        """The ids of their flows, or NULL."""
        if not len(self.flow_events):
            return np.full(len(events), NULL)
        at = np.minimum(np.searchsorted(self.flow_events, events), len(self.flow_events) - 1)
        return np.where(self.flow_events[at] == events, self.flow[at], NULL)

    def has_text(self, codes: NDArray[Any] | GroupColumn, wanted: Collection[str]) -> Mask:
        """Which of these codes are of one of the wanted texts. As np.isin, without sorting."""
        if isinstance(codes, GroupColumn):
            return codes.among(self.has_text(codes.codes, wanted))
        is_wanted = np.zeros(len(self.texts), dtype=bool)
        is_wanted[[self.codes[text] for text in wanted if text in self.codes]] = True
        mask: Mask = is_wanted[codes]
        return mask


@dataclass(frozen=True)
class ReadBatch:
    """A batch that a worker thread has read and encoded."""

    columns: EventColumns
    texts: list[str]
    encoded: list[EncodedColumn]
    args: dict[int, str]
    group: NDArray[Any]
    """The group of each event."""
    groups: NDArray[Any]
    """A row for each group: its codes."""


def read_batch(columns: EventColumns) -> ReadBatch:
    """Encode a batch for events.parquet, and take out the arguments that are needed later."""
    texts = list(columns.texts)
    encoded = [encode(field, _chunk(columns, field.name)) for field in EVENTS.fields]
    return ReadBatch(columns, texts, encoded, _kept(columns, texts), *_grouped(columns))


def _grouped(columns: EventColumns) -> tuple[NDArray[Any], NDArray[Any]]:
    keys = [getattr(columns, name).astype(np.int64) for name in _GROUPED]
    if native.functions is None or len(columns) == 0:
        groups, numbers = number_rows(keys)
        return numbers, groups
    group, firsts = (np.frombuffer(data, np.int32) for data in native.functions.distinct_rows(tuple(keys)))
    return group, np.stack([key[firsts] for key in keys], axis=1)


def _chunk(columns: EventColumns, name: str) -> Chunk:
    if name == "args" and columns.shared_args is not None:
        return Coded(columns.shared_args.codes, columns.shared_args.texts)
    if name == "args":
        return PlainTexts(columns.args, columns.args_offset)
    if name == "flow":
        return flow_texts(columns.flow, columns.texts)
    name = {"ph": "phase", "ts_ns": "time", "dur_ns": "duration"}.get(name, name)
    values = getattr(columns, name)
    missing = NO_TEXT if name in (*_CODES, "collective") else NULL
    if name in (*_SPARSE, "collective"):
        values = np.full(len(columns), missing, dtype=values.dtype)
        values[columns.linked] = getattr(columns, name)
    return Coded(values, columns.texts) if missing == NO_TEXT else NumberChunk(values, NULL)


def flow_texts(flow: Numbers, texts: Texts) -> PlainTexts:
    """The ids of flows as texts."""
    if not ((flow < 0) & (flow != NULL)).any():
        return PlainTexts(*number_texts(flow))
    listed = list(texts)
    spelt = (None if id == NULL else str(id) if id >= 0 else listed[-1 - id] for id in flow.tolist())
    return PlainTexts(*joined_texts(None if text is None else text.encode() for text in spelt))


def _kept(columns: EventColumns, texts: list[str]) -> dict[int, str]:
    phases = [code for code, text in enumerate(texts) if text in _WITH_ARGS_PHASES]
    named = np.fromiter((_WITH_ARGS_NAMES.search(text) is not None for text in texts), bool, len(texts))
    wanted = np.isin(columns.phase, phases) | named[columns.name]
    wanted[columns.linked[columns.collective != NO_TEXT]] = True
    indices = np.flatnonzero(wanted).tolist()
    return {index: args for index in indices if (args := columns.args_of(index)) is not None}


def _narrow(numbers: Numbers) -> NDArray[Any]:
    """The numbers in four bytes each, if they fit."""
    null = numbers == NULL
    small = np.where(null, 0, numbers)
    if small.min(initial=0) <= _NARROW_NULL or small.max(initial=0) > -_NARROW_NULL - 1:
        return numbers
    return np.where(null, np.int32(_NARROW_NULL), small.astype(np.int32))


class GrowingColumn:
    """A column that batches are added to. Numbers that are all equal take no memory, and those of a sparse column four
    bytes each where they fit. There is room for half as many again, so that memory is seldom copied."""

    def __init__(self, is_changed_later: bool, empty: Callable[..., NDArray[Any]] = np.empty) -> None:
        self._may_be_constant = not is_changed_later
        self._empty = empty
        self._values: NDArray[Any] = np.empty(0)
        self._count = 0
        self._is_constant = False
        """All values are values[0], the only one that is kept."""

    def add(self, piece: NDArray[Any]) -> None:
        if not len(piece) and self._count:
            return
        is_constant = bool(self._may_be_constant and len(piece) and (piece == piece[0]).all())
        begin, end = self._count, self._count + len(piece)
        if begin == 0:
            self._values = piece[:1].copy() if is_constant else piece
            self._is_constant = is_constant
        elif not (self._is_constant and is_constant and _are_same(self._values[:1], piece[:1])):
            self._make_room(end, piece.dtype)
            self._values[begin:end] = _wide(piece) if self._values.dtype == np.int64 else piece
        self._count = end

    def _make_room(self, rows: int, dtype: np.dtype[Any]) -> None:
        values = self._values
        if not self._is_constant and rows <= len(values) and np.can_cast(dtype, values.dtype):
            return
        kind = np.promote_types(dtype, values.dtype)
        larger = self._empty((rows + rows // 2, *values.shape[1:]), dtype=kind)
        present = values[:1] if self._is_constant else values[: self._count]
        larger[: self._count] = _wide(present) if kind == np.int64 else present
        self._values, self._is_constant = larger, False

    def values(self) -> NDArray[Any]:
        if self._is_constant:
            return np.broadcast_to(self._values, (self._count, *self._values.shape[1:]))
        return self._values[: self._count]


def _are_same(a: NDArray[Any], b: NDArray[Any]) -> bool:
    return a.dtype == b.dtype and bool((a == b).all())


def _or_missing(values: NDArray[Any], places: Codes, missing: int) -> NDArray[Any]:
    chosen = np.full(len(places), missing, dtype=values.dtype)
    there = np.flatnonzero(places < len(values))
    chosen[there] = values[places[there]]
    return chosen


def _wide(numbers: NDArray[Any]) -> NDArray[Any]:
    if numbers.dtype == np.int64:
        return numbers
    return np.where(numbers == _NARROW_NULL, NULL, numbers.astype(np.int64))


class EventLog:
    """Collects batches in file order."""

    def __init__(self, scratch: Scratch | None = None) -> None:
        self._scratch = scratch
        self._pool: dict[str, int] = {}
        self._columns: dict[str, GrowingColumn] = {}
        self._groups: dict[tuple[int, ...], int] = {}
        self._args: dict[int, str] = {}
        self._count = 0
        self.read_by: Counter[str] = Counter()
        """How many batches each reader read."""

    def add(self, batch: ReadBatch) -> None:
        columns, pool = batch.columns, self._pool
        self.read_by[columns.read_by] += 1
        code_of = [pool.setdefault(text, len(pool)) for text in batch.texts]
        codes = np.array([*code_of, NO_TEXT], dtype=np.int32)  # NO_TEXT is the last place, and stays itself
        numbers = [
            self._groups.setdefault(tuple(row), len(self._groups)) for row in codes[batch.groups].tolist()
        ]
        kind = np.int16 if len(self._groups) < _MOST_IN_TWO_BYTES else np.int32
        flow_events = np.flatnonzero(columns.flow != NULL).astype(np.int32)
        flow = columns.flow[flow_events]
        is_text = flow < 0
        flow[is_text] = -1 - codes[-1 - flow[is_text]].astype(np.int64)
        pieces = {"group": np.array(numbers, dtype=kind)[batch.group], "flow": flow}
        pieces |= {name: codes[getattr(columns, name)] for name in ("name", "collective", "shapes")}
        pieces |= {name: getattr(columns, name) for name in ("time", "duration", "memory")}
        pieces |= {name: _narrow(getattr(columns, name)) for name in _SPARSE}
        pieces |= {name: getattr(columns, name) + np.int32(self._count) for name in _EVENTS_OF_SPARSE}
        pieces["flow_events"] = flow_events + np.int32(self._count)
        for name, piece in pieces.items():
            if name not in self._columns:
                empty = self._scratch.empty if self._scratch else np.empty
                self._columns[name] = GrowingColumn(name in _CHANGED_LATER, empty)
            self._columns[name].add(piece)
        for index, args in batch.args.items():
            self._args[self._count + index] = args
        if self._scratch and self._count // _RELEASED_EVERY != (self._count + len(columns)) // _RELEASED_EVERY:
            self._scratch.release()
        self._count += len(columns)

    @property
    def is_empty(self) -> bool:
        """True if no batch was added; one may have no events."""
        return not self._columns

    def events(self) -> Events:
        """What was collected."""
        columns = {name: column.values() for name, column in self._columns.items()}
        groups = np.array(list(self._groups), dtype=np.int32).reshape(-1, len(_GROUPED))
        return Events(texts=list(self._pool), groups=groups, args=self._args, **columns)
