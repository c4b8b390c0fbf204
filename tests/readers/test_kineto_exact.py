"""Every event of every real trace comes through, equal to what Python's json and decimal make of the text."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from decimal import ROUND_HALF_UP, Decimal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conftest import DATA, SHARED, examples, kineto_text
from event_rows import event_rows
from rankscope.readers import find_reader
from rankscope.readers.kineto import reader

COLUMNS = ("ph", "category", "name", "pid", "tid", "ts_ns", "dur_ns", "args")
TRACES = sorted([*DATA.rglob("*.json.gz"), *SHARED.glob("public/**/*.json.gz")])


def read_all(path: Path) -> list[tuple[Any, ...]]:
    """The columns that can be compared, by way of the reader."""
    rows: list[tuple[Any, ...]] = []
    reading = find_reader(path).open(path)
    for batch in reading.batches():
        rows += (tuple(row[name] for name in COLUMNS) for row in event_rows(batch.columns()))
        batch.close()
    report = reading.report
    assert (report.events_lost, report.events_repaired, report.damage) == (0, 0, "")
    return rows


def nanoseconds(value: Any) -> int | None:
    if value is None:
        return None
    return int((Decimal(str(value)) * 1000).to_integral_value(ROUND_HALF_UP))


def expected(path: Path) -> list[tuple[Any, ...]]:
    opener = gzip.open if path.suffix == ".gz" else open
    with opener(path) as file:
        exact = json.load(file, parse_float=Decimal)
    events = exact["traceEvents"] if isinstance(exact, dict) else exact
    return [
        (
            event.get("ph", ""),
            event.get("cat") or "",
            event.get("name", ""),
            str(event.get("pid", "")),
            str(event.get("tid", "")),
            nanoseconds(event.get("ts")),
            nanoseconds(event.get("dur")),
            as_floats(event.get("args")),
        )
        for event in events
    ]


def as_floats(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: as_floats(item) for key, item in value.items()}
    if isinstance(value, list):
        return [as_floats(item) for item in value]
    return float(value) if isinstance(value, Decimal) else value


@pytest.mark.slow
@pytest.mark.parametrize("path", TRACES, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_real_traces_come_through_exactly(path: Path) -> None:
    assert read_all(path) == expected(path)


LAYOUTS = {
    "kineto": lambda events: kineto_text(events, schemaVersion=1, baseTimeNanoseconds=17),
    "one line": lambda events: json.dumps({"a": [{"ph": 1}], "traceEvents": events, "z": [{"x": [1]}]}),
    "compact": lambda events: json.dumps({"traceEvents": events}, separators=(",", ":")),
    "indent 1": lambda events: json.dumps({"traceEvents": events, "z": [[1], {"b": [2]}]}, indent=1),
    "indent 4": lambda events: json.dumps({"traceEvents": events}, indent=4),
    "bare array": lambda events: json.dumps(events),
    "bare array, indented": lambda events: json.dumps(events, indent=2),
    "one event a line": lambda events: "[\n" + ",\n".join(map(json.dumps, events)) + "\n]",
    "windows line ends": lambda events: json.dumps({"traceEvents": events}, indent=2).replace("\n", "\r\n"),
    "byte order mark": lambda events: "\ufeff" + json.dumps({"traceEvents": events}),
}
EVENTS = [
    {
        "ph": "X",
        "cat": "cpu_op",
        "name": f"op {i}",
        "pid": 1,
        "tid": "t",
        "ts": 10.5 * i,
        "dur": 0.001 * i,
        "args": args,
    }
    for i, args in enumerate(
        [
            {},
            {"nested": [{"ph": "X"}, {"ph": "i"}]},
            {"text": 'a "quoted" }, { text\n'},
            {"u": "é→😀"},
            {"n": None},
        ]
    )
]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("block_bytes", [1 << 25, 700])
def test_any_layout(layout: str, block_bytes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rankscope.readers.kineto.reader.BLOCK_BYTES", block_bytes)
    path = tmp_path / "trace.json"
    path.write_text(LAYOUTS[layout](EVENTS * 3), encoding="utf-8")
    rows = read_all(path)
    assert [(row[2], row[5], row[7]) for row in rows] == [
        (event["name"], nanoseconds(event["ts"]), event["args"]) for event in EVENTS * 3
    ]


@pytest.mark.slow
@given(st.lists(st.integers(0, 2**43 * 1000 - 1), min_size=1, max_size=20))
@settings(max_examples=examples(100), deadline=None)
def test_times_are_exact_to_the_nanosecond(times: list[int]) -> None:
    text = ",".join(
        f'{{"ph":"X","ts":{t // 1000}.{t % 1000:03d},"dur":{t // 1000}.{t % 1000:03d}}}' for t in times
    )
    assert _times(f'{{"traceEvents":[{text}]}}') == [(t, t) for t in times]


@pytest.mark.thorough
@given(st.lists(st.integers(1_600_000_000_000_000_000, 1_900_000_000_000_000_000), min_size=1, max_size=20))
@settings(max_examples=examples(100), deadline=None)
def test_times_since_1970_with_fractions_are_exact_too(times: list[int]) -> None:
    text = ", ".join(f'{{"ph": "X", "ts": {t // 1000}.{t % 1000:03d}, "dur": 1.5}}' for t in times)
    assert _times(f'{{"traceEvents": [{text}]}}') == [(t, 1500) for t in times]


def _times(text: str) -> list[tuple[int, int]]:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        path.write_text(text)
        return [row[5:7] for row in read_all(path)]


def _one_line(number: int) -> str:
    return f'{{"ph":"X","cat":"cpu_op","name":"op{number}","pid":1,"tid":2,"ts":{number},"dur":1,"args":{{"a":{{}}}}}}'


def _pretty(number: int) -> str:
    long_text = "x" * (5000 if number % 97 == 96 else number % 50)
    return (
        f'{{\n    "ph": "X", "cat": "cpu_op", "name": "op{number}", "pid": 1, "tid": 2,\n'
        f'    "ts": {number}.5, "dur": 1,\n    "args": {{\n'
        f'      "External id": {number}, "t": "{long_text}"\n    }}\n  }}'
    )


@pytest.mark.parametrize("write", [_one_line, _pretty])
@pytest.mark.parametrize("block_bytes", [3000, 4096, 1 << 16])
def test_threads_read_the_blocks_that_one_pass_finds(
    write: Callable[[int], str], block_bytes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A compressed file is read from its start to its end, of a plain one each thread reads its block; with events that
    are longer than a block."""
    monkeypatch.setattr(reader, "BLOCK_BYTES", block_bytes)
    text = '{"traceEvents": [\n  ' + ",\n  ".join(map(write, range(400))) + "\n]}"
    plain, packed = tmp_path / "a.json", tmp_path / "a.json.gz"
    plain.write_text(text)
    packed.write_bytes(gzip.compress(text.encode()))
    events: list[list[bytes]] = []
    for path in (plain, packed):
        blocks = [batch._block for batch in reader.KinetoReading(path).batches()]
        assert len(blocks) > 1 or block_bytes == 1 << 16
        events.append([bytes(block.data[block.start : block.end]) for block in blocks])
    assert b"".join(events[0]).count(b'"ph"') == 400
    assert events[0] == events[1]
