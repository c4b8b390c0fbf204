"""Damaged files: what can be read is read, the loss is counted and shown, nothing raises a traceback."""

from __future__ import annotations

import gzip
import json
from contextlib import closing
from pathlib import Path
from typing import Any, NoReturn

import pytest

from conftest import kernel_event, kineto_text, open_trace, slice_event, write_kineto
from gpu_logs import evenly, query_csv
from rankscope.errors import NotATraceError, RankscopeError, ReadError, StoreError
from rankscope.readers.byte_stream import line_blocks, open_stream
from rankscope.readers.gpu_counters.reader import GpuCountersReader
from rankscope.timeline.reading import ingest
from rankscope.timeline.run import Run
from rankscope.zstd import ZstdCompressor

GOOD = [slice_event(f"good {i}", 10.0 * i, 5.0) for i in range(4)]


def damaged_event(**fields: str) -> str:
    """An event in Kineto's text in which some fields are raw text."""
    values = {
        "ph": '"X"',
        "cat": '"cpu_op"',
        "name": '"odd"',
        "pid": "1",
        "tid": "1",
        "ts": "7.5",
        "dur": "1.0",
    } | fields
    text = ", ".join(f'"{key}": {value}' for key, value in values.items() if value)
    return f"\n  {{\n    {text}\n  }}"


def names(run: Run) -> set[str]:
    return {name for (name,) in run.rows("SELECT name FROM slices")}


def report(run: Run) -> dict[str, Any]:
    reading: dict[str, Any] = run.segments[0].manifest["reading"]
    return reading


GOOD_NAMES = {event["name"] for event in GOOD}

