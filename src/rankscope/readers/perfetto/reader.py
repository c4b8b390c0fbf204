"""Reads a Perfetto trace in two passes: what slices and flows consist of, then the events as columns."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rankscope.errors import ReadError
from rankscope.readers.base import (
    PACKETS_NOT_READ,
    PERFETTO_NAMES,
    EventBatch,
    Reader,
    Reading,
    ReadReport,
    ReadyBatch,
    TraceIdentity,
    is_usable_rank,
    need_c_parts,
    usable_time,
)
from rankscope.readers.byte_stream import read_head
from rankscope.readers.kineto.reader import batch_of
from rankscope.readers.perfetto import tracks
from rankscope.readers.perfetto.field_numbers import TRACE_PACKET, Packet
from rankscope.readers.protobuf import BYTES, VARINT, DamagedMessageError, bytes_in, fields, read_varint

if TYPE_CHECKING:
    from rankscope.readers.perfetto.decoder import Index, PacketStream, Plan

_SEPARATOR = b'},\n{"ph"'
"""Between two events of metadata. Texts have no line breaks: they are escaped."""
_HEAD_BYTES = 4 << 20
_PACKETS_LOOKED_AT = 16
_MOST_EXPANSION = 500
"""Arguments as JSON and distinct names have about the bytes of their packets."""
_ALWAYS_ALLOWED = 1 << 30
"""Bytes of them, whatever the ratio is."""


class PerfettoReading(Reading):
    """The events of one file, or of one sequence of packets in it."""

    def __init__(self, path: Path, part: str = "") -> None:
        super().__init__(path)
        self._sequence = int(part) if part else None
        self._passes: list[PacketStream] = []
        self._base_ns = 0

    def batches(self) -> Iterator[EventBatch]:
        # Late: they import numpy, which finding and identifying files does not need.
        from rankscope.readers.perfetto.decoder import DAMAGED, REPAIRS, EventDecoder, Index

        need_c_parts(self._path)
        index = Index(self._sequence)
        read = 0
        for block in self._pass(self.report):
            read += len(block)
            index.add(block)
        index.finish()
        self._report(index)
        plan, metadata = self._plan(index)
        if metadata:
            text = b",\n".join(json.dumps(event, separators=(",", ":")).encode() for event in metadata)
            yield batch_of(text, _SEPARATOR, self.report)
        decoder = EventDecoder(plan, self._sequence)
        expanded = 0
        for block in self._pass(ReadReport()):  # the first pass has reported the damage
            for columns in decoder.decode(block):
                expanded += len(columns.args) + len(columns.texts.data)
                if expanded > max(_ALWAYS_ALLOWED, _MOST_EXPANSION * read):
                    self.report.damage = f"the events expand more than {_MOST_EXPANSION}-fold, as in no trace"
                    return
                if len(columns):
                    yield ReadyBatch(columns)
        damaged = decoder.counts[DAMAGED] - index.counts[DAMAGED]
        if damaged > 0:
            self.report.lose(f"{damaged:,} GPU stages that are damaged", damaged)
        for number, why in REPAIRS.items():
            if decoder.counts[number]:
                self.report.repaired(why, decoder.counts[number])

    def _pass(self, report: ReadReport) -> Iterator[memoryview]:
        from rankscope.readers.perfetto.decoder import PacketStream

        self._passes.append(PacketStream(self._path, report))
        return self._passes[-1].blocks()

    def position(self) -> int:
        return sum(done.position for done in self._passes) // 2

    def clock_base_ns(self) -> int:
        return usable_time(self._base_ns)

    def _report(self, index: Index) -> None:
        from rankscope.readers.perfetto.decoder import LOSSES

        for number, why in LOSSES.items():
            if index.counts[number]:
                self.report.lose(f"{index.counts[number]:,} {why}", index.counts[number])
        if index.unread:
            self.header[PACKETS_NOT_READ] = _named(index.unread)
        if index.first_ns is None and self.report.events_lost == 0:
            kinds = ", ".join(self.header.get(PACKETS_NOT_READ, ())) or "descriptions of tracks"
            raise ReadError(
                f"{self._path} has no track events",
                why=f"It has packets of other kinds only: {kinds}.",
                hint="Record track events, or leave the file out.",
            )

    def _plan(self, index: Index) -> tuple[Plan, list[dict[str, Any]]]:
        """What the second pass needs, and events with the names of processes and threads."""
        from rankscope.readers.perfetto.decoder import Plan

        described, damaged = tracks.descriptors(index.described)
        if damaged:
            self.report.lose(f"{damaged:,} descriptions of tracks that are damaged", damaged)
        base = index.first_ns or 0
        self._base_ns = base + (index.real_offset or 0)
        durations = index.durations
        if durations.never_ended:
            self.report.repaired(
                f"{durations.never_ended:,} slices without an end last to the end of the file",
                durations.never_ended,
            )
        if durations.never_begun:
            self.report.lose(
                f"{durations.never_begun:,} ends of slices that have no begin", durations.never_begun
            )
        exported = self._exported(index)
        all_tracks = tracks.Tracks(described)
        plan = Plan(
            base_ns=base,
            tracks=[
                (uuid, *(exported.place(uuid) or all_tracks.place(uuid)).texts(), all_tracks.counter(uuid))
                for uuid in index.uuids
            ],
            durations=durations.ns,
            flow_phases=_flow_phases(index),
            flow_kinds=exported.flow_kinds,
        )
        return plan, exported.metadata or list(all_tracks.metadata(index.uuids))

    def _exported(self, index: Index) -> tracks.ExportedFile:
        """What rankscope's export says about this file."""
        attributes = tracks.attributes(index.described)
        exported = tracks.ExportedFile(
            tracks.json_attribute(attributes, f"{tracks.FILE_KEY}{self._sequence}", dict)
        )
        self.header = {**exported.header, PACKETS_NOT_READ: {}, **self.header}
        return exported


