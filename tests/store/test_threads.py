"""A file of many blocks is read into the same store by one thread and by sixteen."""

from __future__ import annotations

import gzip
import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from rankscope.readers.kineto import reader
from rankscope.timeline import nesting, recording, segment, slices

pytestmark = pytest.mark.slow
TRACE = Path(__file__).parents[1] / "data" / "gpt-h200-stack" / "gpt.pt.trace.json.gz"


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """So that a small file has some hundred parts, and threads take turns often."""
    monkeypatch.setattr(segment, "_SMALL_BYTES", 0)
    monkeypatch.setattr(reader, "BLOCK_BYTES", 80_000)
    for module, name in ((nesting, "_SLICES_AT_ONCE"), (recording, "_EVENTS_AT_ONCE")):
        monkeypatch.setattr(module, name, 100)
    monkeypatch.setattr(slices, "_ROWS_AT_A_TIME", 500)
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(interval)


def stored(path: Path, folder: Path, threads: int) -> dict[str, bytes]:
    folder.mkdir()
    segment.build_segment(path, folder, threads, lambda read, doing: None)
    return {file.name: file.read_bytes() for file in folder.iterdir()}


@pytest.mark.parametrize("damaged", [True, False], ids=["damaged", "whole"])
def test_one_thread_and_sixteen_make_the_same_store(tmp_path: Path, damaged: bool) -> None:
    text = gzip.decompress(TRACE.read_bytes())
    path = tmp_path / "rank-00000.pt.trace.json"
    if damaged:  # in every tenth part, so that some blocks are read by the scanner and some are mended
        pieces = text.split(b'"ph": "X"')
        step = len(pieces) // 10
        text = (
            b"".join(
                piece + (b'"ph": X' if number % step == step // 2 else b'"ph": "X"')
                for number, piece in enumerate(pieces[:-1])
            )
            + pieces[-1]
        )
    path.write_bytes(text)
    expected = stored(path, tmp_path / "1", 1)
    assert len(text) > 30 * reader.BLOCK_BYTES and "events.parquet" in expected
    assert (json.loads(expected["segment.json"])["reading"]["events_lost"] > 0) == damaged
    assert stored(path, tmp_path / "16", 16) == expected
