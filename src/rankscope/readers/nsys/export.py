"""The sqlite export of an nsys report: its tables and columns, version, clock.

Versions of nsys differ: empty tables are missing, columns change, text is not always UTF-8. So every table and column
is checked before use.
"""

from __future__ import annotations

import os
import re
import sqlite3
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from functools import cached_property
from pathlib import Path
from typing import Any
from urllib.parse import quote

from rankscope.errors import NotATraceError, ReadError
from rankscope.readers.base import usable_time
from rankscope.sql import sql_name

SQLITE_MAGIC = b"SQLite format 3\x00"
SQLITE_ERRORS = (sqlite3.Error, UnicodeDecodeError)
"""The latter is how Python raises the former when sqlite's message quotes a name that is not UTF-8."""
PID = "({0} >> 24) & 16777215"
"""SQL template for the process id in a globalTid or globalPid column."""
TID = "{0} & 16777215"
ROWID = "rowid"

EVENT_TABLES = (
    "CUPTI_ACTIVITY_KIND_KERNEL",
    "CUPTI_ACTIVITY_KIND_MEMCPY",
    "CUPTI_ACTIVITY_KIND_MEMSET",
    "CUPTI_ACTIVITY_KIND_RUNTIME",
    "NVTX_EVENTS",
    "OSRT_API",
    "MPI_COLLECTIVES_EVENTS",
    "MPI_P2P_EVENTS",
    "MPI_OTHER_EVENTS",
    "GPU_METRICS",
)
"""An export has at least one of these, and StringIds."""
_NAMES_OF_NSYS = re.compile(
    r"(?i)(?:StringIds|ThreadNames|PROCESSES|ProcessStreams|ANALYSIS_DETAILS"
    r"|(?:CUPTI|NVTX|OSRT|MPI|GPU|CUDA|TARGET_INFO|META_DATA|PROFILER)_.*)"
)
_MOST_SECONDS = 300
"""For one statement. Reading a batch of rows takes less than one."""
_STEPS_BETWEEN_CHECKS = 1_000_000
_MOST_RANGES = 100_000


class NsysExport:
    """One export, open for reading only."""

    def __init__(self, path: Path) -> None:
        self.path = path
        _refuse_truncated(path)
        try:
            self._connection = connect(path)
            self.tables = self._find_tables()
        except SQLITE_ERRORS as error:
            raise damaged(path, error) from error

    def close(self) -> None:
        self._connection.close()

    def rows(self, sql: str, parameters: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        try:
            _limit_time(self._connection)
            return self._connection.execute(sql, parameters).fetchall()
        except SQLITE_ERRORS as error:
            raise damaged(self.path, error) from error

    def has(self, table: str, *columns: str) -> bool:
        return table in self.tables and all(column in self.tables[table] for column in columns)

    def text(self, value: Any) -> str:
        """A text value; bytes that are not UTF-8 are replaced."""
        return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)

    @cached_property
    def looks_like_a_profile(self) -> bool:
        return "StringIds" in self.tables and any(table in self.tables for table in EVENT_TABLES)

    @cached_property
    def version(self) -> str:
        return self._metadata("META_DATA_EXPORT", "EXPORT_PRODUCT_VERSION")

    @cached_property
    def schema(self) -> str:
        return self._metadata("META_DATA_EXPORT", "EXPORT_SCHEMA_VERSION")

    @cached_property
    def capture_id(self) -> str:
        """Identifies the capture, also among several of one session (repeated capture ranges)."""
        session = self._metadata("META_DATA_CAPTURE", "PROFILING_SESSION_UUID")
        if not session or not self.has("ANALYSIS_DETAILS", "startTime", "stopTime"):
            return session
        return f"{session} {self.rows('SELECT startTime, stopTime FROM ANALYSIS_DETAILS')}"

    @cached_property
    def start_unix_ns(self) -> int:
        """Time 0 of the report in nanoseconds since 1970; 0 if not recorded."""
        if not self.has("TARGET_INFO_SESSION_START_TIME", "utcEpochNs"):
            return 0
        found = self.rows("SELECT utcEpochNs FROM TARGET_INFO_SESSION_START_TIME LIMIT 1")
        return usable_time(found[0][0]) if found else 0

    def _metadata(self, table: str, name: str) -> str:
        if not self.has(table, "name", "value"):
            return ""
        found = self.rows(f"SELECT value FROM {table} WHERE name = ? LIMIT 1", (name,))
        return self.text(found[0][0]) if found else ""

    def _find_tables(self) -> dict[str, frozenset[str]]:
        """Raises an error for a view with the name of a table: it may compute anything, for any time."""
        names = self._connection.execute(
            "SELECT name, type = 'table' AND rootpage > 0 FROM sqlite_master WHERE type IN ('table', 'view')"
        )
        tables = {}
        for raw, is_table in names.fetchall():
            name = self.text(raw)
            if not is_table:
                if _NAMES_OF_NSYS.fullmatch(name):
                    raise not_a_table(self.path, name)
                continue
            columns = self._connection.execute(f"PRAGMA table_info({sql_name(name)})").fetchall()
            tables[name] = frozenset(self.text(column[1]) for column in columns)
        return tables


