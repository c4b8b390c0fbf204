"""Events from the pages of an export: the SQL of a source runs once for rows that differ only in their times.

Most rows of an export repeat others but for times and correlation ids. So the distinct rows are found first, and only
those become events by SQL; then each row gets the event of its distinct row, with times and numbers of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rankscope import native
from rankscope.readers.columns import (
    IN_C,
    NO_ARGS,
    NO_TEXT,
    NULL,
    Codes,
    EventColumns,
    Numbers,
    SharedTexts,
    Texts,
)
from rankscope.readers.nsys.table_source import LARGEST_NUMBER, RATE, ROW, SUMMED, Source
from rankscope.readers.sql_columns import columns_of, connection
from rankscope.readers.sqlite_pages import Piece, TablePages, TextColumn
from rankscope.sql import sql_name

_RELATION = "distinct_rows"
_NULL = f"(-{-(NULL + 1)} - 1)"
_MARK = "chr(1)"
"""Stands for the number of a row's own in the arguments of a distinct row. JSON text cannot contain this byte."""
_CODES = ("phase", "category", "name", "pid", "tid", "flow")
_SPARSE = ("correlation", "external_id", "device", "stream", "bytes")
_MILLION = 1_000_000
_EXACT = 1 << 53


@dataclass(frozen=True)
class DistinctRows:
    """The rows of a piece."""

    codes: Codes
    """For each row, which of the distinct rows it is."""
    values: dict[str, Any]
    """Of the distinct rows, for DuckDB."""
    numbers: dict[str, Numbers]
    """Of each row."""
    own: Numbers | None
    """The number in the arguments of each row that hardly any other row has."""

    @property
    def name_ids(self) -> list[int]:
        """The ids of all strings that are names of these rows."""
        ids = np.unique(self.values.get("name", np.empty(0, dtype=np.int64)))
        return [number for number in ids.tolist() if number != NULL]


@dataclass(frozen=True)
class PagedSource:
    """A source and the pages of its table."""

    source: Source
    table: TablePages
    columns: dict[str, str | None]
    """Name of a value -> its column, or None if it is null."""

    def distinct_rows(self, piece: Piece) -> DistinctRows:
        """The rows of a piece. Raises ValueError where values are unusual: then sqlite has to read them."""
        numbers, texts = self._scan(piece)
        own = _rates(numbers) if self.source.rate else numbers.get(ROW)
        keys = self._keys(numbers, texts, own)
        codes, firsts = (
            np.frombuffer(one, np.int32) for one in native.functions.distinct_rows(tuple(keys.values()))
        )
        values = self._rows({name: key[firsts] for name, key in keys.items()}, texts, firsts)
        return DistinctRows(codes, values, numbers, own)

    def events(self, rows: DistinctRows, where: str, strings: str, processes: Sequence[int]) -> EventColumns:
        """The events of rows. `where` is SQL over r, `strings` SQL for their names.

        Raises ValueError, or an error of DuckDB, where values are unusual.
        """
        duckdb = connection()
        duckdb.register(_RELATION, rows.values)
        try:
            distinct = columns_of(self.source.select(self._relation(rows.values, where), strings, processes))
        finally:
            duckdb.unregister(_RELATION)
        events = _events_of(distinct, len(rows.values["start"]))[rows.codes]
        return _repeat(distinct, events, rows.numbers, rows.own, self.source)

    def _scan(self, piece: Piece) -> tuple[dict[str, Numbers], dict[str, TextColumn]]:
        """The values by their names."""
        columns = {name: column for name, column in self.columns.items() if column is not None}
        texts = {name: column for name, column in columns.items() if name in self.source.texts}
        numbers = {name: column for name, column in columns.items() if name not in texts}
        numbers_of, texts_of = self.table.read(
            piece, sorted(set(numbers.values())), sorted(set(texts.values()))
        )
        found = {name: numbers_of[column] for name, column in numbers.items()}
        for name in SUMMED & found.keys():
            if (np.abs(found[name]) > LARGEST_NUMBER).any():  # that of NULL is negative
                raise ValueError(f"{name} is out of range")
        return found, {name: texts_of[column] for name, column in texts.items()}

    def _keys(
        self, numbers: dict[str, Numbers], texts: dict[str, TextColumn], own: Numbers | None
    ) -> dict[str, Numbers]:
        """What the event of a row depends on, besides its own numbers."""
        keys = {name: column for name, column in numbers.items() if name not in ("start", "correlation", ROW)}
        stop = keys.pop("stop", None)
        if self.source.recording_end is not None and stop is not None:
            late = self.source.recording_end
            keys["stop"] = np.where(stop == NULL, NULL, np.where(stop >= late, late, late - 1))
        keys |= {name: column.codes.astype(np.int64) for name, column in texts.items()}
        if self.source.rate and own is not None:
            keys[RATE] = (own != NULL).astype(np.int64)
        return keys

    def _rows(self, keys: dict[str, Numbers], texts: dict[str, TextColumn], firsts: Codes) -> dict[str, Any]:
        """The distinct rows for DuckDB. The start of each is its place, by which its event is found again."""
        decoded = {name: np.array(column.at(firsts), dtype=object) for name, column in texts.items()}
        return {"start": np.arange(len(firsts)), **keys, **decoded}

    def _relation(self, rows: dict[str, Any], where: str) -> str:
        """SQL for the distinct rows, with all values of the source."""
        sql = {name: self._value(name, rows) for name in (*self.columns, *((RATE,) if RATE in rows else ()))}
        values = ", ".join(f"{value} AS {sql_name(name)}" for name, value in sql.items())
        return f"(SELECT * FROM (SELECT {values} FROM {_RELATION}) r WHERE {where or 'true'})"

    def _value(self, name: str, rows: dict[str, Any]) -> str:
        if name in self.source.texts:
            return name if name in rows else "NULL::VARCHAR"
        if name == RATE:
            return f"CASE WHEN {RATE} = 1 THEN {_MARK} END"
        if self.columns[name] is None:
            return "NULL::BIGINT"
        if name in rows:
            return f"nullif({sql_name(name)}, {_NULL})"
        return _MARK if name == ROW else "0"


