"""The events of one segment in DuckDB while its tables are written: views, dictionaries, Parquet output."""

from __future__ import annotations

from copy import copy
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rankscope.model import SNAPSHOT_CATEGORY, TIMES, Table
from rankscope.readers import Batch
from rankscope.sql import sql_text, sql_texts
from rankscope.store.arrays import Ints
from rankscope.store.categories import translated_events

if TYPE_CHECKING:
    import duckdb

PARQUET_OPTIONS = """FORMAT parquet, COMPRESSION zstd, COMPRESSION_LEVEL 1, DICTIONARY_SIZE_LIMIT 2000,
    STRING_DICTIONARY_PAGE_SIZE_LIMIT 1000000, WRITE_BLOOM_FILTER false"""
"""Names and categories repeat, so dictionaries pay off; columns with thousands of values (times, ids, arguments) stop
using one early. No query looks up a single value of those, so Bloom filters are off. Both save a fifth of the time
of writing."""

EVENT_ID = "(part << 26) + file_row_number"
"""An event's id is its part of the file and its row in it, so it needs no column."""

_LONGEST_FILE_NS = 1 << 46
"""About 20 hours. A timestamp farther from the median is treated as broken."""

_TRACK_TID = "CASE kind WHEN 'async' THEN category WHEN 'counter' THEN '' ELSE tid END"
"""Async events have a track per category, counters one per process."""


class Workspace:
    """Views `events` (all) and `placed` (those with a usable time); tables `names`, `categories` and `track_keys`.

    The tables number the distinct names, categories and tracks. Times in `placed` count from the earliest one, and
    categories are those of today's Kineto.
    """

    def __init__(self, connection: duckdb.DuckDBPyConnection, folder: Path) -> None:
        """`folder` is the path of a PlainFolder."""
        self.connection = connection
        self.folder = folder
        parts = sql_texts(sorted((folder / "events").glob("*/events.parquet")))
        connection.execute(f"""
            CREATE VIEW file_events AS
            SELECT {EVENT_ID} AS id, * EXCLUDE (file_row_number, part)
            FROM read_parquet([{parts}], file_row_number=true, hive_partitioning=true, hive_types={{'part': BIGINT}})
        """)
        connection.execute(f"CREATE VIEW events AS {translated_events(connection)}")
        self.origin_ns, self.timed, self.misplaced = self._place_events()
        self._make_dictionaries()

    def beside(self) -> Workspace:
        """The same for another thread, with its own registered arrays."""
        other = copy(self)
        other.connection = self.connection.cursor()
        return other

    def rows(self, sql: str) -> list[tuple[Any, ...]]:
        return self.connection.execute(sql).fetchall()

    def arrays(self, sql: str) -> dict[str, Ints]:
        columns: dict[str, Any] = self.connection.execute(sql).fetchnumpy()
        return columns

    def copy(self, select: str, table: Table) -> int:
        """Write a table with the columns and types of the model; returns the number of rows."""
        # Numbers of devices, steps and groups are the file's own: one that is out of range is null.
        columns = ", ".join(
            f"{'TRY_CAST' if f.type == 'INTEGER' else 'CAST'}({f.name} AS {f.type}) AS {f.name}"
            for f in table.fields
        )
        target = sql_text(self.folder / f"{table.name}.parquet")
        copy = f"COPY (SELECT {columns} FROM ({select})) TO {target} ({PARQUET_OPTIONS})"
        row = self.connection.execute(copy).fetchone()
        return int(row[0]) if row else 0

    def copy_batch(self, batch: Batch, table: Table) -> int:
        """Write a table from a reader, with its times made relative to the segment's origin."""
        import duckdb

        times = [name for name in table.columns if name in TIMES]
        shifted = ", ".join(f"{name} - {self.origin_ns} AS {name}" for name in times)
        replace = f" REPLACE ({shifted})" if times else ""
        try:
            return self.copy(f"SELECT *{replace} FROM ({batch.select()})", table)
        except (duckdb.IOException, duckdb.OutOfMemoryException):
            raise
        except duckdb.Error:
            return self.copy(f"SELECT *{replace} FROM ({batch.select_repaired()})", table)

    def _place_events(self) -> tuple[int, int, int]:
        """The earliest usable time, and the number of events with and without one (ts = 0, or years away)."""
        # Memory snapshots of older versions of torch have no times; their order is sufficient.
        ((middle, timed),) = self.rows(f"""
            SELECT quantile_disc(ts_ns, 0.5), count(*) FILTER (ts_ns IS NOT NULL OR category <> '{SNAPSHOT_CATEGORY}')
            FROM events WHERE ph <> 'M'
        """)
        middle = middle or 0
        low, high = middle - _LONGEST_FILE_NS, middle + _LONGEST_FILE_NS
        usable = f"ts_ns BETWEEN {low} AND {high} AND ph <> 'M'"
        ((origin, placed),) = self.rows(
            f"SELECT coalesce(min(ts_ns), 0), count(*) FROM events WHERE {usable}"
        )
        self.connection.execute(f"""
            CREATE VIEW placed AS
            SELECT * EXCLUDE (ts_ns, dur_ns, tid), ts_ns - {origin} AS time, {_TRACK_TID} AS tid,
                   CASE WHEN dur_ns > {_LONGEST_FILE_NS} THEN {_LONGEST_FILE_NS}
                        WHEN dur_ns < -{_LONGEST_FILE_NS} THEN -{_LONGEST_FILE_NS} ELSE dur_ns END AS dur_ns
            FROM events WHERE {usable}
        """)
        return int(origin), int(placed), int(timed - placed)

    def _make_dictionaries(self) -> None:
        for table, column in (("names", "name"), ("categories", "category")):
            self.connection.execute(f"""
                CREATE TABLE {table} AS
                SELECT (row_number() OVER (ORDER BY {column}) - 1)::BIGINT AS code, {column} AS text
                FROM (SELECT DISTINCT {column} FROM placed)
            """)
        self.connection.execute("""
            CREATE TABLE track_keys AS
            SELECT (row_number() OVER (ORDER BY kind, pid, tid) - 1)::BIGINT AS track, *
            FROM (
                SELECT kind, pid, tid,
                       CASE WHEN kind IN ('stream', 'annotation') THEN min(coalesce(device, TRY_CAST(pid AS BIGINT)))
                       END AS device,
                       CASE WHEN kind IN ('stream', 'annotation') THEN min(coalesce(stream, TRY_CAST(tid AS BIGINT)))
                       END AS stream
                FROM placed WHERE ph NOT IN ('s', 't', 'f') GROUP BY kind, pid, tid
            )
        """)

    def codes(self, table: str) -> dict[str, int]:
        """Text to code, of `names` or `categories`."""
        return {text: code for code, text in self.rows(f"SELECT code, text FROM {table}")}
