"""A sqlite file that is only read: opened without locks, refused where it is truncated, statements limited in time."""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

from rankscope.errors import ReadError
from rankscope.readers.columns import NULL
from rankscope.sql import sql_name

SQLITE_MAGIC = b"SQLite format 3\x00"
SQLITE_ERRORS = (sqlite3.Error, UnicodeDecodeError)
"""The latter is how Python raises the former when sqlite's message quotes a name that is not UTF-8."""

_MOST_SECONDS = 300
"""For one statement. Reading a batch of rows takes less than one."""
_STEPS_BETWEEN_CHECKS = 1_000_000
_LAST_ROWID = (1 << 63) - 1

ROWID = "rowid"
Rows = Callable[..., list[tuple[Any, ...]]]
"""Runs a statement with its parameters; texts are bytes."""


class _Connection(sqlite3.Connection):
    """Closed when nobody holds it, as after a file that was refused; Python 3.13 warns of those that are not."""

    def __del__(self) -> None:
        self.close()


def connect(path: Path) -> sqlite3.Connection:
    """A read-only connection with text as bytes: text may be invalid UTF-8, and decoding all of it costs time."""
    # immutable: no locks and no journal file, so that reports in read-only folders can be opened.
    connection = sqlite3.connect(
        f"file:{quote(os.fsencode(path.absolute()))}?mode=ro&immutable=1",
        uri=True,
        check_same_thread=False,
        isolation_level=None,
        factory=_Connection,
    )
    connection.text_factory = bytes
    connection.execute("PRAGMA trusted_schema = OFF")
    limit_time(connection)
    return connection


class SqliteFile:
    """A file of sqlite, open for reading only. Raises ReadError; `again` says how to make the file again."""

    again: str

    def __init__(self, path: Path) -> None:
        self.path = path
        refuse_truncated(path, self.again)
        with self.reading():
            self._connection = connect(path)
            self.tables = self._find_tables()

    @contextmanager
    def reading(self) -> Iterator[None]:
        with refused_by_sqlite(self.path, self.again):
            yield

    def close(self) -> None:
        self._connection.close()

    def rows(self, sql: str, parameters: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        with self.reading():
            limit_time(self._connection)
            return self._connection.execute(sql, parameters).fetchall()

    def columns_of(self, table: str) -> frozenset[str]:
        described = self._connection.execute(f"PRAGMA table_info({sql_name(table)})").fetchall()
        return frozenset(text_of(column[1]) for column in described)

    def _find_tables(self) -> dict[str, frozenset[str]]:
        """The tables that are read, with their columns."""
        raise NotImplementedError


def text_of(value: Any) -> str:
    """A value as text; bytes that are not UTF-8 are replaced."""
    return (
        value.decode("utf-8", "replace") if isinstance(value, bytes) else "" if value is None else str(value)
    )


def limit_time(connection: sqlite3.Connection) -> None:
    """End the next statement when it takes too long."""
    end = time.monotonic() + _MOST_SECONDS
    connection.set_progress_handler(lambda: time.monotonic() > end, _STEPS_BETWEEN_CHECKS)


def refuse_truncated(path: Path, hint: str) -> None:
    """Check the size against the page count in the header; sqlite notices a missing page only when it reads it."""
    with path.open("rb") as file:
        head = file.read(100)
        size = file.seek(0, 2)
    page = int.from_bytes(head[16:18], "big")
    pages = int.from_bytes(head[28:32], "big")
    expected = (65536 if page == 1 else page) * pages
    if len(head) < 100 or size < expected:
        raise damaged_sqlite(path, ValueError(f"it has {size:,} bytes instead of {expected or 100:,}"), hint)


def damaged_sqlite(path: Path, error: Exception, hint: str) -> ReadError:
    """The error for a file that sqlite cannot read; `hint` says how to make it again."""
    if "interrupted" in str(error):
        return ReadError(
            f"reading {path} takes too long",
            why=f"A single statement was not done after {_MOST_SECONDS} s.",
            hint=f"Copy the file to a local disk; or make it again. {hint}",
        )
    return ReadError(
        f"{path} cannot be read as sqlite",
        why=f"{str(error)[:1].upper()}{str(error)[1:]}: the file is damaged or truncated.",
        hint=hint,
    )


@contextmanager
def refused_by_sqlite(path: Path, hint: str) -> Iterator[None]:
    try:
        yield
    except SQLITE_ERRORS as error:
        raise damaged_sqlite(path, error, hint) from error


def row_ranges(rows: Rows, table: str, size: int) -> Iterator[tuple[int, int]]:
    """First and last rowid of successive pieces of a table. Rows may have any ids, with gaps of any length."""
    ids = f"SELECT rowid AS id FROM {sql_name(table)} WHERE rowid >= ? ORDER BY rowid LIMIT {size}"
    low: int = NULL
    while low <= _LAST_ROWID:
        ((last,),) = rows(f"SELECT max(id) FROM ({ids})", (low,))
        if last is None:
            return
        yield low, last
        low = last + 1
