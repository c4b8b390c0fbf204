"""Describes how a table of an nsys export becomes events: the columns to read, and SQL for model.READ_EVENTS.

In the SQL, `r` is a row of the table and `s` the string that its name refers to. `events` lists the tables.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rankscope import native
from rankscope.model import MEMORY_TYPE, READ_EVENTS
from rankscope.readers.columns import (
    LINKS,
    NO_ARGS,
    NO_TEXT,
    NULL,
    Codes,
    EventColumns,
    Numbers,
    SharedTexts,
    Texts,
    dense,
    distinct_rows,
    event_columns,
    joined_texts,
)
from rankscope.readers.nsys.export import PID, TID, NsysExport
from rankscope.readers.sql_columns import columns_of, connection
from rankscope.readers.sqlite_file import ROWID
from rankscope.readers.sqlite_pages import TextColumn
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
    **dict.fromkeys(LINKS, "NULL::BIGINT"),
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
    """Name of a value -> its column. A column that the export does not have is null, as is a name that is missing."""
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
        return {"name": "NULL", **plain, **self.more}

    def plain_columns(self, export: NsysExport) -> dict[str, str | None] | None:
        """Name of each value -> its column, None if it is null; None if a value has to be computed by sqlite.

        Of such a source, ts_ns must be r.start, dur_ns r.stop - r.start or null, correlation a sum with r.correlation
        or null, and nothing else may depend on these values (but see `recording_end`).
        """
        there = {*export.tables[self.table], ROWID}
        columns = {"name": None} | {
            name: column if column in there else None for name, column in self.columns.items()
        }
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


def numbers(keys: Mapping[str, str]) -> list[str]:
    return [number(key, sql) for key, sql in keys.items()]


def choice(value: str, choices: dict[int, str], otherwise: str = "NULL") -> str:
    whens = " ".join(f"WHEN {number} THEN {sql_text(name)}" for number, name in choices.items())
    return f"CASE {value} {whens} ELSE {otherwise} END"


def triple(key: str, x: str, y: str, z: str) -> str:
    return f"""',"{key}":[' || r.{x} || ',' || r.{y} || ',' || r.{z} || ']'"""


_ROWS, _STRINGS = "read_rows", "strings"
"""Relations in DuckDB."""
_NULL = f"(-{-(NULL + 1)} - 1)"
_MARK = "chr(1)"
"""Stands for the number of a row's own in the arguments of a distinct row. JSON text cannot contain this byte."""
_CODES = ("phase", "category", "name", "pid", "tid", "flow")
_MILLION = 1_000_000
_EXACT = 1 << 53


@dataclass(frozen=True)
class RowEvents:
    """How the rows of a source become events."""

    source: Source
    strings: Callable[[Sequence[int]], dict[str, Any]]
    """Columns of the strings with these ids."""
    processes: Sequence[int]
    """Processes of this rank that use CUDA."""

    def each(self, numbers: dict[str, Numbers], texts: dict[str, TextColumn]) -> EventColumns:
        """By SQL for every row."""
        rows = {**numbers, **{name: column.all() for name, column in texts.items()}}
        values = {
            name: f"{sql_name(name)}::VARCHAR" if name in texts else f"nullif({sql_name(name)}, {_NULL})"
            for name in rows
        }
        if self.source.rate:
            values[RATE] = f"round({values['size']} / nullif({values['stop']} - {values['start']}, 0), 6)"
        return self._select(rows, values, "")

    def repeated(
        self,
        numbers: dict[str, Numbers],
        texts: dict[str, TextColumn],
        columns: dict[str, str | None],
        where: str = "",
    ) -> EventColumns:
        """By SQL for the distinct rows; `columns` are `Source.plain_columns`, `where` is SQL over r.

        Raises ValueError, or an error of DuckDB, where values are unusual.
        """
        row_numbers = _rates(numbers) if self.source.rate else numbers.get(ROW)
        keys = self._keys(numbers, texts, row_numbers)
        codes, firsts = distinct_rows([*keys.values()])
        # The start of each is its place, by which its event is found again.
        rows: dict[str, Any] = {"start": np.arange(len(firsts))}
        rows |= {name: key[firsts] for name, key in keys.items()}
        rows |= {name: np.array(column.at(firsts), dtype=object) for name, column in texts.items()}
        wanted = (*columns, *((RATE,) if RATE in rows else ()))
        values = {name: self._value(name, rows, columns.get(name)) for name in wanted}
        distinct = self._select(rows, values, where)
        events: Codes = np.full(len(firsts), -1, dtype=np.int32)
        events[distinct.time] = np.arange(len(distinct), dtype=np.int32)
        if np.count_nonzero(events >= 0) < len(distinct):
            raise ValueError("a row has several events")
        return _repeat(distinct, events[codes], numbers, row_numbers, self.source)

    def _keys(
        self, numbers: dict[str, Numbers], texts: dict[str, TextColumn], row_numbers: Numbers | None
    ) -> dict[str, Numbers]:
        """What the event of a row depends on, besides its own numbers."""
        keys = {name: column for name, column in numbers.items() if name not in ("start", "correlation", ROW)}
        stop = keys.pop("stop", None)
        if self.source.recording_end is not None and stop is not None:
            late = self.source.recording_end
            keys["stop"] = np.where(stop == NULL, NULL, np.where(stop >= late, late, late - 1))
        keys |= {name: column.codes.astype(np.int64) for name, column in texts.items()}
        if self.source.rate and row_numbers is not None:
            keys[RATE] = (row_numbers != NULL).astype(np.int64)
        return keys

    def _value(self, name: str, rows: dict[str, Any], column: str | None) -> str:
        """SQL for a value of a distinct row."""
        if name in self.source.texts:
            return name if name in rows else "NULL::VARCHAR"
        if name == RATE:
            return f"CASE WHEN {RATE} = 1 THEN {_MARK} END"
        if column is None:
            return "NULL::BIGINT"
        if name in rows:
            return f"nullif({sql_name(name)}, {_NULL})"
        return _MARK if name == ROW else "0"

    def _select(self, rows: dict[str, Any], values: dict[str, str], where: str) -> EventColumns:
        """The events of rows. `values` is SQL for the values of the source, `where` is SQL over r."""
        ids = np.unique(rows.get("name", np.empty(0, dtype=np.int64))).tolist()
        strings = self.strings([number for number in ids if number != NULL])
        listed = ", ".join(f"{value} AS {sql_name(name)}" for name, value in values.items())
        relation = f"(SELECT * FROM (SELECT {listed} FROM {_ROWS}) r WHERE {where or 'true'})"
        texts = ", ".join(f"{name}::VARCHAR AS {name}" for name in strings if name != "id")
        duckdb = connection()
        duckdb.register(_ROWS, rows)
        duckdb.register(_STRINGS, strings)
        try:
            return columns_of(
                self.source.select(relation, f"(SELECT id, {texts} FROM {_STRINGS})", self.processes)
            )
        finally:
            duckdb.unregister(_ROWS)
            duckdb.unregister(_STRINGS)


