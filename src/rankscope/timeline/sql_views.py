"""The tables of a run as SQL: views over the Parquet files of its segments, on the run's time axis.

In Parquet, times count from the start of each file. The views add the offset of the file from the start of the run,
so that times of different ranks can be compared. Only this module and the writers know Parquet.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

from rankscope.model import (
    COLLECTIVES,
    COMMUNICATING_CALLS,
    COPY_CATEGORIES,
    EVENTS,
    FURTHER_TABLES,
    GPU,
    SLICES,
    STEPS,
    TABLES,
    TIMES,
    Field,
    Table,
)
from rankscope.records import dataclass
from rankscope.sql import sql_text, sql_texts
from rankscope.store.database import connect
from rankscope.store.index import File, SegmentEntry
from rankscope.timeline.clocks import TimeAxis

if TYPE_CHECKING:
    import duckdb

KEY_FIELDS = (
    Field("rank", "INTEGER", ""),
    Field("segment", "INTEGER", "which of the rank's files; 0 is the first"),
)

SEGMENTS = Table(
    "segments",
    "The files of the run.",
    (
        *KEY_FIELDS,
        Field("file", "VARCHAR", "the raw trace"),
        Field("format", "VARCHAR", "what it is: kineto, ncu, …"),
        Field("used", "BOOLEAN", "false: another tool's file of the same rank is in the tables instead"),
        Field("rank_source", "VARCHAR", "how the rank is known"),
        Field("shift_ns", "BIGINT", "from the run's start to this file's first event, clocks aligned"),
        Field("ahead_ns", "BIGINT", "what was taken off its wall clock to align it with the other ranks"),
        Field("unix_ns", "BIGINT", "its first event, nanoseconds since 1970 by its own clock"),
        Field("events", "BIGINT", "read"),
        Field("lost", "BIGINT", "could not be read"),
        Field("misplaced", "BIGINT", "have no usable time (ts = 0, or years away) and are in events only"),
    ),
)

CLASSED_GPU = Table(GPU.name, GPU.help, (*GPU.fields, Field("class", "VARCHAR", "COMPUTE, COMM or COPY")))

VIEWS = (*(CLASSED_GPU if table is GPU else table for table in TABLES), SEGMENTS, *FURTHER_TABLES)
"""The tables of SQL queries; the columns rank and segment come before the columns listed."""

NUMBERED_NAMES = Table(
    "internal.names",
    "The names of slices, numbered; for our own queries only.",
    (
        Field("category", "VARCHAR", ""),
        Field("name", "VARCHAR", ""),
        Field("code", "BIGINT", "place of the name among all names of the run, in alphabetical order"),
        Field("occurrences", "BIGINT", "how many slices have it"),
    ),
)
_INTERNAL = "CREATE SCHEMA IF NOT EXISTS internal"
"""Of tables that SHOW TABLES does not list."""
_MOST_LISTED = 1 << 14
"""Ranks between the first and the last, whose shifts are written into a statement."""
_SMALL_BYTES = 16 << 20
"""Tables of this size together are read by one thread: starting and waiting for others takes longer."""


@dataclass(frozen=True)
class SqlViews:
    """The tables of a run, made in a DuckDB connection when a query names them for the first time."""

    folder: Path
    """The store, as DuckDB is given it."""
    segments: Sequence[SegmentEntry]
    used: Sequence[SegmentEntry]
    """Those that are in the tables."""
    without_collectives: Collection[str]
    """Formats of files whose collectives are not."""
    axis: TimeAxis
    first_steps: Mapping[File, int | None]
    comm_patterns: Sequence[str]
    """Names of device activity that communicates."""

    @cached_property
    def connection(self) -> duckdb.DuckDBPyConnection:
        bytes_used = sum(size for entry in self.used for size, _ in entry.files.values())
        return connect(one_thread=bytes_used <= _SMALL_BYTES)

    @cached_property
    def undefined(self) -> dict[str, Table]:
        """The tables that `connection` does not have yet."""
        return {table.name: table for table in (*VIEWS, NUMBERED_NAMES)}

    def execute(
        self, sql: str, parameters: Sequence[object] = (), *, own_cursor: bool = False
    ) -> duckdb.DuckDBPyConnection:
        """Run a query. The tables that it names are made: making all of them opens every file of the store."""
        self.define(*(self.undefined[name] for name in _words(sql) & self.undefined.keys()))
        cursor = self.connection.cursor() if own_cursor else self.connection
        return cursor.execute(sql, list(parameters))

    def define(self, *tables: Table) -> None:
        """Make tables in `connection`."""
        for table in (SEGMENTS, *tables):  # the other views use segments
            if self.undefined.pop(table.name, None):
                for statement in self._definition(table):
                    self.connection.execute(statement)

    def definitions(self) -> Iterator[str]:
        """The statements that make the tables of users' queries."""
        yield from self._definition(SEGMENTS)  # the other views use it
        for table in (*TABLES, *FURTHER_TABLES):
            yield from self._definition(table)

    def _definition(self, table: Table) -> Iterator[str]:
        if table is SEGMENTS:
            yield from self._segments()
            return
        rows = self._rows_of({GPU.name: GPU, NUMBERED_NAMES.name: SLICES}.get(table.name, table))
        if table.name == GPU.name:
            yield from self._classed(rows)
        elif table is NUMBERED_NAMES:
            yield _INTERNAL
            yield (
                f"CREATE TABLE {table.name} AS "
                "SELECT category, name, dense_rank() OVER (ORDER BY name) - 1 AS code, occurrences "
                f"FROM (SELECT category, name, count(*) AS occurrences FROM ({rows}) GROUP BY ALL)"
            )
        else:
            # A table, not a view, of the steps: there are few, and most reports read them.
            yield f"CREATE {'TABLE' if table is STEPS else 'VIEW'} {table.name} AS {rows}"

    def _segments(self) -> Iterator[str]:
        columns = ", ".join(f"{field.name} {field.type}" for field in SEGMENTS.fields)
        yield f"CREATE TABLE segments ({columns})"
        used = {entry.file for entry in self.used}
        rows = []
        for entry in self.segments:
            file = entry.file
            path = os.fsencode(entry.source).decode("utf-8", "replace")
            values = (
                *file,
                sql_text(path),
                sql_text(entry.format),
                file in used,
                sql_text(entry.rank_source),
                self.axis.shifts.get(file, 0),
                self.axis.ahead.get(file, 0),
                entry.unix_origin_ns,
                entry.manifest["events"],
                entry.manifest["reading"]["events_lost"],
                entry.manifest["misplaced"],
            )
            rows.append(f"({', '.join(map(str, values))})")
        if rows:
            yield f"INSERT INTO segments VALUES {', '.join(rows)}"

    def _rows_of(self, table: Table) -> str:
        """A SELECT of a table's rows, times counted from the run's start.

        DuckDB takes rank and segment of several files from the names of the store's own folders: it is given no others.
        """
        owners = with_rows(table, self.used, self.without_collectives)
        if table is STEPS:
            owners = [entry for entry in owners if self.first_steps.get(entry.file, 0) is not None]
        paths = [self.folder / name for entry in owners for name in entry.files_of(table)]
        if not paths:
            nothing = ", ".join(f"NULL::{f.type} AS {f.name}" for f in (*KEY_FIELDS, *table.fields))
            return f"SELECT {nothing} WHERE false"
        if len(owners) == 1:
            # What is the same in all rows is a constant: a query is then planned in half the time.
            rank, segment = file = owners[0].file
            keys = f"{rank}::INTEGER AS rank, {segment}::INTEGER AS segment"
            hive, joined = "false", ""
            shift = f"{self.axis.shifts.get(file, 0)}::BIGINT"
            later = str(self.first_steps.get(file, "")).replace("None", "NULL")
        else:
            keys = "p.rank, p.segment"
            hive = "true, hive_types={'rank': INTEGER, 'segment': INTEGER}"
            shift, joined = self._shifts_of(owners)
            cases = " ".join(
                f"WHEN p.rank = {rank} AND p.segment = {segment} THEN {'NULL' if first is None else first}"
                for (rank, segment), first in self.first_steps.items()
            )
            later = f"CASE {cases} ELSE 0 END" if cases else ""
        shifts = dict.fromkeys(TIMES if table is not EVENTS else (), shift) | (
            {"step": later} if later else {}
        )
        columns = ", ".join(
            f"p.{field.name} + {shifts[field.name]} AS {field.name}"
            if field.name in shifts
            else f"p.{field.name}"
            for field in table.fields
        )
        source = f"[{sql_texts(paths)}], hive_partitioning={hive}"
        if table is EVENTS:
            source += ", file_row_number=true"
            columns = f"p.file_row_number AS id, {columns}"
        return f"SELECT {keys}, {columns} FROM read_parquet({source}) p {joined}"

    def _shifts_of(self, owners: Sequence[SegmentEntry]) -> tuple[str, str]:
        """SQL of the shift of each file, and the join that it needs. One file a rank is looked up in a list: in half of
        the time of a join."""
        ranks = [entry.rank for entry in owners]
        first, last = min(ranks), max(ranks)
        if len({*ranks}) < len(ranks) or last - first > _MOST_LISTED:
            return "s.shift_ns", "JOIN segments s ON s.rank = p.rank AND s.segment = p.segment"
        segment_of = {entry.rank: entry.segment for entry in owners}
        shifts = (self.axis.shifts.get((rank, segment_of.get(rank, 0)), 0) for rank in range(first, last + 1))
        return f"([{', '.join(map(str, shifts))}]::BIGINT[])[p.rank - {first - 1}]", ""

    def _classed(self, rows: str) -> Iterator[str]:
        """Device activity with its class. Names are classified once per connection, not once per query."""
        communicates = " OR ".join(
            f"regexp_matches(name, {sql_text(pattern)})" for pattern in self.comm_patterns
        )
        calls = " OR ".join(f"starts_with(g.op_name, {sql_text(call)})" for call in COMMUNICATING_CALLS)
        copies = sql_texts(COPY_CATEGORIES)
        yield _INTERNAL
        yield (
            "CREATE TABLE internal.communicating_names AS "
            f"SELECT name FROM (SELECT DISTINCT name FROM ({rows})) WHERE {communicates}"
        )
        yield (
            f"CREATE VIEW gpu AS SELECT g.*, CASE WHEN g.category IN ({copies}) THEN 'COPY' "
            "WHEN g.collective IS NOT NULL OR g.name IN (FROM internal.communicating_names) "
            f"OR {calls} THEN 'COMM' "
            f"ELSE 'COMPUTE' END AS class FROM ({rows}) g"
        )


