"""Quoting for SQL, as DuckDB and sqlite both read it."""

from __future__ import annotations

from collections.abc import Iterable


def sql_text(value: object) -> str:
    """A string literal."""
    return "'" + str(value).replace("'", "''") + "'"


def sql_texts(values: Iterable[object]) -> str:
    """String literals separated by commas, for IN (…)."""
    return ", ".join(map(sql_text, values))


def sql_name(name: str) -> str:
    """An identifier: the name of a table or a column."""
    return '"' + name.replace('"', '""') + '"'
