"""A Result for notebooks: as a DuckDB relation, and from there as a pandas or Arrow table."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from rankscope.analysis.core.result import Result
from rankscope.errors import MissingPackageError
from rankscope.sql import sql_name
from rankscope.views.columns import plain

if TYPE_CHECKING:
    import duckdb

# What a column without a single known value would have held.
_TYPE_OF_UNIT = {"ns": "BIGINT", "bytes": "BIGINT", "count": "BIGINT", "flop": "BIGINT", "": "VARCHAR"}
_LARGEST = 2**63


def data_frame(result: Result) -> Any:
    """A pandas DataFrame, one column a column of the result."""
    _need("pandas", "df()")
    connection = _connect()
    return _relation(connection, result).df()


def arrow_table(result: Result) -> Any:
    """A pyarrow Table."""
    _need("pyarrow", "arrow()")
    connection = _connect()
    return _relation(connection, result).to_arrow_table()


def _connect() -> duckdb.DuckDBPyConnection:
    import duckdb

    return duckdb.connect()


def _need(package: str, method: str) -> None:
    from importlib.util import find_spec

    if find_spec(package) is None:
        raise MissingPackageError(
            f"{method} needs {package}",
            why="rankscope itself does not, so it is not installed with it.",
            hint=f"pip install {package}; or use .rows and .to_dict(), which need nothing.",
        )


def _relation(connection: duckdb.DuckDBPyConnection, result: Result) -> duckdb.DuckDBPyRelation:
    names = [column.name for column in result.columns]
    cells = {column.name: [plain(row.get(column.name)) for row in result.rows] for column in result.columns}
    types = {column.name: _type(cells[column.name], column.unit) for column in result.columns}
    for name in names:
        if types[name] == "VARCHAR":
            cells[name] = [_text(value) for value in cells[name]]
    # A list a column and not a record a row: DuckDB builds the rows.
    columns = ", ".join(f"unnest(?::{types[name]}[]) AS {sql_name(name)}" for name in names)
    return connection.sql(f"SELECT {columns}", params=[cells[name] for name in names])


def _type(values: list[Any], unit: str) -> str:
    """The narrowest type that holds every value."""
    kinds = {type(value) for value in values} - {type(None)}
    if not kinds:
        return _TYPE_OF_UNIT.get(unit, "DOUBLE")
    if kinds == {bool}:
        return "BOOLEAN"
    if kinds == {int}:
        large = any(abs(value) >= _LARGEST for value in values if value is not None)
        return "HUGEINT" if large else "BIGINT"
    if kinds <= {int, float}:
        return "DOUBLE"
    if kinds == {list}:
        return f"{_type([item for value in values if value is not None for item in value], '')}[]"
    return "VARCHAR"


def _text(value: Any) -> str | None:
    return value if value is None or isinstance(value, str) else json.dumps(value)
