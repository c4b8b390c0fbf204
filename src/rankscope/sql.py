"""Quoting for SQL, as DuckDB and sqlite both read it, and DuckDB's databases in memory."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import duckdb


def sql_text(value: object) -> str:
    """A string literal."""
    return "'" + str(value).replace("'", "''") + "'"


def sql_texts(values: Iterable[object]) -> str:
    """String literals separated by commas, for IN (…)."""
    return ", ".join(map(sql_text, values))


def sql_name(name: str) -> str:
    """An identifier: the name of a table or a column."""
    return '"' + name.replace('"', '""') + '"'


def new_database(**settings: str | int) -> duckdb.DuckDBPyConnection:
    """An empty database in memory.

    Without threads for reading from afar: DuckDB 2 starts four a core, each with its own arena of address space, and
    ends in a segmentation fault on a machine of 16 cores under `ulimit -v 4194304`.
    """
    import duckdb

    # DuckDB 1 refuses a setting that it does not know.
    asynchronous = {} if duckdb.__version__.startswith("1.") else {"async_threads": 0}
    return duckdb.connect(config={**asynchronous, **settings})
