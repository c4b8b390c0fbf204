"""The C part reads rows of sqlite's pages as sqlite does, refuses what it cannot, and survives every damage."""

from __future__ import annotations

import random
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from conftest import examples
from rankscope import native
from rankscope.errors import ReadError
from rankscope.readers import sqlite_pages
from rankscope.readers.columns import NULL
from rankscope.readers.nsys.export import NsysExport
from rankscope.readers.sqlite_pages import TablePiece, open_pages, table_pieces

pytestmark = pytest.mark.skipif(native.functions is None, reason="the C parts were not built")

INTEGERS = st.one_of(
    st.none(),
    st.integers(-2, 2),
    *(st.sampled_from([-(1 << bits), (1 << bits) - 1, 1 << bits - 1]) for bits in (7, 15, 23, 31, 47, 62)),
    st.integers(-(1 << 63) + 1, (1 << 63) - 1),
)
TEXTS = st.one_of(
    st.none(),
    st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=12),
    st.sampled_from(["same", "x" * 480, "overflow " * 700, "é" * 70_000]),
)
ROWS = st.lists(st.tuples(INTEGERS, TEXTS, INTEGERS), max_size=25)


def write(
    path: Path,
    rows: list[tuple[Any, ...]],
    columns: str = "a INTEGER, b TEXT, c",
    page_size: int = 4096,
    then: tuple[str, ...] = (),
) -> Path:
    path.unlink(missing_ok=True)
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(f"PRAGMA page_size = {page_size}")
        connection.execute("PRAGMA synchronous = OFF")
        connection.execute("PRAGMA journal_mode = OFF")
        connection.execute(f"CREATE TABLE t ({columns})")
        marks = ", ".join("?" * len(rows[0])) if rows else ""
        connection.executemany(f"INSERT INTO t VALUES ({marks})", rows)
        for sql in then:
            connection.execute(sql)
        connection.commit()
    return path


def scanned(
    path: Path, numbers: tuple[str, ...], texts: tuple[str, ...] = ()
) -> list[tuple[Any, ...]] | None:
    """The rows of t, with their ids; None if the table is refused, or empty."""
    rows: list[tuple[Any, ...]] = []
    try:
        pieces = pieces_of(path, ("rowid", *numbers), texts)
    except ReadError:  # nor can sqlite read it
        return None
    for piece in pieces:
        if piece.pages is None:
            return None
        read = piece.from_pages(piece.pages)
        columns = [
            [None if value == NULL else value for value in column.tolist()]
            for column in read.numbers.values()
        ]
        columns += [column.at(np.arange(len(column.codes), dtype=np.int32)) for column in read.texts.values()]
        part = list(zip(*columns, strict=True))
        assert all(piece.rows[0] <= row[0] <= piece.rows[1] for row in part)
        rows += part
    return rows or None


def pieces_of(path: Path, numbers: tuple[str, ...], texts: tuple[str, ...] = ()) -> list[TablePiece]:
    with closing(NsysExport(path)) as export:
        return list(table_pieces(export, open_pages(path), "t", numbers, texts))


def by_sqlite(path: Path, columns: str) -> list[tuple[Any, ...]]:
    with closing(sqlite3.connect(path)) as connection:
        return connection.execute(f"SELECT rowid, {columns} FROM t ORDER BY rowid").fetchall()


