"""Tables of a sqlite file as columns, read from its pages by the C part (docs/adr/0138-sqlite-pages.md).

What it does not read exactly as sqlite does, it refuses, and sqlite reads that: a table, or a piece of one. Users of
this module call `table_pieces`, and see no difference.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from operator import index
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rankscope import native
from rankscope.readers.columns import IN_C, NULL, SQLITE, Codes, Numbers, Texts, text_codes
from rankscope.readers.sqlite_file import (
    ROWID,
    SQLITE_MAGIC,
    Rows,
    SqliteFile,
    connect,
    refused_by_sqlite,
    row_ranges,
    text_of,
)
from rankscope.sql import sql_name

_BYTES_PER_PIECE = 16 << 20
_ROWS_PER_PIECE = 100_000
"""Where sqlite reads them, as Python objects."""
_UTF8 = 1
_PAYLOAD_FRACTIONS = bytes((64, 32, 32))
"""Constants in the header of every file."""
_FRACTIONS = ("REAL", "FLOA", "DOUB")
"""In the type of a column: sqlite gives its values with a fraction, also those that it stores without."""
_FIRST_ROWID, _LAST_ROWID = -(1 << 63), (1 << 63) - 1


class PageFile:
    """A file of sqlite, open for reading pages; closed with the last table that uses it."""

    def __init__(self, descriptor: int, page_size: int, usable: int) -> None:
        weakref.finalize(self, os.close, descriptor)
        self.page_size = page_size
        self.address = (descriptor, page_size, usable, os.fstat(descriptor).st_size // page_size)
        """As the C part wants it."""


def open_pages(path: Path) -> PageFile | None:
    """None without the C part, and for a file that is not as nsys leaves it."""
    beside = (path.with_name(path.name + suffix) for suffix in ("-wal", "-journal"))
    if native.functions is None or any(file.exists() for file in beside):
        return None
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    head = os.pread(descriptor, 100, 0).ljust(100, b"\0")
    page_size = int.from_bytes(head[16:18], "big")
    page_size = 65536 if page_size == 1 else page_size
    file = PageFile(descriptor, max(page_size, 512), page_size - head[20])
    as_expected = (
        head.startswith(SQLITE_MAGIC)
        and page_size in (1 << bits for bits in range(9, 17))
        and head[21:24] == _PAYLOAD_FRACTIONS
        and int.from_bytes(head[56:60], "big") == _UTF8
    )
    return file if as_expected else None


@dataclass(frozen=True)
class TextColumn:
    codes: Codes
    texts: Texts
    """May have bytes that are not UTF-8."""

    @staticmethod
    def of(values: Iterable[Any]) -> TextColumn:
        """From values as sqlite gives them."""
        pool: dict[str, int] = {}
        codes = text_codes(pool, [None if value is None else text_of(value) for value in values])
        return TextColumn(codes, Texts.of(pool))

    def at(self, rows: Codes) -> list[str | None]:
        """The texts of these rows."""
        data, offsets = bytes(self.texts.data), self.texts.offsets.tolist()
        return [
            None if code < 0 else data[offsets[code] : offsets[code + 1]].decode("utf-8", "replace")
            for code in self.codes[rows].tolist()
        ]


def _places(rows: Rows, table: str) -> dict[str, int] | None:
    """Where the value of each column is in a record; without those that sqlite computes or changes when it reads."""
    described = rows(f"PRAGMA table_xinfo({sql_name(table)})")
    names = [text_of(name) for _, name, *_ in described]
    if any(hidden for *_, hidden in described) or ROWID in map(str.lower, names):
        return None
    keys = [name for name, (*_, key, _) in zip(names, described, strict=True) if key]
    # With INTEGER PRIMARY KEY DESC the primary key is a column of its own.
    has_key_index = any(origin == b"pk" for *_, origin, _ in rows(f"PRAGMA index_list({sql_name(table)})"))
    places = {ROWID: -1}
    for at, (name, (_, _, raw, _, default, key, _)) in enumerate(zip(names, described, strict=True)):
        kind = text_of(raw).upper()
        if key and len(keys) == 1 and kind == "INTEGER" and not has_key_index:
            places[name] = -1  # another name of the rowid
        elif default is None and ("INT" in kind or not any(word in kind for word in _FRACTIONS)):
            places[name] = at
    return places


class RowColumns(NamedTuple):
    """Columns of some rows."""

    numbers: dict[str, Numbers]
    texts: dict[str, TextColumn]
    read_by: str
    """As in EventColumns."""
    others: list[Any]
    """Values that are not whole numbers, where numbers are read; NULL stands there."""


@dataclass(frozen=True)
class TablePiece:
    """Some rows of a table, with the columns that are read. Threads read pieces side by side."""

    path: Path
    again: str
    """As in SqliteFile."""
    table: str
    numbers: Sequence[str]
    texts: Sequence[str]
    rows: tuple[int, int]
    """Their first and last id; no other row of the table has one between them."""
    pages: PageFile | None = None
    leaves: NDArray[np.uint32] | None = None
    """The pages that have them."""
    places: Sequence[int] = ()
    """Where the value of each column is in a row's record; -1 for the id of the row."""

    def read(self) -> RowColumns:
        """From the pages; by sqlite where a page is damaged, or a value is of another type."""
        if self.pages is not None:
            with suppress(ValueError):
                return self.from_pages(self.pages)
        names = [*self.numbers, *self.texts]
        sql = f"SELECT {', '.join(map(sql_name, names))} FROM {sql_name(self.table)} WHERE rowid BETWEEN ? AND ?"
        with refused_by_sqlite(self.path, self.again), closing(connect(self.path)) as connection:
            rows = connection.execute(sql, self.rows).fetchall()
        columns = dict(zip(names, zip(*rows, strict=True) if rows else [()] * len(names), strict=True))
        texts = {name: TextColumn.of(columns.pop(name)) for name in self.texts}
        others: list[Any] = []
        numbers = {name: _whole_numbers(column, others) for name, column in columns.items()}
        return RowColumns(numbers, texts, SQLITE, others)

    def from_pages(self, pages: PageFile) -> RowColumns:
        """Raises ValueError if a page is damaged, or a value is of another type."""
        count = len(self.numbers)
        wanted = tuple((place, at >= count) for at, place in enumerate(self.places))
        _, columns = native.functions.sqlite_rows(pages.address, self.leaves, *self.rows, wanted)
        return RowColumns(
            {
                name: np.frombuffer(column, np.int64)
                for name, column in zip(self.numbers, columns, strict=False)
            },
            {
                name: TextColumn(
                    np.frombuffer(codes, np.int32), Texts(np.frombuffer(offsets, np.int64), data)
                )
                for name, (codes, offsets, data) in zip(self.texts, columns[count:], strict=True)
            },
            IN_C,
            [],
        )


