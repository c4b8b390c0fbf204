"""The decoder of a trace's packets, which is written in C (native/perfetto.c).

A trace is decoded twice, block by block. `Index` finds the tracks, where slices begin and end, and flows. What follows
from all of them (`Plan`) is given to `EventDecoder`, which gives the events as columns.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rankscope import native
from rankscope.readers.base import ReadReport
from rankscope.readers.byte_stream import open_stream
from rankscope.readers.columns import EventColumns
from rankscope.readers.kineto.reader import NAMES, WORDS, columns_in_c
from rankscope.readers.pairing import pair_nested
from rankscope.readers.perfetto.field_numbers import Packet

DAMAGED, NO_STATE, NO_TIME, NO_CLOCK, FAR_TIME, NO_KIND, NO_TRACK, NO_ARGS, NO_NAME, SHORTENED, NOT_UTF8 = (
    range(11)
)
LOSSES = {
    DAMAGED: "packets that are damaged",
    NO_STATE: "packets that refer to names which the file has lost",
    NO_TIME: "events without a time",
    NO_CLOCK: "events of a clock that no snapshot describes",
    FAR_TIME: "events at a time beyond 2116",
    NO_KIND: "events that neither begin, end, mark nor count anything",
    NO_TRACK: "events on tracks beyond the first million",
}
"""Why events are lost, by their number in C."""
REPAIRS = {
    NO_ARGS: "arguments that are damaged or too long were left out",
    NO_NAME: "names that are not in the file are empty",
    SHORTENED: "long names were cut to 64 KiB",
    NOT_UTF8: "texts that are not UTF-8 have replacement characters",
}

_BEGIN, _END = 0, 1
"""Halves of slices. 2 is an end that follows in the file on a begin of the same time: the slice has no duration."""
_ALL_SEQUENCES = -1


CounterPlan = tuple[bytes, bytes, int, bool]
"""Name, series, multiplier, and whether values are differences."""


@dataclass
class Plan:
    """What the second pass needs of the first."""

    base_ns: int
    """Time 0 of the events."""
    tracks: list[tuple[int, bytes, bytes, CounterPlan]]
    """By number: uuid, pid and tid, and how its values are counted."""
    durations: Any
    """Of each begin."""
    flow_phases: Any
    """Of each flow id of an event: the byte s, t or f, or 0."""
    flow_kinds: list[tuple[int, int, bytes]]
    """First and last id, and their category."""


@dataclass(frozen=True)
class Durations:
    """Of each begin of a slice, in file order. A slice without an end lasts to the end of the file."""

    ns: NDArray[np.int64]
    never_ended: int
    never_begun: int
    """Ends without a begin."""


@dataclass(frozen=True)
class Cut:
    """How far the bytes are whole packets."""

    end: int
    """Where the last whole one ends."""
    missing: int
    """Bytes that the packet after it lacks; 0 if that is not known."""
    damaged: bool
    """What follows is not a packet."""
    compressed: list[tuple[int, int, int, int]]
    """Packets that hold compressed packets: field number, begin and end of the packet, begin of the content."""


def cut(data: bytes) -> Cut:
    """Find the packets at the beginning of these bytes."""
    return Cut(*native.functions.cut_packets(data))


class Index:
    """The first pass. The results are there after `finish`."""

    def __init__(self, sequence: int | None = None) -> None:
        self._decoder = native.functions.perfetto_decoder(
            _ALL_SEQUENCES if sequence is None else sequence, None
        )

    def add(self, block: memoryview) -> None:
        native.functions.perfetto_add(self._decoder, block, 0)

    def finish(self) -> None:
        self.counts: list[int] = native.functions.perfetto_counts(self._decoder)
        (
            columns, self.described, unread, self.first_ns, self.last_ns, self.real_offset, is_unordered, never_begun
        ) = native.functions.perfetto_index(self._decoder)  # fmt: skip
        uuids, tracks, times, halves, flows, flow_times, flow_ends, durations = columns
        self.unread = {number: count for number, count in enumerate(unread) if count}
        """Packets of kinds that are not read, by field number."""
        self.uuids: list[int] = np.frombuffer(uuids, dtype=np.uint64).tolist()
        """Of the tracks with events; their place is the track's number."""
        self.tracks = np.frombuffer(tracks, dtype=np.int32)
        """Of every begin and end of a slice."""
        self.times = np.frombuffer(times, dtype=np.int64)
        self.halves = np.frombuffer(halves, dtype=np.uint8)
        self.flow_ids = np.frombuffer(flows, dtype=np.uint64)
        """Of every flow id of an event."""
        self.flow_times = np.frombuffer(flow_times, dtype=np.int64)
        self.flow_ends = np.frombuffer(flow_ends, dtype=np.uint8)
        """Whether the flow ends there."""
        self.durations = (
            self.paired()
            if is_unordered
            else self._with_open_ends(np.frombuffer(durations, dtype=np.int64), never_begun)
        )

    def _with_open_ends(self, durations: NDArray[np.int64], never_begun: int) -> Durations:
        """Of the durations that were found while reading, which needs the events of every track in order."""
        is_open = durations < 0
        begins = self.times[self.halves == _BEGIN]
        durations[is_open] = (self.last_ns or 0) - begins[is_open]
        return Durations(durations, int(is_open.sum()), never_begun)

    def paired(self) -> Durations:
        """The durations where events are in any order."""
        is_begin = self.halves == _BEGIN
        # What ends at a time has ended before anything else begins there, unless it began there itself.
        tie = self.halves != _END
        pairs = pair_nested(self.tracks.astype(np.int64), self.times, is_begin, tie)
        ends = np.full(len(self.halves), self.last_ns or 0, dtype=np.int64)
        ends[pairs.begin] = self.times[pairs.end]
        return Durations((ends - self.times)[is_begin], len(pairs.never_ended), len(pairs.never_begun))


