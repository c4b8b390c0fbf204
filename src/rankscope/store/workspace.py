"""The events of one segment inside DuckDB while its tables are made: views, small dictionaries, Parquet out."""

from __future__ import annotations

from copy import copy
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rankscope.model import TIMES, Table
from rankscope.readers import Batch
from rankscope.store.nesting import Ints

if TYPE_CHECKING:
    import duckdb

PARQUET_OPTIONS = """FORMAT parquet, COMPRESSION zstd, COMPRESSION_LEVEL 1, DICTIONARY_SIZE_LIMIT 2000,
    STRING_DICTIONARY_PAGE_SIZE_LIMIT 1000000, WRITE_BLOOM_FILTER false"""
"""Names and categories repeat; a column that has thousands of values (times, ids, arguments) is given up as a
dictionary early, and no question is about one value of them: that takes a fifth off writing."""

EVENT_ID = "(part << 26) + file_row_number"
"""An event's id says where it stands: which part of the file, which row. It costs no column."""

_LONGEST_FILE_NS = 1 << 46
"""20 hours; what is farther from the median time is a broken time stamp, not a part of the profile."""

_TRACK_KIND = """CASE
    WHEN category IN ('kernel', 'gpu_memcpy', 'gpu_memset') THEN 'stream'
    WHEN category = 'gpu_user_annotation' THEN 'annotation'
    WHEN category = 'cuda_sync' THEN 'sync'
    WHEN category = 'overhead' THEN 'overhead'
    WHEN category = 'Trace' THEN 'span'
    WHEN ph IN ('b', 'e', 'n') THEN 'async'
    WHEN ph = 'C' THEN 'counter'
    ELSE 'thread' END"""

_TRACK_TID = "CASE kind WHEN 'async' THEN category WHEN 'counter' THEN '' ELSE tid END"
"""Async events are told apart by category, counters by process."""


def sql_text(value: object) -> str:
    """A string literal."""
    return "'" + str(value).replace("'", "''") + "'"


class Workspace:
    """Views `events` (all) and `placed` (with a usable time), tables `names`, `categories` and `track_keys`.

    The tables turn texts into numbers; in `placed`, `track`, `name_code` and `category_code` are those numbers'
    keys. Times in `placed` count from the earliest of them.
    """

    def __init__(self, connection: duckdb.DuckDBPyConnection, folder: Path) -> None:
        self.connection = connection
        self.folder = folder
        parts = sql_text(folder / "events" / "*" / "events.parquet")
        connection.execute(f"""
            CREATE VIEW events AS
            SELECT {EVENT_ID} AS id, * EXCLUDE (file_row_number, part), {_TRACK_KIND} AS kind
            FROM read_parquet({parts}, file_row_number=true, hive_partitioning=true, hive_types={{'part': BIGINT}})
        """)
        self.origin_ns, self.timed, self.misplaced = self._place_events()
        self._make_dictionaries()

    def beside(self) -> Workspace:
        """The same for another thread: what is registered there is not seen here."""
        other = copy(self)
        other.connection = self.connection.cursor()
        return other

    def rows(self, sql: str) -> list[tuple[Any, ...]]:
        return self.connection.execute(sql).fetchall()

    def arrays(self, sql: str) -> dict[str, Ints]:
        columns: dict[str, Any] = self.connection.execute(sql).fetchnumpy()
        return columns

    def copy(self, select: str, table: Table) -> int:
        """Write a table with exactly the columns and types of the model; returns how many rows."""
        columns = ", ".join(f"CAST({f.name} AS {f.type}) AS {f.name}" for f in table.fields)
        target = sql_text(self.folder / f"{table.name}.parquet")
        copy = f"COPY (SELECT {columns} FROM ({select})) TO {target} ({PARQUET_OPTIONS})"
        row = self.connection.execute(copy).fetchone()
        return int(row[0]) if row else 0

    def copy_batch(self, batch: Batch, table: Table) -> int:
        """Write a table a reader gives; its points in time count from the segment's origin then."""
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
        """The earliest sensible time, how many events have one, and how many do not (ts = 0, or years away)."""
        ((middle, timed),) = self.rows("""
            SELECT quantile_disc(ts_ns, 0.5), count(*) FROM events WHERE ph <> 'M'
        """)
        middle = middle or 0
        low, high = middle - _LONGEST_FILE_NS, middle + _LONGEST_FILE_NS
        usable = f"ts_ns BETWEEN {low} AND {high} AND ph <> 'M'"
        ((origin, placed),) = self.rows(
            f"SELECT coalesce(min(ts_ns), 0), count(*) FROM events WHERE {usable}"
        )
        self.connection.execute(f"""
            CREATE VIEW placed AS
            SELECT * EXCLUDE (ts_ns, tid), ts_ns - {origin} AS time, {_TRACK_TID} AS tid FROM events WHERE {usable}
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
        """Text to number of one of the dictionaries."""
        return {text: code for code, text in self.rows(f"SELECT code, text FROM {table}")}
