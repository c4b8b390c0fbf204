"""Reads the bytes of a plain, gzip, xz or zstd file in order. A damaged file yields the bytes before the damage."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import IO, Any

from rankscope.errors import ReadError, system_hint

PACKED = (".gz", ".xz", ".zst")
"""How the names of compressed files end."""
_XZ_MEMORY = 256 << 20
"""For its window; 65 MiB are usual at the highest level."""
_PLAIN_PIECE = 1 << 20
"""Read at once where the size of the file is not known."""
_COMPRESSED_PIECE = 1 << 20
_INFLATED_PIECE = 1 << 16
"""At most this much is lost before corrupt data."""
_MOST_EXPANSION = 500
"""gzip cannot expand by more than 1032. Traces expand by 10 to 50: each event has a time of its own."""
_ALWAYS_ALLOWED = 1 << 30
"""Bytes that are inflated whatever the ratio is."""
_MOST_TEXT_EXPANSION = 100
_TEXT_ALWAYS_ALLOWED = 32 << 20
"""The same for text that Python reads line by line, a hundred times slower than C. Logs expand by 10 to 50."""


class ByteStream:
    """Bytes from start to end. `damage` is the reason if the file ended early."""

    def __init__(self, file: IO[bytes]) -> None:
        self.damage = ""
        self._file: Any = file

    def read(self, size: int) -> bytes:
        """Up to `size` bytes; fewer only at the end."""
        raise NotImplementedError

    def read_into(self, buffer: memoryview) -> int:
        """Fill the buffer; returns how many bytes, fewer only at the end."""
        raise NotImplementedError

    def read_on(self, size: int) -> bytes:
        """As `read`; where the system refuses, the file ends there."""
        try:
            return self.read(size)
        except OSError as error:
            self.damage = f"reading stopped: {error.strerror}"
            return b""

    def position(self) -> int:
        """Bytes of the file on disk read so far, for progress."""
        return int(self._file.tell())

    def close(self) -> None:
        self._file.close()


class PlainStream(ByteStream):
    """An uncompressed file. It is not memory-mapped: truncating a mapped file would kill the process."""

    def __init__(self, path: Path) -> None:
        super().__init__(path.open("rb", buffering=0))

    def read(self, size: int) -> bytes:
        pieces: list[bytes] = []
        missing = size
        while missing:
            # Python reserves what is asked for, however short the file is.
            rest = os.fstat(self._file.fileno()).st_size - self._file.tell()
            piece = self._file.read(min(missing, max(rest, _PLAIN_PIECE)))
            if not piece:
                break
            pieces.append(piece)
            missing -= len(piece)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def read_into(self, buffer: memoryview) -> int:
        return fill(buffer, self._file)

    def seek(self, position: int) -> None:
        self._file.seek(position)

    def read_at(self, position: int, size: int) -> bytes:
        """As `read_on`, from a place in the file on."""
        self.seek(position)
        return self.read_on(size)


class GzipStream(ByteStream):
    """A gzip file of one or more members. A truncated or corrupt file yields the bytes before the damage."""

    name, magic = "gzip", b"\x1f\x8b"

    def __init__(self, path: Path, lines: bool = False) -> None:
        super().__init__(path.open("rb"))
        self._new_member, self._corrupt = self._library()
        self._inflate = self._new_member()
        self._pending = b""
        self._inflated = 0
        self._ended = False
        self._always_allowed = _TEXT_ALWAYS_ALLOWED if lines else _ALWAYS_ALLOWED
        self._most_expansion = _MOST_TEXT_EXPANSION if lines else _MOST_EXPANSION

    def read(self, size: int) -> bytes:
        pieces: list[bytes] = []
        missing = size
        while missing and not self._ended:
            piece = self._next(missing)
            pieces.append(piece)
            missing -= len(piece)
        return b"".join(pieces)

    def read_into(self, buffer: memoryview) -> int:
        filled = 0
        while filled < len(buffer) and not self._ended:
            piece = self._next(len(buffer) - filled)
            buffer[filled : filled + len(piece)] = piece
            filled += len(piece)
        return filled

    def _next(self, limit: int) -> bytes:
        if self._inflate.eof:
            return self._next_member()
        if self._inflate.needs_input and not self._pending:
            self._pending = self._file.read(_COMPRESSED_PIECE)
            if not self._pending:
                return self._stop(f"the {self.name} file ends in the middle of its data")
        try:
            piece: bytes = self._inflate.decompress(self._pending, min(limit, _INFLATED_PIECE))
        except self._corrupt as error:
            return self._stop(f"the {self.name} data is corrupt ({error})")
        self._pending = b""
        self._inflated += len(piece)
        if self._inflated > max(self._always_allowed, self._most_expansion * self._file.tell()):
            return self._stop(
                f"the {self.name} data expands more than {self._most_expansion}-fold, as no trace does"
            )
        return piece

    def _next_member(self) -> bytes:
        rest = self._inflate.unused_data or self._file.read(_COMPRESSED_PIECE)
        if not rest.startswith(self.magic):
            # The end, or padding after the last member, which gzip tools also ignore.
            return self._stop("")
        self._inflate = self._new_member()
        self._pending = rest
        return b""

    def _library(self) -> tuple[Callable[[], Any], Any]:
        """What makes the decompressor of a member, and the error that it raises."""
        from isal import igzip_lib

        return lambda: igzip_lib.IgzipDecompressor(flag=igzip_lib.DECOMP_GZIP), igzip_lib.error

    def _stop(self, damage: str) -> bytes:
        self._ended = True
        self.damage = damage
        return b""


class XzStream(GzipStream):
    """The same of an xz file."""

    name, magic = "xz", b"\xfd7zXZ"

    def _library(self) -> tuple[Callable[[], Any], Any]:
        import lzma

        return lambda: lzma.LZMADecompressor(lzma.FORMAT_XZ, _XZ_MEMORY), lzma.LZMAError


class ZstdStream(GzipStream):
    """The same of a zstd file."""

    name, magic = "zstd", b"\x28\xb5\x2f\xfd"

    def _library(self) -> tuple[Callable[[], Any], Any]:
        from rankscope.zstd import ZstdDecompressor, ZstdError

        return ZstdDecompressor, ZstdError


def packed_stream(path: Path) -> type[GzipStream] | None:
    """The class of stream for a compressed file, by its first bytes; None for others."""
    with path.open("rb") as file:
        head = file.read(8)
    return next((kind for kind in (GzipStream, XzStream, ZstdStream) if head.startswith(kind.magic)), None)


def unpacked_name(name: str) -> str:
    """Without the ending of a compressed file."""
    return next((name.removesuffix(ending) for ending in PACKED if name.endswith(ending)), name)


def fill(buffer: memoryview, file: Any) -> int:
    """Read from an unbuffered file; the number of bytes, fewer than the buffer has only at the end of the file."""
    filled = 0
    while filled < len(buffer) and (count := file.readinto(buffer[filled:])):
        filled += count
    return filled


def open_stream(path: Path, lines: bool = False) -> ByteStream:
    """Open as plain, gzip, xz or zstd, by the first bytes and not by the name. `lines`: Python reads it by lines."""
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode) and not path.is_dir():
            raise ReadError(
                f"{path} is not read",
                why="It is a pipe or a device, and a trace is read more than once.",
                hint="Write it to a file, and give that.",
            )
        if not status.st_size:  # what the system makes while it is read may block: /proc/kmsg
            return PlainStream(Path(os.devnull))
        packed = packed_stream(path)
        return packed(path, lines) if packed else PlainStream(path)
    except OSError as error:
        raise cannot_read(path, error) from error


def line_blocks(
    stream: ByteStream, size: int, longest: int, too_long: Callable[[], object], rest: bytes = b""
) -> Iterator[bytes]:
    """Lines, some at a time, after `rest`; the last may have no end. Of one that is longer, `too_long` is told."""
    while piece := stream.read(size):
        data = rest + piece
        end = data.rfind(b"\n") + 1 if len(piece) == size else len(data)
        if end:
            yield data[:end]
        rest = data[end:]
        if len(rest) > longest:
            too_long()
            newline = rest = b""
            while not newline and (piece := stream.read(size)):
                _, newline, rest = piece.partition(b"\n")
    if rest:
        yield rest


def read_head(path: Path, size: int, lines: bool = False) -> tuple[bytes, str]:
    """The first bytes (decompressed), and the damage of the file if it ends within them. `lines` as in open_stream."""
    with closing(open_stream(path, lines)) as stream:
        try:
            return stream.read(size), stream.damage
        except OSError as error:
            raise cannot_read(path, error) from error


def cannot_read(path: Path, error: OSError) -> ReadError:
    """The error for a file that the system refuses to read."""
    return ReadError(f"cannot read {path}", why=f"{error.strerror or error}.", hint=system_hint(error))
