"""DuckDB's databases in memory, as readers and the store use them."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import duckdb


def new_database(**settings: str | int) -> duckdb.DuckDBPyConnection:
    """An empty database in memory.

    Without threads for reading from afar: DuckDB 2 starts four a core, each with its own arena of address space, and
    ends in a segmentation fault on a machine of 16 cores under `ulimit -v 4194304`.
    """
    import duckdb

    # DuckDB 1 refuses a setting that it does not know.
    asynchronous = {} if duckdb.__version__.startswith("1.") else {"async_threads": 0}
    return duckdb.connect(config={**asynchronous, **settings})
