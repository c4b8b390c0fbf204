"""Describes how a table of an nsys export becomes events: the columns to read, and SQL for model.READ_EVENTS.

In the SQL, `r` is a row of the table and `s` the string that its name refers to. `events` and `nvtx` list the tables.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from rankscope.model import MEMORY_TYPE, READ_EVENTS
from rankscope.readers.nsys.export import PID, TID, NsysExport
from rankscope.readers.sqlite_file import ROWID
from rankscope.sql import sql_name, sql_text

CORRELATION_BITS = 32
"""Width of CUPTI's correlation ids; the bits above hold the process."""

RATE, ROW = "rate", "row"
"""Values that hardly any other row has. They may occur only as a number in arguments, and a source has one at most."""
SUMMED = frozenset(("start", "stop", "correlation", "size", ROW))
"""Values that are added and subtracted."""
LARGEST_NUMBER = 1 << 61
"""Of those: twice as much still fits into 64 bits."""

_DEFAULTS = {
    "ph": "'X'",
    "pid": f"({PID.format('r.thread')})::VARCHAR",
    "tid": f"({TID.format('r.thread')})::VARCHAR",
    "ts_ns": "r.start",
    "dur_ns": "r.stop - r.start",
    "flow": "NULL::VARCHAR",
    "args": "NULL",
    "correlation": "NULL::BIGINT",
    "external_id": "NULL::BIGINT",
    "device": "NULL::BIGINT",
    "stream": "NULL::BIGINT",
    "bytes": "NULL::BIGINT",
    "collective": "NULL::VARCHAR",
    "memory": f"NULL::{MEMORY_TYPE}",
    "shapes": "NULL::VARCHAR[]",
}
ON_DEVICE = {
    "pid": "r.device::VARCHAR",
    "tid": "r.stream::VARCHAR",
    "correlation": "r.correlation",
    "device": "r.device",
    "stream": "r.stream",
}


@dataclass(frozen=True)
class Source:
    """One table of an export, and its conversion to events."""

    table: str
    columns: dict[str, str]
    """Name of a value -> its column. A column that the export does not have is null."""
    events: dict[str, str]
    """Column of READ_EVENTS -> SQL over r and s; other columns have defaults."""
    process: str = "thread"
    """Name of the value that holds the process."""
    texts: frozenset[str] = frozenset()
    """Values that are text, not ids of strings."""
    where: str = ""
    """SQL with names of values in braces: of sqlite, or of DuckDB over r."""
    needs: tuple[str, ...] = ()
    """Columns that must exist; otherwise the table is ignored."""
    more: dict[str, str] = field(default_factory=dict)
    """Name of a value -> SQL in sqlite, for values that are not columns."""
    joins: str = ""
    """Further joins, as SQL."""
    whole: bool = False
    """True if the table must be read in one piece, for running totals."""
    rate: bool = False
    """True if r.rate is used: bytes per nanosecond."""
    recording_end: int | None = None
    """Where it is known, the events depend on whether r.stop is null, before it, or not before it."""
    open_until: int | None = None
    """The end of rows that have none."""

    def found_in(self, export: NsysExport) -> bool:
        return export.has(self.table, *self.needs)

    def lacking_in(self, export: NsysExport) -> tuple[list[str], int]:
        """The columns without which its rows cannot be read, and the number of rows."""
        if self.table not in export.tables or self.found_in(export):
            return [], 0
        ((rows,),) = export.rows(f"SELECT count(*) FROM {self.table}")
        return [column for column in self.needs if column not in export.tables[self.table]], rows

    def sqlite_values(self, export: NsysExport) -> dict[str, str]:
        there = export.tables[self.table]
        plain = {
            name: sql_name(column) if column in there else "NULL" for name, column in self.columns.items()
        }
        return {**plain, **self.more}

    def plain_columns(self, export: NsysExport) -> dict[str, str | None] | None:
        """Name of each value -> its column, None if it is null; None if a value has to be computed by sqlite.

        Of such a source, ts_ns must be r.start, dur_ns r.stop - r.start or null, correlation a sum with r.correlation
        or null, and nothing else may depend on these values (but see `recording_end`).
        """
        there = {*export.tables[self.table], ROWID}
        columns = {name: column if column in there else None for name, column in self.columns.items()}
        for name, sql in self.more.items():
            if sql not in there and sql != "NULL":
                return None
            columns[name] = sql if sql in there else None
        return columns if "start" in columns and not self.whole else None

    def select(self, rows: str, strings: str, processes: Sequence[int] = ()) -> str:
        """SQL for the events, from SQL for the rows and for the strings.

        Correlation ids and streams are numbered per process. With several processes, all but the first get distinct
        ids and tracks.
        """
        columns = {**_DEFAULTS, **self.events}
        if len(processes) > 1 and "correlation" in self.events:
            process = PID.format("r.thread")
            index = f"(coalesce(list_position({list(processes)}, {process}), 1) - 1)"
            columns["correlation"] = f"({index}::BIGINT << {CORRELATION_BITS}) + ({columns['correlation']})"
            if columns["pid"] == ON_DEVICE["pid"]:
                other = f"CASE WHEN {index} > 0 THEN ' of process ' || ({process}) END"
                columns["tid"] = f"concat({columns['tid']}, {other})"
        values = ", ".join(f"{columns[name]} AS {name}" for name in READ_EVENTS.columns)
        return f"SELECT {values} FROM {rows} r LEFT JOIN {strings} s ON s.id = r.name {self.joins}"


def arguments(*pieces: str) -> str:
    """SQL for a JSON object made of pieces; null pieces are left out."""
    return f"concat('{{', substr(concat({', '.join(pieces)}), 2), '}}')"


def number(key: str, sql: str) -> str:
    return f"""',"{key}":' || {sql}"""


def text(key: str, sql: str) -> str:
    return f"""',"{key}":' || to_json({sql})::VARCHAR"""


def numbers(**keys: str) -> Iterable[str]:
    return (number(key.replace("_", " "), f"r.{name}") for key, name in keys.items())


def choice(value: str, choices: dict[int, str], otherwise: str = "NULL") -> str:
    whens = " ".join(f"WHEN {number} THEN {sql_text(name)}" for number, name in choices.items())
    return f"CASE {value} {whens} ELSE {otherwise} END"


def triple(key: str, x: str, y: str, z: str) -> str:
    return f"""',"{key}":[' || r.{x} || ',' || r.{y} || ',' || r.{z} || ']'"""
