"""The tracks of a Perfetto trace as processes and threads, and what rankscope's own export says about them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from rankscope.readers.checked_values import as_list, as_object
from rankscope.readers.perfetto import field_numbers as numbers
from rankscope.readers.protobuf import DamagedMessageError, bytes_in, fields, number_in, signed, text_in

FILES_KEY = "rankscope.files"
"""Attribute of the trace: the files that rankscope exported, each a sequence of packets."""
FILE_KEY = "rankscope.file."
"""With the number of a sequence: what is needed to read that file back."""
_MOST_PARENTS = 64
_MOST_FLOW_KINDS = 1000
"""Each flow is looked up among them."""
_UNITS = {1: "ns", 2: "count", 3: "bytes"}


def attributes(described: list[tuple[int, bytes]]) -> dict[str, str]:
    """The attributes of the trace that are text."""
    texts: dict[str, str] = {}
    for number, data in described:
        if number != numbers.Packet.ATTRIBUTES:
            continue
        try:
            for inner, wire, value in fields(data):
                if inner == numbers.Attribute.ATTRIBUTE:
                    pair = {n: text_in(w, v) for n, w, v in fields(bytes_in(wire, value))}
                    texts[pair.get(numbers.Attribute.KEY, "")] = pair.get(numbers.Attribute.TEXT, "")
        except DamagedMessageError:
            continue
    return texts


def json_attribute(texts: dict[str, str], key: str, kind: type[Any]) -> Any:
    """The value of an attribute; an empty one if it is missing or damaged."""
    try:
        value = json.loads(texts.get(key, ""))
    except (ValueError, RecursionError):
        return kind()
    return value if isinstance(value, kind) else kind()


@dataclass
class Counter:
    """The values of a counter track."""

    unit: str = "value"
    multiplier: int = 1
    differences: bool = False


@dataclass
class Descriptor:
    """One track as the file describes it."""

    name: str = ""
    parent: int = 0
    pid: int | None = None
    tid: int | None = None
    process_name: str = ""
    labels: list[str] = field(default_factory=list)
    sort_index: int | None = None
    counter: Counter | None = None


def descriptors(described: list[tuple[int, bytes]]) -> tuple[dict[int, Descriptor], int]:
    """By uuid, and the number of those that are damaged. The last description of a track counts."""
    by_uuid: dict[int, Descriptor] = {}
    damaged = 0
    for number, data in described:
        if number == numbers.Packet.DESCRIPTOR:
            try:
                uuid, descriptor = _descriptor(data)
                by_uuid[uuid] = descriptor
            except DamagedMessageError:
                damaged += 1
    return by_uuid, damaged


def _descriptor(data: bytes) -> tuple[int, Descriptor]:
    uuid, track = 0, Descriptor()
    kinds = numbers.Descriptor
    for number, wire, value in fields(data):
        content = bytes_in(wire, value)
        if number == kinds.UUID:
            uuid = number_in(wire, value)
        elif number == kinds.PARENT:
            track.parent = number_in(wire, value)
        elif number in (kinds.NAME, kinds.STATIC_NAME, kinds.ATRACE_NAME):
            track.name = text_in(wire, value)
        elif number == kinds.ORDER:
            track.sort_index = _int32(number_in(wire, value))
        elif number == kinds.PROCESS:
            _read_process(track, content)
        elif number == kinds.THREAD:
            _read_thread(track, content)
        elif number == kinds.COUNTER:
            track.counter = _counter(content)
    return uuid, track


def _read_process(track: Descriptor, data: bytes) -> None:
    kinds = numbers.Process
    for number, wire, value in fields(data):
        if number == kinds.PID:
            track.pid = _int32(number_in(wire, value))
        elif number == kinds.NAME:
            track.process_name = text_in(wire, value)
        elif number == kinds.LABEL:
            track.labels.append(text_in(wire, value))
        elif number == kinds.ORDER:
            track.sort_index = _int32(number_in(wire, value))


def _read_thread(track: Descriptor, data: bytes) -> None:
    track.tid = 0
    kinds = numbers.Thread
    for number, wire, value in fields(data):
        if number == kinds.PID:
            track.pid = _int32(number_in(wire, value))
        elif number == kinds.TID:
            track.tid = signed(number_in(wire, value))
        elif number == kinds.NAME:
            track.name = text_in(wire, value) or track.name
        elif number == kinds.ORDER:
            track.sort_index = _int32(number_in(wire, value))


def _counter(data: bytes) -> Counter:
    counter = Counter()
    kinds = numbers.Counter
    for number, wire, value in fields(data):
        if number == kinds.UNIT:
            counter.unit = _UNITS.get(number_in(wire, value), counter.unit)
        elif number == kinds.UNIT_NAME:
            counter.unit = text_in(wire, value) or counter.unit
        elif number == kinds.MULTIPLIER:
            counter.multiplier = signed(number_in(wire, value)) or 1
        elif number == kinds.DIFFERENCES:
            counter.differences = number_in(wire, value) != 0
    return counter


def _int32(value: int) -> int:
    return (value & 0xFFFF_FFFF) - ((value & 0x8000_0000) << 1)


def _encoded(text: str) -> bytes:
    return text.encode("utf-8", "replace")  # JSON may have half of a character


@dataclass(frozen=True)
class TrackThread:
    """Where the events of a track are: a process and a thread of it, or what stands for them."""

    pid: str
    tid: str

    def texts(self) -> tuple[bytes, bytes]:
        return _encoded(self.pid), _encoded(self.tid)


class Tracks:
    """All tracks of a file, by uuid."""

    def __init__(self, descriptors: dict[int, Descriptor]) -> None:
        self._found = descriptors

    def place(self, uuid: int) -> TrackThread:
        """A thread's own numbers. Other tracks have the process of the nearest track above that has one, and the name
        of the track as thread; tracks without a process are below the topmost one."""
        track = self._found.get(uuid)
        if track is None:
            return TrackThread("no process", f"track {uuid}")
        if track.tid is not None:
            return TrackThread(str(track.pid or 0), str(track.tid))
        if track.pid is not None:
            return TrackThread(str(track.pid), "process")
        name, top = track.name or f"track {uuid}", track
        for _ in range(_MOST_PARENTS):
            above = self._found.get(top.parent)
            if above is None or above is top:
                break
            if above.pid is not None:
                return TrackThread(str(above.pid), f"{above.tid} {name}" if above.tid is not None else name)
            top = above
        return TrackThread(top.name or "no process", name)

    def counter(self, uuid: int) -> tuple[bytes, bytes, int, bool]:
        """Name, series, multiplier, and whether values are differences. Without a description, events have the name."""
        track = self._found.get(uuid, Descriptor())
        counter = track.counter or Counter()
        name = track.name if track.counter else ""
        return _encoded(name), _encoded(counter.unit), counter.multiplier, counter.differences

    def metadata(self, used: list[int]) -> Iterator[dict[str, Any]]:
        """Events of phase M that name the processes and threads of these tracks."""
        pids: set[str] = set()
        for uuid in used:
            thread = self.place(uuid)
            pids.add(thread.pid)
            track = self._found.get(uuid)
            if track is None or track.counter is not None:
                continue
            if track.name and track.name != thread.tid:
                yield _named(thread, "thread_name", name=track.name)
            if track.sort_index is not None:
                yield _named(thread, "thread_sort_index", sort_index=track.sort_index)
        for track in self._found.values():
            if track.pid is None or track.tid is not None or str(track.pid) not in pids:
                continue
            process = TrackThread(str(track.pid), "0")
            if track.process_name or track.name:
                yield _named(process, "process_name", name=track.process_name or track.name)
            if track.labels:
                yield _named(process, "process_labels", labels=",".join(track.labels))
            if track.sort_index is not None:
                yield _named(process, "process_sort_index", sort_index=track.sort_index)


def _named(thread: TrackThread, what: str, **args: Any) -> dict[str, Any]:
    return {"ph": "M", "name": what, "pid": thread.pid, "tid": thread.tid, "args": args}


class ExportedFile:
    """What rankscope's export says about one of its files; empty for traces of other programs."""

    def __init__(self, content: dict[str, Any]) -> None:
        self.header: dict[str, Any] = as_object(content.get("header"))
        self.metadata = [event for event in as_list(content.get("metadata")) if isinstance(event, dict)]
        """Events of phase M."""
        self.flow_kinds = [
            (low, high, _encoded(kind))
            for kind, low, high in filter(_is_flow_range, as_list(content.get("flows"))[:_MOST_FLOW_KINDS])
        ]
        self._places = {
            row[0]: TrackThread(str(row[1]), str(row[2]))
            for row in as_list(content.get("tracks"))
            if isinstance(row, list) and len(row) == 3 and isinstance(row[0], int)
        }

    def place(self, uuid: int) -> TrackThread | None:
        """The process and thread of a track in the file that was exported."""
        return self._places.get(uuid)


def _is_flow_range(row: Any) -> bool:
    if not isinstance(row, list) or [type(value) for value in row] != [str, int, int]:
        return False
    return 0 <= int(row[1]) <= int(row[2]) < 1 << 64
