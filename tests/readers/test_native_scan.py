"""The scanner written in C gives the columns that the DuckDB reader gives, or refuses the block."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from conftest import DATA, SHARED
from fuzz.codes import Codes
from fuzz.json_text import events_text
from kineto_columns import same_or_refused
from rankscope import native
from rankscope.readers.kineto.reader import KinetoReading

pytestmark = pytest.mark.skipif(native.functions is None, reason="the C parts were not built")

TRACES = sorted([*DATA.rglob("*.json.gz"), *SHARED.glob("public/**/*.json.gz")])


def blocks(path: Path) -> Iterator[bytes]:
    for batch in KinetoReading(path).batches():
        block = batch._block
        yield bytes(memoryview(block.data)[block.start : block.end])
        batch.close()


@pytest.mark.parametrize("path", TRACES, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_real_traces(path: Path) -> None:
    for block in blocks(path):
        assert same_or_refused(block)


@given(st.binary(max_size=200))
@settings(max_examples=40, deadline=None)
def test_any_json_is_read_the_same_or_refused(data: bytes) -> None:
    event("read" if same_or_refused(events_text(Codes(data))) else "refused")