def _flow_phases(index: Index) -> Any:
    """For each flow id of an event s, t or f; 0 where no other event is in its flow.

    A flow goes on in time, to where it says that it ends: an id that is used after that is of another flow.
    """
    import numpy as np

    flow, time = np.asarray(index.flow_ids, dtype=np.uint64), np.asarray(index.flow_times, dtype=np.int64)
    ends = np.asarray(index.flow_ends, dtype=np.uint8).astype(bool)
    order = np.lexsort((ends, time, flow))
    flow, ends = flow[order], ends[order]
    change = (flow[1:] != flow[:-1]) | ends[:-1]
    first, last = np.ones(len(flow), dtype=bool), np.ones(len(flow), dtype=bool)
    first[1:], last[:-1] = change, change
    phases = np.where(first, ord("s"), np.where(last, ord("f"), ord("t"))).astype(np.uint8)
    phases[first & last] = 0
    in_file_order = np.empty(len(flow), dtype=np.uint8)
    in_file_order[order] = phases
    return in_file_order


class PerfettoReader(Reader):
    """TracePackets of perfetto/trace/trace_packet.proto."""

    name = "perfetto"

    def recognises(self, path: Path, head: bytes) -> bool:
        named = path.name.endswith(PERFETTO_NAMES)
        return looks_like_packets(head, named)

    def identify_parts(self, path: Path) -> list[TraceIdentity]:
        """One, with the rank in its name; or one for each file that rankscope exported into it."""
        head, _ = read_head(path, _HEAD_BYTES)
        listed = tracks.json_attribute(_attributes(head), tracks.FILES_KEY, list)
        parts = [part for part in map(_part, listed) if part is not None]
        return parts or super().identify_parts(path)

    def open(self, path: Path, part: str = "") -> PerfettoReading:
        return PerfettoReading(path, part)


PERFETTO = PerfettoReader()


def _attributes(head: bytes) -> dict[str, str]:
    """Of the first packets."""
    described: list[tuple[int, bytes]] = []
    with suppress(DamagedMessageError):  # the head may end in a packet
        for number, wire, packet in islice(fields(head), _PACKETS_LOOKED_AT):
            if (number, wire) == (TRACE_PACKET, BYTES):
                described += [
                    (n, bytes_in(w, value)) for n, w, value in fields(packet) if n == Packet.ATTRIBUTES
                ]
    return tracks.attributes(described)


def _part(entry: Any) -> TraceIdentity | None:
    """An entry of tracks.FILES_KEY; None if it is damaged."""
    if not isinstance(entry, dict) or not is_usable_rank(entry.get("rank")):
        return None
    if not isinstance(entry.get("sequence"), int) or not 0 < entry["sequence"] < 1 << 32:
        return None
    world = entry.get("world_size")
    return TraceIdentity(
        rank=entry["rank"],
        rank_source="rankscope export",
        world_size=world if isinstance(world, int) else None,
        part=str(entry["sequence"]),
    )


