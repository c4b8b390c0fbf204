"""Tables of a sqlite file as columns, read from its pages by the C part (docs/adr/0138-sqlite-pages.md).

What it does not read exactly as sqlite does, it refuses, and sqlite reads that: a table, or a piece of one.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rankscope import native
from rankscope.readers.columns import NO_TEXT, Codes, Numbers, Texts
from rankscope.readers.sqlite_file import ROWID, SQLITE_MAGIC, Rows, text_of
from rankscope.sql import sql_name

_BYTES_PER_PIECE = 16 << 20
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
class Piece:
    """Some leaves of a table. They have all rows with ids in this range, and no others."""

    leaves: NDArray[np.uint32]
    rows: tuple[int, int]


@dataclass(frozen=True)
class TextColumn:
    codes: Codes
    texts: Texts
    """May have bytes that are not UTF-8."""

    @staticmethod
    def of(values: Iterable[Any]) -> TextColumn:
        """From values as sqlite gives them."""
        pool: dict[str, int] = {}
        codes = [NO_TEXT if value is None else pool.setdefault(text_of(value), len(pool)) for value in values]
        return TextColumn(np.array(codes, dtype=np.int32), Texts.of(pool))

    def all(self) -> NDArray[Any]:
        return np.array(self.at(np.arange(len(self.codes), dtype=np.int32)), dtype=object)

    def at(self, rows: Codes) -> list[str | None]:
        """The texts of these rows."""
        data, offsets = bytes(self.texts.data), self.texts.offsets.tolist()
        return [
            None if code < 0 else data[offsets[code] : offsets[code + 1]].decode("utf-8", "replace")
            for code in self.codes[rows].tolist()
        ]


@dataclass(frozen=True)
class TablePages:
    """One table."""

    file: PageFile
    places: dict[str, int]
    """Where a column's value is in a row's record; -1 for the id of the row."""
    leaves: NDArray[np.uint32]
    last_rowids: Numbers
    """The largest that each leaf can have."""

    def pieces(self) -> Iterator[Piece]:
        count = max(1, _BYTES_PER_PIECE // self.file.page_size)
        first = _FIRST_ROWID
        for start in range(0, len(self.leaves), count):
            last = int(self.last_rowids[start : start + count][-1])
            yield Piece(self.leaves[start : start + count], (first, last))
            first = min(last, _LAST_ROWID - 1) + 1

    def read(
        self, piece: Piece, numbers: Sequence[str], texts: Sequence[str]
    ) -> tuple[dict[str, Numbers], dict[str, TextColumn]]:
        """Columns of the rows of a piece. Raises ValueError if a page is damaged, or a value is of another type."""
        wanted = (
            *((self.places[name], False) for name in numbers),
            *((self.places[name], True) for name in texts),
        )
        _, columns = native.functions.sqlite_rows(self.file.address, piece.leaves, *piece.rows, wanted)
        return (
            {name: np.frombuffer(column, np.int64) for name, column in zip(numbers, columns, strict=False)},
            {
                name: TextColumn(
                    np.frombuffer(codes, np.int32), Texts(np.frombuffer(offsets, np.int64), data)
                )
                for name, (codes, offsets, data) in zip(texts, columns[len(numbers) :], strict=True)
            },
        )


def find_table(file: PageFile, rows: Rows, table: str, columns: Sequence[str]) -> TablePages | None:
    """The pages of a table; None if it has no rows, or one of these columns cannot be read from pages."""
    places = _places(rows, table)
    if places is None or any(column not in places for column in columns):
        return None
    if not rows(f"SELECT 1 FROM {sql_name(table)} LIMIT 1"):
        return None
    ((root,),) = rows("SELECT rootpage FROM sqlite_master WHERE type = 'table' AND name = ?", (table,))
    try:
        leaves, last_rowids = native.functions.sqlite_leaves(file.address, root)
    except ValueError:
        return None
    return TablePages(file, places, np.frombuffer(leaves, np.uint32), np.frombuffer(last_rowids, np.int64))


def _places(rows: Rows, table: str) -> dict[str, int] | None:
    """Where the value of each column is in a record; without those that sqlite computes or changes when it reads."""
    described = rows(f"PRAGMA table_xinfo({sql_name(table)})")
    names = [text_of(name) for _, name, *_ in described]
    if any(hidden for *_, hidden in described) or ROWID in map(str.lower, names):
        return None
    keys = [name for name, (*_, key, _) in zip(names, described, strict=True) if key]
    places = {ROWID: -1}
    for index, (name, (_, _, raw, _, default, key, _)) in enumerate(zip(names, described, strict=True)):
        kind = text_of(raw).upper()
        if key and len(keys) == 1 and kind == "INTEGER" and not _has_key_index(rows, table):
            places[name] = -1  # another name of the rowid
        elif default is None and ("INT" in kind or not any(word in kind for word in _FRACTIONS)):
            places[name] = index
    return places


def _has_key_index(rows: Rows, table: str) -> bool:
    """Whether the primary key is a column of its own, as with INTEGER PRIMARY KEY DESC."""
    indices = rows(f"PRAGMA index_list({sql_name(table)})")
    return any(origin == b"pk" for _, _, _, origin, _ in indices)
