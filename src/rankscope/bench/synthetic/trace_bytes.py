"""Trace files as bytes: written in large pieces, and read back event by event without parsing."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import IO, Any

from rankscope.bench.synthetic.kineto_text import HEAD_END, SEPARATOR, TAIL

_READ_BYTES = 1 << 22
_HEAD_END, _SEPARATOR, _TAIL = HEAD_END.encode(), SEPARATOR.encode(), TAIL.encode()


def is_gzip(path: Path) -> bool:
    return path.name.endswith(".gz")


def open_bytes(path: Path) -> IO[bytes]:
    """The text of a trace, decompressed."""
    stream: IO[bytes] = _gzip_file()(path, "rb") if is_gzip(path) else path.open("rb")
    return stream


def _gzip_file() -> Any:
    """isal's class where it is installed: several times as fast as zlib's."""
    try:
        from isal.igzip import IGzipFile
    except ImportError:
        return gzip.GzipFile
    return IGzipFile


def write_pieces(path: Path, pieces: Iterable[bytes], on_bytes: Callable[[int], None] | None = None) -> int:
    """Write a file, compressed if its name ends in .gz; returns the bytes before compression.

    The gzip header has no file name and time 0, so that the same plan gives the same bytes.
    """
    total = 0
    with path.open("wb") as raw:
        sink: IO[bytes] = raw
        if is_gzip(path):
            sink = _gzip_file()(filename="", mode="wb", compresslevel=1, fileobj=raw, mtime=0)
        for piece in pieces:
            sink.write(piece)
            total += len(piece)
            if on_bytes:
                on_bytes(len(piece))
        if sink is not raw:
            sink.close()
    return total


class EventBytes:
    """The events of an undamaged file in Kineto's layout, one by one; ``head`` and ``tail`` are set meanwhile."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.head = b""
        self.tail = b""

    def __iter__(self) -> Iterator[bytes]:
        with open_bytes(self.path) as stream:
            rest = stream.read(_READ_BYTES)
            head, _, rest = rest.partition(_HEAD_END)
            self.head = head + _HEAD_END
            while more := stream.read(_READ_BYTES):
                *events, rest = (rest + more).split(_SEPARATOR)
                yield from events
            *events, rest = rest.split(_SEPARATOR)
            yield from events
            last, tail, end = rest.rpartition(_TAIL)
            self.tail = tail + end
            yield last

    def count(self) -> int:
        return sum(1 for _ in self)

    def before(self) -> dict[str, Any]:
        """The fields before traceEvents; known from the first event on."""
        fields = self.head[: self.head.rindex(b'"traceEvents"')].rstrip().removesuffix(b",")
        before: dict[str, Any] = json.loads(fields + b"}")
        return before

    def after(self) -> dict[str, Any]:
        """The fields after traceEvents; known after the last event."""
        after: dict[str, Any] = json.loads(b"{" + self.tail.removeprefix(_TAIL))
        return after


def rewrite(path: Path, target: Path, edit: Callable[[Iterator[bytes]], Iterator[bytes]]) -> None:
    """Rewrite a file with its events passed through ``edit``; the layout stays Kineto's."""
    events = EventBytes(path)

    def pieces() -> Iterator[bytes]:
        opening = b""
        for event in edit(iter(events)):
            yield opening or events.head
            yield event
            opening = _SEPARATOR
        yield events.tail

    replace_with(path, target, pieces())


def replace_with(path: Path, target: Path, pieces: Iterable[bytes]) -> None:
    """Write ``target`` and remove ``path``, which may be the same file and may be read meanwhile."""
    # The ending stays: it selects compression.
    part = target.with_name(f"part-{target.name}")
    try:
        write_pieces(part, pieces)
        path.unlink()
        part.rename(target)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
