"""Pickles are not trusted: what could run is refused before it runs, what could fill the memory is stopped."""

from __future__ import annotations

import gzip
import lzma
import os
import pickle
import struct
from pathlib import Path
from typing import Any

import pytest

from rankscope import native
from rankscope.errors import NotATraceError, ReadError
from rankscope.readers import find_reader
from rankscope.readers.pickled_tree import read_tree
from rankscope.readers.safe_pickle import Budget, load_plain
from rankscope.timeline.reading import ingest

SNAPSHOT: dict[str, Any] = {"segments": [], "device_traces": [[]], "allocator_settings": {}}


class Runs:
    """Pickles to a call."""

    def __init__(self, function: Any, *args: Any) -> None:
        self._call = (function, args)

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        return self._call


def write(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


@pytest.mark.parametrize("protocol", [2, 4, 5])
def test_plain_data_comes_back(tmp_path: Path, protocol: int) -> None:
    value: dict[Any, Any] = {"segments": [1, -(2**70), 2.5, None, True, "µ", (1, 2)], 7: {"a": []}}
    if protocol >= 4:  # older ones spell these as calls, which torch does not need
        value["more"] = [b"x", {3}, frozenset({4})]
    path = write(tmp_path / "a.pickle", pickle.dumps(value, protocol))
    assert load_plain(path)[0] == value
    compressed = {
        "gz": gzip.compress(pickle.dumps(value, protocol)),
        "xz": lzma.compress(pickle.dumps(value, protocol)),
    }
    for ending, content in compressed.items():
        packed = write(tmp_path / f"a.pickle.{ending}", content)
        assert load_plain(packed)[0] == value


@pytest.mark.parametrize("protocol", [0, 1, 2, 3, 4, 5])
@pytest.mark.parametrize(
    "call", ["os.system", "builtins.eval", "builtins.exec", "posix.remove", "builtins.getattr"]
)
def test_calls_are_refused_and_not_made(tmp_path: Path, protocol: int, call: str) -> None:
    flag = tmp_path / "flag"
    flag.touch()
    functions = {
        "os.system": Runs(os.system, f"rm {flag}"),
        "builtins.eval": Runs(eval, f"__import__('os').remove({str(flag)!r})"),
        "builtins.exec": Runs(exec, f"import os; os.remove({str(flag)!r})"),
        "posix.remove": Runs(os.remove, str(flag)),
        "builtins.getattr": Runs(getattr, flag, "unlink"),
    }
    path = write(tmp_path / "rank-0.pickle", pickle.dumps({**SNAPSHOT, "extra": functions[call]}, protocol))
    for load in (load_plain, read_tree)[: 1 + (protocol >= 2)]:  # older ones are not taken for pickles
        with pytest.raises(ReadError, match="is not read") as caught:
            load(path)
        assert "Nothing of it was run" in caught.value.why and caught.value.hint
        if call.startswith("posix"):
            assert "it refers to posix.remove" in caught.value.why
    assert flag.exists()


# Opcodes by hand: what no honest pickler writes.
_HEADER = b"\x80\x04"
HOSTILE = {
    "old instance": b"(S'true'\nios\nsystem\n.",
    "object": _HEADER + b"(cos\nsystem\nS'true'\no.",
    "new object": _HEADER + b"cbuiltins\nlist\n)\x81.",
    "extension": _HEADER + b"\x82\x01.",
    "persistent id": _HEADER + b"Pwhatever\n.",
    "binary persistent id": _HEADER + b"N\x51.",
    "call of a text": _HEADER + b"\x8c\x01a)R.",
    "state of a list": _HEADER + b"]}b.",
    "buffer": b"\x80\x05\x97.",
    "memo of two billion": _HEADER + b"]r\xff\xff\xff\x7f.",
    "memo of 128 million": _HEADER + b"]r\x00\x00\x00\x08.",
    "text of 2**60 bytes": _HEADER + b"\x8d" + struct.pack("<Q", 2**60) + b"abc.",
    "bytearray of 2**50 bytes": b"\x80\x05\x96" + struct.pack("<Q", 2**50) + b"abc.",
    "number of 2**31 bytes": _HEADER + b"\x8b\xff\xff\xff\x7fabc.",
    "frame of 2**60 bytes": _HEADER + b"\x95" + struct.pack("<Q", 2**60) + b"].",
    "unknown opcode": _HEADER + b"\xff.",
    "empty stack": _HEADER + b"a.",
    "pop of nothing": _HEADER + b"0.",
    "unhashable key": _HEADER + b"}]Ns.",
    "not a dictionary": _HEADER + b"].",
    "nothing behind the header": _HEADER,
    "future protocol": b"\x80\x09}.",
    "lists in lists": _HEADER + b"]" * 300_000 + b"a" * 299_999 + b".",
    "tuples in tuples": _HEADER + b")" + b"\x85" * 300_000 + b".",
}


@pytest.mark.slow(every_variation=True)
@pytest.mark.parametrize("content", HOSTILE.values(), ids=HOSTILE.keys())
def test_hostile_opcodes(tmp_path: Path, content: bytes) -> None:
    path = write(tmp_path / "rank-0.pickle", content)
    for load in (load_plain, read_tree):
        with pytest.raises(ReadError) as caught:
            load(path)
        assert caught.value.why and caught.value.hint


@pytest.mark.parametrize("cut", [0.2, 0.5, 0.9, 0.98])
def test_truncated(tmp_path: Path, cut: float) -> None:
    whole = pickle.dumps(
        {**SNAPSHOT, "device_traces": [[{"action": "alloc", "size": n} for n in range(500)]]}
    )
    packed = {"a.pickle.gz": gzip.compress(whole)}
    if cut < 0.98:  # the rest is the index of xz: all data are there
        packed["a.pickle.xz"] = lzma.compress(whole)
    for name, content in {"a.pickle": whole, **packed}.items():
        path = write(tmp_path / name, content[: int(len(content) * cut)])
        for load in (load_plain, read_tree):
            with pytest.raises(ReadError, match=r"cannot read|is not read"):
                load(path)


def test_a_small_file_cannot_grow_without_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rankscope.readers.safe_pickle.LARGEST_CONTENT", 1 << 20)
    monkeypatch.setattr("rankscope.readers.pickled_tree.LARGEST_CONTENT", 1 << 20)
    path = write(tmp_path / "a.pickle.gz", gzip.compress(pickle.dumps({"segments": b"\0" * (8 << 20)})))
    for load in (load_plain, read_tree):
        with pytest.raises(ReadError, match="is not read") as caught:
            load(path)
        assert "larger than" in caught.value.why


def test_a_file_that_repeats_itself_is_given_up() -> None:
    row: dict[str, Any] = {}
    budget = Budget(Path("x"), rows=1000)
    assert len(budget.dicts([row] * 600)) == 600
    with pytest.raises(ReadError, match="is not read"):
        budget.dicts([row] * 600)
    assert Budget(Path("x"), 10).take("text") == []


@pytest.mark.slow
def test_repeating_segments_do_not_hang(tmp_path: Path) -> None:
    block = {
        "size": 512,
        "state": "inactive",
        "address": 1,
        "frames": [{"filename": "a.py", "line": 1, "name": "f"}] * 500,
    }
    segment = {"device": 0, "address": 1, "total_size": 512, "blocks": [block] * 30_000}
    path = write(tmp_path / "rank-0.pickle", pickle.dumps({**SNAPSHOT, "segments": [segment] * 30_000}))
    assert path.stat().st_size < 200_000  # 900 million blocks in it
    with pytest.raises(ReadError, match="is not read"):
        list(find_reader(path).open(path).batches())


def test_other_pickles_are_not_loaded(tmp_path: Path) -> None:
    flag = tmp_path / "flag"
    flag.touch()
    path = write(tmp_path / "rank-0.pickle", pickle.dumps(Runs(os.remove, str(flag))))
    with pytest.raises(NotATraceError, match="neither a memory snapshot nor a flight-recorder dump"):
        find_reader(path)
    assert flag.exists()


@pytest.mark.slow
def test_a_hostile_file_among_good_ones(tmp_path: Path) -> None:
    """Through worker processes: the rest is read, the bad ones are named, nothing was run."""
    flag = tmp_path / "flag"
    flag.touch()
    deep_key = b")" + b"\x85" * 500_000  # hashing it may end the process that reads it, and that alone
    write(tmp_path / "rank-0.pickle", pickle.dumps(SNAPSHOT))
    write(tmp_path / "rank-1.pickle", pickle.dumps({**SNAPSHOT, "x": Runs(os.remove, str(flag))}))
    write(tmp_path / "rank-2.pickle", b"\x80\x04}(\x8c\x08segments]" + deep_key + b"Nu.")
    write(tmp_path / "rank-3.pickle", pickle.dumps(SNAPSHOT)[:-9])
    ingested = ingest([tmp_path])
    read = [0] if native.functions is None else [0, 2]  # the part in C hashes no keys
    assert [entry.rank for entry in ingested.index.segments] == read
    assert len(ingested.problems) == 4 - len(read)
    assert flag.exists()
