"""A file in memory, from which DuckDB reads text: nothing is written to disk.

A Python file system (fsspec) would save one copy, but it calls back into Python for every read, which costs 0.9 s of
CPU per GB more, and DuckDB's binding then lists leaked objects at exit.
"""

from __future__ import annotations

import os
import tempfile
from typing import IO

from rankscope.host import has_descriptor_paths
from rankscope.sql import sql_text


class MemoryFile:
    """A file in memory, or in the temporary folder where the system has none; gone when it is closed."""

    def __init__(self) -> None:
        self._named: IO[bytes] | None = None
        if hasattr(os, "memfd_create") and has_descriptor_paths():
            self._descriptor = os.memfd_create("rankscope")
            self._path = f"/proc/self/fd/{self._descriptor}"
        else:  # macOS
            self._named = tempfile.NamedTemporaryFile(prefix="rankscope-")  # noqa: SIM115 - closed by close
            self._descriptor, self._path = self._named.fileno(), self._named.name

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
        return sql_text(self._path)

    def close(self) -> None:
        if self._named is not None:
            self._named.close()
        else:
            os.close(self._descriptor)
