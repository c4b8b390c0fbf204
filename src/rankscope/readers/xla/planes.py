"""XSpace, the protobuf that XLA's profiler writes: planes, their lines, and the events of a line as columns.

A plane is a device or a host, a line is one of its streams or threads. Events and stats refer to names of their plane
by id, and the plane has the names after its lines. The schema is tsl/profiler/protobuf/xplane.proto.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rankscope import native
from rankscope.readers.columns import NULL, Numbers, Texts, joined_texts
from rankscope.readers.xla.wire import (
    BYTES,
    FIXED64,
    VARINT,
    DamagedMessageError,
    double,
    fields,
    signed,
    text,
)

PIECE_BYTES = 8 << 20
"""Of a line that is read at once: its arguments become five times as many bytes of JSON."""
_INTERNAL = "_"
"""Names of stats that begin so connect events inside XLA's profiler; they are not arguments."""
_EVENT = 4
"""The field of a line that is an event."""
_UNSIGNED = (1 << 64) - 1
_REFERENCE = 7
"""The field of a stat that is the id of a name."""


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
        return NamedTexts.of(
            {
                id: "" if name.startswith(_INTERNAL) or not name else quoted(name)
                for id, name in self.stat_names.items()
            }
        )


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


@dataclass(frozen=True)
class LineEvents:
    """Events of a piece of a line."""

    metadata: NDArray[np.int32]
    """Places among the ids of the metadata."""
    offset_ps: Numbers
    duration_ps: Numbers
    picked: Numbers
    """A row for each event, a column for each stat that was picked: its number, or the id it refers to; NULL."""
    args: Any
    args_offset: NDArray[np.uint32]
    without_time: int
    """Events that are only counted: they have a number of occurrences instead of a time."""
    without_metadata: int
    damaged: int = 0
    in_c: bool = True


def quoted(value: str) -> str:
    return json.dumps(value, ensure_ascii=False)


def read_planes(space: memoryview) -> Iterator[Plane | tuple[str, str]]:
    """The planes in file order; and pairs: ('error', …), ('warning', …), ('hostname', …), ('damage', …)."""
    kinds = {2: "error", 3: "warning", 4: "hostname"}
    end = 0
    try:
        for number, wire, value, end in fields(space):  # noqa: B007
            if number == 1 and wire == BYTES:
                yield read_plane(value)
            elif number in kinds:
                yield kinds[number], text(value)
    except DamagedMessageError:
        # Mostly a file that ends within a plane: what is there of it is read.
        rest = space[end:]
        plane = _cut_plane(rest)
        if plane is not None:
            yield plane
        yield "damage", f"the file ends or is damaged after byte {end:,}"


def _cut_plane(rest: memoryview) -> Plane | None:
    """The plane at the start of these bytes, which has no end here."""
    at = 1
    while at < len(rest) and rest[at] >= 0x80:
        at += 1
    if len(rest) < 2 or rest[0] != 0x0A or at + 1 >= len(rest):
        return None
    return read_plane(rest[at + 1 :])


def read_plane(message: memoryview) -> Plane:
    plane = Plane()
    lines: list[memoryview] = []
    events: list[memoryview] = []
    stats: list[memoryview] = []
    end = 0
    try:
        for number, wire, value, end in fields(message):  # noqa: B007
            if wire != BYTES:
                continue
            if number == 2:
                plane.name = text(value)
            elif number == 3:
                lines.append(value)
            elif number == 4:
                events.append(value)
            elif number == 5:
                _add_stat_name(plane.stat_names, value)
            elif number == 6:
                stats.append(value)
    except DamagedMessageError:
        plane.damage = "it ends early"
        lines += _cut_line(message[end:])
    plane.stats = dict(_stats(stats, plane.stat_names))
    for entry in events:
        _add_event_metadata(plane, entry)
    plane.lines = [_read_line(line) for line in lines]
    return plane


def _cut_line(rest: memoryview) -> list[memoryview]:
    """The line at the start of these bytes, if it is one."""
    at = 1
    while at < len(rest) and rest[at] >= 0x80:
        at += 1
    return [rest[at + 1 :]] if len(rest) > at + 1 and rest[0] == 0x1A else []


