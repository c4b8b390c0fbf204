"""What the store keeps of computed results: as it was, or made again, whatever has happened to its file."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import pytest
from numpy.typing import NDArray

from conftest import DATA, open_trace, slice_event, write_kineto
from rankscope.files import is_temporary
from rankscope.store import derived, incoming
from rankscope.store.arrays import Ints
from rankscope.store.derived import (
    Columns,
    File,
    Table,
    code_fingerprint,
    decode,
    encode,
    keep_run_columns,
    key_of,
    path_of,
    write,
)
from rankscope.timeline import run as timeline_run
from rankscope.timeline.collectives import loading
from rankscope.timeline.reading import ingest
from rankscope.timeline.run import Run
from rankscope.viewer import lanes as viewer_lanes
from rankscope.viewer import session as viewer_session
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


TABLE = Table[Everything]("clocks", Everything, "rankscope.store.derived")


def test_a_row_is_used_with_its_key_only(tmp_path: Path) -> None:
    keys = {rank: key_of([rank, "build"], ("pattern",)) for rank in range(3)}
    write(path_of(tmp_path, "rollups"), {"clocks": TABLE.encode({r: (keys[r], EMPTY) for r in (0, 2)})})
    file = File(path_of(tmp_path, "rollups"))
    assert file.rows(TABLE, keys).keys() == {0, 2}
    assert file.rows(TABLE, {0: keys[0], 2: keys[1]}).keys() == {0}
    assert file.tables["clocks"].columns["rank"].tolist() == [0, 2]
    assert file.rows(Table("other", Everything, "rankscope.model"), keys) == {}


@pytest.mark.parametrize("mapped", [True, False])
def test_a_changed_file_is_as_good_as_none(tmp_path: Path, mapped: bool) -> None:
    table = Table[Everything]("clocks", Everything, "rankscope.store.derived", mapped=mapped)
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
    column = '{"name": "clocks/rank", "type": "int64", "length": 1}'
    lines = ["5", "[]", "{}", "{", '{"tables": 5}', '{"tables": {"clocks": 1}, "columns": [1]}']
    lines += [f'{{"tables": {tables}, "columns": [{column}]}}' for tables in ("{}", '{"clocks": 1}')]
    for line in lines:
        content = line.encode() + b" " * (-(len(line) + 1) % 8) + b"\n"
        path.write_bytes(content + derived._checksum([content]))
        assert File(path).tables == {} and TABLE.load(tmp_path, 0) is None, line
    columns = dict(TABLE.encode({0: (key_of(7), FULL)}).columns)
    for name in columns:
        for odd in (np.array([9, 9]), np.array([-1.5]), np.zeros(0, bool)):
            write(path, {"clocks": derived.RawTable(TABLE.fingerprint, {**columns, name: odd})})
            TABLE.load(tmp_path, 7)  # an odd record, or none


def test_the_fingerprint_is_of_version_schema_and_sources(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fresh(*modules: str) -> str:
        derived._source.cache_clear()
        code_fingerprint.cache_clear()
        return code_fingerprint(*modules)

    monkeypatch.setattr(derived, "_SOURCES", tmp_path)
    package = tmp_path / "rankscope"
    for name, text in {
        "model": "",
        "analysis/report": "def f():\n    from rankscope.analysis.part import x\nfrom rankscope.views.text import y\n",
        "analysis/part": "from rankscope.analysis.report import f\n",
        "analysis/other": "",
        "views/text": "",
    }.items():
        (package / name).parent.mkdir(parents=True, exist_ok=True)
        (package / f"{name}.py").write_text(text)
    before = fresh("rankscope.analysis.report")
    for name, changes in {
        "model": True,
        "analysis/part": True,
        "analysis/other": False,
        "views/text": False,
    }.items():
        with (package / f"{name}.py").open("a") as file:
            file.write("# changed\n")
        after = fresh("rankscope.analysis.report")
        assert (after != before) is changes, name
        before = after
    monkeypatch.setattr(derived, "__version__", "another")
    assert fresh("rankscope.analysis.report") != before
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
        "rankscope.viewer.session.rank_times",
        lambda run: plain(Session(run, "run").rank_time(1).compute),
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
    monkeypatch.setattr(loading, "_LEAST_KEPT", 0)
    folder = shutil.copytree(read, tmp_path / "run")
    module, _, attribute = function.rpartition(".")
    modules = {each.__name__: each for each in (timeline_run, loading, viewer_session, viewer_lanes)}
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
        upgraded.setattr(derived, "code_fingerprint", lambda *modules: "of another version")
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
    with pytest.raises(OverflowError):  # who saves it decides
        TABLE.encode({0: (7, replace(FULL, number=2**70))})


def test_what_is_not_used_any_more_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "run"
    for rank in range(2):
        write_kineto(folder / f"rank-{rank}.json", [slice_event("op", 1000.0, 5.0)])
    store = ingest([folder]).store
    (tables,) = store.glob("rank=00000/segment=0/*")
    names = [
        "rollups",
        "clocks",
        "collectives",
        "map-00000",
        "slices-00001-0",
        "map-00007",
        "slices-00000-1",
        "x",
    ]
    for name in names:
        write(path_of(store, name), {"clocks": TABLE.encode({0: (7, EMPTY)})})
    part = derived.path_of_part(store, "rollups")
    earlier = [
        tables / "lod" / "a.npy",
        store / "rank=00001" / "map.npy",
        store / "rollups" / "rank=00000.json",
    ]
    earlier += [store / "clocks.json", store / "collectives.json", store / "derived" / "foreign"]
    for path in (part, *earlier):
        path.parent.mkdir(exist_ok=True)
        path.touch()
    write_kineto(folder / "rank-1.json", [slice_event("other", 1000.0, 5.0)])
    ingest([folder])
    left = {
        path.name.partition(".")[0] for path in (store / "derived").iterdir() if not is_temporary(path.name)
    }
    assert left == {*names[:5]}
    assert part.exists() and not any(path.exists() for path in earlier)
    monkeypatch.setattr(incoming, "_ABANDONED_AFTER_S", -1)
    write_kineto(folder / "rank-1.json", [slice_event("more", 1000.0, 5.0)])
    ingest([folder])
    assert not part.exists()


def test_parts_are_joined_alike_however_the_ranks_are_divided(tmp_path: Path) -> None:
    chance = random.Random(5)
    records = {rank: chance.choice([FULL, EMPTY, replace(FULL, text=f"t{rank}")]) for rank in range(12)}
    keys = {rank: rank + 100 for rank in records}
    written = []
    for case, together in enumerate((1, 3, 12)):
        store = tmp_path / str(case)
        order = chance.sample(list(records), len(records))
        chunks = [order[at : at + together] for at in range(0, len(order), together)]
        old = {1: (keys[1], replace(EMPTY, text="before")), 99: (7, FULL)}
        write(path_of(store, "rollups"), {"clocks": TABLE.encode(old), "other": TABLE.encode(old)})
        parts = [{"clocks": TABLE.encode({rank: (0, records[rank]) for rank in chunk})} for chunk in chunks]
        tables = keep_run_columns(store, keys, parts)
        written.append(path_of(store, "rollups").read_bytes())
        file = File(path_of(store, "rollups"))
        assert {name: [*table.columns] for name, table in tables.items()} == {
            name: [*table.columns] for name, table in file.tables.items()
        }
        assert file.tables["clocks"].columns["rank"].tolist() == [*range(12), 99]
        rows = file.rows(TABLE, keys)
        assert {rank: plain(row) for rank, row in rows.items()} == {
            rank: plain(row) for rank, row in records.items()
        }
        assert plain(file.rows(TABLE, {99: 7})[99]) == plain(FULL)
        assert file.tables["other"].columns["rank"].tolist() == [1, 99]
    assert written[0] == written[1] == written[2]


def test_parts_replace_what_other_code_made_and_are_written_when_interrupted(tmp_path: Path) -> None:
    path = path_of(tmp_path, "rollups")
    write(path, {"clocks": TABLE.encode({3: (7, FULL)})._replace(fingerprint="older")})

    def parts() -> Iterator[dict[str, derived.RawTable]]:
        yield {"clocks": TABLE.encode({0: (0, FULL)})}
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        keep_run_columns(tmp_path, {0: 5, 1: 6}, parts())
    assert File(path).tables["clocks"].columns["rank"].tolist() == [0]
    assert plain(File(path).rows(TABLE, {0: 5})[0]) == plain(FULL)
