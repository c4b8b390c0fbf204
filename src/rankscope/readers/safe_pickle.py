"""Pickles from others, read without trusting them: only numbers, texts and plain containers can come out.

A pickle is a program. Every opcode that could reach a class or a function goes through find_class or
persistent_load, and both refuse. What remains can still ask for absurd amounts of memory (a memo slot numbered two
billion), so the load runs under a limit; it is done in a worker process, which a crash would end alone.
"""

from __future__ import annotations

import contextlib
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rankscope.errors import ReadError
from rankscope.host import address_space_bytes, physical_memory_bytes
from rankscope.readers.byte_stream import ByteStream, open_stream

PICKLE_NAMES = (".pickle", ".pickle.gz", ".pkl", ".pkl.gz")
_PROTOCOL_MARK = b"\x80"
_LARGEST_CONTENT = 16 << 30
_MEMORY_BYTES_PER_BYTE = 120
"""An empty list is one byte in a pickle and 64 in memory, twice that with what holds it."""
_LEAST_MEMORY = 512 << 20
_LONGEST_TEXT = 2000


class _RefusedError(Exception):
    """The pickle wants more than data."""


class _Plain(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        raise _RefusedError(f"it asks for {module}.{name}")

    def persistent_load(self, pid: Any) -> Any:
        raise _RefusedError("it asks for an object outside of it")


class _Content:
    """A stream as the unpickler wants it; counts, so that a small gzip file cannot grow without end."""

    def __init__(self, stream: ByteStream) -> None:
        self._stream = stream
        self._pending = b""
        self.count = 0

    def read(self, size: int) -> bytes:
        while len(self._pending) < size:
            piece = self._more(size - len(self._pending))
            if not piece:
                break
            self._pending += piece
        taken, self._pending = self._pending[:size], self._pending[size:]
        return taken

    def readline(self) -> bytes:
        while b"\n" not in self._pending:
            piece = self._more(1 << 16)
            if not piece:
                break
            self._pending += piece
        line, newline, rest = self._pending.partition(b"\n")
        self._pending = rest
        return line + newline

    def _more(self, size: int) -> bytes:
        piece = self._stream.read(min(max(size, 1 << 16), 1 << 26))
        self.count += len(piece)
        if self.count > _LARGEST_CONTENT:
            raise _RefusedError(f"it is larger than {_LARGEST_CONTENT >> 30} GiB when unpacked")
        return piece


def is_pickle(head: bytes) -> bool:
    """Protocol 2 and later say so in their first byte; torch writes no older ones."""
    return head[:1] == _PROTOCOL_MARK and head[1:2] in (b"\x02", b"\x03", b"\x04", b"\x05")


def load_plain(path: Path) -> tuple[dict[Any, Any], int]:
    """The dictionary a file holds, and how many bytes it is when unpacked; ReadError for anything else."""
    stream = open_stream(path)
    content = _Content(stream)
    try:
        with _memory_limit(path.stat().st_size):
            value = _Plain(content).load()
    except _RefusedError as error:
        raise ReadError(
            f"{path} is not read",
            why=f"It is a pickle that does more than hold data: {error}. Nothing of it was run.",
            hint="If it is a snapshot of yours, write it again with torch.cuda.memory._dump_snapshot(FILE).",
        ) from None
    except MemoryError:
        raise ReadError(
            f"{path} is not read",
            why="Unpacking it takes far more memory than a file of its size can need.",
            hint="It is damaged or made to do harm: leave it out, or capture again.",
        ) from None
    except (
        pickle.UnpicklingError,
        EOFError,
        ValueError,
        TypeError,
        KeyError,
        IndexError,
        AttributeError,
    ) as error:
        damage = stream.damage or str(error) or type(error).__name__
        raise ReadError(
            f"cannot read {path}",
            why=f"It is damaged or cut short: {damage}.",
            hint="Capture this rank again.",
        ) from None
    except (OverflowError, RecursionError, UnicodeDecodeError, ImportError) as error:
        raise ReadError(
            f"cannot read {path}", why=f"It is damaged: {error}.", hint="Capture this rank again."
        ) from None
    finally:
        stream.close()
    if not isinstance(value, dict):
        raise ReadError(
            f"{path} holds no dictionary",
            why=f"It holds a {type(value).__name__}.",
            hint="Torch's snapshots and flight-recorder dumps are dictionaries; leave this file out.",
        )
    return value, content.count


@contextlib.contextmanager
def _memory_limit(file_bytes: int) -> Iterator[None]:
    """For this process, while it loads: what it has now, and what a file of this size can need."""
    import resource

    now = address_space_bytes()
    if now is None:  # macOS: neither the figure nor a limit on address space; the row budget still holds
        yield
        return
    before, hard = resource.getrlimit(resource.RLIMIT_AS)
    # gzip packs such files by up to 1:100; repeated data needs no more memory for being repeated.
    allowed = now + max(_LEAST_MEMORY, min(file_bytes * _MEMORY_BYTES_PER_BYTE, physical_memory_bytes()))
    limits = [limit for limit in (allowed, before, hard) if limit != resource.RLIM_INFINITY]
    resource.setrlimit(resource.RLIMIT_AS, (min(limits), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (before, hard))


class Budget:
    """How many rows a file may give: each costs it at least a byte, or it repeats itself to do harm."""

    def __init__(self, path: Path, rows: int) -> None:
        self._path = path
        self._left = rows

    def take(self, items: Any) -> list[Any]:
        """A list of the file, or [] where it has none."""
        if not isinstance(items, (list, tuple)):
            return []
        self._left -= len(items)
        if self._left < 0:
            raise ReadError(
                f"{self._path} is not read",
                why="It refers to itself so often that it unfolds to more rows than it has bytes.",
                hint="It is damaged or made to do harm: leave it out, or capture again.",
            )
        return list(items)

    def dicts(self, items: Any) -> list[dict[Any, Any]]:
        return [item for item in self.take(items) if isinstance(item, dict)]


def integer(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**63 else None


def text(value: Any) -> str | None:
    return value[:_LONGEST_TEXT] if isinstance(value, str) else None