def _rates(numbers: dict[str, Numbers]) -> Numbers:
    """Millionths of bytes per ns, rounded as DuckDB does: halves away from zero."""
    absent = np.full(len(numbers["start"]), NULL)
    size, start, stop = (numbers.get(name, absent) for name in ("size", "start", "stop"))
    known = (size != NULL) & (start != NULL) & (stop != NULL) & (start != stop)
    millionths = size[known] / (stop - start)[known] * _MILLION
    whole = np.trunc(millionths)
    whole += np.copysign(np.abs(millionths - whole) >= 0.5, millionths)
    if (np.abs(whole) > _EXACT).any():
        raise ValueError("a rate is out of range")
    rates = absent
    rates[known] = whole.astype(np.int64)
    return rates


def _events_of(distinct: EventColumns, count: int) -> Codes:
    """For each distinct row its event, or -1 if it has none."""
    events: Codes = np.full(count, -1, dtype=np.int32)
    events[distinct.time] = np.arange(len(distinct), dtype=np.int32)
    if np.count_nonzero(events >= 0) < len(distinct):
        raise ValueError("a row has several events: ids of strings are not distinct")
    return events


def _repeat(
    distinct: EventColumns,
    events: Codes,
    numbers: dict[str, Numbers],
    own: Numbers | None,
    source: Source,
) -> EventColumns:
    """An event for each row: that of its distinct row, with its own numbers."""
    kept = events >= 0
    if not kept.all():
        events = events[kept]
        numbers = {name: column[kept] for name, column in numbers.items()}
        own = None if own is None else own[kept]
    absent = np.full(len(events), NULL)
    start, stop = numbers["start"], numbers.get("stop", absent)
    if source.open_until is not None:
        stop = np.where(stop == NULL, source.open_until, stop)
    timed = (start != NULL) & (stop != NULL) & (distinct.duration != NULL)[events]
    sparse = {name: _dense(distinct, name)[events] for name in _SPARSE}
    own_ids = numbers.get("correlation", absent)
    with_id = (sparse["correlation"] != NULL) & (own_ids != NULL)
    sparse["correlation"] = np.where(with_id, sparse["correlation"] + own_ids, NULL)
    linked = np.any([column != NULL for column in sparse.values()], axis=0)
    args, args_offset, shared = _arguments(distinct, events, own, source.rate)
    codes: dict[str, Any] = {name: getattr(distinct, name)[events] for name in _CODES}
    own_links: dict[str, Any] = {name: column[linked] for name, column in sparse.items()}
    return EventColumns(
        texts=distinct.texts,
        **codes,
        time=start,
        duration=np.where(timed, stop - start, NULL),
        args=args,
        args_offset=args_offset,
        linked=np.flatnonzero(linked).astype(np.int32),
        **own_links,
        collective=np.full(np.count_nonzero(linked), NO_TEXT, dtype=np.int32),
        memory_events=distinct.memory_events[:0],
        memory=distinct.memory[:0],
        computing=distinct.computing[:0],
        shapes=distinct.shapes[:0],
        shared_args=shared,
        read_by=IN_C,
    )


def _arguments(
    distinct: EventColumns, events: Codes, own: Numbers | None, millionths: bool
) -> tuple[Any, NDArray[np.uint32], SharedTexts | None]:
    """`args`, `args_offset` and `shared_args`: texts that have the row's own number, or texts that rows share."""
    if own is not None:
        filled = native.functions.fill_texts(distinct.args, distinct.args_offset[events], own, millionths)
        return filled[0], np.frombuffer(filled[1], np.uint32), None
    texts = [distinct.args_of(event) for event in range(len(distinct))]
    codes = np.array([NO_TEXT if text is None else code for code, text in enumerate(texts)], dtype=np.int32)
    shared = SharedTexts(Texts.of(text or "" for text in texts), codes[events])
    return b"", np.full(len(events), NO_ARGS, dtype=np.uint32), shared


def _dense(columns: EventColumns, name: str) -> Numbers:
    """A sparse column with a value for each event."""
    values: Numbers = np.full(len(columns), NULL)
    values[columns.linked] = getattr(columns, name)
    return values