def _entry(message: memoryview) -> tuple[int, memoryview | None]:
    """Key and value of an entry of a map."""
    key, value = 0, None
    try:
        for number, wire, item, _ in fields(message):
            if number == 1 and wire == VARINT:
                key = signed(item)
            elif number == 2 and wire == BYTES:
                value = item
    except DamagedMessageError:
        pass
    return key, value


def _add_stat_name(names: dict[int, str], message: memoryview) -> None:
    key, value = _entry(message)
    try:
        for number, wire, item, _ in fields(value) if value is not None else ():
            if number == 2 and wire == BYTES:
                names[key] = text(item)
    except DamagedMessageError:
        pass


def _add_event_metadata(plane: Plane, message: memoryview) -> None:
    key, value = _entry(message)
    name = display_name = ""
    stats: list[memoryview] = []
    try:
        for number, wire, item, _ in fields(value) if value is not None else ():
            if wire != BYTES:
                continue
            if number == 2:
                name = text(item)
            elif number == 4:
                display_name = text(item)
            elif number == 5:
                stats.append(item)
    except DamagedMessageError:
        pass
    plane.events[key] = EventMetadata(name, display_name, dict(_stats(stats, plane.stat_names)))


def _stats(messages: Iterable[memoryview], names: Mapping[int, str]) -> Iterator[tuple[str, Any]]:
    """Names and values of stats. A value of bytes is left out: it is another protobuf."""
    for message in messages:
        try:
            id, kind, value = _stat(message)
        except DamagedMessageError:
            continue
        name = names.get(id, "")
        if name and not name.startswith(_INTERNAL) and kind != 6:
            yield name, names.get(value, "") if kind == _REFERENCE else value


def _stat(message: memoryview) -> tuple[int, int, Any]:
    """The id of a stat's name, the field of its value, and the value. Raises DamagedMessageError."""
    id, kind, found = 0, 0, None
    for number, wire, value, _ in fields(message):
        if number == 1:
            id = _whole(wire, value)
        elif number <= _REFERENCE:
            kind, found = number, _value(number, wire, value)
    return id, kind, found


def _whole(wire: int, value: Any) -> int:
    """An int64; 0 for a field of another type."""
    return signed(value) if wire != BYTES else 0


def _value(number: int, wire: int, value: Any) -> Any:
    if number == 2:
        return double(value) if wire == FIXED64 else 0.0
    if number in (5, 6):
        return text(value) if number == 5 else len(value) if wire == BYTES else 0
    whole = _whole(wire, value)
    return whole & _UNSIGNED if number == 3 else whole


def _read_line(message: memoryview) -> Line:
    cuts, own, events, damaged = _cut(message)
    id = timestamp = 0
    name = display_name = ""
    for number, wire, value, _ in fields(own):
        if number == 1 and wire == VARINT:
            id = value
        elif number == 2:
            name = text(value)
        elif number == 3 and wire == VARINT:
            timestamp = signed(value)
        elif number == 11:
            display_name = text(value)
    pieces = tuple(message[begin:end] for begin, end in pairwise((0, *cuts)))
    return Line(id, display_name or name, timestamp, pieces, events, damaged)


def _cut(message: memoryview) -> tuple[list[int], memoryview, int, bool]:
    """Where the pieces of a line end, its fields that are no events, its number of events, whether it ends early."""
    if native.functions is not None:
        (cuts, own), events, damaged = native.functions.line_cuts(message, PIECE_BYTES)
        return np.frombuffer(cuts, np.int64).tolist(), memoryview(own), events, damaged
    return cut_in_python(message)


def cut_in_python(message: memoryview) -> tuple[list[int], memoryview, int, bool]:
    """The same without the C parts."""
    ends: list[int] = []
    others: list[memoryview] = []
    events = last = end = 0
    damaged = False
    try:
        for number, wire, _, after in fields(message):
            if number == _EVENT and wire == BYTES:
                events += 1
            else:
                others.append(message[end:after])
            end = after
            if end - last >= PIECE_BYTES:
                ends.append(end)
                last = end
    except DamagedMessageError:
        damaged = True
    if end > last:
        ends.append(end)
    return ends, memoryview(b"".join(others)), events, damaged


