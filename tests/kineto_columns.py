"""A block of Kineto's JSON read by the scanner and by way of DuckDB, to compare the two."""

from __future__ import annotations

from array import array

from event_rows import plain
from rankscope.readers.base import ReadReport
from rankscope.readers.columns import EventColumns
from rankscope.readers.kineto.reader import Block, JsonBatch, scan
from rankscope.readers.sql_columns import read_columns


def scanned(text: bytes) -> EventColumns | None:
    """By the scanner. An array has no byte after its last one, as bytes have: make sanitize would not see it read."""
    return scan(memoryview(array("B", text)))


def selected(text: bytes) -> EventColumns:
    """By way of DuckDB."""
    batch = JsonBatch(Block(text, 0, len(text), 0, None), ReadReport(), [])
    try:
        return read_columns(batch)
    finally:
        batch.close()


def same_or_refused(text: bytes) -> bool:
    """Compare the two; False if the scanner refuses."""
    columns = scanned(text)
    if columns is None:
        return False
    assert plain(columns) == plain(selected(text.strip(b" \t\r\n,")))
    return True
