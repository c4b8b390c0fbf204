"""XSpace, the protobuf that XLA's profiler writes: planes, their lines, and the events of a line as columns.

A plane is a device or a host, a line is one of its streams or threads. Events and stats refer to names of their plane
by id, and the plane has the names after its lines. The schema is tsl/profiler/protobuf/xplane.proto.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np

from rankscope import native
from rankscope.protobuf import (
    BYTES,
    VARINT,
    DamagedMessageError,
    double_in,
    fields,
    number_in,
    signed,
    text_in,
)
from rankscope.readers.columns import Numbers, Texts

PIECE_BYTES = 8 << 20
"""Of a line that is read at once: its arguments become five times as many bytes of JSON."""
_INTERNAL = "_"
"""Names of stats that begin so connect events inside XLA's profiler; they are not arguments."""


# Field numbers of xplane.proto, by message; native/xplane.c has those of events.
_PLANE, _ERROR, _WARNING, _HOSTNAME = 1, 2, 3, 4
_PLANE_NAME, _PLANE_LINE, _PLANE_EVENT_METADATA, _PLANE_STAT_METADATA, _PLANE_STAT = 2, 3, 4, 5, 6
_KEY, _VALUE = 1, 2
_METADATA_NAME, _METADATA_DISPLAY_NAME, _METADATA_STAT = 2, 4, 5
_LINE_ID, _LINE_NAME, _LINE_TIME, _LINE_DISPLAY_NAME = 1, 2, 3, 11
_STAT_METADATA, _STAT_DOUBLE, _STAT_UNSIGNED, _STAT_SIGNED, _STAT_TEXT, _STAT_BYTES, _STAT_REFERENCE = range(
    1, 8
)


@dataclass(frozen=True)
class EventMetadata:
    """What all events of one kind share: for an op its whole HLO text is the name, and its short name displayed."""

    name: str
    display_name: str
    stats: dict[str, Any]

    @property
    def label(self) -> str:
        return self.display_name or self.name


@dataclass(frozen=True)
class Line:
    """One line; `pieces` are its bytes, cut between fields."""

    id: int
    name: str
    timestamp_ns: int
    pieces: tuple[memoryview, ...]
    events: int
    damaged: bool
    """It ends early."""


@dataclass
class Plane:
    """One plane. `damage` is set where it ends early."""

    name: str = ""
    lines: list[Line] = field(default_factory=list)
    stats: dict[str, Any] = field(default_factory=dict)
    events: dict[int, EventMetadata] = field(default_factory=dict)
    stat_names: dict[int, str] = field(default_factory=dict)
    damage: str = ""

    @cached_property
    def stat_texts(self) -> NamedTexts:
        """The names of stats as JSON; '' for those that are left out."""
        texts = dict.fromkeys(self.stat_names, "")
        for id, name in self.stat_names.items():
            if name and not name.startswith(_INTERNAL):
                texts[id] = json.dumps(name, ensure_ascii=False)
        return NamedTexts.of(texts)


@dataclass(frozen=True)
class NamedTexts:
    """Texts by id, in ascending order of the ids."""

    ids: Numbers
    texts: Texts

    @staticmethod
    def of(by_id: Mapping[int, str]) -> NamedTexts:
        ids = sorted(by_id)
        return NamedTexts(np.array(ids, dtype=np.int64), Texts.of(by_id[id] for id in ids))

    @property
    def buffers(self) -> tuple[Any, Any, Any]:
        return self.ids, self.texts.offsets, self.texts.data


def read_planes(space: memoryview) -> Iterator[Plane | tuple[str, str]]:
    """The planes in file order; and pairs: ('error', …), ('warning', …), ('hostname', …), ('damage', …)."""
    kinds = {_ERROR: "error", _WARNING: "warning", _HOSTNAME: "hostname"}
    try:
        for number, wire, value in fields(space):
            if number == _PLANE and wire == BYTES:
                yield read_plane(value)
            elif number in kinds:
                yield kinds[number], _text(wire, value)
    except DamagedMessageError as error:
        # Mostly a file that ends within a plane: what is there of it is read.
        for plane in _cut_off(space[error.position :], _PLANE):
            yield read_plane(plane)
        yield "damage", f"the file ends or is damaged after byte {error.position:,}"


def _cut_off(rest: memoryview, number: int) -> list[memoryview]:
    """The content of the field at the start of these bytes, which has no end here; none if it is another field."""
    at = 1
    while at < len(rest) and rest[at] >= 0x80:
        at += 1
    return [rest[at + 1 :]] if len(rest) > at + 1 and rest[0] == number << 3 | BYTES else []


