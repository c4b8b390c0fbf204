"""The part in C and Python's unpickler give the same tables of a snapshot, whatever is in it; a large file is read."""

from __future__ import annotations

import gzip
import pickle
import resource
import sys
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest

from rankscope import native
from rankscope.errors import ReadError
from rankscope.readers import one_file
from rankscope.readers.memory_snapshot import SNAPSHOT
from rankscope.readers.pickled_tree import read_tree

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
from snapshots import write_snapshot

needs_c = pytest.mark.skipif(native.functions is None, reason="the C parts are not built")
ODD: tuple[Any, ...] = (
    None,
    True,
    -1,
    2**62,
    -(2**63),
    2**63,
    2**200,
    1.5,
    float("nan"),
    "",
    "text",
    [],
    {},
    (),
    b"x",
    "x" * 3000,
)


def any_value(random: Random, usual: Any) -> Any:
    return random.choice(ODD) if random.random() < 0.15 else usual


def random_snapshot(random: Random) -> dict[str, Any]:
    """Mostly as torch writes it; any value may be of another kind, any key may be missing."""
    frames = [
        {
            "filename": any_value(
                random, random.choice(("/a/train.py", "??", "/x/site-packages/torch/n.py"))
            ),
            "line": any_value(random, random.randint(0, 5)),
            "name": any_value(random, random.choice(("step", "at::_ops::mm::call(x)", "µ"))),
        }
        for _ in range(6)
    ]
    stacks = [random.choices(frames, k=random.randint(0, 4)) for _ in range(5)]

    def stack() -> Any:
        chosen = random.choice(stacks)
        return any_value(random, random.choice((chosen, list(chosen), tuple(chosen))))

    def some(**fields: Any) -> dict[str, Any]:
        return {key: any_value(random, value) for key, value in fields.items() if random.random() < 0.95}

    actions = ("alloc", "free_requested", "free_completed", "segment_alloc", "segment_free", "oom")
    traces = [
        [
            any_value(
                random,
                some(action=random.choice(actions), addr=random.randint(0, 9), size=random.randint(0, 2**40),
                     stream=0, time_us=10**15 + place, frames=stack()),
            )
            for place in range(random.randint(0, 40))
        ]
        for _ in range(random.randint(0, 3))
    ]  # fmt: skip
    segments = []
    for number in range(random.randint(0, 5)):
        blocks = [
            some(address=number * 100 + place, size=512, requested_size=500, frames=stack(),
                 state=random.choice(("active_allocated", "inactive")), history=[{"frames": stack()}])
            for place in range(random.randint(0, 4))
        ]  # fmt: skip
        segments.append(
            some(device=random.randint(0, 1), address=number * 100, total_size=2048, allocated_size=512,
                 active_size=512, requested_size=500, stream=0, segment_type="large", blocks=blocks)
        )  # fmt: skip
    settings = {"a": 1, "b": "text", "c": 0.5, "d": True, "e": [1], 7: 2}
    return {"segments": segments, "device_traces": traces, "allocator_settings": settings}


def tables(path: Path) -> list[Any]:
    """Everything that the reader gives, as plain values."""
    reading = SNAPSHOT.open(path)
    found: list[Any] = []
    for batch in reading.batches():
        columns = batch.columns()
        texts = list(columns.texts)
        names = [texts[code] for code in columns.name]
        args = [columns.args_of(index) for index in range(len(columns))]
        found.append((names, columns.time.tolist(), columns.memory.tolist(), columns.device.tolist(), args))
    tables = [batch._rows for _, batch in reading.further()]  # type: ignore[attr-defined]
    return [found, tables, reading.header]


