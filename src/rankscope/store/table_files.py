"""The Parquet files of one segment: each table is written in pieces, which several threads encode."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from rankscope.model import Field, Table
from rankscope.readers.columns import NO_TEXT, NULL, Texts
from rankscope.store.parquet_writer import Chunk, Coded, EncodedColumn, Numbers, ParquetFile, encode
from rankscope.store.scratch import Scratch

Piece = TypeVar("Piece")
Result = TypeVar("Result")
_RELEASED_EVERY = 4
"""Pieces, after which the memory of the columns is given back."""


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
