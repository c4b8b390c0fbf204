"""Damage to a store is found and repaired from the raw files, or reported; a whole store needs no raw files."""

from __future__ import annotations

import copy
import functools
import itertools
import operator
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from conftest import slice_event, write_kineto
from rankscope.errors import StoreError
from rankscope.store import index
from rankscope.store.checksums import read_checked_json, write_checked_json
from rankscope.store.index import Index
from rankscope.store.ingest import IngestProgress, Options
from rankscope.timeline.reading import ingest
from rankscope.timeline.run import Run, open_run


def write_run(folder: Path, ranks: int = 2) -> Path:
    for rank in range(ranks):
        events = [slice_event(f"op {i}", 1000.0 + 10 * i, 5.0) for i in range(3)]
        write_kineto(folder / f"rank-{rank}.json", events)
    return folder


def names(run: Run) -> list[tuple[int, str]]:
    return [(rank, name) for rank, name in run.rows("SELECT rank, name FROM slices ORDER BY ALL")]


EXPECTED = [(rank, f"op {i}") for rank in range(2) for i in range(3)]


def flip(path: Path, at: int) -> None:
    """One bit of one byte; the file keeps its size and time, as on a bad disk."""
    status = path.stat()
    content = bytearray(path.read_bytes())
    content[at] ^= 4
    path.write_bytes(content)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def tables_of(store: Path, rank: int) -> Path:
    (folder,) = store.glob(f"rank={rank:05d}/segment=0/*")
    return folder


@pytest.mark.slow
def test_a_damaged_table_is_made_again_from_its_raw_file(tmp_path: Path) -> None:
    store = ingest([write_run(tmp_path)]).store
    flip(tables_of(store, 1) / "slices.parquet", 100)
    said: list[str] = []
    ingested = ingest([tmp_path], progress=IngestProgress(say=said.append))
    assert [entry.rank for entry in ingested.read] == [1]
    assert said == [
        "the store is damaged at rank 1 (slices.parquet has another checksum than when it was written): "
        "rank-1.json is read again"
    ]
    assert names(Run(ingested)) == EXPECTED
    assert ingest([tmp_path]).read == ()


@pytest.mark.slow
def test_damage_without_the_raw_file_is_reported(tmp_path: Path) -> None:
    store = ingest([write_run(tmp_path / "run")]).store
    shutil.move(tmp_path / "run" / "rank-1.json", tmp_path)
    (tmp_path / "run" / "rank-0.json").unlink()
    (tables_of(store, 1) / "gpu.parquet").unlink()
    with pytest.raises(StoreError, match="is damaged at rank 1") as caught:
        ingest([tmp_path / "run"])
    assert "gpu.parquet is missing" in caught.value.why and "Put the trace back" in caught.value.hint
    shutil.move(tmp_path / "rank-1.json", tmp_path / "run")
    with pytest.raises(StoreError, match="rank 0"):
        shutil.rmtree(tables_of(store, 0))
        ingest([store])


@pytest.mark.slow
def test_a_lost_index_is_made_from_the_segments(tmp_path: Path) -> None:
    store = ingest([write_run(tmp_path / "run")]).store
    for raw in (tmp_path / "run").glob("*.json"):
        raw.unlink()
    for content in (
        None,
        b'{"format": 7, "segm',
        (store / "store.json").read_bytes().replace(b"rank-1", b"rank-9"),
    ):
        (store / "store.json").unlink()
        if content is not None:
            (store / "store.json").write_bytes(content)
        run = Run(ingest([tmp_path / "run"]))
        assert names(run) == EXPECTED
        assert not Index.load(store).recovered
        assert [(entry.rank, entry.rank_source, entry.source.name) for entry in run.segments] == [
            (rank, "file name", f"rank-{rank}.json") for rank in range(2)
        ]


ODD: tuple[object, ...] = (None, -1, 1 << 70, "x", "../../x", "\0", "\ud800", [], [1], {}, {"x": []})