def read_plane(message: memoryview) -> Plane:
    plane = Plane()
    lines: list[memoryview] = []
    events: list[memoryview] = []
    stats: list[memoryview] = []
    try:
        for number, wire, value in fields(message):
            if wire != BYTES:
                continue
            if number == _PLANE_NAME:
                plane.name = _text(wire, value)
            elif number == _PLANE_LINE:
                lines.append(value)
            elif number == _PLANE_EVENT_METADATA:
                events.append(value)
            elif number == _PLANE_STAT_METADATA:
                key, metadata = _entry(value)
                for field, of_type, item in _undamaged(metadata):
                    if field == _METADATA_NAME and of_type == BYTES:
                        plane.stat_names[key] = _text(of_type, item)
            elif number == _PLANE_STAT:
                stats.append(value)
    except DamagedMessageError as error:
        plane.damage = "it ends early"
        lines += _cut_off(message[error.position :], _PLANE_LINE)
    plane.stats = dict(_stats(stats, plane.stat_names))
    for entry in events:
        _add_event_metadata(plane, entry)
    plane.lines = [_read_line(line) for line in lines]
    return plane


def _undamaged(message: bytes | memoryview) -> Iterator[tuple[int, int, Any]]:
    """The fields of a message, as far as it can be read."""
    with suppress(DamagedMessageError):
        yield from fields(message)


def _entry(message: memoryview) -> tuple[int, bytes | memoryview]:
    """Key and value of an entry of a map."""
    key, value = 0, b""
    for number, wire, item in _undamaged(message):
        if number == _KEY and wire == VARINT:
            key = signed(item)
        elif number == _VALUE and wire == BYTES:
            value = item
    return key, value


def _add_event_metadata(plane: Plane, message: memoryview) -> None:
    key, value = _entry(message)
    name = display_name = ""
    stats: list[memoryview] = []
    for number, wire, item in _undamaged(value):
        if wire != BYTES:
            continue
        if number == _METADATA_NAME:
            name = _text(wire, item)
        elif number == _METADATA_DISPLAY_NAME:
            display_name = _text(wire, item)
        elif number == _METADATA_STAT:
            stats.append(item)
    plane.events[key] = EventMetadata(name, display_name, dict(_stats(stats, plane.stat_names)))


def _stats(messages: Iterable[memoryview], names: Mapping[int, str]) -> Iterator[tuple[str, Any]]:
    """Names and values of stats. A value of bytes is left out: it is another protobuf."""
    for message in messages:
        try:
            value: Any = None
            id = kind = 0
            for number, wire, content in fields(message):
                if number == _STAT_METADATA:
                    id = signed(number_in(wire, content))
                elif number <= _STAT_REFERENCE:
                    kind, value = number, _value(number, wire, content)
        except DamagedMessageError:
            continue
        name = names.get(id, "")
        if name and not name.startswith(_INTERNAL) and kind != _STAT_BYTES:
            yield name, names.get(value, "") if kind == _STAT_REFERENCE else value


def _value(number: int, wire: int, value: Any) -> Any:
    if number == _STAT_DOUBLE:
        return double_in(wire, value)
    if number in (_STAT_TEXT, _STAT_BYTES):
        return _text(wire, value) if number == _STAT_TEXT else None
    whole = number_in(wire, value)
    return whole if number == _STAT_UNSIGNED else signed(whole)


def _text(wire: int, value: Any) -> str:
    """NUL, which DuckDB's JSON does not take, is replaced."""
    return text_in(wire, value).replace("\0", "\ufffd")


def _read_line(message: memoryview) -> Line:
    (cuts, line_fields), events, damaged = native.functions.line_cuts(message, PIECE_BYTES)
    id = timestamp = 0
    name = display_name = ""
    for number, wire, value in fields(memoryview(line_fields)):
        if number == _LINE_ID and wire == VARINT:
            id = value
        elif number == _LINE_NAME:
            name = _text(wire, value)
        elif number == _LINE_TIME and wire == VARINT:
            timestamp = signed(value)
        elif number == _LINE_DISPLAY_NAME:
            display_name = _text(wire, value)
    ends = np.frombuffer(cuts, np.int64).tolist()
    pieces = tuple(message[begin:end] for begin, end in pairwise((0, *ends)))
    return Line(id, display_name or name, timestamp, pieces, events, damaged)
