"""What a reader yields: some of a file's events as columns, with texts as codes.

A column that only few events have is sparse: the indices of those events, and a value for each.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rankscope import native
from rankscope.model import MEMORY_ARGS, SHAPE_ARGS

Codes = NDArray[np.int32]
Numbers = NDArray[np.int64]

NO_TEXT = -1
"""The code of a text that is null."""
NULL = -(1 << 63)
"""Stands for null among numbers: every other value can occur in a file."""
DUCKDB, IN_C, IN_PYTHON, SQLITE = "DuckDB", "C", "Python", "sqlite"
"""What reads events: see EventColumns.read_by."""
NO_ARGS = (1 << 32) - 1
"""Instead of an offset: the event has no arguments."""


@dataclass(frozen=True)
class Texts:
    """Distinct texts; the code of one is its place."""

    offsets: Numbers
    """Where each begins in `data`, and where the last ends."""
    data: Any
    """A buffer of UTF-8."""

    @staticmethod
    def of(texts: Iterable[str]) -> Texts:
        """A lone surrogate, which JSON can have and UTF-8 cannot, is replaced."""
        pieces = [text.encode("utf-8", "replace") for text in texts]
        offsets = np.zeros(len(pieces) + 1, dtype=np.int64)
        np.cumsum([len(piece) for piece in pieces], out=offsets[1:])
        return Texts(offsets, b"".join(pieces))

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def at(self, code: int) -> str | None:
        """The text of a code."""
        if code == NO_TEXT:
            return None
        begin, end = self.offsets[code : code + 2].tolist()
        return bytes(memoryview(self.data)[begin:end]).decode()

    def __iter__(self) -> Iterator[str]:
        data, begin = bytes(self.data), 0
        for end in self.offsets[1:].tolist():
            yield data[begin:end].decode()
            begin = end


def whole_number(text: str) -> int | None:
    """The number below 2**63 that is spelt like this, and no other way."""
    is_number = text.isascii() and text.isdigit() and len(text) <= 19 and (text[0] != "0" or text == "0")
    return int(text) if is_number and int(text) < 1 << 63 else None


def joined_texts(texts: Iterable[bytes | None]) -> tuple[bytes, NDArray[np.uint32]]:
    """A buffer like that of the arguments, and where each text begins."""
    listed = [*texts]
    pieces = [text for text in listed if text is not None]
    sizes = np.fromiter(map(len, pieces), np.int64, len(pieces))
    begins = np.cumsum(sizes + 4) - sizes - 4
    data = bytearray(bytes(4).join((b"", *pieces)))  # with room for the lengths
    numbers = np.frombuffer(data, dtype=np.uint8)
    for byte in range(4):
        numbers[begins + byte] = sizes >> 8 * byte & 0xFF
    offsets = np.full(len(listed), NO_ARGS, dtype=np.uint32)
    offsets[[text is not None for text in listed] if listed else slice(0)] = begins
    return bytes(data), offsets


def text_spans(data: Any, offsets: NDArray[np.uint32]) -> tuple[Numbers, Numbers]:
    """Where the texts of such a buffer that begin at these places have their first byte, and their last one ends."""
    begin = offsets.astype(np.int64) + 4
    numbers = np.frombuffer(data, dtype=np.uint8)
    length = np.zeros(len(begin), dtype=np.int64)
    for byte in range(4):
        length |= numbers[begin - 4 + byte].astype(np.int64) << 8 * byte
    return begin, begin + length


def distinct_rows(columns: Sequence[Numbers]) -> tuple[Codes, Codes]:
    """For each row which of the distinct rows it is, and where each distinct row occurs first."""
    if native.functions is not None:
        codes, firsts = native.functions.distinct_rows(tuple(map(np.ascontiguousarray, columns)))
        return np.frombuffer(codes, np.int32), np.frombuffer(firsts, np.int32)
    columns = [column for column in columns if (column != column[:1]).any()] or columns[:1]
    _, first, inverse = np.unique(np.stack(columns, axis=1), axis=0, return_index=True, return_inverse=True)
    return inverse.reshape(-1).astype(np.int32), first.astype(np.int32)


def text_codes(pool: dict[str, int], texts: Sequence[str | None]) -> Codes:
    """The places of texts in a pool, to which new ones are added."""
    distinct: dict[str | None, int] = dict.fromkeys(
        texts, NO_TEXT
    )  # in order; no step of Python for each text
    for text in distinct:
        if text is not None:
            distinct[text] = pool.setdefault(text, len(pool))
    return np.fromiter(map(distinct.__getitem__, texts), np.int32, len(texts))


@dataclass(frozen=True)
class SharedTexts:
    """A column of texts that repeat."""

    texts: Texts
    codes: Codes
    """May be NO_TEXT."""


@dataclass(frozen=True)
class EventColumns:
    """Some of a file's events in file order, one entry each."""

    texts: Texts
    """Of all columns of codes."""
    phase: Codes
    """In this column and the next four a missing text is ''."""
    category: Codes
    name: Codes
    pid: Codes
    tid: Codes
    flow: Numbers
    """The id of a flow or an async event: itself if it is a whole number (see whole_number), else -1 - the code of its
    text, or NULL. Most are distinct numbers, which would crowd the texts."""
    time: Numbers
    """ts in ns, or NULL."""
    duration: Numbers
    """dur in ns, or NULL."""
    args: Any
    """A buffer with the arguments of those events that have any: the length of a text in four bytes (little endian),
    then the text, JSON without space between its tokens."""
    args_offset: NDArray[np.uint32]
    """Where in `args` an event's begin (the length), or NO_ARGS."""
    linked: Codes
    """Indices of the events that have at least one of the following."""
    correlation: Numbers
    external_id: Numbers
    device: Numbers
    stream: Numbers
    bytes: Numbers
    collective: Codes
    memory_events: Codes
    """Indices of the [memory] events."""
    memory: Numbers
    """Their arguments: a row for each, a column for each of model.MEMORY_ARGS; NULL where it has no such number."""
    computing: Codes
    """Indices of the ops in model.COMPUTING_OPS."""
    shapes: Codes
    """Their arguments: a row for each, a column for each of model.SHAPE_ARGS; JSON, but a string without its quotes."""

    shared_args: SharedTexts | None = None
    """Instead of `args`, which is empty then: the arguments of all events, where they repeat."""
    read_by: str = DUCKDB
    """What read them, for `ingest -v` and doctor."""

    def __len__(self) -> int:
        return len(self.phase)

    def args_of(self, index: int) -> str | None:
        """The arguments of one event, as JSON."""
        if self.shared_args is not None:
            return self.shared_args.texts.at(int(self.shared_args.codes[index]))
        offset = int(self.args_offset[index])
        if offset == NO_ARGS:
            return None
        view = memoryview(self.args)
        length = int.from_bytes(view[offset : offset + 4], "little")
        return bytes(view[offset + 4 : offset + 4 + length]).decode()

    def args_of_events(self, events: NDArray[np.int64]) -> dict[int, str]:
        """The arguments of those of some events that have any."""
        if self.shared_args is not None:
            texts = ((event, self.args_of(event)) for event in events.tolist())
            return {event: text for event, text in texts if text is not None}
        events = events[self.args_offset[events] != NO_ARGS]
        begin, end = text_spans(self.args, self.args_offset[events])
        view, rows = memoryview(self.args), zip(events.tolist(), begin.tolist(), end.tolist(), strict=True)
        return {event: str(view[first:last], "utf-8") for event, first, last in rows}


