"""The sqlite export of an nsys report: its tables and columns, version, clock.

Versions of nsys differ: empty tables are missing, columns change, text is not always UTF-8. So every table and column
is checked before use.
"""

from __future__ import annotations

import re
from functools import cached_property
from pathlib import Path

from rankscope.errors import NotATraceError, ReadError
from rankscope.readers.base import usable_time
from rankscope.readers.sqlite_file import SqliteFile, text_of

PID = "({0} >> 24) & 16777215"
"""SQL template for the process id in a globalTid or globalPid column."""

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
"""What is recorded; an export lacks the tables of which it has no rows."""
_WRITTEN_WITHOUT_EVENTS = ("META_DATA_EXPORT", "ANALYSIS_DETAILS", "TARGET_INFO_SESSION_START_TIME")
_NAMES_OF_NSYS = re.compile(
    r"(?i)(?:StringIds|ThreadNames|PROCESSES|ProcessStreams|ANALYSIS_DETAILS"
    r"|(?:CUPTI|NVTX|OSRT|MPI|GPU|CUDA|TARGET_INFO|META_DATA|PROFILER)_.*)"
)
AGAIN = "Export the report again: nsys export --type sqlite --force-overwrite true REPORT.nsys-rep"


class NsysExport(SqliteFile):
    """One export, open for reading only."""

    again = AGAIN

    def has(self, table: str, *columns: str) -> bool:
        return table in self.tables and all(column in self.tables[table] for column in columns)

    @cached_property
    def why_empty(self) -> str:
        """Why the report has no events, as far as it says what was to be recorded; '' if it has some."""
        if any(
            table in self.tables and self.rows(f"SELECT 1 FROM {table} LIMIT 1") for table in EVENT_TABLES
        ):
            return ""
        asked = [
            f"{name} was {'' if answer == 'true' else 'not '}traced"
            for name in ("CUDA", "NVTX")
            if (answer := self._metadata("META_DATA_CAPTURE", f"PROCESS_0:COLLECT_{name}_TRACE"))
        ]
        return (
            f"nsys recorded none ({', '.join(asked) or 'it does not say what it traced'}): the program made no such "
            "call, or there was no NVIDIA driver; -t cuda,nvtx records both"
        )

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
    def run_duration_ms(self) -> int:
        """How long nsys recorded, in whole milliseconds, the last one begun; 0 if it does not say."""
        text = self._metadata("META_DATA_CAPTURE", "RUN_DURATION_MS")
        return int(text) if text.isdecimal() and len(text) < 12 else 0

    @cached_property
    def start_unix_ns(self) -> int:
        """Time 0 of the report in nanoseconds since 1970; 0 if not recorded."""
        if not self.has("TARGET_INFO_SESSION_START_TIME", "utcEpochNs"):
            return 0
        rows = self.rows("SELECT utcEpochNs FROM TARGET_INFO_SESSION_START_TIME LIMIT 1")
        return usable_time(rows[0][0]) if rows else 0

    def _metadata(self, table: str, name: str) -> str:
        if not self.has(table, "name", "value"):
            return ""
        rows = self.rows(f"SELECT value FROM {table} WHERE name = ? LIMIT 1", (name,))
        return text_of(rows[0][0]) if rows else ""

    def _find_tables(self) -> dict[str, frozenset[str]]:
        """Raises an error for a view with the name of a table: it may compute anything, for any time."""
        names = self._connection.execute(
            "SELECT name, type = 'table' AND rootpage > 0 FROM sqlite_master WHERE type IN ('table', 'view')"
        )
        tables = {}
        for raw, is_table in names.fetchall():
            name = text_of(raw)
            if not is_table:
                if _NAMES_OF_NSYS.fullmatch(name):
                    raise not_a_table(self.path, name)
                continue
            tables[name] = self.columns_of(name)
        return tables


def open_export(path: Path) -> NsysExport:
    """Open an export. Raises NotATraceError for another sqlite file."""
    export = NsysExport(path)
    written = {*EVENT_TABLES, *_WRITTEN_WITHOUT_EVENTS}
    if "StringIds" not in export.tables or written.isdisjoint(export.tables):
        some = ", ".join(sorted(export.tables)[:5]) or "none"
        export.close()
        raise NotATraceError(
            f"{path} is a sqlite file, but neither an nsys export nor a rocpd file",
            why=f"It has none of the tables that nsys and rocprofv3 write (its tables: {some}).",
            hint="Export the report again: nsys export --type sqlite REPORT.nsys-rep",
        )
    return export


def not_a_table(path: Path, name: str) -> ReadError:
    return ReadError(
        f"{path} is not an export of nsys as nsys writes it",
        why=f"{name} is a view or a virtual table: what it contains is computed, and may be anything.",
        hint=AGAIN,
    )
