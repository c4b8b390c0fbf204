"""Large columns are in files while tables are made: the tables are the same, and a full disk is no error."""

from __future__ import annotations

import mmap
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rankscope import native
from rankscope.readers.pickled_tree import PickledTree
from rankscope.store import event_log, table_files
from rankscope.store.table_files import Scratch
from rankscope.timeline.segment import build_segment

TRACE = Path(__file__).parents[1] / "data" / "gpt-h200-stack" / "gpt.pt.trace.json.gz"


def in_file(array: np.ndarray) -> bool:
    memory: Any = array.base
    while isinstance(memory, np.ndarray):
        memory = memory.base
    return isinstance(memory, memoryview) and isinstance(memory.obj, mmap.mmap)


@pytest.fixture
def everything_in_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_files, "_LEAST_BYTES", 1000)
    monkeypatch.setattr(table_files, "_BLOCK_BYTES", 100_000)
    monkeypatch.setattr(table_files, "_MOST_TOUCHED", 50_000)
    monkeypatch.setattr(event_log, "_MOST_IN_MEMORY", 0)


@pytest.mark.usefixtures("everything_in_files")
@pytest.mark.parametrize("count", [3, 5000])
def test_values_survive_release(tmp_path: Path, count: int) -> None:
    space = Scratch(tmp_path)
    values = [np.arange(count) * factor for factor in range(1, 9)]
    arrays = [function(array) for array in values for function in (space.moved, space.packed)]
    space.release()
    for place, array in enumerate(arrays):
        assert (array == values[place // 2]).all()
    assert [in_file(array) for array in arrays] == [
        is_packed or count > 125 for _ in values for is_packed in (0, 1)
    ]
    assert space.moved(arrays[1]) is arrays[1], "it is in the file already"
    assert not list(tmp_path.iterdir()), "the files have no names"


@pytest.mark.usefixtures("everything_in_files")
def test_equal_values_take_no_memory(tmp_path: Path) -> None:
    constant = np.broadcast_to(np.int64(7), 5000)
    space = Scratch(tmp_path)
    assert space.moved(constant) is constant and space.packed(constant) is constant


@pytest.mark.usefixtures("everything_in_files")
def test_a_full_disk_leaves_them_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*args: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    array = Scratch(tmp_path).moved(np.arange(5000))
    assert not in_file(array) and (array == np.arange(5000)).all()


def tables(folder: Path, threads: int) -> dict[str, bytes]:
    folder.mkdir()
    build_segment(TRACE, folder, threads, lambda read, doing: None)
    return {path.name: path.read_bytes() for path in sorted(folder.glob("*.parquet"))}


@pytest.mark.slow
def test_the_tables_are_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    expected = tables(tmp_path / "memory", 2)
    request.getfixturevalue("everything_in_files")
    assert tables(tmp_path / "files", 1) == expected


@pytest.mark.slow
def test_a_pickle_that_is_kept_in_files(tmp_path: Path) -> None:
    """Six million numbers, in lists that grow."""
    if native.functions is None:
        pytest.skip("the C parts are not built")
    path = tmp_path / "large.pickle"
    numbers = b"(" + b"".join(b"K" + bytes([number % 251]) for number in range(1000)) + b"e"
    path.write_bytes(b"\x80\x04}(\x8c\x01a](" + b"K\x01e" + numbers * 6000 + b"u.")
    tree = PickledTree(path)
    members = tree.members(tree.fields(tree.root, "a"))
    assert len(members) == 6_000_001
    assert (tree.numbers(members[1:]).reshape(6000, 1000) == np.arange(1000) % 251).all()
