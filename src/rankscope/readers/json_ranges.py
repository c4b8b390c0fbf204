"""Stretches of memory that DuckDB reads as JSON files: no temporary copy, no rewriting.

DuckDB reads Python file systems through fsspec. Each range of whole events is one 'file'; the brackets
that make it a JSON array are added while it is read.
"""

from __future__ import annotations

from datetime import datetime, timezone
from typing import Any

from fsspec.spec import AbstractFileSystem

PROTOCOL = "rankscope-ranges"


class RangeFile:
    """One range as a read-only, seekable file: '[' + bytes + ']'."""

    def __init__(self, content: memoryview) -> None:
        self._content = content
        self._size = len(content) + 2
        self._position = 0
        self.closed = False

    def read(self, size: int = -1) -> bytes:
        stop = self._size if size < 0 else min(self._position + size, self._size)
        start, self._position = self._position, stop
        body = bytes(self._content[max(start - 1, 0) : max(min(stop, self._size - 1) - 1, 0)])
        if start > 0 and stop < self._size:
            return body
        return (b"[" if start == 0 < stop else b"") + body + (b"]" if start < stop == self._size else b"")

    def seek(self, offset: int, whence: int = 0) -> int:
        self._position = (0, self._position, self._size)[whence] + offset
        return self._position

    def tell(self) -> int:
        return self._position

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def close(self) -> None:
        self.closed = True


class RangeFileSystem(AbstractFileSystem):  # type: ignore[misc]
    """The ranges of the block at hand, by index."""

    protocol = PROTOCOL
    cachable = False

    def __init__(self) -> None:
        super().__init__()
        self._ranges: list[memoryview] = []

    def serve(self, ranges: list[memoryview]) -> list[str]:
        """Offer these ranges instead of the last ones; returns their paths."""
        self._ranges = ranges
        return [f"{PROTOCOL}://{index}.json" for index in range(len(ranges))]

    def _content(self, path: str) -> memoryview:
        return self._ranges[int(path.rpartition("/")[2].removesuffix(".json"))]

    def open(self, path: str, mode: str = "rb", **_: Any) -> RangeFile:
        return RangeFile(self._content(path))

    def info(self, path: str, **_: Any) -> dict[str, Any]:
        return {"name": path, "size": len(self._content(path)) + 2, "type": "file"}

    def glob(self, path: str, **_: Any) -> list[str]:
        return [path]

    def exists(self, path: str, **_: Any) -> bool:
        return True

    def isfile(self, path: str) -> bool:
        return True

    def modified(self, path: str) -> datetime:
        return datetime.fromtimestamp(0, timezone.utc)