def connect(path: Path) -> sqlite3.Connection:
    """A read-only connection with text as bytes: text may be invalid UTF-8, and decoding all of it costs time."""
    # immutable: no locks and no journal file, so that reports in read-only folders can be opened.
    connection = sqlite3.connect(
        f"file:{_uri(path)}?mode=ro&immutable=1", uri=True, check_same_thread=False, isolation_level=None
    )
    connection.text_factory = bytes
    connection.execute("PRAGMA trusted_schema = OFF")
    _limit_time(connection)
    return connection


def _limit_time(connection: sqlite3.Connection) -> None:
    """End the next statement when it takes too long."""
    end = time.monotonic() + _MOST_SECONDS
    connection.set_progress_handler(lambda: time.monotonic() > end, _STEPS_BETWEEN_CHECKS)


def _uri(path: Path) -> str:
    return quote(os.fsencode(path.absolute()))


def open_export(path: Path) -> NsysExport:
    """Open an export. Raises NotATraceError for another sqlite file."""
    export = NsysExport(path)
    if not export.looks_like_a_profile:
        some = ", ".join(sorted(export.tables)[:5]) or "none"
        export.close()
        raise NotATraceError(
            f"{path} is a sqlite file, but not an nsys export",
            why=f"It has none of the tables that nsys writes (its tables: {some}).",
            hint="Export the report again: nsys export --type sqlite REPORT.nsys-rep",
        )
    return export


def _refuse_truncated(path: Path) -> None:
    """Check the size against the page count in the header; sqlite notices a missing page only when it reads it."""
    with path.open("rb") as file:
        head = file.read(100)
        size = file.seek(0, 2)
    page = int.from_bytes(head[16:18], "big")
    pages = int.from_bytes(head[28:32], "big")
    expected = (65536 if page == 1 else page) * pages
    if len(head) < 100 or size < expected:
        raise damaged(path, ValueError(f"it has {size:,} bytes instead of {expected or 100:,}"))


def not_a_table(path: Path, name: str) -> ReadError:
    return ReadError(
        f"{path} is not an export of nsys as nsys writes it",
        why=f"{name} is a view or a virtual table: what it contains is computed, and may be anything.",
        hint="Export the report again: nsys export --type sqlite --force-overwrite true REPORT.nsys-rep",
    )


def damaged(path: Path, error: Exception) -> ReadError:
    if "interrupted" in str(error):
        return ReadError(
            f"reading {path} takes too long",
            why=f"A single statement was not done after {_MOST_SECONDS} s.",
            hint="Copy the file to a local disk; or export the report again.",
        )
    return ReadError(
        f"{path} cannot be read as sqlite",
        why=f"{str(error)[:1].upper()}{str(error)[1:]}: the file is damaged or truncated.",
        hint="Export the report again: nsys export --type sqlite --force-overwrite true REPORT.nsys-rep",
    )


def row_ranges(export: NsysExport, table: str, size: int) -> Iterator[tuple[int, int]]:
    """First and last rowid of successive pieces of a table. Rows may have any ids, with gaps of any length."""
    ((low, high),) = export.rows(f"SELECT min(rowid), max(rowid) FROM {table}")
    dense = low is not None and (high - low) // size < _MOST_RANGES
    while low is not None and low <= high:
        last = min(low + size - 1, high)
        if not dense:
            ids = f"SELECT rowid AS id FROM {table} WHERE rowid >= ? ORDER BY rowid LIMIT {size}"
            ((last,),) = export.rows(f"SELECT max(id) FROM ({ids})", (low,))
        yield low, last
        low = last + 1
        if not dense and low <= high:
            ((low,),) = export.rows(f"SELECT min(rowid) FROM {table} WHERE rowid >= ?", (low,))


def run_once(path: Path, sql: str, parameters: Sequence[object] = ()) -> Any:
    """The first value of a query, over a new connection, so that threads can read in parallel."""
    with closing(connect(path)) as connection:
        row = connection.execute(sql, parameters).fetchone()
    return row[0] if row else None
