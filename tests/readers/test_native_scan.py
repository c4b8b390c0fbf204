"""The scanner written in C gives the columns that the DuckDB reader gives, or refuses the block."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from conftest import DATA, SHARED, examples
from fuzz.codes import Codes
from fuzz.json_text import events_text
from kineto_columns import same_or_refused, scanned
from rankscope import native
from rankscope.errors import NotATraceError
from rankscope.readers.kineto.reader import KinetoReading
from rankscope_bench.synthetic import Plan, write
from rankscope_bench.synthetic.defects import CATALOGUE, Defect

pytestmark = pytest.mark.skipif(native.functions is None, reason="the C parts were not built")

TRACES = sorted([*DATA.rglob("*.json.gz"), *SHARED.glob("public/**/*.json.gz")])


def blocks(path: Path) -> Iterator[bytes]:
    for batch in KinetoReading(path).batches():
        block = batch._block
        yield bytes(memoryview(block.data)[block.start : block.end])
        batch.close()


@pytest.mark.slow
@pytest.mark.parametrize("path", TRACES, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_real_traces(path: Path) -> None:
    for block in blocks(path):
        assert same_or_refused(block)


@pytest.mark.slow
@given(st.binary(max_size=200))
@settings(max_examples=examples(80), deadline=None)
def test_any_json_is_read_the_same_or_refused(data: bytes) -> None:
    event("read" if same_or_refused(events_text(Codes(data))) else "refused")


@pytest.mark.slow
@pytest.mark.parametrize("defect", CATALOGUE)
def test_synthetic_traces_with_every_defect(defect: str, tmp_path: Path) -> None:
    write(Plan(ranks=1, events_per_rank=600, steps=1, defects=(Defect(defect),)), tmp_path / "run")
    for path in (tmp_path / "run").glob("rank*"):
        with suppress(NotATraceError):  # a file without events
            for block in blocks(path):
                same_or_refused(block)


ALIKE = [
    b'{"ph": "X", "cat": "cpu_op", "name": "a", "pid": 1, "tid": 2, "ts": 10.5, "dur": 1, "args": {"External id": 1}}',
    b'{"ph": "X", "cat": "cpu_op", "name": "b", "pid": 1, "tid": "2", "ts": 11, "dur": 1.25, "args": {"x": [1, 2]}}',
    b'{"ph": "X", "cat": "cpu_op", "name": null, "pid": 1, "tid": 2, "ts": 12, "dur": null, "args": null}',
    b'{"ph": "X", "cat": "cpu_op", "name": "\\u0061", "pid": 1, "tid": 2, "ts": 13, "dur": 1, "args": {}}',
    b'{"ph": "X", "cat": "cpu_op", "name": 7, "pid": 12, "tid": 2, "ts": 1e1, "dur": 1, "args": {}}',
    b'{"ph": "X", "cat": "cpu_op", "name": "a", "pid": 1, "tid": 2, "ts": 10, "dur": 1, "args": {} , "name": "b"}',
    b'{"ph": "X", "cat": "kernel", "name": "k", "pid": 0, "tid": 7, "ts": 14, "dur": 2, "args": {"stream": 7}}',
    b'{"ph": "X", "cat": "kernel", "name": "k", "pid": 0, "tid": 7, "ts": 14, "dur": 2}',
    b'{"ph": "s", "id": 5, "pid": 1, "tid": 2, "ts": 10, "cat": "ac2g", "name": "ac2g", "bp": "e"}',
    b'{"ph": "s", "id": "5", "pid": 1, "tid": 2, "ts": 10, "cat": "ac2g", "name": "ac2g", "bp": {"a": 1}}',
    b'{"ph": "X"}',
    b"{}",
]
"""Events that are written nearly alike: most of their text is compared with that of an earlier event."""


@pytest.mark.slow
@given(st.lists(st.sampled_from(ALIKE), min_size=1, max_size=12), st.sampled_from([b",", b" ,\n  "]))
@settings(max_examples=examples(80), deadline=None)
def test_events_that_are_written_nearly_alike(events: list[bytes], between: bytes) -> None:
    event("read" if same_or_refused(between.join(events)) else "refused")


def values(name: str, *texts: str) -> list[bytes]:
    """Events of this one field."""
    return [f'{{"{name}":{text}}}'.encode() for text in texts]


def arguments(category: str, name: str, *texts: str) -> list[bytes]:
    """Events with these arguments."""
    return [f'{{"cat":"{category}","name":"{name}","args":{{{text}}}}}'.encode() for text in texts]


READ = [
    b"",
    b" \n",
    b"{}",
    b',\n{"ph":"X"},\n{"ph":"i"}\n,',
    b'{"name":"a","args":null,"ts":null,"dur":null,"id":null,"cat":null}',
    b'{"args":{"External id":1},"cat":"cpu_op"}',
    b'{"ph" : "X" , "args" : { "a" : [ 1 , { } , [ ] ] , "b" : -1.5e+3 } , "s" : [ { "t" : true } ] }',
    *values("name", '""', "7", "-7", "0", r'"\ud83d\ude00 \u00e9\n\/\""', '"é→😀"', '"' + "x" * 99 + '"'),
    *values("ts", "3844446579863.905", "10.299999999999999", "1.0005", "-2.0005", "12345678901234.1235"),
    *values("ts", '"5"', '"-2.5"', '"1704161511420306.491"', '"1704161511420306"', '"12345678901234.1235"'),
    *values(
        "id",
        "7",
        '"7"',
        '"07"',
        "1704161511422904204",
        '"1704161511422904204"',
        '"18446744073709551615"',
        '"x"',
    ),
    *values("dur", "0", "1.0005", "123456.78900000001", "9007199254740.5", "0.049999999999999996"),
    *arguments(
        "kernel", "gemm", *(f'"stream":{text}' for text in ("7", '"7"', '"abc"', "null", "[7]", "9" * 30))
    ),
    *arguments("user_annotation", "a", *(f'"External id":{text}' for text in ("7", "-7", '"7"'))),
    *arguments("user_annotation", "a", '"b":1,"External id":7'),
    *arguments("cpu_op", "a", '"b":1,"External id":7,"stream":3'),
    *arguments("cpu_op", "record_param_comms", '"Collective name":"allreduce","stream":3'),
    *arguments("cpu_instant_event", "[memory]", '"Addr":140737488355328,"Bytes":-512,"Device Id":null'),
    *arguments(
        "Operator", "aten::mm", r'"Input Dims":[ [2, 3], []],"Input type":"a\tb","Concrete Inputs":["\""]'
    ),
    *arguments("cpu_op", "aten::mm", '"flops":1', '"nested":{"flops":1,"flops":2}'),
    *arguments("cpu_op", "a", '"deep":' + "[" * 256 + "]" * 256),
]
"""What profilers write, and what is close to it."""

REFUSED = [
    b"7",
    b"{} {}",
    b"{},,{}",
    b'{"ph":"X"',
    b'{"ph":"X",}',
    b'{"ph"}',
    b'{"args":{}}}',
    b'{"name":"a","name":"b"}',
    b'{"n\\u0061me":"a"}',
    b'{"name":"\xff"}',
    b'{"name":"\xc0\x80"}',
    b'{"name":"\xed\xa0\x80"}',
    b'{"bp":"\xf4\x90\x80\x80"}',
    b'{"ts":1234.56785},{"ts":1700000000000000.5}',
    *values(
        "name", "1.5", "-0", "true", "[1]", r'"\ud83d"', r'"\u0000"', r'"\x"', '"\t"', "1234567890123456789"
    ),
    *values(
        "ts",
        "1e3",
        '"1e3"',
        '" 5"',
        '"5 "',
        '""',
        '"5',
        "true",
        "01",
        "9223372036854775807",
        "1234567890123.4567",
        "8796093022208.5",
    ),
    *values("dur", "1e3", '"5"', "9223372036854775807", "0.1234567890123456789", "-"),
    *values("args", "[]", '"a"', "7", '{"a":1,}', '{"a":01}', '{"a":NaN}', "{'a':1}", '{"a":"\t"}'),
    *values("args", '{"a\\n":1}', '{"a":"\\ud800"}', '{"a":' + "[" * 257 + "]" * 257 + "}"),
    *arguments("kernel", "gemm", *(f'"stream":{text}' for text in ("7.5", "true", '"0x10"', '" 7"'))),
    *arguments("kernel", "gemm", '"stream":7,"stream":7'),
    *arguments("cpu_op", "aten::mm", '"flops":1.50', r'"Concrete Inputs":["\u0041"]'),
]
"""What DuckDB refuses too, or might read in another way."""


@pytest.mark.parametrize("text", READ)
def test_read_as_duckdb_reads_it(text: bytes) -> None:
    assert same_or_refused(text)


def test_refused() -> None:
    assert [text for text in REFUSED if scanned(text) is not None] == []


def test_cut_anywhere_it_is_refused_or_complete() -> None:
    [event] = arguments("kernel", "é", r'"stream":7,"a":[1.5e3,{"b":"\ud83d\ude00\n"},null],"device":0')
    text = b",".join([event] * 3)
    for size in range(len(text)):
        columns = scanned(text[:size])
        assert columns is None or len(columns) == (size + 1) // (len(event) + 1)


def test_a_long_event_is_left_to_duckdb() -> None:
    text = b'{"name":"' + b"x" * (8 << 20) + b'"}'
    assert scanned(text) is None
    assert scanned(text.replace(b"x" * 64, b"")) is not None


def test_several_threads_at_once() -> None:
    """The GIL is released; nothing is shared."""
    text = b",".join(arguments("kernel", "gemm", *(f'"stream":{number}' for number in range(2000))))
    with ThreadPoolExecutor(4) as threads:
        first, *others = threads.map(scanned, [text] * 8)
    assert first is not None
    assert all(other is not None and bytes(other.args) == bytes(first.args) for other in others)


def test_codes_are_given_in_order_of_appearance_after_the_empty_text() -> None:
    columns = scanned(b'{"ph":"X","name":"b"},{"ph":"X","name":"a","pid":"b"}')
    assert columns is not None
    assert list(columns.texts) == ["", "X", "b", "a"]
    assert columns.name.tolist() == [2, 3]


@pytest.mark.slow
@given(
    st.lists(
        st.tuples(st.integers(0, 10**12 - 1), st.text("0123456789", min_size=1, max_size=7)), max_size=40
    )
)
@settings(max_examples=15, deadline=None)
def test_numbers_are_rounded_as_duckdb_rounds_them(numbers: list[tuple[int, str]]) -> None:
    text = ",".join(f'{{"ts":{whole}.{digits},"dur":{whole}.{digits}}}' for whole, digits in numbers)
    assert same_or_refused(text.encode())