@pytest.mark.slow
@settings(
    max_examples=examples(80), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    first=ROWS.filter(len),
    later=ROWS,
    page_size=st.sampled_from([512, 1024, 4096, 65536]),
    deleted=st.integers(1, 7),
    seed=st.integers(0, 3),
)
def test_rows_of_all_kinds(
    first: list[tuple[Any, ...]],
    later: list[tuple[Any, ...]],
    page_size: int,
    deleted: int,
    seed: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Numbers and texts of every length, rows that were deleted, a column that was added, several pieces."""
    monkeypatch.setattr(sqlite_pages, "_BYTES_PER_PIECE", 2048)
    path = write(
        tmp_path / "t.sqlite",
        first,
        page_size=page_size,
        then=(
            f"DELETE FROM t WHERE rowid % {deleted} = 1",
            "ALTER TABLE t ADD COLUMN d INTEGER",
            *("INSERT INTO t SELECT * FROM t" for _ in range(seed)),
        ),
    )
    with closing(sqlite3.connect(path)) as connection:
        connection.executemany("INSERT INTO t VALUES (?, ?, ?, 7)", later)
        connection.commit()
    assert (scanned(path, ("a", "c", "d"), ("b",)) or []) == by_sqlite(path, "a, c, d, b")


def test_many_rows_with_ids_of_any_size(tmp_path: Path) -> None:
    """A tree of three levels; the id is a column."""
    ids = [-(1 << 63) + 1, -1, *range(0, 900_000, 300), (1 << 63) - 1]
    rows = [(number, number % 1000, f"text {number % 7}") for number in ids]
    path = write(tmp_path / "t.sqlite", rows, "id INTEGER PRIMARY KEY, a INTEGER, b TEXT", 512)
    (piece,) = pieces_of(path, ("id", "a"))
    assert piece.leaves is not None and len(piece.leaves) > 100
    assert [int(id) for id in piece.read().numbers["id"]] == ids
    assert scanned(path, ("a",), ("b",)) == by_sqlite(path, "a, b")


@pytest.mark.parametrize(
    "columns",
    [
        "(a, b REAL)",
        "(a, b INTEGER DEFAULT 7)",
        "(a PRIMARY KEY, b) WITHOUT ROWID",
        "(rowid TEXT, a, b)",
        "(a, b, c AS (a + b))",
    ],
)
def test_tables_that_sqlite_has_to_read(columns: str, tmp_path: Path) -> None:
    """It changes what is stored when it reads: with a fraction, by default, in other pages, …"""
    path = tmp_path / "t.sqlite"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(f"CREATE TABLE t {columns}")
        connection.execute("INSERT INTO t (a, b) VALUES (1, 2)")
        connection.commit()
    assert scanned(path, ("a", "b")) is None


def test_a_primary_key_that_is_not_the_rowid(tmp_path: Path) -> None:
    path = write(tmp_path / "t.sqlite", [(5,), (3,)], "a INTEGER PRIMARY KEY DESC")
    assert scanned(path, ("a",)) == [(1, 5), (2, 3)]


@pytest.mark.parametrize("value", [1.5, b"blob", "text", -(1 << 63)])
def test_a_number_that_is_none_is_refused(value: object, tmp_path: Path) -> None:
    path = write(tmp_path / "t.sqlite", [(1,), (value,)], "a")
    with pytest.raises(ValueError, match=r"number|blob"):
        scanned(path, ("a",))


@pytest.mark.parametrize("value", [1, b"blob", "zero \0 byte"])
def test_a_text_that_is_none_is_refused(value: object, tmp_path: Path) -> None:
    path = write(tmp_path / "t.sqlite", [("text",), (value,)], "a")
    with pytest.raises(ValueError, match=r"text|blob"):
        scanned(path, (), ("a",))


def test_files_that_sqlite_has_to_read(tmp_path: Path) -> None:
    path = write(tmp_path / "t.sqlite", [(1,)], "a")
    content = path.read_bytes()
    for place, value in ((0, 7), (16, 3), (20, 1), (21, 63), (59, 2)):
        changed = bytearray(content)
        changed[place] = value
        path.write_bytes(changed)
        assert open_pages(path) is None or place == 20, place
    path.write_bytes(content)
    assert open_pages(path) is not None
    (tmp_path / "t.sqlite-wal").touch()
    assert open_pages(path) is None


def test_damage_never_crashes(tmp_path: Path) -> None:
    """Bytes that were changed anywhere give rows or an error. `make sanitize` watches the memory meanwhile."""
    rows = [(number, "long " * (600 if number % 40 == 0 else 1), number * 1000) for number in range(400)]
    content = write(tmp_path / "t.sqlite", rows, page_size=512).read_bytes()
    path, chance = tmp_path / "damaged.sqlite", random.Random(0)
    outcomes: set[object] = set()
    for _ in range(80):
        changed = bytearray(content)
        for _ in range(chance.choice((1, 3, 30))):
            page = chance.randrange(512, len(changed), 512)  # half of them in the header of a page
            changed[page + chance.choice((chance.randrange(12), chance.randrange(512)))] = chance.randrange(
                256
            )
        path.write_bytes(changed)
        try:
            outcomes.add(scanned(path, ("a", "c"), ("b",)) is None)
        except (ValueError, ReadError) as error:
            outcomes.add(type(error))
    assert {False, True, ValueError} <= outcomes


def test_a_page_that_leads_back_is_refused(tmp_path: Path) -> None:
    """A tree whose pages refer to themselves would never end."""
    path = write(tmp_path / "t.sqlite", [(number, "text", None) for number in range(2000)], page_size=512)
    content = bytearray(path.read_bytes())
    with closing(sqlite3.connect(path)) as connection:
        ((root,),) = connection.execute("SELECT rootpage FROM sqlite_master").fetchall()
    start = (root - 1) * 512
    assert content[start] == 5, "an interior page"
    content[start + 8 : start + 12] = root.to_bytes(4, "big")
    path.write_bytes(content)
    assert scanned(path, ("a",)) is None


def test_a_file_that_shrinks_is_an_error(tmp_path: Path) -> None:
    path = write(tmp_path / "t.sqlite", [(number, "text", None) for number in range(2000)])
    (piece,) = pieces_of(path, ("a",))
    assert piece.pages is not None
    with path.open("r+b") as cut:
        cut.truncate(8192)
    with pytest.raises(ValueError, match="ends early"):
        piece.from_pages(piece.pages)
