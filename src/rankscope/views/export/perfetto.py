"""A run as a native Perfetto trace, for ui.perfetto.dev and trace_processor: one file for all ranks, or an archive.

A rank is a process, its streams and threads are tracks below it, a slice is a begin and an end event. Each input file
is one packet sequence with its own table of names, so memory does not grow with the number of ranks.

The archive is a tar file with one trace for each file, on the clock of its host, and a manifest that relates the clocks
(https://perfetto.dev/docs/reference/perfetto-manifest). Perfetto merges the traces on one time axis, with the offsets
that rankscope found. They are in the manifest, where they can be read and changed; in a single trace they are part of
every time.
"""

from __future__ import annotations

import io
import json
import tarfile
import tempfile
from collections.abc import Generator, Iterable, Iterator
from dataclasses import dataclass
from typing import IO, Any, BinaryIO, Protocol

from rankscope.analysis.core.scope import Scope
from rankscope.protobuf import blob, double, fixed64, number, text, varint
from rankscope.timeline.run import Run
from rankscope.views.export.timeline_events import SliceEvent, TraceFile, origin_ns, timeline_files

# Field numbers of perfetto/trace/*.proto that are written, by message.
TRACE_PACKET = 1
"""Of Trace, which consists of packets."""


class Packet:
    """TracePacket."""

    CLOCKS, TIME, SEQUENCE, TRACK_EVENT, INTERNED, FLAGS, DESCRIPTOR = 6, 8, 10, 11, 12, 13, 60


class Clock:
    """ClockSnapshot, and the clocks in it."""

    CLOCK, ID, TIME = 1, 1, 2


class Event:
    """TrackEvent."""

    CATEGORY_IID, ANNOTATION, TYPE, NAME_IID, TRACK = 3, 4, 9, 10, 11
    DOUBLE_VALUE, FLOW, FLOW_END = 44, 47, 48


class Annotation:
    """DebugAnnotation."""

    NAME_IID, JSON = 1, 9


class Interned:
    """InternedData, and its entries."""

    CATEGORIES, NAMES, ANNOTATION_NAMES = 1, 2, 3
    IID, TEXT = 1, 2


class Descriptor:
    """TrackDescriptor."""

    UUID, NAME, PROCESS, PARENT, COUNTER, ORDERING, ORDER = 1, 2, 3, 5, 8, 11, 12


class Process:
    """ProcessDescriptor."""

    PID, NAME = 1, 6


class Counter:
    """CounterDescriptor."""

    UNIT = 3


_FLUSH_BYTES = 1 << 20
_BEGIN, _END, _INSTANT, _COUNTER = 1, 2, 3, 4
_STATE_CLEARED, _NEEDS_STATE = 1, 2
_EXPLICIT_ORDER = 3
_UNIT_BYTES = 3
_BOOT_CLOCK, _REAL_CLOCK = 6, 1
MANIFEST_NAME = "perfetto_manifest.json"
_MANIFEST_VERSION = 1
_CLOCK = "BOOTTIME"
"""What Perfetto takes the times of packets for that name no clock."""
_TIME_TAG = varint(Packet.TIME << 3)


class Writable(Protocol):
    """What the trace is written to."""

    def write(self, data: bytes, /) -> int: ...


def write_perfetto(run: Run, scope: Scope, out: Writable, with_args: bool = True) -> int:
    """Write the trace and return the number of slices."""
    start = run.start_unix_ns + origin_ns(run)
    return _write_files(timeline_files(run, scope), start, out, with_args)


def write_archive(run: Run, scope: Scope, out: BinaryIO, with_args: bool = True) -> int:
    """Write the archive and return the number of slices."""
    members = _members(run, scope)
    slices = 0
    with tarfile.open(fileobj=out, mode="w|") as archive:

        def add(name: str, content: IO[bytes]) -> None:
            member = tarfile.TarInfo(name)
            member.size = content.seek(0, io.SEEK_END)
            content.seek(0)
            archive.addfile(member, content)

        add(MANIFEST_NAME, io.BytesIO(json.dumps(_manifest(members)).encode()))
        for member in members:
            with tempfile.TemporaryFile() as content:
                slices += _write_files([member.file], member.start_unix_ns, content, with_args)
                add(member.name, content)
    return slices


@dataclass(frozen=True)
class _Member:
    """One trace of the archive."""

    file: TraceFile
    """With times on the clock of its host, none of them negative."""
    name: str
    offset_ns: int
    """What is added to its times to have those of the first member."""
    start_unix_ns: int


