"""A run has the same figures in a folder of any name: names never become columns, patterns or SQL."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from conftest import slice_event, write_kineto
from rankscope.model import FURTHER_TABLES, TABLES
from rankscope.timeline.reading import ingest
from rankscope.timeline.run import Run

FOLDERS = {
    "columns": b"name=gpt/step=100/rank=7/part=5/segment=3/rank=8",
    "patterns": b"run[1]/a\\b/run{a,b}/*/?/**/[!x]",
    "quotes and control characters": b'it\'s/"quoted"/two\nlines/ spaces /-f/\x1b[31m',
    "other systems": b"\xff\xfe/100%/a#b?c/$HOME/~/C:/s3:",
}


def write_run(folder: Path) -> None:
    for rank in range(2):
        events = [
            *(slice_event(f"op {i}", 1000.0 + 10 * i, 5.0) for i in range(3)),
            slice_event("ProfilerStep#4", 990.0, 50.0, cat="user_annotation"),
            slice_event("gemm", 1001.0, 4.0, cat="kernel", pid=0, tid=7, args={"device": 0, "stream": 7}),
        ]
        write_kineto(folder / f"rank-{rank}.json", events)


def figures(run: Run) -> dict[str, object]:
    """Every row of every table, but the path of the file."""
    return {
        table.name: run.rows(f"SELECT * FROM {table.name} ORDER BY ALL")
        for table in (*TABLES, *FURTHER_TABLES)
    }


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> dict[str, object]:
    folder = tmp_path_factory.mktemp("plain") / "run"
    folder.mkdir()
    write_run(folder)
    return figures(Run(ingest([folder])))


part = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20).map(str.encode)
hive = st.tuples(st.sampled_from([b"rank", b"segment", b"part", b"name", b"step", b"id"]), part).map(
    b"=".join
)
names = st.one_of(part, hive, st.binary(min_size=1, max_size=20)).filter(
    lambda name: name not in (b".", b"..") and b"/" not in name and b"\0" not in name and len(name) < 200
)


@pytest.mark.slow
@given(name=names)
@settings(max_examples=3, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_the_same_figures_in_any_folder(expected: dict[str, object], name: bytes) -> None:
    compare(expected, name)


@pytest.mark.slow
@pytest.mark.parametrize("kind", FOLDERS)
def test_the_same_figures_in_folders_of_sweeps(expected: dict[str, object], kind: str) -> None:
    compare(expected, FOLDERS[kind])


def compare(expected: dict[str, object], name: bytes) -> None:
    with tempfile.TemporaryDirectory() as base:
        folder = Path(base) / os.fsdecode(name) / "run"
        folder.mkdir(parents=True)
        write_run(folder)
        run = Run(ingest([folder]))
        assert figures(run) == expected
        assert run.query("SELECT count(*) FROM segments WHERE file LIKE '%rank-_.json'")[1] == [(2,)]
        assert ingest([folder]).read == ()
        moved = folder.with_name(folder.name + " 2")
        folder.rename(moved)
        again = ingest([moved])
        assert again.read == (), "a run that was moved is not read again"
        assert figures(Run(again)) == expected
