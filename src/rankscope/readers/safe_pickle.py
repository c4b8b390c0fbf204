"""Reads untrusted pickles: only numbers, strings and plain containers can come out.

A pickle is a program. Every opcode that could reach a class or a function goes through find_class or
persistent_load, and both refuse. A pickle can still demand huge amounts of memory (a memo slot numbered two
billion), so the load runs under a memory limit, and in a worker process, so that a crash affects one file only.
"""

from __future__ import annotations

import contextlib
import io
import pickle
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

from rankscope.errors import ReadError
from rankscope.host import address_space_bytes, physical_memory_bytes
from rankscope.readers.byte_stream import PACKED, ByteStream, open_stream

PICKLE_NAMES = tuple(name + packed for name in (".pickle", ".pkl") for packed in ("", *PACKED))
_PROTOCOL_MARK = b"\x80"
LARGEST_CONTENT = 16 << 30
_PIECE = 1 << 16
_MEMORY_BYTES_PER_BYTE = 120
"""An empty list is one byte in a pickle and 64 in memory, about twice that with the reference to it."""
_LEAST_MEMORY = 512 << 20


class RefusedError(Exception):
    """The pickle contains more than data, or more of it than is read."""


class _Plain(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        raise RefusedError(f"it refers to {module}.{name}")

    def persistent_load(self, pid: Any) -> Any:
        raise RefusedError("it refers to an object outside the file")


class _Content(io.RawIOBase):
    """A stream for the unpickler, with a size limit: a small gzip file may expand hugely."""

    def __init__(self, stream: ByteStream) -> None:
        self._stream = stream
        self.count = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        count = self._stream.read_into(memoryview(buffer))
        self.count += count
        if self.count > LARGEST_CONTENT:
            raise RefusedError(f"it is larger than {LARGEST_CONTENT >> 30} GiB when unpacked")
        return count


def is_pickle(head: bytes) -> bool:
    """True for pickles of protocol 2 and later, which start with a mark; torch writes no older ones."""
    return head[:1] == _PROTOCOL_MARK and head[1:2] in (b"\x02", b"\x03", b"\x04", b"\x05")


def load_plain(path: Path) -> tuple[dict[Any, Any], int]:
    """The dictionary in a file, and its size in bytes when unpacked. Raises ReadError for anything else."""
    value, size = load_value(path)
    if not isinstance(value, dict):
        raise not_a_dictionary(path, type(value).__name__)
    return value, size


def load_value(path: Path) -> tuple[Any, int]:
    """The value in a file, and its size in bytes when unpacked. Raises ReadError if it is more than data."""
    with (
        closing(open_stream(path)) as stream,
        reading_pickle(path, stream),
        memory_limit(path.stat().st_size),
    ):
        content = _Content(stream)
        return _Plain(io.BufferedReader(content, _PIECE)).load(), content.count


def not_a_dictionary(path: Path, kind: str) -> ReadError:
    return ReadError(
        f"{path} does not hold a dictionary",
        why=f"It holds a {kind}.",
        hint="Torch's snapshots and flight-recorder dumps are dictionaries; leave this file out.",
    )


@contextlib.contextmanager
def reading_pickle(path: Path, stream: ByteStream) -> Iterator[None]:
    """Whatever goes wrong in here is the fault of the file: a ReadError says what it is."""
    try:
        yield
    except RefusedError as error:
        raise ReadError(
            f"{path} is not read",
            why=f"The pickle contains more than data: {error}. Nothing of it was run.",
            hint="If it is your snapshot, write it again with torch.cuda.memory._dump_snapshot(FILE).",
        ) from None
    except MemoryError:
        raise ReadError(
            f"{path} is not read",
            why="Unpacking it takes far more memory than a file of this size should need.",
            hint="It is damaged or malicious: leave it out, or capture again.",
        ) from None
    except (OverflowError, RecursionError, UnicodeDecodeError, ImportError) as error:
        raise ReadError(
            f"cannot read {path}", why=f"It is damaged: {error}.", hint="Capture this rank again."
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


@contextlib.contextmanager
def memory_limit(file_bytes: int) -> Iterator[None]:
    """Limit the memory of this process while it loads: what it uses now plus what a file of this size can need."""
    import resource

    now = address_space_bytes()
    if now is None:  # macOS: neither the figure nor a limit on address space; the row budget still holds
        yield
        return
    before, hard = resource.getrlimit(resource.RLIMIT_AS)
    # gzip compresses such files by up to 1:100; repeated objects are shared and need no extra memory.
    allowed = now + max(_LEAST_MEMORY, min(file_bytes * _MEMORY_BYTES_PER_BYTE, physical_memory_bytes()))
    limits = [limit for limit in (allowed, before, hard) if limit != resource.RLIM_INFINITY]
    resource.setrlimit(resource.RLIMIT_AS, (min(limits), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (before, hard))


class Budget:
    """Limits the number of rows of a file: each row takes at least one byte, unless the file refers to itself."""

    def __init__(self, path: Path, rows: int) -> None:
        self._path = path
        self._left = rows

    def take(self, items: Any) -> list[Any]:
        """The items as a list; [] if they are not a list or tuple."""
        if not isinstance(items, (list, tuple)):
            return []
        self.spend(len(items))
        return list(items)

    def spend(self, rows: int) -> None:
        self._left -= rows
        if self._left < 0:
            raise ReadError(
                f"{self._path} is not read",
                why="It refers to itself so often that it expands to more rows than it has bytes.",
                hint="It is damaged or malicious: leave it out, or capture again.",
            )

    def dicts(self, items: Any) -> list[dict[Any, Any]]:
        return [item for item in self.take(items) if isinstance(item, dict)]
