"""Rows made in Python as a batch of events or of SQL, for small formats."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any

from rankscope.model import MEMORY_TYPE, READ_EVENTS, Table
from rankscope.readers.base import Batch, EventBatch, Reading
from rankscope.readers.columns import IN_PYTHON, EventColumns
from rankscope.readers.memory_file import MemoryFile
from rankscope.readers.sql_columns import read_columns
from rankscope.sql import sql_text

_ROWS_PER_BATCH = 100_000
_LARGEST_ROW = 64 << 20
_LARGEST_INTEGER = 2**63 - 1


class RowBatch(EventBatch):
    """Rows of one table. A column that is missing in a row is null."""

    def __init__(self, table: Table, rows: Iterable[Mapping[str, Any]]) -> None:
        self._table = table
        self._rows = list(rows)
        self._file = MemoryFile()

    def select(self) -> str:
        """Without checking the values: they nearly always fit into their columns."""
        return self._select(json.dumps(self._rows, ensure_ascii=False)[1:-1])

    def select_repaired(self) -> str:
        return self._select(json.dumps([_storable(row) for row in self._rows], ensure_ascii=False)[1:-1])

    def _select(self, content: str) -> str:
        types = {f.name: MEMORY_TYPE if f.type == "STRUCT" else f.type for f in self._table.fields}
        columns = ", ".join(f"{name}: {sql_text(kind)}" for name, kind in types.items())
        path = self._file.write_array(content.encode("utf-8", "replace"))
        return (
            f"SELECT {', '.join(types)} FROM read_json({path}, format='array', columns={{{columns}}}, "
            f"auto_detect=false, maximum_object_size={_LARGEST_ROW})"
        )

    def columns(self) -> EventColumns:
        """Of rows of model.READ_EVENTS."""
        return replace(read_columns(self), read_by=IN_PYTHON)

    def close(self) -> None:
        self._file.close()


class TablesReading(Reading):
    """Of a file that has rows of other tables besides its events."""

    tables: Sequence[tuple[Table, Iterable[Mapping[str, Any]]]] = ()
    """Complete after the last batch."""

    def further(self) -> Iterator[tuple[Table, Batch]]:
        for table, rows in self.tables:
            yield table, RowBatch(table, rows)


def name_row(what: str, pid: str, tid: str, name: str) -> dict[str, Any]:
    """The metadata event that names a process (`process_name`) or a thread (`thread_name`)."""
    return {"ph": "M", "category": "", "name": what, "pid": pid, "tid": tid, "args": {"name": name}}


def row_batches(rows: Iterator[Mapping[str, Any]]) -> Iterator[RowBatch]:
    """Rows of model.READ_EVENTS, some at a time."""
    while some := list(islice(rows, _ROWS_PER_BATCH)):
        yield RowBatch(READ_EVENTS, some)


def _storable(value: Any) -> Any:
    """The value with null for NaN, infinity, and integers beyond 64 bits."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, int) and abs(value) > _LARGEST_INTEGER:
        return None
    if isinstance(value, Mapping):
        return {str(key): _storable(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_storable(item) for item in value]
    return value