@needs_c
@pytest.mark.parametrize("seed", range(12))
def test_the_same_tables_with_and_without_c(
    tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    random = Random(seed)
    content = pickle.dumps(random_snapshot(random), random.choice((4, 5)))
    path = tmp_path / "rank-0.pickle"
    path.write_bytes(gzip.compress(content) if seed % 2 else content)
    monkeypatch.setattr("rankscope.readers.memory_snapshot._BATCH_ROWS", 7)
    monkeypatch.setattr("rankscope.readers.pickled_tree._PIECE", 64)  # texts and batches cross the pieces
    in_c = tables(path)
    monkeypatch.setattr(native, "functions", None)
    assert repr(tables(path)) == repr(in_c)


@needs_c
@pytest.mark.parametrize("protocol", [2, 3])
def test_the_protocols_of_torchs_own_pickler(tmp_path: Path, protocol: int) -> None:
    """Memo slots are numbered in the instructions, texts have four bytes of length."""
    frames = [{"filename": f"/a/file {n}.py", "line": n, "name": "f"} for n in range(1, 300)]
    entries = [
        {"action": "alloc", "addr": 2**40 + n, "size": n, "frames": frames[n : n + 3]} for n in range(290)
    ]
    value = {"segments": [], "device_traces": [entries], "allocator_settings": {"a": 2**40, "b": -1}}
    found = []
    for number in (protocol, 4):
        path = tmp_path / f"{number}.pickle"
        path.write_bytes(pickle.dumps(value, number))
        found.append(tables(path))
    assert found[0] == found[1] and len(found[0][1][2]) == 290


@needs_c
def test_many_keys_and_long_lists(tmp_path: Path) -> None:
    """Python writes them in parts of a thousand; a key that is set twice has its last value."""
    value: dict[str, Any] = {f"key {n}": n for n in range(2500)} | {"list": list(range(5000)), "segments": []}
    path = tmp_path / "a.pickle"
    path.write_bytes(pickle.dumps(value)[:-1].removesuffix(b"u") + b"\x8c\x05key 7K\x09u.")
    tree = read_tree(path)
    keys, values = tree.pairs(tree.root)
    assert keys == [*value, "key 7"] and tree.plain(values)[:2500] == list(range(2500))
    assert tree.plain(tree.fields(tree.root, "key 7")) == [9]
    assert tree.plain(tree.fields(tree.root, "no such key")) == [None]
    assert tree.numbers(tree.members(tree.fields(tree.root, "list"))).tolist() == list(range(5000))


@needs_c
def test_equal_lists_have_equal_contents(tmp_path: Path) -> None:
    frame = {"line": 1}
    value = {"segments": [[frame, 2], [frame, 2], [frame, 3], (frame, 2), 5]}
    path = tmp_path / "a.pickle"
    path.write_bytes(pickle.dumps(value))
    tree = read_tree(path)
    lists = tree.members(tree.fields(tree.root, "segments"))
    contents = tree.contents(lists)
    assert contents[0] == contents[1] != contents[2] and contents[4] == -1
    assert tree.lengths(lists).tolist() == [2, 2, 2, 2, -1]


@needs_c
def test_values_of_another_tree_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.pickle"
    path.write_bytes(pickle.dumps({"segments": []}))
    tree = read_tree(path)
    for kind in range(1, 8):
        with pytest.raises(ValueError, match="not of this pickle"):
            tree.numbers(np.array([(kind << 28) + 1000], dtype=np.uint32))


def test_truncated_at_any_byte_and_garbage(tmp_path: Path) -> None:
    whole = pickle.dumps(random_snapshot(Random(3)))
    path = tmp_path / "rank-0.pickle"
    random = Random(4)
    for cut in range(0, len(whole), 7):
        path.write_bytes(whole[:cut])
        with pytest.raises(ReadError):
            tables(path)
        damaged = bytearray(whole)
        for _ in range(3):
            damaged[random.randrange(2, len(whole))] = random.randrange(256)
        path.write_bytes(damaged)
        try:
            tables(path)
        except ReadError as error:
            assert error.why and error.hint


def test_a_dictionary_that_is_searched_for_ever(tmp_path: Path) -> None:
    """Many references to a dictionary whose keys are set one by one."""
    path = tmp_path / "rank-0.pickle"
    keys = b"\x8c\x06actionNs" + b"".join(b"\x8c\x06%06dNs" % number for number in range(20_000))
    entries = b"h\x00" * 200_000
    path.write_bytes(b"\x80\x04}\x8c\x08segments]s\x8c\x0ddevice_traces](](}\x94" + keys + entries + b"ees.")
    if native.functions is not None:
        with pytest.raises(ReadError, match="is not read"), one_file(path):
            tables(path)


@pytest.mark.slow
@needs_c
def test_a_written_snapshot(tmp_path: Path) -> None:
    """The generator of the benchmark: what it says, and a tree that is smaller than the file."""
    path = tmp_path / "rank-0.pickle"
    known = write_snapshot(path, 2_000_000)
    (columns,) = [batch.columns() for batch in SNAPSHOT.open(path).batches()]
    assert len(columns) == known["entries"] == len(pickle.loads(path.read_bytes())["device_traces"][0])
    assert columns.memory[:, 1].max() == known["peak"]
    assert (columns.memory[:, 2] == known["reserved"]).all()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    read_tree(path)
    assert (
        resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 8 << 10
    )  # in KiB: two pieces, and a little