# text of the middle event -> (its name in the store or None when it is lost, lost, repaired)
EVENTS = {
    "control characters": (damaged_event(name='"odd\x01\x1f"'), "odd\x01\x1f", 0, 1),
    "lone surrogate": (damaged_event(name='"odd\\ud800"'), "odd\ufffd", 0, 1),
    "unescaped quotes": (damaged_event(name='"odd "quoted" name"'), 'odd "quoted" name', 0, 1),
    "NaN time": (damaged_event(ts="NaN"), None, 1, 0),
    "infinite duration": (damaged_event(dur="Infinity"), "odd", 0, 1),
    "NaN argument": (damaged_event(args='{"x": NaN, "y": [-Infinity]}'), "odd", 0, 0),
    "numbers as strings": (damaged_event(ts='"7.5"', dur='"1.0"', pid='"1"'), "odd", 0, 0),
    "no duration": (damaged_event(dur=""), "odd", 0, 0),
    "no name": (damaged_event(name=""), "", 0, 0),
    "no category, pid, tid": (damaged_event(cat="", pid="", tid=""), "odd", 0, 0),
    "time that is no number": (damaged_event(ts='"soon"'), None, 1, 0),
    "time beyond all clocks": (damaged_event(ts="1e300"), None, 1, 0),
    "a number instead of an event": ("\n  7", None, 1, 0),
    "half an event": ('\n  {\n    "ph": "X", "na\n  }', None, 1, 0),
    "arguments that are no object": (damaged_event(args='"text"'), "odd", 0, 0),
    "repeated key": (damaged_event(name='"odd", "name": "odd2"'), "odd2", 0, 0),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", EVENTS)
def test_one_bad_event_among_good_ones(case: str, tmp_path: Path) -> None:
    text, name, lost, repaired = EVENTS[case]
    run = open_trace(write_kineto(tmp_path / "trace.json", [*GOOD[:2], text, *GOOD[2:]]))
    assert names(run) == GOOD_NAMES | ({name} if name is not None else set())
    assert (report(run)["events_lost"], report(run)["events_repaired"]) == (lost, repaired)
    assert len(report(run)["examples"]) == min(lost + repaired, 1)


@pytest.mark.slow
def test_no_time_at_all_is_left_out_and_counted(tmp_path: Path) -> None:
    run = open_trace(write_kineto(tmp_path / "trace.json", [*GOOD, damaged_event(ts="")]))
    assert names(run) == GOOD_NAMES
    assert run.segments[0].manifest["misplaced"] == 1


@pytest.mark.slow
def test_time_zero_among_times_since_1970(tmp_path: Path) -> None:
    late = [slice_event(f"good {i}", 1.7e15 + 10 * i, 5.0) for i in range(4)]
    run = open_trace(write_kineto(tmp_path / "trace.json", [slice_event("zero", 0, 1.0), *late]))
    assert names(run) == GOOD_NAMES
    assert run.segments[0].manifest["misplaced"] == 1
    assert run.rows("SELECT min(start_ns) FROM slices") == [(0,)]
    assert run.rows("SELECT count(*) FROM events WHERE name = 'zero'") == [(1,)]


@pytest.mark.slow
@pytest.mark.parametrize("whole", [4_458_676_522_690, 1_712_195_495_519_689])
def test_times_beside_damage_stay_exact(whole: int, tmp_path: Path) -> None:
    """Where doubles end: the neighbours of a damaged event are read again, and keep every nanosecond."""
    times = [f"{whole + i}.{655 + i}" for i in range(3)]
    events = [damaged_event(ts=time) for time in times] + [damaged_event(name='"odd\x01"', ts=f"{whole}.001")]
    run = open_trace(write_kineto(tmp_path / "trace.json", events))
    stored = [ts for (ts,) in run.rows("SELECT ts_ns FROM events ORDER BY id")]
    assert stored == [int(time.replace(".", "")) for time in [*times, f"{whole}.001"]]


@pytest.mark.slow
def test_invalid_utf8(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    path.write_bytes(
        kineto_text([*GOOD, slice_event("bad@@name", 50, 1)]).encode().replace(b"@@", b"\xff\xfe")
    )
    run = open_trace(path)
    assert names(run) == GOOD_NAMES | {"bad\ufffd\ufffdname"}
    assert report(run)["events_repaired"] == 1


@pytest.mark.slow
@pytest.mark.parametrize("keep", [0.4, 0.7, 0.95, 0.999])
@pytest.mark.parametrize("one_line", [False, True])
def test_truncated_anywhere(keep: float, one_line: bool, tmp_path: Path) -> None:
    events = [slice_event(f"event {i}", 10.0 * i, 5.0, args={"a": [{"b": i}]}) for i in range(200)]
    text = json.dumps({"traceEvents": events}) if one_line else kineto_text(events)
    path = tmp_path / "trace.json"
    path.write_text(text[: int(len(text) * keep)])
    run = open_trace(path)
    whole = text[: int(len(text) * keep)].count('"args"')
    count = len(names(run))
    assert whole - 1 <= count <= whole
    if keep < 0.999:
        assert "ends before" in report(run)["damage"]
        assert report(run)["events_lost"] <= 1


@pytest.mark.slow
def test_truncated_gzip(tmp_path: Path) -> None:
    events = [slice_event(f"event {i}", 10.0 * i, 5.0, args={"i": i * 7919 % 1009}) for i in range(5000)]
    whole = gzip.compress(kineto_text(events).encode())
    path = tmp_path / "trace.json.gz"
    path.write_bytes(whole[: len(whole) // 2])
    run = open_trace(path)
    assert 1000 < len(names(run)) < 5000
    assert "gzip" in report(run)["damage"]


def test_zstd_whole_cut_and_corrupt(tmp_path: Path) -> None:
    text = kineto_text([slice_event(f"op {i}", 10.0 * i, 5.0) for i in range(3000)]).encode()
    frames = [
        ZstdCompressor().compress(part, ZstdCompressor.FLUSH_FRAME) for part in (text[:999], text[999:])
    ]
    (tmp_path / "rank-0.json.zst").write_bytes(b"".join(frames))
    run = open_trace(tmp_path)
    assert run.rows("SELECT count(*) FROM slices") == [(3000,)] and not report(run)["damage"]
    cut, corrupt = tmp_path / "cut.json.zst", tmp_path / "corrupt.json.zst"
    cut.write_bytes(b"".join(frames)[:-200])
    assert "zstd file ends in the middle" in report(open_trace(cut))["damage"]
    corrupt.write_bytes(frames[0] + frames[1][:-200] + bytes(200))
    assert "zstd data is corrupt" in report(open_trace(corrupt))["damage"]


@pytest.mark.slow
def test_corrupt_gzip(tmp_path: Path) -> None:
    events = [slice_event(f"event {i}", 10.0 * i, 5.0, args={"i": i * 7919 % 1009}) for i in range(5000)]
    whole = bytearray(gzip.compress(kineto_text(events).encode()))
    whole[len(whole) // 2] ^= 0xFF
    path = tmp_path / "trace.json.gz"
    path.write_bytes(bytes(whole))
    run = open_trace(path)
    assert names(run)
    assert "gzip" in report(run)["damage"]


@pytest.mark.slow
def test_damage_in_one_range_leaves_the_others_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    events: list[Any] = [slice_event(f"event {i}", 10.0 * i, 5.0) for i in range(300)]
    events[100] = damaged_event(ts="NaN")
    events[299] = damaged_event(name='"last\x02"')
    run = open_trace(write_kineto(tmp_path / "trace.json", events))
    assert len(names(run)) == 299
    assert (report(run)["events_lost"], report(run)["events_repaired"]) == (1, 1)


NOT_TRACES = {
    "empty file": (b"", "is empty"),
    "empty gzip": (gzip.compress(b""), "is empty"),
    "not JSON": (b"hello, this is text", "is not a trace"),
    "JSON of another kind": (b'{"learning_rate": 0.1, "layers": [1, 2]}', "not a trace"),
    "array of numbers": (b"[1, 2, 3]", "not a trace"),
    "execution trace": (
        b'{"schema": "1.1.1-chakra.0.0.4", "pid": 1, "nodes": [{"id": 1, "name": "aten::mm"}]}',
        "is an execution trace",
    ),
    "ends before the events": (b'{"schemaVersion": 1, "trace', "not a trace"),
}


@pytest.mark.parametrize("case", NOT_TRACES)
def test_what_is_not_a_trace_says_so(case: str, tmp_path: Path) -> None:
    content, message = NOT_TRACES[case]
    path = tmp_path / "thing.json"
    path.write_bytes(content)
    with pytest.raises(NotATraceError, match=message) as caught:
        open_trace(path)
    assert caught.value.why and caught.value.hint


def test_a_perfetto_trace_says_what_to_record_instead(tmp_path: Path) -> None:
    (tmp_path / "rank-0.pftrace").write_bytes(b"\x0a\x02\x50\x01" * 10)
    with pytest.raises(RankscopeError) as caught:
        ingest([tmp_path])
    assert "rank-0.pftrace" in str(caught.value) and "Perfetto" in caught.value.why
    assert "traceconv json rank-0.pftrace" in caught.value.hint


def test_empty_list_of_events_is_an_empty_run(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    path.write_text('{"schemaVersion": 1, "traceEvents": [], "traceName": "x"}')
    run = open_trace(path)
    assert run.rows("SELECT count(*) FROM slices") == [(0,)]


def test_nothing_but_damage_is_an_error(tmp_path: Path) -> None:
    path = write_kineto(tmp_path / "trace.json", [damaged_event(ts="NaN")] * 3)
    with pytest.raises(ReadError, match="nothing in"):
        open_trace(path)


def test_a_folder_without_traces(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "inner").mkdir()
    (tmp_path / "inner" / "trace.json").write_text("{}")
    with pytest.raises(NotATraceError, match="no trace in") as caught:
        open_trace(tmp_path)
    assert "inner" not in caught.value.hint  # nothing in it can be read either
    for name in ("other", "second"):
        with pytest.raises(NotATraceError, match="no trace in") as caught:
            open_trace(tmp_path)
        (tmp_path / name).mkdir()
        write_kineto(tmp_path / name / "trace.json", GOOD)
    assert caught.value.hint == f"Did you mean {tmp_path / 'other'}?"
    with pytest.raises(NotATraceError, match="has 2 runs below it, and no trace of its own"):
        open_trace(tmp_path)


def test_a_path_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="there is no"):
        open_trace(tmp_path / "nothing")


@pytest.mark.slow
def test_a_bad_file_among_good_ones_is_passed_over_and_said(tmp_path: Path) -> None:
    from rankscope.timeline.reading import ingest

    write_kineto(tmp_path / "rank-0.json", GOOD)
    write_kineto(tmp_path / "rank-1.json", GOOD)
    (tmp_path / "rank-2.json").write_bytes(b"")
    ingested = ingest([tmp_path])
    assert Run(ingested).ranks == [0, 1]
    assert ["rank-2.json" in problem.message for problem in ingested.problems] == [True]


@pytest.mark.parametrize("stage", ["recognises", "log"])
def test_a_reader_that_fails_is_a_message_about_its_file(
    stage: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wherever it fails, and whatever it raises: the other files are read."""

    def fail(*args: object) -> NoReturn:
        raise ZeroDivisionError("two\nlines")

    write_kineto(tmp_path / "rank-0.json", [kernel_event("gemm", 10.0, 5.0)])
    (tmp_path / "smi.csv").write_text(query_csv(evenly(0, 10**9, 10**8, [0])), encoding="utf-8")
    monkeypatch.setattr(GpuCountersReader, stage, fail)
    ingested = ingest([tmp_path])
    assert [entry.source.name for entry in ingested.read] == ["rank-0.json"]
    (problem,) = [str(problem) for problem in ingested.problems if "smi.csv" in str(problem)]
    assert "ZeroDivisionError: two lines" in problem and len(problem.splitlines()) == 3


@pytest.mark.parametrize("size", range(1, 14))
def test_a_stream_is_cut_between_lines(tmp_path: Path, size: int) -> None:
    """Also its last line without an end is read; one that is too long is left out, and told once."""
    path = tmp_path / "a.log"
    path.write_bytes(b"one\ntwo\n" + b"x" * 40 + b"\nthree\nend")
    told: list[int] = []
    with closing(open_stream(path)) as stream:
        blocks = [*line_blocks(stream, size, 20, lambda: told.append(1))]
    assert b"".join(blocks) == b"one\ntwo\nthree\nend" and told == [1]
    assert all(block.endswith(b"\n") for block in blocks[:-1])