def places(value: object, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Every value within a JSON value, by the keys that lead to it; of lists the first."""
    yield path
    if isinstance(value, dict):
        for key, item in value.items():
            yield from places(item, (*path, key))
    elif isinstance(value, list) and value:
        yield from places(value[0], (*path, 0))


@pytest.mark.slow
def test_an_odd_index_with_a_right_checksum_is_an_odd_index(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever wrote it: it is made anew, or used, and leads nowhere out of the store."""

    def as_read(changed_path: Path, content: dict[str, Any]) -> Callable[[Path], dict[str, Any]]:
        def read(path: Path) -> dict[str, Any]:
            if path != changed_path and path.name == "store.json":
                raise FileNotFoundError
            return content if path == changed_path else read_checked_json(path)

        return read

    store = ingest([write_run(tmp_path / "run", ranks=1)]).store
    (segment,) = store.glob("rank=*/segment=*/*/segment.json")
    for path in (store / "store.json", segment):
        content = read_checked_json(path)
        wanted = [place for place in places(content) if place and "files" not in place[:-2]]
        for place, odd in itertools.product(wanted, ODD):
            changed: Any = copy.deepcopy(content)
            within = functools.reduce(operator.getitem, place[:-1], changed)
            within[place[-1]] = odd
            monkeypatch.setattr(index, "read_checked_json", as_read(path, changed))
            for entry in Index.load(store).segments:
                assert (store / entry.folder).parent.parent.parent == store
                assert not entry.is_current() or entry.unix_origin_ns + entry.rank < 1 << 63
                assert all(Path(name).name == name for name in entry.files)
        write_checked_json(path, changed)
    monkeypatch.undo()
    assert names(Run(ingest([tmp_path / "run"]))) == EXPECTED[:3]


@pytest.mark.slow
def test_damage_while_a_run_is_open(tmp_path: Path) -> None:
    run = open_run([write_run(tmp_path)])
    assert names(run) == EXPECTED
    (tables_of(run.store, 0) / "slices.parquet").write_bytes(b"PAR1")
    with pytest.raises(StoreError, match="was changed while it was open") as caught:
        names(run.shift(0))  # has read nothing yet
    assert "slices.parquet has 4 bytes" in caught.value.why and "again" in caught.value.hint
    assert names(open_run([tmp_path])) == EXPECTED


@pytest.mark.slow
def test_a_whole_store_opens_without_its_raw_files(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run")
    ingest([folder])
    ingest([folder / "rank-0.json"])
    for raw in folder.glob("*.json"):
        raw.unlink()
    assert names(open_run([folder])) == EXPECTED
    assert names(open_run([folder / "rank-0.json"])) == EXPECTED[:3]
    moved = folder.rename(tmp_path / "moved")
    assert names(open_run([moved])) == EXPECTED
    folder.mkdir()
    write_kineto(folder / "rank-0.json", [slice_event("of another run", 1.0, 1.0)])
    assert names(open_run([moved])) == EXPECTED


@pytest.mark.slow
def test_the_rank_of_a_replaced_file_is_the_new_one(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    write_kineto(path, [slice_event("a", 1.0, 1.0)], distributedInfo={"rank": 3, "world_size": 8})
    assert open_run([tmp_path]).ranks == [3]
    write_kineto(path, [slice_event("bb", 1.0, 1.0)], distributedInfo={"rank": 5, "world_size": 8})
    assert open_run([tmp_path]).ranks == [5]


@pytest.mark.slow
def test_a_rank_that_the_user_gave_holds_for_a_replaced_file_without_one(tmp_path: Path) -> None:
    path = write_kineto(tmp_path / "trace.json", [slice_event("a", 1.0, 1.0)])
    assert Run(ingest([tmp_path], Options(ranks={path: 17}))).ranks == [17]
    write_kineto(path, [slice_event("bb", 1.0, 1.0)])
    assert open_run([tmp_path]).ranks == [17]
