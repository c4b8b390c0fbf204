"""The packets of a file in blocks: plain or gzip, with packets that are compressed inside expanded."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from pathlib import Path

from rankscope.readers.base import ReadReport
from rankscope.readers.byte_stream import open_stream
from rankscope.readers.perfetto.decoder import Cut, cut
from rankscope.readers.perfetto.field_numbers import Packet

BLOCK_BYTES = 8 << 20
"""Rewritten at once: about 16 MiB of JSON."""
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
            read = self._read(wanted)
            data = rest + read if rest else read
            found = cut(data)
            yield from self._expanded(data, found)
            rest, missing = data[found.end :], found.missing
            if found.damaged:
                self._stop("what follows is not a packet", rest)
                return
            if len(read) < wanted:
                if rest or self._stream.damage:
                    self._stop(self._stream.damage or "the file ends in the middle of a packet", rest)
                return
            if missing > _LARGEST_PACKET:
                self._stop(f"a packet claims to have {missing:,} bytes", rest)
                return

    def _read(self, size: int) -> bytes:
        try:
            data = self._stream.read(size)
        except OSError as error:
            self._stream.damage = f"reading stopped: {error.strerror}"
            data = b""
        self.position = self._stream.position()
        return data

    def _stop(self, why: str, rest: bytes) -> None:
        self._report.damage = why
        if rest:
            self._report.lose(f"the last packet: {why}")

    def _expanded(self, data: bytes, found: Cut) -> Iterator[memoryview]:
        if not found.compressed:
            if found.end:
                yield memoryview(data)[: found.end]
            return
        done = 0
        pending: list[bytes] = []
        for field, begin, end, content in found.compressed:
            pending.append(data[done:begin])
            if field == Packet.COMPRESSED:
                pending.append(self._inflated(data[content:end]))
            else:
                self._report.lose("packets that are compressed with zstd, which is not read")
            done = end
            if sum(map(len, pending)) > BLOCK_BYTES:
                yield memoryview(b"".join(pending))
                pending = []
        yield memoryview(b"".join((*pending, data[done : found.end])))

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