def only_process(columns: EventColumns, prefix: str) -> EventColumns:
    """The events whose process begins with this text, without it."""
    texts = list(columns.texts)
    kept = np.array([text.startswith(prefix) for text in texts])[columns.pid]
    place = np.cumsum(kept, dtype=np.int32) - 1
    changed: dict[str, Any] = {name: getattr(columns, name)[kept] for name in _DENSE}
    for events, names in _SPARSE.items():
        index = getattr(columns, events)
        there = kept[index]
        changed |= {name: getattr(columns, name)[there] for name in names}
        changed[events] = place[index[there]]
    return replace(columns, texts=Texts.of(text.removeprefix(prefix) for text in texts), **changed)


LINKS = ("correlation", "external_id", "device", "stream", "bytes")
"""The numbers among the sparse columns."""
_DENSE = ("phase", "category", "name", "pid", "tid", "flow", "time", "duration", "args_offset")
_SPARSE = {
    "linked": (*LINKS, "collective"),
    "memory_events": ("memory",),
    "computing": ("shapes",),
}


def event_columns(
    texts: Texts,
    time: Numbers,
    duration: Numbers,
    numbers: Mapping[str, Numbers | int],
    collective: Codes | None = None,
    **columns: Any,
) -> EventColumns:
    """From columns with an entry for each event; `numbers` are some of LINKS, one for all events or one for each.

    Columns that are not given are empty.
    """
    count = len(time)
    if collective is None:
        collective = np.full(count, NO_TEXT, dtype=np.int32)
    linked = collective != NO_TEXT
    for values in numbers.values():
        linked |= values != NULL
    events = np.flatnonzero(linked).astype(np.int32)
    no_events = events[:0]
    sparse: dict[str, Any] = {}
    for name in LINKS:
        number = numbers.get(name, NULL)
        sparse[name] = np.full(len(events), number) if isinstance(number, int) else number[linked]
    others: dict[str, Any] = {
        "flow": np.full(0 if "flow" in columns else count, NULL),
        "args": b"",
        "args_offset": np.full(0 if "args_offset" in columns else count, NO_ARGS, dtype=np.uint32),
        "memory_events": no_events,
        "memory": np.empty((0, len(MEMORY_ARGS)), dtype=np.int64),
        "computing": no_events,
        "shapes": np.empty((0, len(SHAPE_ARGS)), dtype=np.int32),
        **columns,
    }
    return EventColumns(
        texts=texts,
        time=time,
        duration=duration,
        linked=events,
        collective=collective[linked],
        **sparse,
        **others,
    )


def dense(columns: EventColumns, name: str) -> Numbers:
    """One of LINKS with a value for each event."""
    values: Numbers = np.full(len(columns), NULL)
    values[columns.linked] = getattr(columns, name)
    return values