MOST_NUMBERS = 1024
"""Field numbers that are counted; extensions beyond are counted as this."""
_NAMES = {
    1: "ftrace_events", 2: "process_tree", 4: "inode_file_map", 5: "chrome_events", 7: "sys_stats", 9: "process_stats",
    33: "trace_config", 34: "ftrace_stats", 35: "trace_stats", 37: "profile_packet", 38: "battery", 39: "android_log",
    40: "power_rails", 43: "process_descriptor", 44: "thread_descriptor", 45: "system_info", 46: "trigger",
    49: "perfetto_metatrace", 51: "chrome_metadata", 52: "gpu_counter_event", 54: "streaming_profile_packet",
    57: "graphics_frame_event", 61: "module_symbols", 63: "gpu_log", 66: "perf_sample", 67: "cpu_info",
    68: "smaps_packet", 69: "service_event", 71: "gpu_mem_total_event", 72: "extension_descriptor", 78: "ui_state",
    89: "trace_uuid", 90: "track_event_range_of_interest", 124: "trace_provenance", 128: "gpu_info",
    129: "generic_gpu_frequency_event", 135: "stack_sample", MOST_NUMBERS: "extensions",
}  # fmt: skip
"""Field numbers of TracePacket.data. Others are shown as their number."""
_NUMBERS_IN_PACKETS = frozenset(
    (
        Packet.TRUSTED_UID, Packet.TIME, Packet.SEQUENCE, Packet.FLAGS, Packet.CLEARED_OLD, Packet.DROPPED,
        Packet.CLOCK, Packet.TRUSTED_PID, Packet.FIRST_ON_SEQUENCE, Packet.DROPPED_SINCE, Packet.MACHINE,
    )
)  # fmt: skip
_MARKS_OF_A_PACKET = frozenset(
    (
        Packet.TIME, Packet.SEQUENCE, Packet.TRACK_EVENT, Packet.STAGE, Packet.CLOCKS, Packet.DESCRIPTOR, Packet.CONFIG,
        Packet.SYNCHRONIZATION, Packet.UUID, Packet.COMPRESSED, Packet.ZSTD_COMPRESSED, Packet.ATTRIBUTES,
    )
)  # fmt: skip
_BESIDE_DATA = _NUMBERS_IN_PACKETS | {Packet.INTERNED, Packet.DEFAULTS}


def _named(counts: Mapping[int, int]) -> dict[str, int]:
    """The number of packets of each kind, by name."""
    return {_NAMES.get(number, f"field {number}"): count for number, count in sorted(counts.items())}


def looks_like_packets(head: bytes, named: bool) -> bool:
    """True if most of the first bytes of a file are packets: other protobuf files also begin with a field of bytes.

    A file that is `named` as a trace may consist of packets of any kind.
    """
    seen: list[set[int] | None] = []
    at = 0
    while at < len(head) and head[at] == TRACE_PACKET << 3 | BYTES and len(seen) < _PACKETS_LOOKED_AT:
        try:
            length, begin = read_varint(head, at + 1, len(head))
        except DamagedMessageError:
            break
        seen.append(_fields_seen(head, begin, begin + length))
        at = begin + length
    good = [numbers for numbers in seen if numbers is not None]
    marked = named or any(numbers & _MARKS_OF_A_PACKET for numbers in good)
    return 2 * len(good) > len(seen) and marked


def _fields_seen(head: bytes, begin: int, end: int) -> set[int] | None:
    """The field numbers of what may be a packet, as far as it is there; None if it cannot be one."""
    seen: set[int] = set()
    at, stop = begin, min(end, len(head))
    while at < stop:
        try:
            tag, at = read_varint(head, at, stop)
            number, wire = tag >> 3, tag & 7
            if number in _NUMBERS_IN_PACKETS:
                if wire != VARINT:
                    return None
                _, at = read_varint(head, at, stop)
            elif number and wire == BYTES:
                length, at = read_varint(head, at, stop)
                at += length
            else:
                return None
        except DamagedMessageError:
            return seen if end > len(head) else None
        seen.add(number)
        if len(seen - _BESIDE_DATA) > 1:  # a packet has one kind of data
            return None
    return seen if at <= end else None