class EventDecoder:
    """The second pass."""

    def __init__(self, plan: Plan, sequence: int | None = None) -> None:
        given = (
            plan.base_ns,
            plan.tracks,
            np.ascontiguousarray(plan.durations),
            np.ascontiguousarray(plan.flow_phases),
            plan.flow_kinds,
            WORDS,
            NAMES,
        )
        self._decoder = native.functions.perfetto_decoder(
            _ALL_SEQUENCES if sequence is None else sequence, given
        )

    def decode(self, block: memoryview) -> Iterator[EventColumns]:
        """The events of a block; in several pieces if they have much text."""
        at = 0
        while at < len(block):
            columns, at = native.functions.perfetto_add(self._decoder, block, at)
            yield columns_in_c(columns)

    @property
    def counts(self) -> list[int]:
        counts: list[int] = native.functions.perfetto_counts(self._decoder)
        return counts


BLOCK_BYTES = 8 << 20
"""Decoded at once."""
_LARGEST_PACKET = 128 << 20
_MOST_INFLATED = 64 << 20
"""Of one packet. Perfetto compresses half a MiB at a time."""


class PacketStream:
    """One pass over a file."""

    def __init__(self, path: Path, report: ReadReport) -> None:
        self.position = 0
        """Bytes of the file read so far."""
        self._stream = open_stream(path)
        self._report = report

    def blocks(self) -> Iterator[memoryview]:
        """Whole packets, one after another. What is damaged is reported, and what follows it is not read."""
        try:
            yield from self._blocks()
        finally:
            self._stream.close()

    def _blocks(self) -> Iterator[memoryview]:
        rest, missing = b"", 0
        while True:
            wanted = max(BLOCK_BYTES, missing)
            read = self._stream.read_on(wanted)
            self.position = self._stream.position()
            data = rest + read if rest else read
            packets = cut(data)
            yield from self._expanded(data, packets)
            rest, missing = data[packets.end :], packets.missing
            if packets.damaged:
                self._stop("what follows is not a packet", rest)
                return
            if len(read) < wanted:
                if rest or self._stream.damage:
                    self._stop(self._stream.damage or "the file ends in the middle of a packet", rest)
                return
            if missing > _LARGEST_PACKET:
                self._stop(f"a packet claims to have {missing:,} bytes", rest)
                return

    def _stop(self, why: str, rest: bytes) -> None:
        self._report.damage = why
        if rest:
            self._report.lose(f"the last packet: {why}")

    def _expanded(self, data: bytes, packets: Cut) -> Iterator[memoryview]:
        if not packets.compressed:
            if packets.end:
                yield memoryview(data)[: packets.end]
            return
        done = 0
        pending: list[bytes] = []
        for field, begin, end, content in packets.compressed:
            pending.append(data[done:begin])
            if field == Packet.COMPRESSED:
                pending.append(self._inflated(data[content:end]))
            else:
                self._report.lose("packets that are compressed with zstd, which is not read")
            done = end
            if sum(map(len, pending)) > BLOCK_BYTES:
                yield memoryview(b"".join(pending))
                pending = []
        yield memoryview(b"".join((*pending, data[done : packets.end])))

    def _inflated(self, content: bytes) -> bytes:
        inflate = zlib.decompressobj()
        try:
            packets = inflate.decompress(content, _MOST_INFLATED)
        except zlib.error as error:
            self._report.lose(f"compressed packets that are corrupt ({error})")
            return b""
        end = cut(packets).end
        if end < len(packets) or not inflate.eof:
            self._report.lose("the last of compressed packets that are cut off")
        return packets[:end]
