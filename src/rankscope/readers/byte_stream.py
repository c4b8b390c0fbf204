"""Reads the bytes of a plain or gzip file in order. A damaged file yields the bytes before the damage."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Protocol

from rankscope.errors import ReadError, system_hint

GZIP_MAGIC = b"\x1f\x8b"
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


class ByteStream(Protocol):
    """Bytes from start to end. `damage` is the reason if the file ended early."""

    damage: str

    def read(self, size: int) -> bytes:
        """Up to `size` bytes; fewer only at the end."""

    def read_into(self, buffer: memoryview) -> int:
        """Fill the buffer; returns how many bytes, fewer only at the end."""

    def position(self) -> int:
        """Bytes of the file on disk read so far, for progress."""

    def close(self) -> None: ...


class PlainStream:
    """An uncompressed file. It is not memory-mapped: truncating a mapped file would kill the process."""

    def __init__(self, path: Path) -> None:
        self.damage = ""
        self._file = path.open("rb", buffering=0)

    def read(self, size: int) -> bytes:
        pieces: list[bytes] = []
        missing = size
        while missing:
            piece = self._file.read(missing)
            if not piece:
                break
            pieces.append(piece)
            missing -= len(piece)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def read_into(self, buffer: memoryview) -> int:
        filled = 0
        while filled < len(buffer) and (count := self._file.readinto(buffer[filled:])):
            filled += count
        return filled

    def position(self) -> int:
        return self._file.tell()

    def close(self) -> None:
        self._file.close()


class GzipStream:
    """A gzip file of one or more members. A truncated or corrupt file yields the bytes before the damage."""

    def __init__(self, path: Path, lines: bool = False) -> None:
        from isal import igzip_lib

        self.damage = ""
        self._library = igzip_lib
        self._corrupt: Any = igzip_lib.error
        self._file = path.open("rb")
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
                return self._stop("the gzip file ends in the middle of its data")
        try:
            piece: bytes = self._inflate.decompress(self._pending, min(limit, _INFLATED_PIECE))
        except self._corrupt as error:
            return self._stop(f"the gzip data is corrupt ({error})")
        self._pending = b""
        self._inflated += len(piece)
        if self._inflated > max(self._always_allowed, self._most_expansion * self._file.tell()):
            return self._stop(
                f"the gzip data expands more than {self._most_expansion}-fold, as no trace does"
            )
        return piece

    def _next_member(self) -> bytes:
        rest = self._inflate.unused_data or self._file.read(_COMPRESSED_PIECE)
        if rest[:2] != GZIP_MAGIC:
            # The end, or padding after the last member, which gzip tools also ignore.
            return self._stop("")
        self._inflate = self._new_member()
        self._pending = rest
        return b""

    def _new_member(self) -> Any:
        return self._library.IgzipDecompressor(flag=self._library.DECOMP_GZIP)

    def _stop(self, damage: str) -> bytes:
        self._ended = True
        self.damage = damage
        return b""

    def position(self) -> int:
        return self._file.tell()

    def close(self) -> None:
        self._file.close()


def open_stream(path: Path, lines: bool = False) -> ByteStream:
    """Open as plain or gzip, depending on the first bytes and not on the name. `lines`: Python reads it by lines."""
    try:
        return GzipStream(path, lines) if is_gzip(path) else PlainStream(path)
    except OSError as error:
        raise cannot_read(path, error) from error


def read_head(path: Path, size: int) -> tuple[bytes, str]:
    """The first bytes (decompressed), and the damage of the file if it ends within them."""
    stream = open_stream(path)
    try:
        return stream.read(size), stream.damage
    except OSError as error:
        raise cannot_read(path, error) from error
    finally:
        stream.close()


def is_gzip(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(2) == GZIP_MAGIC


def cannot_read(path: Path, error: OSError) -> ReadError:
    """The error for a file that the system refuses to read."""
    return ReadError(f"cannot read {path}", why=f"{error.strerror or error}.", hint=system_hint(error))
