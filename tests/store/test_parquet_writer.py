"""What is written is read back by DuckDB and by pyarrow: values, nulls, types."""

from __future__ import annotations

import json
import math
import stat
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow.parquet
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conftest import examples
from rankscope import native
from rankscope.model import Field
from rankscope.readers.columns import NO_ARGS, NULL, Texts
from rankscope.store import packing
from rankscope.store.parquet_writer import Chunk, Coded, Lists, Numbers, ParquetFile, PlainTexts, encode

DUCKDB = duckdb.connect(config={"threads": 1})

EXAMPLES = settings(max_examples=examples(50))

BIGINT = st.integers(NULL + 1, (1 << 63) - 1) | st.integers(-200, 200)
INTEGER = st.integers(-(1 << 31), (1 << 31) - 1) | st.integers(-200, 200)
TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=20)


def columns(values: st.SearchStrategy[Any]) -> st.SearchStrategy[list[Any]]:
    """Of few rows, and of rows enough for every encoding."""
    few = st.lists(st.none() | values, min_size=1, max_size=40)
    repeated = st.builds(lambda some, times: some * times, few, st.integers(1, 60))
    return few | repeated


def numbers(values: Sequence[int | float | bool | None], dtype: str) -> Numbers:
    filled = np.array([0 if value is None else value for value in values], dtype=dtype)
    return Numbers(filled, valid=np.array([value is not None for value in values], dtype=bool))


def coded(values: Iterable[str | None]) -> Coded:
    """The dictionary also has texts that are not in the column."""
    values = list(values)
    texts = ["unused", *dict.fromkeys(value for value in values if value is not None), "unused too"]
    codes = [-1 if value is None else texts.index(value) for value in values]
    return Coded(np.array(codes, dtype=np.int32), Texts.of(texts))


def plain(values: Sequence[str | None]) -> PlainTexts:
    data, offsets = bytearray(b"before"), []
    for value in values:
        offsets.append(NO_ARGS if value is None else len(data))
        if value is not None:
            data += len(value.encode()).to_bytes(4, "little") + value.encode()
    return PlainTexts(bytes(data) + b"after", np.array(offsets, dtype=np.uint32))


def lists(values: Sequence[Sequence[str | None] | None]) -> Lists:
    counts = [-1 if row is None else len(row) for row in values]
    return Lists(np.array(counts, dtype=np.int64), coded(item for row in values for item in row or ()))


def write(path: Path, types: Mapping[str, str], *groups: Mapping[str, Chunk]) -> Path:
    with ParquetFile(path, [Field(name, kind, "") for name, kind in types.items()]) as file:
        for group in groups:
            file.write(group)
    return path


def read(path: Path) -> list[Any]:
    """The rows of the only column, as DuckDB and pyarrow read them."""
    by_duckdb = [row[0] for row in DUCKDB.execute(f"FROM '{path}'").fetchall()]
    by_pyarrow = pyarrow.parquet.ParquetFile(path).read().column(0).to_pylist()
    assert same(by_duckdb, by_pyarrow)
    return by_duckdb


def same(left: list[Any], right: list[Any]) -> bool:
    """Equal, also where both are NaN or zeros of one sign."""
    return list(map(repr, left)) == list(map(repr, right))


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("parquet") / "table.parquet"


@EXAMPLES
@given(groups=st.lists(columns(BIGINT), min_size=1, max_size=3))
def test_bigint(path: Path, groups: list[list[int | None]]) -> None:
    chunks = [{"x": Numbers(np.array([NULL if v is None else v for v in g]), null=NULL)} for g in groups]
    assert read(write(path, {"x": "BIGINT"}, *chunks)) == list(chain(*groups))


@EXAMPLES
@given(values=columns(INTEGER))
def test_integer(path: Path, values: list[int | None]) -> None:
    for dtype in ("int32", "int64"):
        assert read(write(path, {"x": "INTEGER"}, {"x": numbers(values, dtype)})) == values


