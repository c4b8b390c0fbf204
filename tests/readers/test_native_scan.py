"""The scanner written in C gives the columns that the DuckDB reader gives, or refuses the block."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from conftest import DATA, SHARED
from rankscope import native
from rankscope.readers.base import ReadReport
from rankscope.readers.columns import EventColumns
from rankscope.readers.kineto import native_scan
from rankscope.readers.kineto.reader import JsonBatch, KinetoReading, _Block
from rankscope.readers.sql_columns import read_columns

pytestmark = pytest.mark.skipif(native.functions is None, reason="the C parts were not built")

TRACES = sorted([*DATA.rglob("*.json.gz"), *SHARED.glob("public/**/*.json.gz")])


def scanned(text: bytes) -> EventColumns | None:
    return native_scan.scan(memoryview(text))


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
        for name in ("phase", "category", "name", "pid", "tid", "flow", "collective")
    }
    for name in ("time", "duration", "linked", "correlation", "external_id", "device", "stream", "bytes"):
        found[name] = getattr(columns, name).tolist()
    found["memory_events"], found["memory"] = columns.memory_events.tolist(), columns.memory.tolist()
    found["computing"] = columns.computing.tolist()
    found["shapes"] = [[texts[code] for code in row] for row in columns.shapes.tolist()]
    args = [columns.args_of(index) for index in range(len(columns))]
    found["args"] = [None if text is None else json.loads(text) for text in args]
    return found


def check(text: bytes) -> bool:
    """Compare; False if the scanner refuses."""
    columns = scanned(text)
    if columns is None:
        return False
    assert plain(columns) == plain(selected(text))
    return True


def blocks(path: Path) -> Iterator[bytes]:
    for batch in KinetoReading(path).batches():
        block = batch._block
        yield bytes(memoryview(block.data)[block.start : block.end])
        batch.close()


@pytest.mark.parametrize("path", TRACES, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_real_traces(path: Path) -> None:
    for block in blocks(path):
        assert check(block)