def _members(run: Run, scope: Scope) -> list[_Member]:
    entries = {(entry.rank, entry.segment): entry for entry in run.timelines}
    files = [(file, entries[file.rank, file.segment]) for file in timeline_files(run, scope)]
    # By how much alignment has moved each file, and how early any file would begin on another's clock.
    moves = [run.shift_ns(entry) - run.begin_ns(entry) for _, entry in files]
    begins = [run.begin_ns(entry) - moves[0] + move for (_, entry), move in zip(files, moves, strict=True)]
    base = max(0, -min(begins, default=0))
    members = []
    for (file, entry), move in zip(files, moves, strict=True):
        file.shift_ns = base - move
        second = f".file-{file.segment + 1}" if file.segment else ""
        start = entry.unix_origin_ns - run.begin_ns(entry) - base
        members.append(_Member(file, f"rank-{file.rank:05d}{second}.perfetto-trace", move - moves[0], start))
    return members


def _manifest(members: list[_Member]) -> dict[str, Any]:
    """The key comes first: Perfetto recognises the file by it."""
    reference = {"file": members[0].name} if members else {}
    files: list[dict[str, Any]] = [
        {"path": member.name, "machine": {"name": member.file.label}} for member in members
    ]
    for entry, member in zip(files[1:], members[1:], strict=True):
        sync_to = {**reference, "clock": _CLOCK}
        entry["clocks"] = {"clock": _CLOCK, "sync_to": sync_to, "offset_ns": member.offset_ns}
    trace_time = {"clock": _CLOCK, **reference}
    return {"perfetto_manifest": {"version": _MANIFEST_VERSION, "trace_time": trace_time, "files": files}}


def _write_files(files: Iterable[TraceFile], start_unix_ns: int, out: Writable, with_args: bool) -> int:
    """One trace of some files, whose time 0 is at this time since 1970; returns the number of slices."""
    out.write(_packet(_clock_snapshot(start_unix_ns)))
    slices = 0
    uuids = iter(range(1, 1 << 62))
    processes: dict[int, int] = {}
    for sequence, file in enumerate(files, start=1):
        if file.rank not in processes:
            processes[file.rank] = next(uuids)
            out.write(_packet(_process(processes[file.rank], file.rank)))
        writer = _FileWriter(file, sequence, processes[file.rank], uuids)
        pending = bytearray()
        for packet in writer.packets(with_args):
            pending += packet
            if len(pending) > _FLUSH_BYTES:
                out.write(bytes(pending))
                pending.clear()
        out.write(bytes(pending))
        slices += writer.slices
    return slices


def _packet(content: bytes) -> bytes:
    return blob(TRACE_PACKET, content)


def _clock_snapshot(start_unix_ns: int) -> bytes:
    """The wall clock at time 0 of the trace."""
    clocks = ((_BOOT_CLOCK, 0), (_REAL_CLOCK, start_unix_ns))
    readings = (number(Clock.ID, clock) + number(Clock.TIME, value) for clock, value in clocks)
    return blob(Packet.CLOCKS, b"".join(blob(Clock.CLOCK, reading) for reading in readings))


def _process(uuid: int, rank: int) -> bytes:
    # Perfetto treats process 0 as the idle task, so process ids are rank + 1. The name contains the rank.
    process = number(Process.PID, rank + 1) + text(Process.NAME, f"rank {rank}")
    described = number(Descriptor.UUID, uuid) + blob(Descriptor.PROCESS, process)
    return blob(Packet.DESCRIPTOR, described + number(Descriptor.ORDERING, _EXPLICIT_ORDER))


