"""A block of Kineto's JSON read by the scanner and by way of DuckDB, to compare the two."""

from __future__ import annotations

import json
from array import array
from typing import Any

from event_rows import flow_names
from rankscope.readers.base import ReadReport
from rankscope.readers.columns import EventColumns
from rankscope.readers.kineto import native_scan
from rankscope.readers.kineto.reader import JsonBatch, _Block
from rankscope.readers.sql_columns import read_columns


def scanned(text: bytes) -> EventColumns | None:
    """By the scanner. An array has no byte after its last one, as bytes have: make sanitize would not see it read."""
    return native_scan.scan(memoryview(array("B", text)))


def selected(text: bytes) -> EventColumns:
    """By way of DuckDB."""
    batch = JsonBatch(_Block(text, 0, len(text), 0, None), ReadReport(), [])
    try:
        return read_columns(batch)
    finally:
        batch.close()


def plain(columns: EventColumns) -> dict[str, list[Any]]:
    """Every column as Python values, with texts instead of codes."""
    texts = [*columns.texts, None]  # NO_TEXT is -1
    found: dict[str, list[Any]] = {
        name: [texts[code] for code in getattr(columns, name).tolist()]
        for name in ("phase", "category", "name", "pid", "tid", "collective")
    }
    found["flow"] = flow_names(columns)
    for name in ("time", "duration", "linked", "correlation", "external_id", "device", "stream", "bytes"):
        found[name] = getattr(columns, name).tolist()
    found["memory_events"], found["memory"] = columns.memory_events.tolist(), columns.memory.tolist()
    found["computing"] = columns.computing.tolist()
    found["shapes"] = [[texts[code] for code in row] for row in columns.shapes.tolist()]
    args = [columns.args_of(index) for index in range(len(columns))]
    found["args"] = [None if text is None else json.loads(text) for text in args]
    return found


def same_or_refused(text: bytes) -> bool:
    """Compare the two; False if the scanner refuses."""
    columns = scanned(text)
    if columns is None:
        return False
    assert plain(columns) == plain(selected(text.strip(b" \t\r\n,")))
    return True