def _words(sql: str) -> set[str]:
    """The words of a statement, by DuckDB's tokens: its keywords and names, with what is before their dots."""
    import duckdb

    text = sql.encode()  # the tokens are at places of bytes
    spelt: list[bytes] = []
    is_qualified = False
    for (begin, kind), (end, _) in pairwise([*duckdb.tokenize(sql), (len(text), None)]):
        token = text[begin:end].rstrip()
        if kind in (duckdb.token_type.identifier, duckdb.token_type.keyword):
            spelt.append(spelt.pop() + b"." + token if is_qualified else token)
        is_qualified = token == b"." and bool(spelt)
    return {word.decode() for word in spelt}


def with_rows(
    table: Table, used: Sequence[SegmentEntry], without_collectives: Collection[str]
) -> list[SegmentEntry]:
    """The segments with rows of this table. Collectives have one source: NCCL's files repeat those of traces."""
    left_out = without_collectives if table is COLLECTIVES else ()
    return [entry for entry in used if entry.files_of(table) and entry.format not in left_out]


def describe(view: Table) -> tuple[Field, ...]:
    """The columns of a view as SQL users see them."""
    if view is SEGMENTS:
        return view.fields
    id_field = (Field("id", "BIGINT", "its place in the file"),) if view is EVENTS else ()
    return (*KEY_FIELDS, *id_field, *view.fields)
