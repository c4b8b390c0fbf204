"""The events of one file in memory, while its tables are made: columns of codes and numbers, without the arguments.

Batches are read in parallel and added in file order. Their arguments go to events.parquet at once; only those that
tables are made from are kept.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable
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
from rankscope.store.table_files import Scratch

_WITH_ARGS_PHASES = ("M", "C")
_WITH_ARGS_NAMES = re.compile(rf"(?:{HOST_COLLECTIVE_PATTERN.removeprefix('(?i)')})|^c10d::", re.IGNORECASE)
"""Names of threads and processes, counters, and collectives: tables are made from the arguments of these events."""
_GROUPED = ("phase", "category", "pid", "tid")
_MOST_IN_TWO_BYTES = 1 << 15
NARROW_NULL = -(1 << 31)
"""Stands for null in a sparse column of four bytes each."""
_MOST_IN_MEMORY = 48 << 20
"""Bytes, of a million events of Kineto; those that follow are in the scratch file until all have been read."""
_CODES = (*_GROUPED, "name")
_SPARSE = ("correlation", "external_id", "device", "stream", "bytes")
_CHANGED_LATER = ("time", "duration")
_PLAIN = (*_CHANGED_LATER, "memory")
_TEXT_CODES = ("name", "collective", "shapes")
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
    """This and the next five columns have one entry more: null, for events that are not linked."""
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

    def places(self, events: NDArray[Any]) -> Codes:
        """Where these events are in the sparse columns; the last place for those that are not."""
        return _places(self.linked, events)

    def at(self, column: str, places: Codes) -> NDArray[Any]:
        """A sparse column at some places, in as few bytes as it has: `correlation`, `collective`, …"""
        values: NDArray[Any] = getattr(self, column)[places]
        return values

    def number(self, column: str, places: Codes) -> Numbers:
        """The same of a column of numbers; NULL where there is none."""
        return _wide(self.at(column, places))

    def flow_of(self, events: NDArray[Any]) -> Numbers:
        """The ids of their flows, or NULL."""
        flow: Numbers = np.append(self.flow, NULL)[_places(self.flow_events, events)]
        return flow

    def has_text(self, codes: NDArray[Any] | GroupColumn, wanted: Collection[str]) -> Mask:
        """Which of these codes are of one of the wanted texts. As np.isin, without sorting."""
        if isinstance(codes, GroupColumn):
            return codes.among(self.has_text(codes.codes, wanted))
        is_wanted = np.zeros(len(self.texts), dtype=bool)
        is_wanted[[self.codes[text] for text in wanted if text in self.codes]] = True
        mask: Mask = is_wanted[codes]
        return mask


def _places(ascending: Codes, wanted: NDArray[Any]) -> Codes:
    """Where these numbers are among others; after the last for those that are not."""
    if native.functions is not None:
        columns = (np.ascontiguousarray(column, np.int32) for column in (ascending, wanted))
        return np.frombuffer(native.functions.places(*columns), np.int32)
    # Of another type, numpy would convert the whole column for every piece.
    at = np.searchsorted(ascending, np.asarray(wanted, ascending.dtype))
    places: Codes = np.full(len(wanted), len(ascending), dtype=np.int32)
    inside = np.flatnonzero(at < len(ascending))
    there = inside[ascending[at[inside]] == np.asarray(wanted)[inside]]
    places[there] = at[there]
    return places


@dataclass(frozen=True)
class ReadBatch:
    """A batch that a worker thread has read and encoded."""

    count: int
    texts: list[str]
    encoded: list[EncodedColumn]
    args: dict[int, str]
    pieces: dict[str, NDArray[Any]]
    """The columns of Events, with codes, groups and events of the batch."""
    groups: NDArray[Any]
    """A row for each group: its codes."""
    read_by: str


def read_batch(columns: EventColumns) -> ReadBatch:
    """Encode a batch for events.parquet, and take out what is needed later."""
    texts = list(columns.texts)
    encoded = [encode(field, _chunk(columns, field.name)) for field in EVENTS.fields]
    group, groups = _grouped(columns)
    flow_events = np.flatnonzero(columns.flow != NULL).astype(np.int32)
    pieces = {"group": group.astype(_least_type(len(groups)), copy=False), "flow_events": flow_events}
    pieces |= {name: getattr(columns, name) for name in (*_TEXT_CODES, *_EVENTS_OF_SPARSE, *_PLAIN)}
    pieces |= {name: _narrow(getattr(columns, name)) for name in _SPARSE}
    pieces["flow"] = columns.flow[flow_events]
    pieces = {name: piece if name in _CHANGED_LATER else _shortened(piece) for name, piece in pieces.items()}
    args = _kept(columns, texts)
    return ReadBatch(len(columns), texts, encoded, args, pieces, groups, columns.read_by)


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
    return columns.args_of_events(np.flatnonzero(wanted))


def _narrow(numbers: Numbers) -> NDArray[Any]:
    """The numbers in four bytes each, if they fit."""
    null = numbers == NULL
    small = np.where(null, 0, numbers)
    if small.min(initial=0) <= NARROW_NULL or small.max(initial=0) > -NARROW_NULL - 1:
        return numbers
    return np.where(null, np.int32(NARROW_NULL), small.astype(np.int32))


def _shortened(piece: NDArray[Any]) -> NDArray[Any]:
    """The same; values that are all equal take the memory of one."""
    if len(piece) and (piece[0] == piece[-1]).all() and (piece == piece[0]).all():
        return np.broadcast_to(piece[0].copy(), piece.shape)
    return piece


def _is_short(piece: NDArray[Any]) -> bool:
    return len(piece) > 0 and piece.strides[0] == 0


def joined(pieces: list[NDArray[Any]], scratch: Scratch | None = None) -> NDArray[Any]:
    """The pieces of a column behind each other; they are removed from their list."""
    kind = np.result_type(*pieces)
    pieces[:] = [piece for piece in pieces if len(piece)] or pieces[:1]
    first, rows = pieces[0][:1], sum(map(len, pieces))
    if all(
        _is_short(piece) and piece.dtype == first.dtype and (piece[:1] == first).all() for piece in pieces
    ):
        return np.broadcast_to((_wide(first) if kind == np.int64 else first)[0], (rows, *first.shape[1:]))
    values = (scratch.empty if scratch else np.empty)((rows, *first.shape[1:]), dtype=kind)
    pieces.reverse()
    end = 0
    while pieces:
        piece = pieces.pop()
        begin, end = end, end + len(piece)
        values[begin:end] = _wide(piece) if kind == np.int64 else piece
        if scratch:
            scratch.touch(piece.nbytes + values[begin:end].nbytes)  # both are in its file
        del piece
    return values


def _wide(numbers: NDArray[Any]) -> NDArray[Any]:
    if numbers.dtype == np.int64:
        return numbers
    return np.where(numbers == NARROW_NULL, NULL, numbers.astype(np.int64))


class EventLog:
    """Collects batches in file order."""

    def __init__(self, scratch: Scratch | None = None) -> None:
        """Columns of many events are put into the scratch file."""
        self._scratch = scratch
        self._pool: dict[str, int] = {}
        self._batches: list[_Added] = []
        self._groups: dict[tuple[int, ...], int] = {}
        self._args: dict[int, str] = {}
        self._count = self._in_memory = 0
        self.read_by: Counter[str] = Counter()
        """How many batches each reader read."""

    def add(self, batch: ReadBatch) -> None:
        pool = self._pool
        self.read_by[batch.read_by] += 1
        code_of = [pool.setdefault(text, len(pool)) for text in batch.texts]
        codes = np.array([*code_of, NO_TEXT], dtype=np.int32)  # NO_TEXT is the last place, and stays itself
        numbers = [
            self._groups.setdefault(tuple(row), len(self._groups)) for row in codes[batch.groups].tolist()
        ]
        pieces = batch.pieces
        if self._scratch and self._in_memory >= _MOST_IN_MEMORY:
            pieces = {name: self._scratch.packed(piece) for name, piece in pieces.items()}
        else:
            self._in_memory += sum(piece.nbytes for piece in pieces.values() if not _is_short(piece))
        self._batches.append(_Added(pieces, codes, numbers, self._count))
        for index, args in batch.args.items():
            self._args[self._count + index] = args
        self._count += batch.count

    @property
    def is_empty(self) -> bool:
        """True if no batch was added; one may have no events."""
        return not self._batches

    def events(self, side_by_side: Callable[..., Iterable[NDArray[Any]]] = map) -> Events:
        """What was collected; the log is empty afterwards. `side_by_side` is `map` of a pool of threads."""
        names = list(self._batches[0].pieces)
        columns = dict(zip(names, side_by_side(self._column, names), strict=True))
        native.release_memory(self._count)
        groups = np.array(list(self._groups), dtype=np.int32).reshape(-1, len(_GROUPED))
        return Events(texts=list(self._pool), groups=groups, args=self._args, **columns)

    def _column(self, name: str) -> NDArray[Any]:
        kind = _least_type(len(self._groups))
        pieces = [batch.piece(name, kind) for batch in self._batches]
        if name in (*_SPARSE, "collective"):
            null = NO_TEXT if name == "collective" else NARROW_NULL
            pieces.append(np.broadcast_to(np.int32(null), 1))
        return joined(pieces, self._scratch)


@dataclass(frozen=True)
class _Added:
    """A batch in the log, and what its codes, groups and events are in the file."""

    pieces: dict[str, NDArray[Any]]
    codes: Codes
    numbers: list[int]
    begin: int

    def piece(self, name: str, group_kind: Any) -> NDArray[Any]:
        """A column with the codes of the file. It is not in the batch any more."""
        piece = self.pieces.pop(name)
        if _is_short(piece):
            return np.broadcast_to(self._of_file(name, piece[:1], group_kind)[0], piece.shape)
        return self._of_file(name, piece, group_kind)

    def _of_file(self, name: str, piece: NDArray[Any], group_kind: Any) -> NDArray[Any]:
        if name == "group":
            piece = np.array(self.numbers, dtype=group_kind)[piece]
        elif name in _TEXT_CODES:
            piece = self.codes[piece]
        elif name == "flow":
            piece = np.where(piece < 0, -1 - self.codes[-1 - np.minimum(piece, -1)].astype(np.int64), piece)
        elif name in (*_EVENTS_OF_SPARSE, "flow_events"):
            piece = piece + np.int32(self.begin)
        return piece


def _least_type(groups: int) -> Any:
    return np.int16 if groups < _MOST_IN_TWO_BYTES else np.int32
