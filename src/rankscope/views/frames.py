"""A Result as a data frame: pandas, polars or Arrow, each with exact types. The packages are imported when used.

Integers stay integers where values are missing. The type of a column depends on its unit first, and on its values
where it has no unit.
"""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from rankscope.analysis.core.result import Column, Result
from rankscope.errors import MissingPackageError
from rankscope.views.columns import values_of

if TYPE_CHECKING:
    import pandas
    import polars
    import pyarrow

_OF_UNIT = {"ns": "int", "bytes": "int", "count": "int", "flop": "int", "": "text"}
"""The type of a column without a known value; float for the other units, which are rates and shares."""
_LARGEST = 2**63


class _Typed(NamedTuple):
    """The values of a column, None where not known, and their type."""

    values: list[Any]
    type: str
    """bool, int, huge (more than 64 bits), float, text or list."""
    item: str = "text"
    """Of a list: the type of its items."""

    def of(self, types: Mapping[str, Any], list_of: Callable[[Any], Any]) -> Any:
        """Its type among those of a package."""
        return list_of(types[self.item]) if self.type == "list" else types[self.type]


def pandas_frame(result: Result) -> pandas.DataFrame:
    """A pandas DataFrame; integers, booleans and texts have the types that can be null."""
    _need("pandas", "to_pandas()")
    import pandas

    types = {"bool": "boolean", "int": "Int64", "float": "float64", "text": "string"}
    columns: dict[str, Any] = {
        name: pandas.Series(column.values, dtype=types.get(column.type, "object"))
        for name, column in _columns(result).items()
    }
    frame: pandas.DataFrame = pandas.DataFrame(columns)
    return frame


def polars_frame(result: Result) -> polars.DataFrame:
    """A polars DataFrame."""
    _need("polars", "to_polars()")
    import polars as pl

    types = {"bool": pl.Boolean, "int": pl.Int64, "huge": pl.Int128, "float": pl.Float64, "text": pl.String}
    return pl.DataFrame(
        [
            pl.Series(name, column.values, dtype=column.of(types, pl.List))
            for name, column in _columns(result).items()
        ]
    )


def arrow_table(result: Result) -> pyarrow.Table:
    """A pyarrow Table."""
    _need("pyarrow", "to_arrow()")
    import pyarrow as pa

    types = {
        "bool": pa.bool_(),
        "int": pa.int64(),
        "huge": pa.decimal128(38),
        "float": pa.float64(),
        "text": pa.string(),
    }
    return pa.table(
        {
            name: pa.array(column.values, type=column.of(types, pa.list_))
            for name, column in _columns(result).items()
        }
    )


def _need(package: str, method: str) -> None:
    if importlib.util.find_spec(package) is None:
        raise MissingPackageError(
            f"{method} needs {package}",
            why=f"{package} is not installed; it is not a dependency of rankscope.",
            hint=f"pip install {package}; or use .rows and .to_dict(), which need no package.",
        )


def _columns(result: Result) -> dict[str, _Typed]:
    return {column.name: _typed(values_of(result, column), column) for column in result.columns}


def _typed(values: list[Any], column: Column) -> _Typed:
    kind = _type(values, column.unit)
    if kind == "float":
        return _Typed([None if value is None else float(value) for value in values], kind)
    if kind == "text":
        return _Typed([_text(value) for value in values], kind)
    if kind == "list":
        item = _type([item for value in values if value is not None for item in value], "")
        if item not in ("bool", "int", "text"):
            return _Typed([_text(value) for value in values], "text")
        if item == "text":
            values = [None if value is None else [_text(item) for item in value] for value in values]
        return _Typed(values, kind, item)
    return _Typed(values, kind)


def _type(values: list[Any], unit: str) -> str:
    """The narrowest type that holds every value."""
    kinds = {type(value) for value in values} - {type(None)}
    if not kinds:
        return _OF_UNIT.get(unit, "float")
    if kinds == {bool}:
        return "bool"
    if kinds == {int} and unit in _OF_UNIT:
        return "huge" if any(abs(value) >= _LARGEST for value in values if value is not None) else "int"
    if kinds <= {int, float}:
        return "float"
    return "list" if kinds == {list} else "text"


def _text(value: Any) -> str | None:
    return value if value is None or isinstance(value, str) else json.dumps(value)
