"""What the store keeps of computed results: as it was, or made again, whatever has happened to its file."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import pytest
from numpy.typing import NDArray

from conftest import DATA, open_trace, slice_event, write_kineto
from rankscope.analysis.across_ranks import heatmap
from rankscope.files import is_temporary, temporary_path
from rankscope.store import derived, incoming
from rankscope.store.arrays import Ints
from rankscope.store.derived import Columns, Table, code_fingerprint, decode, encode, key_of, path_of
from rankscope.timeline import run as timeline_run
from rankscope.timeline.collectives import loading
from rankscope.timeline.reading import ingest
from rankscope.timeline.run import Run
from rankscope.viewer import lanes as viewer_lanes
from rankscope.viewer.session import Session


class Pair(NamedTuple):
    name: str
    values: Ints


@dataclass(frozen=True)
class Everything:
    number: int
    share: float | None
    text: str | None
    method: Literal["a", "b"]
    pairs: tuple[Pair, ...]
    spans: tuple[tuple[int, int], ...]
    pair: tuple[str, bool]
    by_name: dict[str, int]
    more: dict[str, Pair]
    nothing: Pair | None
    names: list[str]
    levels: list[NDArray[np.int32]]
    mask: NDArray[np.bool_]


def plain(value: Any) -> Any:
    """With arrays as lists and their type."""
    if isinstance(value, np.ndarray):
        return value.dtype.name, value.tolist()
    if isinstance(value, dict):
        return {name: plain(part) for name, part in value.items()}
    if isinstance(value, (tuple, list)):
        return type(value), [plain(part) for part in value]
    return plain(vars(value)) if isinstance(value, Everything) else value


VALUES = np.array([2**62, -1], dtype=np.int64)
FULL = Everything(
    1, 0.1, "\ud800 ünï", "b", (Pair("a", VALUES), Pair("b", VALUES[:0])), ((1, 2),), ("x", True), {"x": -(2**63)},
    {"y": Pair("a", VALUES)}, Pair("c", VALUES), ["n", "n"], [np.arange(3, dtype=np.int32)], VALUES > 0,
)  # fmt: skip
EMPTY = Everything(0, None, None, "a", (), (), ("", False), {}, {}, None, [], [], VALUES[:0] > 0)


@pytest.mark.parametrize("records", [[], [EMPTY], [FULL, EMPTY, FULL]])
@pytest.mark.parametrize("narrow", [True, False])
def test_records_become_columns_and_come_back(records: list[Everything], narrow: bool) -> None:
    columns = Columns(narrow=narrow)
    encode(columns, "record", Everything, records)
    columns.add_texts()
    back = decode(Columns(columns), "record", Everything)
    assert [plain(record) for record in back] == [plain(record) for record in records]
    kept = {name: memoryview(column).format for name, column in columns.items()}
    if records:
        assert kept["record.number"] == ("b" if narrow else "l") and kept["record.levels[][]"] == "i"


TABLE = Table[Everything]("clocks", Everything)


def test_rows_come_back_with_their_keys(tmp_path: Path) -> None:
    key = key_of([1, "build"], ("pattern",))
    TABLE.write(tmp_path, {0: (key, EMPTY), 2: (7, FULL)})
    rows = TABLE.rows(tmp_path)
    assert {rank: (key, plain(row)) for rank, (key, row) in rows.items()} == {
        0: (key, plain(EMPTY)),
        2: (7, plain(FULL)),
    }
    assert Table[Everything]("other", Everything).rows(tmp_path) == {}


@pytest.mark.parametrize("mapped", [True, False])
def test_a_changed_file_is_as_good_as_none(tmp_path: Path, mapped: bool) -> None:
    table = Table[Everything]("clocks", Everything, mapped=mapped)
    path = path_of(tmp_path, "clocks")
    assert table.load(tmp_path, 7) is None
    table.save(tmp_path, 7, FULL)
    assert plain(table.load(tmp_path, 7)) == plain(FULL)
    assert table.load(tmp_path, 8) is None
    whole = path.read_bytes()
    for at in range(0, len(whole), 5):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 4]) + whole[at + 1 :])
        assert table.load(tmp_path, 7) is None, at
    for content in (b"", b"\n", b"00000000", b"5\n00000000", whole[:-1], whole + whole):
        path.write_bytes(content)
        assert table.load(tmp_path, 7) is None, content[:20]


def test_odd_content_with_a_right_checksum_is_as_good_as_none(tmp_path: Path) -> None:
    path = path_of(tmp_path, "clocks")
    path.parent.mkdir()
    code = f'"code": "{code_fingerprint()}"'
    column = '{"name": "rank", "type": "int64", "length": 1}'
    for line in (
        "5",
        "[]",
        "{}",
        "{",
        f"{{{code}}}",
        *(f'{{{code}, "columns": [{c}]}}' for c in (1, column)),
    ):
        content = line.encode() + b" " * (-(len(line) + 1) % 8) + b"\n"
        path.write_bytes(content + derived._checksum([content]))
        assert TABLE.rows(tmp_path) == {}, line
    TABLE.save(tmp_path, 7, FULL)
    columns = derived._read(path, mapped=False)
    for name in columns:
        for odd in (np.array([9, 9]), np.array([-1.5]), np.zeros(0, bool)):
            pieces = derived.pack({"code": code_fingerprint()}, {**columns, name: odd})
            path.write_bytes(b"".join(map(bytes, [*pieces, derived._checksum(pieces)])))
            TABLE.load(tmp_path, 7)  # an odd record, or none


def test_the_fingerprint_is_of_version_and_sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fresh() -> str:
        code_fingerprint.cache_clear()
        return code_fingerprint()

    monkeypatch.setattr(derived, "_SOURCES", tmp_path)
    for package in derived._MAKERS:
        (tmp_path / package / "inner").mkdir(parents=True)
        (tmp_path / package / "inner" / "part.py").touch()
    seen = [fresh()]
    for package in derived._MAKERS:
        (tmp_path / package / "inner" / "part.py").write_text("# changed\n")
        (tmp_path / package / "notes.txt").touch()
        seen.append(fresh())
    assert fresh() == seen[-1]
    monkeypatch.setattr(derived, "__version__", "another")
    seen.append(fresh())
    assert len({*seen}) == len(derived._MAKERS) + 2
    monkeypatch.undo()
    fresh()


@pytest.fixture(scope="module")
def read(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("derived") / "run"
    shutil.copytree(DATA / "ddp-gloo4", folder, ignore=shutil.ignore_patterns(".rankscope"))
    open_trace(folder)
    return folder


KINDS: dict[str, tuple[str, str, Callable[[Run], Any]]] = {
    "clocks": ("clocks", "rankscope.timeline.run.measure", lambda run: run.clocks.ranks),
    "collectives": (
        "collectives",
        "rankscope.timeline.collectives.loading.matched_collectives",
        lambda run: run.collectives.start.tolist(),
    ),
    "map": (
        "map-00000",
        "rankscope.analysis.across_ranks.heatmap.rank_times",
        lambda run: plain(Session(run, "run").activity(1).compute),
    ),
    "slices": (
        "slices-00001-0",
        "rankscope.viewer.lanes._build",
        lambda run: plain(Session(run, "run").lanes(1, 0).lanes),
    ),
}


@pytest.mark.slow(every_variation=True)
@pytest.mark.parametrize("kind", KINDS)
def test_nothing_that_other_code_made_is_shown(
    kind: str, read: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each is made once, taken from the store, and made again by another version, after damage and of other files."""
    name, function, ask = KINDS[kind]
    folder = shutil.copytree(read, tmp_path / "run")
    module, _, attribute = function.rpartition(".")
    modules = {each.__name__: each for each in (timeline_run, loading, heatmap, viewer_lanes)}
    made: list[str] = []
    original = getattr(modules[module], attribute)

    def make(*given: Any) -> Any:
        made.append(kind)
        return original(*given)

    monkeypatch.setattr(function, make)

    def answer(times_made: int) -> Any:
        made.clear()
        result = ask(open_trace(folder))
        assert len(made) == times_made
        return result

    path = path_of(folder / ".rankscope", name)
    path.unlink(missing_ok=True)
    result = answer(1)
    assert path.stat().st_mode & 0o077 == 0
    assert answer(0) == result
    with monkeypatch.context() as upgraded:
        upgraded.setattr(derived, "code_fingerprint", lambda: "of another version")
        if kind == "collectives":
            _ = open_trace(folder).clocks  # else they are matched to measure the clocks
        assert answer(1) == result
        assert answer(0) == result
    assert answer(1) == result, "and the first version again"
    path.write_bytes(path.read_bytes()[:-9])
    assert answer(1) == result
    assert answer(0) == result
    trace = sorted(folder.glob("*rank*1*.json*"))[0]
    os.utime(trace, (1, 1))
    assert answer(1) == result, "read again"