def _rates(numbers: dict[str, Numbers]) -> Numbers:
    """Millionths of bytes per ns, rounded as DuckDB does: halves away from zero."""
    absent = np.full(len(numbers["start"]), NULL)
    size, start, stop = (numbers.get(name, absent) for name in ("size", "start", "stop"))
    timed = (size != NULL) & (start != NULL) & (stop != NULL) & (start != stop)
    millionths = size[timed] / (stop - start)[timed] * _MILLION
    whole = np.trunc(millionths)
    whole += np.copysign(np.abs(millionths - whole) >= 0.5, millionths)
    if (np.abs(whole) > _EXACT).any():
        raise ValueError("a rate is out of range")
    rates = absent
    rates[timed] = whole.astype(np.int64)
    return rates


def _repeat(
    distinct: EventColumns,
    events: Codes,
    numbers: dict[str, Numbers],
    row_numbers: Numbers | None,
    source: Source,
) -> EventColumns:
    """An event for each row: that of its distinct row, with its own numbers."""
    used = events >= 0
    if not used.all():
        events = events[used]
        numbers = {name: column[used] for name, column in numbers.items()}
        row_numbers = None if row_numbers is None else row_numbers[used]
    absent = np.full(len(events), NULL)
    start, stop = numbers["start"], numbers.get("stop", absent)
    if source.open_until is not None:
        stop = np.where(stop == NULL, source.open_until, stop)
    timed = (start != NULL) & (stop != NULL) & (distinct.duration != NULL)[events]
    links = {name: dense(distinct, name)[events] for name in LINKS}
    row_ids = numbers.get("correlation", absent)
    with_id = (links["correlation"] != NULL) & (row_ids != NULL)
    links["correlation"] = np.where(with_id, links["correlation"] + row_ids, NULL)
    args, args_offset, shared = _arguments(distinct, events, row_numbers, source.rate)
    return event_columns(
        distinct.texts,
        start,
        np.where(timed, stop - start, NULL),
        links,
        **{name: getattr(distinct, name)[events] for name in _CODES},
        args=args,
        args_offset=args_offset,
        shared_args=shared,
    )


def _arguments(
    distinct: EventColumns, events: Codes, row_numbers: Numbers | None, millionths: bool
) -> tuple[Any, NDArray[np.uint32], SharedTexts | None]:
    """`args`, `args_offset` and `shared_args`: texts that have the row's own number, or texts that rows share."""
    if row_numbers is not None and native.functions is not None:
        filled = native.functions.fill_texts(
            distinct.args, distinct.args_offset[events], row_numbers, millionths
        )
        return filled[0], np.frombuffer(filled[1], np.uint32), None
    texts = [distinct.args_of(event) for event in range(len(distinct))]
    if row_numbers is not None:
        spelt = row_numbers / _MILLION if millionths else row_numbers
        return *joined_texts(
            None if (text := texts[event]) is None else text.replace("\1", str(number)).encode()
            for event, number in zip(events.tolist(), spelt.tolist(), strict=True)
        ), None
    codes = np.array([NO_TEXT if text is None else code for code, text in enumerate(texts)], dtype=np.int32)
    shared = SharedTexts(Texts.of(text or "" for text in texts), codes[events])
    return b"", np.full(len(events), NO_ARGS, dtype=np.uint32), shared
