"""Tables that only one format has: their readers select them with SQL, and DuckDB writes them."""

from __future__ import annotations

from pathlib import Path

from rankscope.files import close_to_others
from rankscope.model import TIMES, Table
from rankscope.readers import Batch
from rankscope.readers.sql_columns import connection
from rankscope.sql import sql_text
from rankscope.store.plain_folder import PlainFolder

_OPTIONS = "FORMAT parquet, COMPRESSION zstd, COMPRESSION_LEVEL 1, WRITE_BLOOM_FILTER false"


def write_selected(batch: Batch, table: Table, folder: Path, origin_ns: int) -> int:
    """Write a table with the columns and types of the model, its times from the origin; returns the number of rows."""
    import duckdb

    plain = PlainFolder(folder)
    target = plain.path / f"{table.name}.parquet"
    try:
        try:
            count = _copy(batch.select(), table, target, origin_ns)
        except (duckdb.IOException, duckdb.OutOfMemoryException):
            raise
        except duckdb.Error:
            count = _copy(batch.select_repaired(), table, target, origin_ns)
    finally:
        plain.close()
    close_to_others(folder / target.name)  # DuckDB leaves it as open as the umask says
    return count


def _copy(select: str, table: Table, target: Path, origin_ns: int) -> int:
    # Numbers of devices, steps and groups are the file's own: one that is out of range is null.
    columns = ", ".join(
        f"{'TRY_CAST' if f.type == 'INTEGER' else 'CAST'}({_shifted(f.name, origin_ns)} AS {f.type}) AS {f.name}"
        for f in table.fields
    )
    row = (
        connection()
        .execute(f"COPY (SELECT {columns} FROM ({select})) TO {sql_text(target)} ({_OPTIONS})")
        .fetchone()
    )
    return int(row[0]) if row else 0


def _shifted(column: str, origin_ns: int) -> str:
    return f"{column} - {origin_ns}" if column in TIMES else column