def read_events(piece: memoryview, shared: NamedTexts, stats: NamedTexts, picked: Numbers) -> LineEvents:
    """The events of a piece of a line. `shared` has arguments by metadata, `stats` the names of stats, both as JSON;
    `picked` are the ids of stats that get columns."""
    found = None
    if native.functions is not None:
        found = native.functions.line_events(piece, shared.buffers, stats.buffers, picked)
    if found is None:
        return events_in_python(piece, shared, stats, picked)
    (index, offset, duration, values, args, args_offset), without_time, without_metadata = found
    return LineEvents(
        np.frombuffer(index, np.int32),
        np.frombuffer(offset, np.int64),
        np.frombuffer(duration, np.int64),
        np.frombuffer(values, np.int64).reshape(-1, len(picked)),
        args,
        np.frombuffer(args_offset, np.uint32),
        without_time,
        without_metadata,
    )


def events_in_python(piece: memoryview, shared: NamedTexts, stats: NamedTexts, picked: Numbers) -> LineEvents:
    """The same without the C parts. An event that is damaged is left out and counted."""
    places = {id: place for place, id in enumerate(shared.ids.tolist())}
    fragments = list(shared.texts)
    names = dict(zip(stats.ids.tolist(), stats.texts, strict=True))
    columns: dict[int, int] = {id: column for column, id in enumerate(picked.tolist())}
    rows: list[tuple[int, int, int, list[int]]] = []
    texts: list[bytes | None] = []
    without_time = without_metadata = damaged = 0
    for number, wire, event, _ in fields(piece):
        if number != _EVENT or wire != BYTES:
            continue
        try:
            id, offset, duration, own = _event(event)
            if offset is None or id not in places:
                without_time += offset is None
                without_metadata += offset is not None
                continue
            own_stats = [_stat(message) for message in own]
        except DamagedMessageError:
            damaged += 1
            continue
        values = [NULL] * len(columns)
        parts = [fragments[places[id]]] if fragments[places[id]] else []
        for stat, kind, value in own_stats:
            if stat in columns and kind in (3, 4, _REFERENCE):
                values[columns[stat]] = signed(value) if value > 0 else value
            if names.get(stat):
                parts.append(f"{names[stat]}:{_value_text(kind, value, names)}")
        rows.append((places[id], offset, duration, values))
        texts.append(("{" + ",".join(parts) + "}").encode("utf-8", "replace") if parts else None)
    args, args_offset = joined_texts(texts)
    return LineEvents(
        np.array([row[0] for row in rows], dtype=np.int32),
        np.array([row[1] for row in rows], dtype=np.int64),
        np.array([row[2] for row in rows], dtype=np.int64),
        np.array([row[3] for row in rows], dtype=np.int64).reshape(-1, len(picked)),
        args,
        args_offset,
        without_time,
        without_metadata,
        damaged,
        in_c=False,
    )


def _event(message: memoryview) -> tuple[int, int | None, int, list[memoryview]]:
    """The id of its metadata, offset in ps (None if it is only counted), duration in ps, its stats."""
    id = duration = 0
    offset: int | None = 0
    stats: list[memoryview] = []
    for number, wire, value, _ in fields(message):
        if number == 1:
            id = _whole(wire, value)
        elif number == 2:
            offset = _whole(wire, value)
        elif number == 3:
            duration = _whole(wire, value)
        elif number == 4 and wire == BYTES:
            stats.append(value)
        elif number == 5:
            offset = None
    return id, offset, duration, stats


def _value_text(kind: int, value: Any, names: Mapping[int, str]) -> str:
    if kind == 2:
        return _number_text(value)
    if kind == 5:
        return quoted(value)
    if kind == 6:
        return f'"{value} bytes"'
    if kind == _REFERENCE:
        return names.get(value) or '""'
    return "null" if value is None else str(value)


def _number_text(value: float) -> str:
    """With the fewest of 15, 16 or 17 digits that give the same number."""
    if not math.isfinite(value):
        return "null"
    texts = (f"{value:.{digits}g}" for digits in (15, 16, 17))
    return next(text for text in texts if float(text) == value)