def _whole_numbers(values: Sequence[Any], others: list[Any]) -> Numbers:
    with suppress(TypeError):
        return np.fromiter(map(index, values), np.int64, len(values))
    others += [value for value in values if value is not None and not isinstance(value, int)]
    return np.array([value if isinstance(value, int) else NULL for value in values], np.int64)


def table_pieces(
    file: SqliteFile,
    pages: PageFile | None,
    table: str,
    numbers: Sequence[str],
    texts: Sequence[str] = (),
    whole: bool = False,
) -> Iterator[TablePiece]:
    """The table in pieces, or as one."""
    columns = file.path, file.again, table, numbers, texts
    found = None if pages is None or whole else _leaves(pages, file.rows, table)
    if pages is None or found is None or not found[0].keys() >= {*numbers, *texts}:
        for rows in row_ranges(file.rows, table, 1 << 62 if whole else _ROWS_PER_PIECE):
            yield TablePiece(*columns, rows)
        return
    places, leaves, last_rowids = found
    at_once = max(1, _BYTES_PER_PIECE // pages.page_size)
    first = _FIRST_ROWID
    for start in range(0, len(leaves), at_once):
        last = int(last_rowids[start : start + at_once][-1])
        some = leaves[start : start + at_once]
        yield TablePiece(*columns, (first, last), pages, some, [places[name] for name in (*numbers, *texts)])
        first = min(last, _LAST_ROWID - 1) + 1


def _leaves(
    pages: PageFile, rows: Rows, table: str
) -> tuple[dict[str, int], NDArray[np.uint32], Numbers] | None:
    """Where the columns of a table are, its leaves, and the largest id that each can have; None if it has no rows, or
    cannot be read from pages."""
    places = _places(rows, table)
    if places is None or not rows(f"SELECT 1 FROM {sql_name(table)} LIMIT 1"):
        return None
    ((root,),) = rows("SELECT rootpage FROM sqlite_master WHERE type = 'table' AND name = ?", (table,))
    try:
        leaves, last_rowids = native.functions.sqlite_leaves(pages.address, root)
    except ValueError:
        return None
    return places, np.frombuffer(leaves, np.uint32), np.frombuffer(last_rowids, np.int64)