def test_a_store_that_cannot_be_written_to(tmp_path: Path) -> None:
    (tmp_path / "derived").write_text("in the way")
    TABLE.save(tmp_path, 7, FULL)
    assert TABLE.load(tmp_path, 7) is None
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "derived").unlink()
    (tmp_path / "derived").symlink_to(tmp_path / "elsewhere")
    TABLE.save(tmp_path, 7, FULL)
    assert not list((tmp_path / "elsewhere").iterdir())
    (tmp_path / "derived").unlink()
    TABLE.save(tmp_path, 7, replace(FULL, number=2**70))
    assert TABLE.load(tmp_path, 7) is None, "a number of more than 64 bits is not kept"


def test_what_is_not_used_any_more_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "run"
    for rank in range(2):
        write_kineto(folder / f"rank-{rank}.json", [slice_event("op", 1000.0, 5.0)])
    store = ingest([folder]).store
    names = ["steps", "clocks", "collectives", "map-00000", "slices-00001-0", "map-00007", "slices-00000-1"]
    for name in names:
        Table[Everything](name, Everything).save(store, 7, EMPTY)
    part = temporary_path(store / "derived" / "part")
    TABLE.save(part, 7, EMPTY)
    (store / "derived" / "foreign").touch()
    write_kineto(folder / "rank-1.json", [slice_event("other", 1000.0, 5.0)])
    ingest([folder])
    left = {path.stem for path in (store / "derived").iterdir() if not is_temporary(path.name)}
    assert left == {*names[:5]}
    assert part.exists()
    monkeypatch.setattr(incoming, "_ABANDONED_AFTER_S", -1)
    write_kineto(folder / "rank-1.json", [slice_event("more", 1000.0, 5.0)])
    ingest([folder])
    assert not part.exists()
