"""The Parquet files of one segment: each table is written in pieces, which several threads encode."""

from __future__ import annotations

import mmap
import os
import tempfile
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from rankscope import native
from rankscope.files import close_to_others
from rankscope.model import TIMES, Field, Table
from rankscope.readers import Batch
from rankscope.readers.columns import NO_TEXT, NULL, Texts
from rankscope.sql import sql_text
from rankscope.store.database import PlainFolder
from rankscope.store.parquet_writer import Chunk, Coded, EncodedColumn, Numbers, ParquetFile, encode

_LEAST_BYTES = 16 << 20
"""Smaller columns stay in memory."""
_BLOCK_BYTES = 64 << 20
_ALIGNED = 64
_MOST_TOUCHED = 64 << 20


class Scratch:
    """Columns in the folder of a segment. Those that are not looked at for a while take no memory after `release`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._maps: weakref.WeakSet[mmap.mmap] = weakref.WeakSet()
        self._changing_maps = threading.Lock()
        self._block: NDArray[Any] = np.empty(0, np.uint8)
        """What is left of the block that small arrays are put into."""
        self._touched = 0

    def empty(self, shape: tuple[int, ...], dtype: Any) -> NDArray[Any]:
        """An array as np.empty makes it; one that the disk has no room for is in memory."""
        count = int(np.prod(shape))
        size = count * np.dtype(dtype).itemsize
        if size < _LEAST_BYTES:
            return np.empty(shape, dtype)
        try:
            with tempfile.TemporaryFile(dir=self._folder) as file:
                # Without its blocks, a disk that is full would end the process when a page is written.
                os.posix_fallocate(file.fileno(), 0, size)
                pages = mmap.mmap(file.fileno(), size)
        except (OSError, AttributeError):  # the latter: not on this system
            return np.empty(shape, dtype)
        with self._changing_maps:
            self._maps.add(pages)
        return np.frombuffer(pages, dtype, count).reshape(shape)

    def moved(self, array: NDArray[Any]) -> NDArray[Any]:
        """The same values in the file, if there are many."""
        if array.nbytes < _LEAST_BYTES or 0 in array.strides:  # the latter are equal, and take no memory
            return array
        memory: Any = array.base
        while isinstance(memory, np.ndarray):
            memory = memory.base
        if isinstance(memory, memoryview) and isinstance(memory.obj, mmap.mmap):
            return array
        target = self.empty(array.shape, array.dtype)
        target[:] = array
        self.touch(array.nbytes)
        return target

    def packed(self, array: NDArray[Any]) -> NDArray[Any]:
        """The same values in the file, beside those of other small arrays."""
        if not array.nbytes or 0 in array.strides:
            return array
        size = -(-array.nbytes // _ALIGNED) * _ALIGNED
        if size > len(self._block):
            self._block = self.empty((max(size, _BLOCK_BYTES),), np.uint8)
        target = self._block[: array.nbytes].view(array.dtype).reshape(array.shape)
        self._block = self._block[size:]
        target[:] = array
        self.touch(size)
        return target

    def touch(self, size: int) -> None:
        """So many bytes of columns have been read or written: give their memory back when there are many."""
        self._touched += size
        if self._touched > _MOST_TOUCHED:
            self.release()

    def release(self) -> None:
        """Give back the memory of the columns. Their values stay in the page cache, and on the disk."""
        self._touched = 0
        with self._changing_maps:
            maps = list(self._maps)
        for pages in maps:
            pages.madvise(mmap.MADV_DONTNEED)
        if maps and native.functions is not None:
            native.functions.release_memory()


Piece = TypeVar("Piece")
Result = TypeVar("Result")
_RELEASED_EVERY = 4
"""Pieces, after which the memory of the columns is given back."""
_COPY_OPTIONS = "FORMAT parquet, COMPRESSION zstd, COMPRESSION_LEVEL 1, WRITE_BLOOM_FILTER false"


class AtOnce(Executor):
    """Calls what it is given at once. For one thread a pool would only wait: an eighth of the time of a small file."""

    def submit(self, function: Callable[..., Result], /, *args: Any, **kwargs: Any) -> Future[Result]:
        future: Future[Result] = Future()
        future.set_result(function(*args, **kwargs))
        return future


class TableFiles:
    """Writes tables into a folder. At most `ahead` pieces are encoded before the first of them is written."""

    def __init__(self, folder: Path, threads: int) -> None:
        self.folder = folder
        self.pool: Executor = ThreadPoolExecutor(threads) if threads > 1 else AtOnce()
        self.ahead = threads if threads > 1 else 0
        self.scratch = Scratch(folder)
        self.rows: dict[str, int] = {}
        """Of each table that was written."""

    def write(
        self, table: Table, pieces: Iterable[Piece], chunks: Callable[[Piece], Mapping[str, Chunk]]
    ) -> None:
        """Write a table, one row group for each piece."""

        def encoded(piece: Piece) -> list[EncodedColumn]:
            columns = chunks(piece)
            return [encode(field, columns[field.name]) for field in table.fields]

        with ParquetFile(self.folder / f"{table.name}.parquet", table.fields) as file:
            for number, columns in enumerate(self.in_threads(encoded, pieces), 1):
                file.append(columns, columns[0].entries)  # no table begins with a column of lists
                if number % _RELEASED_EVERY == 0:
                    self.scratch.release()
        self.rows[table.name] = file.rows

    def in_threads(self, function: Callable[[Piece], Result], pieces: Iterable[Piece]) -> Iterator[Result]:
        """The results in the order of the pieces. A piece is taken while those before it are worked on."""
        pending: deque[Future[Result]] = deque()
        for piece in pieces:
            pending.append(self.pool.submit(function, piece))
            if len(pending) > self.ahead:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()

    def write_rows(self, table: Table, columns: Mapping[str, Chunk]) -> None:
        """Write a small table at once."""
        self.write_pieces(table, [columns])

    def write_pieces(self, table: Table, pieces: Iterable[Mapping[str, Chunk]]) -> None:
        """Write a table in this thread, one row group for each piece."""
        with ParquetFile(self.folder / f"{table.name}.parquet", table.fields) as file:
            for number, columns in enumerate(pieces, 1):
                file.write(columns)
                if number % _RELEASED_EVERY == 0:
                    self.scratch.release()
        self.rows[table.name] = file.rows

    def write_columns(self, table: Table, columns: Mapping[str, list[Any]]) -> None:
        """Write a small table whose columns are lists; None is null."""
        self.write_rows(table, {field.name: _column(field, columns[field.name]) for field in table.fields})


def columns_of(table: Table, records: list[dict[str, Any]]) -> dict[str, list[Any]]:
    """The columns of a table that was made row by row."""
    return {field.name: [record[field.name] for record in records] for field in table.fields}


def _column(field: Field, values: list[Any]) -> Chunk:
    if field.type == "VARCHAR":
        return coded(values)
    return Numbers(np.array([NULL if value is None else value for value in values], dtype=np.int64), NULL)


def coded(texts: Iterable[str | None]) -> Coded:
    """A column of texts, by code."""
    listed = [*texts]
    pool = [text for text in dict.fromkeys(listed) if text is not None]
    codes: dict[str | None, int] = {None: NO_TEXT, **{text: code for code, text in enumerate(pool)}}
    return Coded(np.fromiter(map(codes.__getitem__, listed), np.int32, len(listed)), Texts.of(pool))


def write_selected(batch: Batch, table: Table, folder: Path, origin_ns: int) -> int:
    """Write a table that only one format has: its reader selects it with SQL, and DuckDB writes it.

    It gets the columns and types of the model, its times from the origin; returns the number of rows.
    """
    import duckdb

    from rankscope.readers.sql_columns import connection

    # Numbers of devices, steps and groups are the file's own: one that is out of range is null.
    columns = ", ".join(
        f"{'TRY_CAST' if f.type == 'INTEGER' else 'CAST'}"
        f"({f.name}{f' - {origin_ns}' * (f.name in TIMES)} AS {f.type}) AS {f.name}"
        for f in table.fields
    )
    plain = PlainFolder(folder)
    target = plain.path / f"{table.name}.parquet"

    def count_written(select: str) -> int:
        query = f"COPY (SELECT {columns} FROM ({select})) TO {sql_text(target)} ({_COPY_OPTIONS})"
        return int(connection().execute(query).fetchall()[0][0])

    try:
        count = count_written(batch.select())
    except (duckdb.IOException, duckdb.OutOfMemoryException):
        raise
    except duckdb.Error:
        count = count_written(batch.select_repaired())
    finally:
        plain.close()
    close_to_others(folder / target.name)  # DuckDB leaves it as open as the umask says
    return count