def test_a_number_that_an_integer_cannot_hold_is_null(path: Path) -> None:
    values = np.array([1 << 31, -(1 << 31) - 1, (1 << 31) - 1, -(1 << 31), 7])
    written = write(path, {"x": "INTEGER"}, {"x": Numbers(values)})
    assert read(written) == [None, None, (1 << 31) - 1, -(1 << 31), 7]


@EXAMPLES
@given(values=columns(st.floats()))
def test_double(path: Path, values: list[float | None]) -> None:
    assert same(read(write(path, {"x": "DOUBLE"}, {"x": numbers(values, "float64")})), values)


@EXAMPLES
@given(values=columns(st.booleans()))
def test_boolean(path: Path, values: list[bool | None]) -> None:
    assert read(write(path, {"x": "BOOLEAN"}, {"x": numbers(values, "bool")})) == values


@EXAMPLES
@given(groups=st.lists(columns(TEXT), min_size=1, max_size=3))
def test_coded_texts(path: Path, groups: list[list[str | None]]) -> None:
    assert read(write(path, {"x": "VARCHAR"}, *({"x": coded(group)} for group in groups))) == list(
        chain(*groups)
    )


@EXAMPLES
@given(values=columns(TEXT), page=st.integers(1, 100))
def test_plain_texts(path: Path, values: list[str | None], page: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(packing, "PAGE_BYTES", page)
        assert read(write(path, {"x": "VARCHAR"}, {"x": plain(values)})) == values


@EXAMPLES
@given(values=columns(st.lists(st.none() | TEXT, max_size=4)))
def test_lists(path: Path, values: list[list[str | None] | None]) -> None:
    assert read(write(path, {"x": "VARCHAR[]"}, {"x": lists(values)})) == values


def test_lists_of_equal_length(path: Path) -> None:
    codes = np.array([[0, -1], [1, 1], [-1, -1]])
    texts = Texts.of(["a", "b"])
    written = write(path, {"x": "VARCHAR[]"}, {"x": Lists.of_codes(codes, texts)})
    assert read(written) == [["a", None], ["b", "b"], [None, None]]
    valid = np.array([True, False, True])
    written = write(path, {"x": "VARCHAR[]"}, {"x": Lists.of_codes(codes, texts, valid)})
    assert read(written) == [["a", None], None, [None, None]]


def test_lists_of_numbers(path: Path) -> None:
    chunk = Lists(np.array([3, 0, -1, 1]), Numbers(np.array([1, 2, 3, 4])))
    assert read(write(path, {"x": "INTEGER[]"}, {"x": chunk})) == [[1, 2, 3], [], None, [4]]


@pytest.mark.parametrize("distinct", [1, 2, 256, 257, 65_537])
def test_codes_of_every_width(path: Path, distinct: int) -> None:
    codes = np.arange(2 * distinct, dtype=np.int32) % distinct
    texts = [f"text {number}" for number in range(distinct)]
    chunk = Coded(codes, Texts.of(texts))
    assert read(write(path, {"x": "VARCHAR"}, {"x": chunk})) == texts * 2


def test_several_pages(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packing, "PAGE_ROWS", 100)
    numbers = np.arange(1000) * 1_000_003 % 7919
    nulls = np.where(np.arange(1000) % 3, numbers, NULL)
    expected = [None if value == NULL else value for value in nulls.tolist()]
    assert read(write(path, {"x": "BIGINT"}, {"x": Numbers(nulls, null=NULL)})) == expected
    texts = [None if value is None else str(value % 50) for value in expected]
    assert read(write(path, {"x": "VARCHAR"}, {"x": coded(texts)})) == texts
    few = Numbers(np.where(np.arange(1000) % 3, np.arange(1000) // 100, NULL), NULL)
    for chunk in (Numbers(nulls, NULL), few, coded(texts)):
        assert_c_and_numpy_agree(path, "VARCHAR" if isinstance(chunk, Coded) else "BIGINT", chunk)


def test_a_table_without_rows_has_its_types(path: Path) -> None:
    types = {"a": "BIGINT", "b": "INTEGER", "c": "DOUBLE", "d": "BOOLEAN", "e": "VARCHAR", "f": "JSON"}
    types |= {"g": "VARCHAR[]", "h": "INTEGER[]"}
    fields = [Field(name, kind, "") for name, kind in types.items()]
    nothing = np.array([], dtype=np.int64)
    empty: dict[str, Chunk] = {name: Numbers(nothing) for name in "abcd"}
    empty |= {"e": coded([]), "f": plain([]), "g": lists([]), "h": Lists(nothing, Numbers(nothing))}
    with ParquetFile(path, fields) as file:
        file.write(empty)
        file.append([encode(field, empty[field.name]) for field in fields], 0)
    described = DUCKDB.execute(f"DESCRIBE FROM '{path}'").fetchall()
    assert {name: kind for name, kind, *_ in described} == types
    assert pyarrow.parquet.ParquetFile(path).read().num_rows == 0


def test_json_is_queried_as_json(path: Path) -> None:
    values = [json.dumps({"x": 1, "y": "é"}), None, "{}"]
    for chunk in (plain(values), coded(values)):
        write(path, {"args": "JSON"}, {"args": chunk})
        found = DUCKDB.execute(f"SELECT args->>'y', typeof(args) FROM '{path}'").fetchall()
        assert found == [("é", "JSON"), (None, "JSON"), (None, "JSON")]


def test_statistics(path: Path) -> None:
    values = np.arange(3000)
    types = {"a": "BIGINT", "b": "INTEGER", "c": "DOUBLE", "d": "DOUBLE", "e": "VARCHAR"}
    chunk: dict[str, Chunk] = {
        "a": Numbers(np.where(values < 10, NULL, values * 1_000_000_007), null=NULL),
        "b": Numbers(values % 200 - 100),
        "c": Numbers(values * -0.5),
        "d": Numbers(np.where(values == 7, math.nan, values)),
        "e": Coded(values % 2 - 1, Texts.of(["only"])),
    }
    write(path, types, chunk)
    found = DUCKDB.execute(f"""
        SELECT path_in_schema, stats_min_value, stats_max_value, stats_null_count FROM parquet_metadata('{path}')
    """)
    assert found.fetchall() == [
        ("a", str(10 * 1_000_000_007), str(2999 * 1_000_000_007), 10),
        ("b", "-100", "99", 0),
        ("c", "-1499.5", "0.0", 0),
        ("d", None, None, 0),
        ("e", None, None, 1500),
    ]
    statistics = pyarrow.parquet.read_metadata(path).row_group(0).column(1).statistics
    assert statistics
    assert (statistics.min, statistics.max, statistics.null_count) == (-100, 99, 0)


def test_columns_may_be_encoded_before(path: Path) -> None:
    fields = [Field("a", "BIGINT", ""), Field("b", "VARCHAR", "")]
    groups = [
        [encode(fields[0], numbers([n], "int64")), encode(fields[1], coded([str(n)]))] for n in range(3)
    ]
    with ParquetFile(path, fields) as file:
        for group in groups:
            file.append(group, 1)
    assert file.rows == 3
    assert DUCKDB.execute(f"FROM '{path}'").fetchall() == [(0, "0"), (1, "1"), (2, "2")]


def test_threads_encode_side_by_side() -> None:
    chunks = [Numbers(np.arange(5000) * factor % 7919) for factor in range(2, 18)]
    field = Field("x", "BIGINT", "")
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(lambda chunk: encode(field, chunk), chunks)) == [
            encode(field, c) for c in chunks
        ]


def test_only_its_owner_can_read_it(tmp_path: Path) -> None:
    written = write(tmp_path / "table.parquet", {"x": "BIGINT"})
    assert stat.S_IMODE(written.stat().st_mode) == 0o600


def test_after_an_error_there_is_no_footer(tmp_path: Path) -> None:
    path = tmp_path / "table.parquet"
    with pytest.raises(KeyError):
        write(path, {"x": "BIGINT"}, {})
    with pytest.raises(duckdb.Error):
        DUCKDB.execute(f"FROM '{path}'")


NATIVE = pytest.mark.skipif(native.functions is None, reason="the C parts were not built")


@pytest.mark.slow
@NATIVE
@settings(max_examples=8)
@given(
    values=columns(BIGINT),
    texts=columns(TEXT),
    lists_of_texts=columns(st.lists(st.none() | TEXT, max_size=3)),
)
def test_c_and_numpy_write_the_same_values(
    path: Path,
    values: list[int | None],
    texts: list[str | None],
    lists_of_texts: list[list[str | None] | None],
) -> None:
    wide = np.array([NULL if value is None else value for value in values])
    narrow = np.array([-1 if value is None else value % 1000 for value in values], dtype=np.int32)
    mask = wide % 3 > 0
    for kind in ("BIGINT", "INTEGER"):
        for numbers in (Numbers(wide, NULL), Numbers(narrow, -1), Numbers(narrow), Numbers(wide[::2])):
            assert_c_and_numpy_agree(path, kind, numbers)
        assert_c_and_numpy_agree(path, kind, Numbers(wide, valid=mask))
        assert_c_and_numpy_agree(path, kind, Numbers(wide, NULL, mask))
    assert_c_and_numpy_agree(path, "VARCHAR", coded(texts))
    assert_c_and_numpy_agree(path, "VARCHAR[]", lists(lists_of_texts))


def assert_c_and_numpy_agree(path: Path, kind: str, chunk: Chunk) -> None:
    """The same values, numbers of nulls and limits."""
    with pytest.MonkeyPatch.context() as patch:
        in_c, by_c = encode(Field("x", kind, ""), chunk), read(write(path, {"x": kind}, {"x": chunk}))
        patch.setattr(native, "functions", None)
        by_numpy = encode(Field("x", kind, ""), chunk)
        assert same(read(write(path, {"x": kind}, {"x": chunk})), by_c)
    assert (in_c.entries, in_c.nulls, in_c.limits) == (by_numpy.entries, by_numpy.nulls, by_numpy.limits)


@EXAMPLES
@given(
    start=st.integers(-(1 << 60), 1 << 60),
    steps=st.lists(st.integers(0, 60).flatmap(lambda bits: st.integers(-(1 << bits), 1 << bits)), min_size=1),
    times=st.integers(1, 20),
)
def test_differences_of_every_width(path: Path, start: int, steps: list[int], times: int) -> None:
    values = [start]
    for step in steps * times:
        values.append(start - values[-1] + step if abs(values[-1] + step) > 1 << 60 else values[-1] + step)
    packed = np.array(values * 3, dtype=np.int64)
    assert read(write(path, {"x": "BIGINT"}, {"x": Numbers(packed)})) == packed.tolist()
    assert_c_and_numpy_agree(path, "BIGINT", Numbers(packed))


@NATIVE
def test_c_refuses_codes_without_a_text() -> None:
    for code in (2, 1 << 30):
        with pytest.raises(ValueError, match="a code without a text"):
            encode(Field("x", "VARCHAR", ""), Coded(np.array([0, code]), Texts.of(["a", "b"])))
    with pytest.raises(ValueError, match="a code without a text"):
        native.functions.plain_texts(b"ab", np.array([0, 1, 3]), np.array([1]))
    with pytest.raises(ValueError, match="a code without a text"):
        native.functions.code_pages(np.zeros(2, np.int32), b"", b"", 1)


@NATIVE
@pytest.mark.parametrize(
    "arguments",
    [(b"1234567", 4, None, None, 8, 1), (b"1234", 2, None, None, 8, 1), (b"1234", 4, None, None, 8, 0)],
)
def test_c_refuses_numbers_of_other_sizes(arguments: tuple[Any, ...]) -> None:
    with pytest.raises(ValueError, match="numbers of 4 or 8 bytes"):
        native.functions.number_pages(*arguments)


@NATIVE
def test_c_refuses_a_mask_of_another_length() -> None:
    with pytest.raises(ValueError, match="a mask as long"):
        native.functions.number_pages(np.zeros(3, np.int64), 8, np.ones(2, bool), None, 8, 1)
