"""A file in memory, from which DuckDB reads text: nothing is written to disk.

A Python file system (fsspec) would save one copy, but it calls back into Python for every read, which costs 0.9 s of
CPU per GB more, and DuckDB's binding then lists leaked objects at exit.
"""

from __future__ import annotations

import os
import tempfile


class MemoryFile:
    """A file without a name, which disappears when it is closed."""

    def __init__(self) -> None:
        self._descriptor = _nameless_file()

    def write_array(self, content: bytes | memoryview) -> str:
        """Store this text as a JSON array; returns the path of the file as SQL."""
        return self.write(b"[", content, b"]")

    def write(self, *pieces: bytes | memoryview) -> str:
        """Store these bytes; returns the path of the file as SQL."""
        os.ftruncate(self._descriptor, 0)
        os.lseek(self._descriptor, 0, os.SEEK_SET)
        for piece in pieces:
            rest = memoryview(piece)
            while rest:
                rest = rest[os.write(self._descriptor, rest) :]
        return f"'/proc/self/fd/{self._descriptor}'"

    def close(self) -> None:
        os.close(self._descriptor)


def _nameless_file() -> int:
    """In memory where the system supports it, else in the temporary folder."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create("rankscope")
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())
