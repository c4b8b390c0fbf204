"""A run, open for questions: SQL views over the segments' Parquet files, on one time axis.

Parquet holds times from each file's own origin; the views add the distance from the run's start, so ranks
compare. Only this module and the writers know Parquet.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rankscope.errors import QueryError, StoreError
from rankscope.model import (
    COLLECTIVE_NAME_PATTERN,
    COPY_CATEGORIES,
    COUNTERS,
    EVENTS,
    GPU_CATEGORIES,
    INSTANTS,
    LINKS,
    SLICES,
    STEPS,
    TABLES,
    TRACKS,
    Field,
    Table,
)
from rankscope.store.ingest import Ingested
from rankscope.store.layout import SegmentEntry
from rankscope.store.workspace import EVENT_ID, sql_text

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
        Field("rank_source", "VARCHAR", "how the rank is known"),
        Field("shift_ns", "BIGINT", "from the run's start to this file's first event"),
        Field("unix_ns", "BIGINT", "its first event, nanoseconds since 1970 by its own clock"),
        Field("events", "BIGINT", "read"),
        Field("lost", "BIGINT", "could not be read"),
        Field("misplaced", "BIGINT", "have no usable time (ts = 0, or years away) and are in events only"),
    ),
)

GPU = Table(
    "gpu",
    "Device activity: the slices of kernels, copies and fills, each with its class.",
    (*SLICES.fields, Field("class", "VARCHAR", "COMPUTE, COMM or COPY")),
)

VIEWS = (SLICES, GPU, EVENTS, INSTANTS, COUNTERS, LINKS, TRACKS, STEPS, SEGMENTS)
"""What SQL users see; rank and segment stand before the columns listed."""

_TIMES = {"start_ns", "ts_ns", "source_ns", "target_ns"}


class Run:
    """The segments of one run, and a DuckDB connection in which they are tables."""

    def __init__(self, ingested: Ingested, comm_patterns: Sequence[str] = ()) -> None:
        self.store = ingested.store
        self.segments: list[SegmentEntry] = ingested.index.segments
        self.start_unix_ns = min(entry.unix_origin_ns for entry in self.segments)
        self._comm_patterns = (COLLECTIVE_NAME_PATTERN, *comm_patterns)

    @property
    def ranks(self) -> list[int]:
        return sorted({entry.rank for entry in self.segments})

    def shift_ns(self, entry: SegmentEntry) -> int:
        """From the run's start to the origin of this segment."""
        return entry.unix_origin_ns - self.start_unix_ns

    @cached_property
    def connection(self) -> duckdb.DuckDBPyConnection:
        """The views, for our own questions."""
        return self._connect()

    def _connect(self) -> duckdb.DuckDBPyConnection:
        import duckdb

        connection = duckdb.connect()
        self._create_segments(connection)
        for table in TABLES:
            self._create_view(connection, table)
        self._create_gpu(connection)
        return connection

    @cached_property
    def _guarded(self) -> duckdb.DuckDBPyConnection:
        """The same views for questions of others: nothing outside the store can be read, nothing written."""
        guarded = self._connect()
        guarded.execute(f"SET allowed_directories = [{sql_text(self.store)}]")
        guarded.execute("SET enable_external_access = false")
        guarded.execute("SET lock_configuration = true")
        return guarded

    def rows(self, sql: str, parameters: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        return self.connection.execute(sql, list(parameters)).fetchall()

    def records(self, sql: str, parameters: Sequence[object] = ()) -> list[dict[str, Any]]:
        cursor = self.connection.execute(sql, list(parameters))
        names = [column[0] for column in cursor.description or ()]
        return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]

    def arrays(self, sql: str, parameters: Sequence[object] = ()) -> dict[str, Any]:
        """Columns as numpy arrays; no column may be null."""
        columns: dict[str, Any] = self.connection.execute(sql, list(parameters)).fetchnumpy()
        return columns

    def query(self, sql: str) -> tuple[list[str], list[tuple[Any, ...]]]:
        """A user's question: one statement that only reads. Returns column names and rows."""
        import duckdb

        try:
            statements = self._guarded.extract_statements(sql)
            if len(statements) != 1 or statements[0].type not in (
                duckdb.StatementType.SELECT,
                duckdb.StatementType.EXPLAIN,
            ):
                raise QueryError(
                    "only one SELECT can be asked",
                    why="The run is read-only.",
                    hint="Write a single SELECT, DESCRIBE or SHOW TABLES.",
                )
            cursor = self._guarded.execute(sql)
            return [column[0] for column in cursor.description or ()], cursor.fetchall()
        except duckdb.Error as error:
            raise QueryError(
                "the query cannot be answered",
                why=str(error).strip(),
                hint=f"Tables: {', '.join(v.name for v in VIEWS)}",
            ) from error

    def export(self, view: Table, where: str, target: Path, options: str) -> None:
        """Write one view to a file in one pass."""
        self.connection.execute(
            f"COPY (SELECT * FROM {view.name} WHERE {where}) TO {sql_text(target)} ({options})"
        )

    def _create_segments(self, connection: duckdb.DuckDBPyConnection) -> None:
        columns = ", ".join(f"{field.name} {field.type}" for field in SEGMENTS.fields)
        connection.execute(f"CREATE TABLE segments ({columns})")
        for entry in self.segments:
            manifest = entry.manifest
            values = (
                entry.rank,
                entry.segment,
                str(entry.source),
                entry.rank_source,
                self.shift_ns(entry),
                entry.unix_origin_ns,
                manifest["events"],
                manifest["reading"]["events_lost"],
                manifest["misplaced"],
            )
            connection.execute(f"INSERT INTO segments VALUES ({', '.join('?' * len(values))})", list(values))

    def _files(self, table: Table) -> list[Path]:
        pattern = "events/*/events.parquet" if table is EVENTS else f"{table.name}.parquet"
        files = [
            file for entry in self.segments for file in sorted((self.store / entry.folder).glob(pattern))
        ]
        if len(files) < len(self.segments):
            raise StoreError(
                f"the store in {self.store} is damaged",
                why=f"{table.name}.parquet is missing for some ranks.",
                hint=f"Delete the folder and read the traces again: rm -r {self.store}",
            )
        return files

    def _create_view(self, connection: duckdb.DuckDBPyConnection, table: Table) -> None:
        files = ", ".join(sql_text(file) for file in self._files(table))
        partitions = "'rank': INTEGER, 'segment': INTEGER" + (", 'part': BIGINT" if table is EVENTS else "")
        source = f"read_parquet([{files}], hive_partitioning=true, hive_types={{{partitions}}}"
        columns = ", ".join(
            f"p.{name} + s.shift_ns AS {name}" if name in _TIMES and table is not EVENTS else f"p.{name}"
            for name in table.columns
        )
        if table is EVENTS:
            source += ", file_row_number=true"
            columns = f"{EVENT_ID} AS id, {columns}"
        connection.execute(
            f"CREATE VIEW {table.name} AS SELECT p.rank, p.segment, {columns} FROM {source}) p "
            "JOIN segments s ON s.rank = p.rank AND s.segment = p.segment"
        )

    def _create_gpu(self, connection: duckdb.DuckDBPyConnection) -> None:
        """Classes are decided once a name, not once a kernel."""
        communicates = " OR ".join(
            f"regexp_matches(name, {sql_text(pattern)})" for pattern in self._comm_patterns
        )
        gpu = ", ".join(map(sql_text, GPU_CATEGORIES))
        copies = ", ".join(map(sql_text, COPY_CATEGORIES))
        connection.execute(
            f"CREATE VIEW gpu AS SELECT s.*, CASE WHEN s.category IN ({copies}) THEN 'COPY' "
            "WHEN s.collective IS NOT NULL OR n.communicates THEN 'COMM' ELSE 'COMPUTE' END AS class FROM slices s "
            f"JOIN (SELECT name, {communicates} AS communicates FROM (SELECT DISTINCT name FROM slices "
            f"WHERE category IN ({gpu}))) n ON n.name = s.name WHERE s.category IN ({gpu})"
        )


def describe(view: Table) -> tuple[Field, ...]:
    """The columns of a view as SQL users see them."""
    if view is SEGMENTS:
        return view.fields
    own = (
        (Field("id", "BIGINT", "which part of the file, and row in it: part * 2**26 + row"),)
        if view is EVENTS
        else ()
    )
    return (*KEY_FIELDS, *own, *view.fields)