class _FileWriter:
    """The packets of one trace file."""

    def __init__(self, file: TraceFile, sequence: int, process: int, uuids: Iterator[int]) -> None:
        self.slices = 0
        self._file = file
        self._process = process
        self._uuids = uuids
        self._sequence = number(Packet.SEQUENCE, sequence)
        self._ready = number(Packet.SEQUENCE, sequence) + number(Packet.FLAGS, _NEEDS_STATE)
        self._lanes: dict[tuple[int, int], bytes] = {}
        self._interned: dict[tuple[int, str], int] = {}
        self._new = b""
        """Interned data to send with the next packet."""
        self._heads: dict[tuple[int, bytes, str, str], bytes] = {}

    def packets(self, with_args: bool) -> Iterator[bytes]:
        yield _packet(self._sequence + number(Packet.FLAGS, _STATE_CLEARED))
        yield from self._slice_packets(with_args)
        for track, ts_ns, name, category in self._file.marks():
            lane = yield from self._lane(track, 0)
            yield self._event(ts_ns, self._head(_INSTANT, lane, name, category))
        yield from self._counter_packets()

    def _slice_packets(self, with_args: bool) -> Iterator[bytes]:
        """Begin events in order, each after the end events before it on its lane: per lane, times must not decrease."""
        track: int | None = None
        open_ends: dict[bytes, list[int]] = {}
        for event in self._file.slices(with_args):
            if event.track != track:
                yield from self._close(open_ends)
                track, open_ends = event.track, {}
            lane = yield from self._lane(event.track, event.lane)
            stack = open_ends.setdefault(lane, [])
            while stack and stack[-1] <= event.start_ns:
                yield self._event(stack.pop(), number(Event.TYPE, _END) + lane)
            yield self._begin(event, lane)
            stack.append(event.start_ns + event.dur_ns)
            self.slices += 1
        yield from self._close(open_ends)

    def _close(self, open_ends: dict[bytes, list[int]]) -> Iterator[bytes]:
        for lane, stack in open_ends.items():
            while stack:
                yield self._event(stack.pop(), number(Event.TYPE, _END) + lane)

    def _begin(self, event: SliceEvent, lane: bytes) -> bytes:
        body = self._head(_BEGIN, lane, event.name, event.category)
        if event.leaves:
            body += b"".join(fixed64(Event.FLOW, flow) for flow in event.leaves)
        if event.enters:
            body += b"".join(fixed64(Event.FLOW_END, flow) for flow in event.enters)
        if event.args:
            # The JSON of the file; Perfetto parses it into arguments of the slice.
            name = number(Annotation.NAME_IID, self._intern(Interned.ANNOTATION_NAMES, "args"))
            body += blob(Event.ANNOTATION, name + text(Annotation.JSON, event.args))
        return self._event(event.start_ns, body)

    def _head(self, kind: int, lane: bytes, name: str, category: str) -> bytes:
        """The common first bytes of all events with one name on one lane."""
        key = kind, lane, name, category
        if key not in self._heads:
            names = number(Event.NAME_IID, self._intern(Interned.NAMES, name))
            if category:
                names += number(Event.CATEGORY_IID, self._intern(Interned.CATEGORIES, category))
            self._heads[key] = number(Event.TYPE, kind) + lane + names
        return self._heads[key]

    def _intern(self, table: int, name: str) -> int:
        """The id of `name`; a new id is sent with the next packet."""
        if (table, name) not in self._interned:
            self._interned[table, name] = len(self._interned) + 1
            entry = number(Interned.IID, self._interned[table, name]) + text(Interned.TEXT, name)
            self._new += blob(table, entry)
        return self._interned[table, name]

    def _event(self, ts_ns: int, body: bytes) -> bytes:
        packet = _TIME_TAG + varint(ts_ns) + self._ready + blob(Packet.TRACK_EVENT, body)
        if self._new:
            packet += blob(Packet.INTERNED, self._new)
            self._new = b""
        return _packet(packet)

    def _lane(self, track: int, lane: int) -> Generator[bytes, None, bytes]:
        """What events on a lane name it by; its descriptor comes on its first use."""
        if (track, lane) not in self._lanes:
            uuid = next(self._uuids)
            self._lanes[track, lane] = number(Event.TRACK, uuid)
            yield self._track(uuid, *self._file.lane(track, lane))
        return self._lanes[track, lane]

    def _track(self, uuid: int, name: str, order: int, more: bytes = b"") -> bytes:
        described = number(Descriptor.UUID, uuid) + number(Descriptor.PARENT, self._process)
        described += text(Descriptor.NAME, name) + number(Descriptor.ORDER, order)
        return _packet(self._sequence + blob(Packet.DESCRIPTOR, described + more))

    def _counter_packets(self) -> Iterator[bytes]:
        tracks: dict[str, bytes] = {}
        for counter, unit, ts_ns, value in self._file.samples():
            if counter not in tracks:
                uuid = next(self._uuids)
                described = number(Counter.UNIT, _UNIT_BYTES) if unit == "bytes" else b""
                yield self._track(uuid, counter, 90_000 + len(tracks), blob(Descriptor.COUNTER, described))
                tracks[counter] = number(Event.TYPE, _COUNTER) + number(Event.TRACK, uuid)
            yield self._event(ts_ns, tracks[counter] + double(Event.DOUBLE_VALUE, value))
