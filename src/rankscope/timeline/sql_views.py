"""The tables of a run as SQL: views over the Parquet files of its segments, on the run's time axis.

In Parquet, times count from the start of each file. The views add the offset of the file from the start of the run,
so that times of different ranks can be compared. Only this module and the writers know Parquet.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path

from rankscope.model import (
    COLLECTIVES,
    COMPUTING,
    COPY_CATEGORIES,
    COUNTERS,
    EVENTS,
    FURTHER_TABLES,
    GPU,
    INSTANTS,
    LINKS,
    SLICES,
    STEPS,
    TABLES,
    TIMES,
    TRACKS,
    Field,
    Table,
)
from rankscope.records import dataclass
from rankscope.sql import sql_text, sql_texts
from rankscope.store.index import SegmentEntry, shown
from rankscope.timeline.time_axis import File, TimeAxis

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

VIEWS = (
    SLICES,
    CLASSED_GPU,
    COMPUTING,
    EVENTS,
    INSTANTS,
    COUNTERS,
    LINKS,
    TRACKS,
    STEPS,
    COLLECTIVES,
    SEGMENTS,
    *FURTHER_TABLES,
)
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


@dataclass(frozen=True)
class SqlViews:
    """The statements that make the tables of a run."""

    folder: Path
    """The store, as DuckDB is given it."""
    segments: Sequence[SegmentEntry]
    unused: Collection[File]
    """The segments that are not in the tables."""
    owners: Callable[[Table], Sequence[SegmentEntry]]
    """The segments with rows of a table."""
    axis: TimeAxis
    first_steps: Mapping[File, int]
    comm_patterns: Sequence[str]
    """Names of device activity that communicates."""

    def everything(self) -> Iterator[str]:
        """Those of all tables of SQL queries."""
        for table in (SEGMENTS, *TABLES, *FURTHER_TABLES):
            yield from self.of(table)

    def of(self, table: Table) -> Iterator[str]:
        """Those of one table. All but `segments` itself may use `segments`."""
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
        rows = []
        for entry in self.segments:
            file = entry.rank, entry.segment
            texts = sql_text(shown(entry.source)), sql_text(entry.format)
            values = (
                *file,
                *texts,
                file not in self.unused,
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
        owners = self.owners(table)
        paths = [self.folder / name for entry in owners for name in entry.files_of(table)]
        if not paths:
            nothing = ", ".join(f"NULL::{f.type} AS {f.name}" for f in (*KEY_FIELDS, *table.fields))
            return f"SELECT {nothing} WHERE false"
        if len(owners) == 1:
            # What is the same in all rows is a constant: a query is then planned in half the time.
            rank, segment = file = owners[0].rank, owners[0].segment
            keys = f"{rank}::INTEGER AS rank, {segment}::INTEGER AS segment"
            hive, joined = "false", ""
            shift = f"{self.axis.shifts.get(file, 0)}::BIGINT"
            later = str(self.first_steps.get(file, ""))
        else:
            keys = "p.rank, p.segment"
            hive = "true, hive_types={'rank': INTEGER, 'segment': INTEGER}"
            joined = "JOIN segments s ON s.rank = p.rank AND s.segment = p.segment"
            shift = "s.shift_ns"
            cases = " ".join(
                f"WHEN p.rank = {rank} AND p.segment = {segment} THEN {first}"
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

    def _classed(self, rows: str) -> Iterator[str]:
        """Device activity with its class. Names are classified once per connection, not once per query."""
        communicates = " OR ".join(
            f"regexp_matches(name, {sql_text(pattern)})" for pattern in self.comm_patterns
        )
        copies = sql_texts(COPY_CATEGORIES)
        yield _INTERNAL
        yield (
            f"CREATE TABLE internal.classes_of_names AS SELECT name, {communicates} AS communicates "
            f"FROM (SELECT DISTINCT name FROM ({rows}))"
        )
        yield (
            f"CREATE VIEW gpu AS SELECT g.*, CASE WHEN g.category IN ({copies}) THEN 'COPY' "
            "WHEN g.collective IS NOT NULL OR n.communicates THEN 'COMM' ELSE 'COMPUTE' END AS class "
            f"FROM ({rows}) g JOIN internal.classes_of_names n ON n.name = g.name"
        )


def words(sql: str) -> set[str]:
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


def describe(view: Table) -> tuple[Field, ...]:
    """The columns of a view as SQL users see them."""
    if view is SEGMENTS:
        return view.fields
    id_field = (Field("id", "BIGINT", "its place in the file"),) if view is EVENTS else ()
    return (*KEY_FIELDS, *id_field, *view.fields)
