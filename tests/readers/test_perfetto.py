"""Perfetto traces: generated to the schema with known answers, damaged in every way, and rankscope's own export."""

from __future__ import annotations

import gzip
import json
import random
import zlib
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import perfetto_files as pf
from conftest import kernel_event, open_trace, slice_event, write_kineto
from event_rows import event_rows
from rankscope.analysis.core.scope import Scope
from rankscope.analysis.health.doctor import doctor
from rankscope.analysis.questions import QUESTIONS
from rankscope.errors import RankscopeError, ReadError
from rankscope.readers import find_reader
from rankscope.readers.base import ReadReport
from rankscope.readers.columns import NULL
from rankscope.readers.perfetto import decoder, reader
from rankscope.readers.perfetto.decoder import EventDecoder, Index, Plan, cut
from rankscope.timeline.run import Run
from rankscope.views.export.files import write_trace
from rankscope.views.export.protobuf import blob, double, number, text, varint

PLAIN = (
    pf.process(1, 100, "trainer")
    + pf.thread(2, 100, 101, "main", parent=1)
    + pf.slices(2, (1000, 500, "aten::mm", "cpu_op"), (1600, 0, "mark", "cpu_op"), args={"External id": 5})
)


def write(folder: Path, content: bytes, name: str = "rank-0.pftrace") -> Path:
    path = folder / name
    path.write_bytes(content)
    return path


def read(folder: Path, content: bytes) -> Run:
    return open_trace(write(folder, content))


def found(run: Run) -> list[tuple[Any, ...]]:
    return run.rows(
        "SELECT pid, tid, start_ns, dur_ns, s.name, category FROM slices s JOIN tracks USING (rank, segment, track) "
        "ORDER BY start_ns, dur_ns DESC, s.name"
    )


def reading(run: Run) -> dict[str, Any]:
    report: dict[str, Any] = run.segments[0].manifest["reading"]
    return report


def decoded(content: bytes) -> tuple[Index, list[dict[str, Any]]]:
    """The index of some packets, and their events."""
    whole = memoryview(content)[: cut(content).end]
    index = Index()
    index.add(whole)
    index.finish()
    plan = Plan(
        index.first_ns or 0,
        [(uuid, b"%d" % uuid, b"t", (b"count", b"bytes", uuid % 3, uuid % 4 == 0)) for uuid in index.uuids],
        index.durations.ns,
        reader._flow_phases(index),
        [(2, 4, b"ac2g")],
    )
    return index, [row for columns in EventDecoder(plan).decode(whole) for row in event_rows(columns)]


def test_slices_threads_and_arguments(tmp_path: Path) -> None:
    run = read(tmp_path, PLAIN)
    assert found(run) == [
        ("100", "101", 0, 500, "aten::mm", "cpu_op"),
        ("100", "101", 600, 0, "mark", "cpu_op"),
    ]
    assert run.rows("SELECT process, thread FROM tracks") == [("trainer", "main")]
    assert run.rows("SELECT DISTINCT external_id, args::VARCHAR FROM events WHERE ph = 'X'") == [
        (5, '{"External id":5}')
    ]
    assert reading(run)["events_lost"] == 0


def test_interned_names_belong_to_their_sequence_until_it_is_cleared(tmp_path: Path) -> None:
    def named(sequence: int, time: int, iid: int = 1) -> bytes:
        more = number(10, iid) + number(3, 1)
        begin = pf.packet(
            pf.event(pf.BEGIN, 2, more=more), time=time, sequence=sequence, flags=pf.NEEDS_STATE
        )
        return begin + pf.packet(pf.event(pf.END, 2), time=time + 5, sequence=sequence)

    def tables(sequence: int, name: str, flags: int = pf.CLEARED) -> bytes:
        data = pf.interned(names={1: name}, categories={1: "cpu_op"})
        return pf.packet(data, sequence=sequence, flags=flags)

    content = pf.thread(2, 1, 1) + tables(1, "one") + tables(2, "two") + named(1, 10) + named(2, 20)
    content += pf.packet(b"", sequence=1, flags=pf.CLEARED) + tables(1, "three", flags=0) + named(1, 30)
    content += named(3, 40)  # its state was never there
    content += pf.packet(number(42, 1), sequence=2) + named(2, 50)  # packets before it were lost
    run = read(tmp_path, content)
    assert [row[4] for row in found(run)] == ["one", "two", "three"]
    assert reading(run)["events_lost"] == 4  # two begins, and their ends, which need no state
    assert "names which the file has lost" in reading(run)["examples"][0]


def test_clocks(tmp_path: Path) -> None:
    snapshot = pf.clocks((6, 1_000_000), (1, 1_700_000_000_000_000_000), (3, 400_000))
    own = pf.clocks((6, 1_000_000), (64, 500), incremental=(64,), unit=1000)
    content = pf.thread(2, 1, 1) + pf.packet(snapshot, sequence=0) + pf.packet(own, sequence=9)
    content += pf.packet(pf.event(pf.BEGIN, 2, "boot"), time=1_000_000) + pf.packet(
        pf.event(pf.END, 2), time=1_000_100
    )
    content += pf.packet(pf.event(pf.BEGIN, 2, "monotonic"), time=400_200, clock=3)
    content += pf.packet(pf.event(pf.END, 2), time=400_300, clock=3)
    default = blob(59, number(58, 64) + blob(11, number(11, 2)))  # clock and track of events without
    content += pf.packet(default, sequence=9, flags=pf.CLEARED)
    content += pf.packet(pf.event(pf.BEGIN, 0, "incremental"), time=7, sequence=9)  # 7 µs after the snapshot
    content += pf.packet(pf.event(pf.END), time=2, sequence=9)
    content += pf.packet(pf.event(pf.BEGIN, 2, "of no clock"), time=5, clock=99)
    run = read(tmp_path, content)
    assert [row[2:5] for row in found(run)] == [
        (0, 100, "boot"),
        (200, 100, "monotonic"),
        (7000, 2000, "incremental"),
    ]
    assert run.segments[0].unix_origin_ns == 1_700_000_000_000_000_000
    assert reading(run)["events_lost"] == 1 and "no snapshot" in reading(run)["examples"][0]


def test_ends_that_follow_all_begins(tmp_path: Path) -> None:
    """torch writes the begins of a group first: what ends where another begins is not inside it."""
    rows = [(0, 10, "a"), (10, 10, "b"), (12, 3, "c"), (20, 5, "d")]
    content = pf.thread(2, 1, 1)
    content += b"".join(pf.packet(pf.event(pf.BEGIN, 2, name), time=start) for start, _, name in rows)
    content += b"".join(pf.packet(pf.event(pf.END, 2), time=start + duration) for start, duration, _ in rows)
    run = read(tmp_path, content)
    assert [(start, length, name) for *_, start, length, name, _ in found(run)] == rows


def test_slices_without_an_end_and_ends_without_a_slice(tmp_path: Path) -> None:
    content = pf.thread(2, 1, 1) + pf.packet(pf.event(pf.END, 2), time=5)
    content += pf.packet(pf.event(pf.BEGIN, 2, "open"), time=10) + pf.slices(2, (20, 30, "closed", ""))
    run = read(tmp_path, content)
    assert [(start, length, name) for *_, start, length, name, _ in found(run)] == [
        (0, 40, "open"),
        (10, 30, "closed"),
    ]
    assert (reading(run)["events_lost"], reading(run)["events_repaired"]) == (1, 1)


def test_tracks_below_tracks_counters_and_instants(tmp_path: Path) -> None:
    bytes_used = number(3, 3) + number(4, 1024)
    content = PLAIN + pf.track(3, "async work", parent=1) + pf.track(4, "global")
    content += pf.counter(5, "memory", 1, bytes_used) + pf.counter(6, "calls", 1, number(5, 1))
    content += pf.slices(3, (2000, 100, "copy", "")) + pf.slices(4, (2100, 100, "loop", ""))
    content += pf.packet(pf.event(pf.INSTANT, 2, "here", "note", {"why": "so"}), time=2200)
    for at, value in ((2300, 3), (2400, 4)):
        content += pf.packet(pf.event(pf.COUNTER, 5, more=number(30, value)), time=at)
        content += pf.packet(pf.event(pf.COUNTER, 6, more=double(44, value / 2)), time=at)
    run = read(tmp_path, content)
    assert [row for row in found(run) if row[1] != "101"] == [
        ("100", "async work", 1000, 100, "copy", ""),
        ("global", "global", 1100, 100, "loop", ""),
    ]
    assert run.rows("SELECT ts_ns, name, category FROM instants") == [(1200, "here", "note")]
    assert run.rows("SELECT ts_ns, name, series, value FROM counters ORDER BY ts_ns, name") == [
        (1300, "calls", "value", 1.5),
        (1300, "memory", "bytes", 3072.0),
        (1400, "calls", "value", 3.5),
        (1400, "memory", "bytes", 4096.0),
    ]


def test_flows_go_on_in_time_or_to_their_end(tmp_path: Path) -> None:
    content = pf.thread(2, 1, 1) + pf.thread(3, 1, 2)
    rows = [
        (2, 10, pf.flow(7)),
        (3, 20, pf.flow(7)),
        (3, 40, pf.flow(ends=[8])),
        (2, 30, pf.flow(8)),
        (2, 50, pf.flow(9)),
    ]
    for uuid, at, flows in rows:
        content += pf.packet(pf.event(pf.BEGIN, uuid, f"at {at}", more=flows), time=at)
        content += pf.packet(pf.event(pf.END, uuid), time=at + 5)
    run = read(tmp_path, content)
    names = (
        "SELECT s.name, t.name FROM links l JOIN slices s ON s.id = l.source JOIN slices t ON t.id = l.target"
    )
    assert sorted(run.rows(names)) == [("at 10", "at 20"), ("at 30", "at 40")]


LINKED = """
SELECT s.name, t.name, source_ns, target_ns FROM links l
JOIN slices s ON s.id = l.source JOIN slices t ON t.id = l.target ORDER BY source_ns, target_ns
"""


def test_a_flow_id_is_used_again(tmp_path: Path) -> None:
    """Each use goes to the next in time: k uses give k links at most, and none ends before it starts."""
    rows = [(at, pf.flow(7) if at % 20 else pf.flow(ends=[7])) for at in range(10, 130, 10)]
    content = pf.thread(2, 1, 1) + b"".join(
        pf.packet(pf.event(pf.BEGIN, 2, f"at {at}", more=flows), time=at)
        + pf.packet(pf.event(pf.END, 2), time=at + 5)
        for at, flows in rows
    )
    pairs = [(f"at {at}", f"at {at + 10}", at - 10, at) for at in range(10, 130, 20)]
    assert read(tmp_path, content).rows(LINKED) == pairs
    steps = content.replace(pf.flow(ends=[7]), pf.flow(7))  # one flow that never ends
    pairs = [(f"at {at}", f"at {at + 10}", at - 10, at) for at in range(10, 120, 10)]
    assert read(tmp_path, steps).rows(LINKED) == pairs


def test_an_end_before_its_start_is_no_link(tmp_path: Path) -> None:
    content = pf.thread(2, 1, 1)
    for at, flows in ((10, pf.flow(ends=[7])), (20, pf.flow(7))):
        content += pf.packet(pf.event(pf.BEGIN, 2, f"at {at}", more=flows), time=at)
        content += pf.packet(pf.event(pf.END, 2), time=at + 5)
    assert read(tmp_path, content).rows("SELECT count(*) FROM links") == [(0,)]


def test_json_in_a_file_adds_no_events(tmp_path: Path) -> None:
    forged = '1}},\n{"ph":"X","cat":"","name":"forged","pid":"1","tid":"1","ts":1,"dur":1,"args":{"a":1'
    values = {
        "forged": forged,
        "spaced": ' { "a" : [ 1 , 2.5e1 , "x y" ] ,\n"b":{ } } ',
        "open": '{"a":1',
        "open twice": "[{",
        "two": "1 2",
        "cut": '"\\u12',
        "comma": "[1,]",
        "nan": "NaN",
        "deep": "[" * 1000 + "]" * 1000,
    }
    notes = [blob(4, text(10, key) + text(9, value)) for key, value in values.items()]
    content = pf.thread(2, 1, 1) + pf.packet(pf.event(pf.INSTANT, 2, "a", more=b"".join(notes)), time=10)
    lone = blob(4, text(10, "args") + text(9, '{"a":1}},\n{"ph":"i","name":"forged"'))
    content += pf.packet(pf.event(pf.INSTANT, 2, "b", more=lone), time=20)
    run = read(tmp_path, content)
    assert run.rows("SELECT name FROM instants ORDER BY ts_ns") == [("a",), ("b",)]
    first, second = (
        json.loads(args)
        for (args,) in run.rows("SELECT args::VARCHAR FROM events WHERE ph = 'i' ORDER BY ts_ns")
    )
    assert first == {**values, "spaced": {"a": [1, 25.0, "x y"], "b": {}}}
    assert second == {"args": '{"a":1}},\n{"ph":"i","name":"forged"'}
    assert not run.rows("SELECT * FROM slices")


def test_legacy_events(tmp_path: Path) -> None:
    def legacy(phase: str, name: str, time: int, more: bytes = b"") -> bytes:
        return pf.packet(
            pf.event(0, 2, name, "cpu_op", more=blob(6, number(2, ord(phase)) + more)), time=time
        )

    content = pf.thread(2, 1, 1) + legacy("X", "whole", 10_000, number(3, 5))
    content += legacy("B", "half", 20_000) + legacy("E", "", 21_000)
    content += legacy("S", "async", 30_000, number(6, 77)) + legacy("F", "async", 33_000, number(6, 77))
    content += legacy("I", "instant", 40_000) + legacy("?", "unknown", 50_000)
    run = read(tmp_path, content)
    assert [(start, length, name) for *_, start, length, name, _ in found(run)] == [
        (0, 5000, "whole"),
        (10_000, 1000, "half"),
        (20_000, 3000, "async"),
    ]
    assert run.rows("SELECT name FROM instants") == [("instant",)]
    assert reading(run)["events_lost"] == 1 and "neither begin" in reading(run)["examples"][0]


def test_arguments_of_every_kind(tmp_path: Path) -> None:
    hostile = 'a "quoted" \\ line\nbreak \x00 é'
    args = {
        "text": hostile,
        "number": -(2**63),
        "large": 0.1,
        "yes": True,
        "list": [1, [2.5, "x"], {"deep": [True]}],
        "object": {"a": {"b": {"c": 1}}},
    }
    content = pf.thread(2, 1, 1) + pf.slices(2, (0, 1, "op", "cpu_op"), args=args)
    ((stored,),) = read(tmp_path, content).rows("SELECT args::VARCHAR FROM events WHERE ph = 'X'")
    assert json.loads(stored) == {**args, "text": hostile.replace("\x00", "\ufffd")}


NOT_UTF8 = {
    b"\xff\xfe": "\ufffd\ufffd",
    b"a\xe2\x82b": "a\ufffdb",  # cut off
    b"\xed\xa0\x80": "\ufffd\ufffd\ufffd",  # a surrogate
    b"\xf0\x9f\x98": "\ufffd",
    b"\xc0\x80\xf5": "\ufffd\ufffd\ufffd",
}


@pytest.mark.parametrize("content", NOT_UTF8)
def test_texts_that_are_not_utf8(content: bytes) -> None:
    """As Python decodes them, wherever they are."""
    assert content.decode("utf-8", "replace") == NOT_UTF8[content]
    note = blob(4, blob(10, content) + blob(6, content))
    event = number(9, pf.INSTANT) + number(11, 2) + blob(22, content) + blob(23, content) + note
    tables = blob(12, b"".join(blob(table, number(1, 1) + blob(2, content)) for table in (1, 2, 3, 29)))
    note = blob(4, number(1, 1) + number(17, 1))
    interned = number(9, pf.INSTANT) + number(11, 2) + number(3, 1) + number(10, 1) + note
    packets = pf.packet(tables + blob(11, interned), time=20, flags=pf.CLEARED)
    _, events = decoded(pf.packet(blob(11, event), time=10) + packets)
    replaced = NOT_UTF8[content]
    for row in events:
        assert (row["name"], row["category"], row["args"]) == (replaced, replaced, {replaced: replaced})
    assert len(events) == 2


def test_texts_that_are_not_utf8_are_counted(tmp_path: Path) -> None:
    event = pf.packet(blob(11, number(9, 1) + number(11, 2) + blob(23, b"\xff\xfe")), time=5000)
    names, report = names_of(write(tmp_path, PLAIN + event))
    assert names[-1] == "\ufffd\ufffd"
    assert report.events_repaired == 2 and "not UTF-8" in report.examples[-1]  # and it has no end


COLUMNS_OF_VALUES = {
    "12": 12, "-12": -12, '"12"': 12, "9223372036854775807": 2**63 - 1, "9223372036854775808": None,
    "true": 1, "false": 0, "12.5": 12, "13.5": 14, "-0.75": -1, '"12.75"': 13, "1e3": None, '"1e3"': None,
    '"007"': None, '" 12"': None, '"0x10"': None, '"a"': None, '""': None, "null": None, "[1]": None, '{"a":1}': None,
}  # fmt: skip


@pytest.mark.parametrize("spelling", COLUMNS_OF_VALUES)
def test_numbers_in_arguments_of_other_types(spelling: str) -> None:
    """A column has the number, or null; the arguments have the value as it is."""
    expected, value = COLUMNS_OF_VALUES[spelling], json.loads(spelling)
    notes = b"".join(blob(4, text(10, key) + text(9, spelling)) for key in ("bytes", "Total Allocated"))
    exported = blob(4, text(10, "args") + text(9, f'{{"bytes": {spelling}, "Total Allocated": {spelling}}}'))
    for more in (notes, exported):
        _, (event,) = decoded(pf.packet(pf.event(pf.INSTANT, 2, "[memory]", "kernel", more=more), time=10))
        assert event["args"] == {"bytes": value, "Total Allocated": value}
        assert event["bytes"] == expected
        assert [NULL if expected is None else expected] == event["memory"][1:2]


def test_texts_in_arguments_of_other_types() -> None:
    spellings = {
        '"a\\n"': "a\n",
        "1.50": "1.50",
        "true": "true",
        '[1, "\\u0041"]': '[1,"\\u0041"]',
        "null": None,
    }
    for spelling, expected in spellings.items():
        more = blob(4, text(10, "Collective name") + text(9, spelling))
        _, (event,) = decoded(pf.packet(pf.event(pf.INSTANT, 2, "op", "kernel", more=more), time=10))
        assert event["collective"] == expected and event["args"] == {"Collective name": json.loads(spelling)}


def test_the_first_of_arguments_with_the_same_name_has_the_column() -> None:
    notes = b"".join(blob(4, text(10, "bytes") + number(4, value)) for value in (5, 6))
    exported = blob(4, text(10, "args") + text(9, '{"bytes":5,"a":{"bytes":7},"bytes":6}'))
    stage = blob(
        53, number(2, 1) + blob(6, text(1, "bytes") + text(2, "5")) + blob(6, text(1, "bytes") + text(2, "6"))
    )
    packets = (pf.event(pf.INSTANT, 2, "a", more=notes), pf.event(pf.INSTANT, 2, "a", more=exported), stage)
    _, events = decoded(b"".join(pf.packet(content, time=10) for content in packets))
    assert [event["bytes"] for event in events] == [5, 5, 5]


def test_ids_and_times_beyond_63_bits_and_doubles() -> None:
    def legacy(phase: str, time: int, more: bytes) -> bytes:
        return pf.packet(pf.event(0, 2, "a", more=blob(6, number(2, ord(phase)) + more)), time=time)

    far = 2**62 - 1
    content = legacy("b", 0, number(6, 2**64 - 1)) + legacy("e", far, number(6, 2**63 - 1))
    _, events = decoded(content + legacy("X", 2**53 + 1, number(3, 2**51 + 1)))
    assert [event["flow"] for event in events] == [str(2**64 - 1), str(2**63 - 1), None]
    assert [(event["ts_ns"], event["dur_ns"]) for event in events] == [
        (0, None), (far, None), (2**53 + 1, 1000 * (2**51 + 1))
    ]  # fmt: skip


def colliding_names(count: int) -> list[str]:
    """Texts that begin at the same slot of the table in native/texts.c."""
    first, second = 0x243F6A8885A308D3, 0xB7E151628AED2A6B
    names, number_of = list[str](), 0
    while len(names) < count:
        name, number_of = f"{number_of:07d}", number_of + 1
        few = int.from_bytes((name[:4] + name[3:]).encode(), "little")
        product = (few ^ second) * (first ^ 7)
        if (product ^ product >> 64) & 1023 == 0:
            names.append(name)
    return names


def test_texts_made_to_collide_are_empty_and_counted(tmp_path: Path) -> None:
    names = colliding_names(260)
    read_names, report = names_of(
        write(tmp_path, pf.thread(2, 1, 1) + pf.slices(2, *((10, 0, name, "") for name in names)))
    )
    assert read_names[:250] == names[:250]
    assert set(read_names[250:]) <= {"", *names[250:]} and read_names[-1] == ""
    assert report.events_repaired == read_names.count("") > 0


def test_a_stream_with_a_number_that_json_has_not() -> None:
    lanes = {"[07] stream 007": None, "stream 7": 7, "-5": None, "12345678901234567890123": None}
    for name, stream in lanes.items():
        spec = blob(12, blob(24, number(1, 9) + text(2, name)))
        content = pf.packet(spec, flags=pf.CLEARED) + pf.packet(
            blob(53, number(2, 5) + number(13, 9)), time=10
        )
        _, (event,) = decoded(content)
        assert (event["stream"], event["device"], event["dur_ns"]) == (stream, 0, 5)


def test_the_layout_of_torch(tmp_path: Path) -> None:
    run = read(tmp_path, pf.torch_gpu_trace())
    assert found(run) == [
        ("4242", "4242", 0, 1000, "ProfilerStep#3", "user_annotation"),
        ("4242", "4242", 100, 300, "aten::mm", "cpu_op"),
        ("4242", "4242", 150, 50, "cudaLaunchKernel", "cuda_runtime"),
        ("0", "7", 400, 200, "gemm_kernel", "kernel"),
        ("0", "20", 650, 100, "Memcpy", "gpu_memcpy"),
    ]
    assert run.rows("SELECT name, device, stream, step, op_name, bytes FROM gpu ORDER BY start_ns") == [
        ("gemm_kernel", 0, 7, 3, "aten::mm", None),
        ("Memcpy", 0, 20, 3, None, 4096),
    ]
    assert run.segments[0].unix_origin_ns == 1_700_000_000_000_000_000
    ((args,),) = run.rows("SELECT args::VARCHAR FROM events WHERE name = 'gemm_kernel'")
    assert json.loads(args)["grid"] == [8, 1, 1] and json.loads(args)["block"] == [128, 0, 0]


def test_compressed_packets_gzip_and_names_of_files(tmp_path: Path) -> None:
    packed = pf.packet(blob(50, zlib.compress(PLAIN)), sequence=0)
    unread = pf.packet(blob(133, b"zstd"), sequence=0)
    for number_of, content in enumerate((packed, gzip.compress(PLAIN), packed + unread)):
        run = read(tmp_path, content)
        assert len(found(run)) == 2
        assert reading(run)["events_lost"] == int(number_of == 2)
    assert find_reader(write(tmp_path, PLAIN, "trace")).name == "perfetto"


def test_packets_of_other_kinds_are_counted_by_name(tmp_path: Path) -> None:
    other = pf.packet(blob(1, b""), time=5) + pf.packet(blob(2, b""), time=6) + pf.packet(blob(500, b""))
    run = read(tmp_path, PLAIN + other * 2)
    assert run.segments[0].manifest["header"]["packetsNotRead"] == {
        "ftrace_events": 2,
        "process_tree": 2,
        "field 500": 2,
    }
    checks = {row["check"]: row["value"] for row in doctor(run, Scope()).rows}
    assert checks["packets of kinds that are not read"] == "2 ftrace_events, 2 process_tree, 2 field 500"
    with pytest.raises(ReadError, match="has no track events") as caught:
        read(tmp_path, other)
    assert "ftrace_events" in caught.value.why


NOT_PACKETS = {
    "xplane": blob(1, text(2, "/host:CPU") + blob(3, number(1, 1) + text(2, "main"))),
    "xplane with metadata": blob(1, text(2, "/host:metadata") + blob(4, b"\x08\x01") + blob(6, b"\x08\x01")),
    "text": b"\nhello, this is text",
    "numbers": bytes(range(256)),
    "one byte": b"\x0a",
}


@pytest.mark.parametrize("case", NOT_PACKETS)
def test_other_files_are_not_taken_for_packets(case: str, tmp_path: Path) -> None:
    assert not reader.PERFETTO.recognises(tmp_path / "x.pb", NOT_PACKETS[case])


def names_of(path: Path) -> tuple[list[str | None], ReadReport]:
    """The names of the slices, without a store."""
    reading = reader.PerfettoReading(path)
    names = []
    for batch in reading.batches():
        columns = batch.columns()
        batch.close()
        for phase, name in zip(columns.phase.tolist(), columns.name.tolist(), strict=True):
            if columns.texts.at(phase) == "X":
                names.append(columns.texts.at(name))
    return names, reading.report


def test_cut_off_at_any_byte(tmp_path: Path) -> None:
    content = PLAIN + pf.torch_gpu_trace()
    whole, _ = names_of(write(tmp_path, content))
    for size in range(1, len(content), 7):
        try:
            names, report = names_of(write(tmp_path, content[:size]))
        except RankscopeError as error:
            assert error.why and error.hint
            continue
        assert not Counter(names) - Counter(whole)
        assert bool(report.damage) == (cut(content[:size]).end < size)


@pytest.mark.slow
def test_damage_anywhere_leaves_the_rest(tmp_path: Path) -> None:
    """One byte changed at random: never a traceback, and what is lost is said."""
    content = PLAIN + pf.torch_gpu_trace() + PLAIN
    random.seed(7)
    for _ in range(60):
        changed = bytearray(content)
        changed[random.randrange(len(changed))] = random.randrange(256)
        try:
            names_of(write(tmp_path, bytes(changed)))
        except RankscopeError as error:
            assert error.why and error.hint


def test_a_packet_that_is_damaged_inside_is_lost_alone(tmp_path: Path) -> None:
    broken = pf.packet(blob(11, b"\xff\xff\xff")) + blob(1, b"\x08")
    far = pf.packet(pf.event(pf.INSTANT, 2, "far"), time=2**63)
    without = pf.packet(pf.event(pf.INSTANT, 2, "without"))
    run = read(tmp_path, PLAIN + broken + far + without + pf.slices(2, (3000, 10, "after", "cpu_op")))
    assert [row[4] for row in found(run)] == ["aten::mm", "mark", "after"]
    assert reading(run)["events_lost"] == 4
    bad_args = pf.packet(pf.event(pf.INSTANT, 2, "bad", more=blob(4, b"\xff")), time=10)
    run = read(tmp_path, PLAIN + bad_args)
    assert run.rows("SELECT name FROM instants") == [("bad",)] and reading(run)["events_repaired"] == 1


@pytest.mark.slow
def test_hostile_texts_and_numbers(tmp_path: Path) -> None:
    deep: Any = 1
    for _ in range(200):
        deep = [deep]
    content = PLAIN + pf.slices(2, (3000, 1, "x" * 10_000_000, "cpu_op"), args={"deep": deep})
    content += pf.slices(2, (4000, 1, '"}, {"ph": "X" \udc80\n', "\x00\x1f"))
    content += pf.packet(blob(11, number(9, 1) + number(11, 2) + blob(23, b"\xff\xfe")), time=5000)
    content += pf.packet(pf.event(pf.END, 2), time=2**62 - 1) + varint(10) + varint(2**40)
    run = read(tmp_path, content)
    assert len(found(run)) == 5
    assert "claims" in reading(run)["damage"] or "middle of a packet" in reading(run)["damage"]


LONG_TEXT = pf.packet(pf.interned(names={1: "n" * 200_000}, strings={1: "s" * 200_000}), flags=pf.CLEARED)
WITH_LONG_TEXT = pf.packet(pf.event(pf.INSTANT, 2, more=blob(4, text(10, "key") + number(17, 1))), time=10)
WITH_LONG_NAME = pf.packet(pf.event(pf.BEGIN, 2, more=number(10, 1)), time=10)


def test_bombs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoder, "_MOST_INFLATED", 1 << 16)
    bomb = pf.packet(blob(50, zlib.compress(PLAIN + pf.packet(blob(500, b"\x00" * (1 << 20))))), sequence=0)
    run = read(tmp_path, bomb)
    assert len(found(run)) == 2 and "cut off" in reading(run)["examples"][0]
    monkeypatch.setattr(reader, "_ALWAYS_ALLOWED", 1 << 20)
    monkeypatch.setattr(reader, "_MOST_EXPANSION", 5)
    _, report = names_of(write(tmp_path, PLAIN + LONG_TEXT + WITH_LONG_TEXT * 100))
    assert "expand" in report.damage
    names, report = names_of(write(tmp_path, PLAIN + LONG_TEXT + WITH_LONG_NAME * 100))
    assert len(names) == 102 and not report.damage  # a name is there once


def test_much_text_of_few_packets_comes_in_pieces(tmp_path: Path) -> None:
    reading = reader.PerfettoReading(write(tmp_path, PLAIN + LONG_TEXT + WITH_LONG_TEXT * 600))
    batches = list(reading.batches())
    assert len(batches) == 3  # names of threads, 32 MiB, the rest
    assert sum(len(batch.columns()) for batch in batches[1:]) == 602
    assert reading.report.events_repaired == 2 and "64 KiB" in reading.report.examples[0]


def a_message() -> st.SearchStrategy[bytes]:
    """Fields as they occur, of any wire type, one inside another."""
    leaf = st.binary(max_size=6)
    ids = st.sampled_from([0, 1, 2, 3, 5, 64, 66, 69, 88, 1 << 20, (1 << 62) - 1, (1 << 64) - 1])
    numbers = st.sampled_from([*range(1, 25), 30, 31, 36, 42, 44, 45, 46, 47, 48, 53, 58, 59, 60, 126])
    return st.recursive(
        leaf,
        lambda inner: st.lists(
            st.one_of(
                st.builds(number, numbers, ids),
                st.builds(lambda n, v: varint(n << 3 | 1) + v.to_bytes(8, "little"), numbers, ids),
                st.builds(blob, numbers, inner),
            ),
            max_size=6,
        ).map(b"".join),
        max_leaves=12,
    )


@pytest.mark.slow
@given(st.lists(st.tuples(st.sampled_from([6, 11, 12, 53, 59]), a_message(), st.integers(0, 3)), max_size=8))
@example([(12, b"\xc0\x01\x00", 0), (53, b"", 0)])  # a queue whose name is empty
@settings(max_examples=150, deadline=None)
def test_whatever_packets_hold_becomes_events(packets: list[tuple[int, bytes, int]]) -> None:
    content = b"".join(
        pf.packet(blob(field, message), time=1000 + at, flags=flags)
        for at, (field, message, flags) in enumerate(packets)
    )
    _, events = decoded(PLAIN + content + pf.slices(2, (5000, 10, "after", "")))
    assert [event["name"] for event in events[:2]] == ["aten::mm", "mark"]
    assert all(event["ph"] in "XiCbenstf" and event["tid"] and event["ts_ns"] is not None for event in events)


@pytest.mark.slow
@given(
    st.lists(
        st.tuples(st.integers(1, 4), st.integers(1, 3), st.integers(0, 30), st.integers(0, 3)), max_size=40
    )
)
@settings(max_examples=100, deadline=None)
def test_slices_are_paired_alike_while_reading_and_afterwards(rows: list[tuple[int, int, int, int]]) -> None:
    content = b"".join(
        pf.packet(pf.event(kind, uuid, f"n{at}", more=pf.flow(flow) if flow else b""), time=1000 + at)
        for kind, uuid, at, flow in sorted(rows, key=lambda row: row[2])
    )
    index, events = decoded(content)
    afterwards = index.paired()
    assert index.durations.ns.tolist() == afterwards.ns.tolist()
    assert (index.durations.never_ended, index.durations.never_begun) == (
        afterwards.never_ended,
        afterwards.never_begun,
    )
    assert sum(event["ph"] == "X" for event in events) == sum(kind == pf.BEGIN for kind, *_ in rows)


def test_any_byte_may_be_damaged() -> None:
    """What is damaged is counted or left out, and the arguments are JSON."""
    content = PLAIN + pf.torch_gpu_trace()
    assert len(decoded(content)[1]) == 7
    for at in range(len(content)):
        decoded(content[:at] + b"\xff" + content[at + 1 :])


def test_a_sum_over_many_events(tmp_path: Path) -> None:
    """Counts and sums, against what the writer wrote."""
    random.seed(3)
    rows = [(1000 * at, random.randrange(1, 900), f"op {at % 17}", "cpu_op") for at in range(3000)]
    run = read(tmp_path, pf.thread(2, 1, 1) + pf.slices(2, *rows))
    wanted = Counter(name for *_, name, _ in rows)
    total = {name: sum(length for _, length, other, _ in rows if other == name) for name in wanted}
    summed = run.rows("SELECT name, count(*), sum(dur_ns)::BIGINT FROM slices GROUP BY name")
    assert {name: (count, length) for name, count, length in summed} == {
        name: (wanted[name], total[name]) for name in wanted
    }


SLICES = """
SELECT s.rank, s.segment, t.kind, t.pid, t.tid, t.device, t.stream, t.process, t.thread, t.label, t.sort_index,
       s.start_ns - (SELECT min(start_ns) FROM slices), s.dur_ns, s.depth, s.name, s.category, s.step, s.self_ns,
       s.correlation, s.bytes, s.collective, s.device_ns, s.total_device_ns, e.external_id, e.args::VARCHAR,
       o.name, p.name, l.name
FROM slices s JOIN tracks t USING (rank, segment, track) JOIN events e USING (rank, segment, id)
LEFT JOIN slices o ON (o.rank, o.segment, o.id) = (s.rank, s.segment, s.op)
LEFT JOIN slices p ON (p.rank, p.segment, p.id) = (s.rank, s.segment, s.parent)
LEFT JOIN slices l ON (l.rank, l.segment, l.id) = (s.rank, s.segment, s.launch)
"""
LINKS = """
SELECT l.rank, l.kind, s.name, s.start_ns - (SELECT min(start_ns) FROM slices), t.name, t.start_ns - s.start_ns
FROM links l JOIN slices s ON (s.rank, s.segment, s.id) = (l.rank, l.segment, l.source)
JOIN slices t ON (t.rank, t.segment, t.id) = (l.rank, l.segment, l.target)
"""
STEPS = "SELECT rank, segment, step, dur_ns, time_ns, source FROM steps"
COLLECTIVES = "SELECT * EXCLUDE (id, track, call, start_ns, call_ns) FROM collectives"
REPORTS = ("breakdown", "kernels", "ops", "overlap", "idle", "collectives")


def rounded(rows: Any) -> Any:
    """A standard deviation depends on the order of its sum in the last digit."""
    return [[round(value, 6) if isinstance(value, float) else value for value in row] for row in rows]


def check_round_trip(run: Run, folder: Path) -> None:
    path = folder / "all.perfetto-trace.gz"
    write_trace(run, Scope(), path, "perfetto", compress=True)
    again = open_trace(path)
    assert again.ranks == run.ranks and not again.problems
    for query in (SLICES, LINKS, STEPS, COLLECTIVES):
        assert Counter(again.rows(query)) == Counter(run.rows(query)), query
    for report in REPORTS:
        first, second = (QUESTIONS[report].analyse(one, Scope(), None) for one in (run, again))
        assert rounded(second.rows) == rounded(first.rows), report


def small_run(folder: Path) -> Run:
    """Two ranks with steps, ops, launches, kernels on two streams that overlap, flows and a collective."""
    for rank in range(2):
        info = {"backend": "nccl", "rank": rank, "world_size": 2}
        events: list[Any] = [
            {"ph": "M", "name": "process_name", "pid": 77, "tid": 0, "ts": 0, "args": {"name": "python"}},
            {"ph": "M", "name": "thread_name", "pid": 77, "tid": 78, "ts": 0, "args": {"name": "main é"}},
        ]
        for step in range(2):
            at = 1000.0 * step + 10
            step_args = {"External id": 100 + step}
            events.append(
                slice_event(
                    f"ProfilerStep#{step}", at, 900.0, cat="user_annotation", args=step_args, pid=77, tid=78
                )
            )
            events.append(
                slice_event("aten::mm", at + 10, 50.0, args={"External id": 5 + step}, pid=77, tid=78)
            )
            events.append(
                slice_event(
                    "cudaLaunchKernel",
                    at + 20,
                    5.0,
                    cat="cuda_runtime",
                    pid=77,
                    tid=78,
                    args={"correlation": 9 + step},
                )
            )
            flow = {"cat": "ac2g", "name": "ac2g", "id": 9 + step}
            events.append({"ph": "s", "pid": 77, "tid": 78, "ts": at + 20, **flow})
            events.append({"ph": "f", "bp": "e", "pid": 0, "tid": 7, "ts": at + 100, **flow})
            kernel = kernel_event("gemm", at + 100, 300.123, stream=7)
            kernel["args"] |= {"correlation": 9 + step, "External id": 5 + step}
            events.append(kernel)
            events.append(kernel_event("ncclDevKernel_AllReduce_Sum_f32_RING_LL", at + 150, 400.0, stream=20))
            events.append(kernel_event("overlapping", at + 300, 200.0, stream=7))
        write_kineto(folder / f"rank-{rank}.json", events, distributedInfo=info, baseTimeNanoseconds=10**18)
    return open_trace(folder)


def test_our_own_export_is_read_back(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "export").mkdir()
    check_round_trip(small_run(tmp_path / "run"), tmp_path / "export")


def test_several_files_of_one_rank_are_read_back(tmp_path: Path) -> None:
    info = {"rank": 2, "world_size": 4}
    for cycle, start in enumerate((1000, 5000)):
        events = [slice_event(f"op {cycle}", start, 5), kernel_event("gemm", start + 1, 3)]
        write_kineto(tmp_path / "run" / f"run.{cycle}.pt.trace.json", events, distributedInfo=info)
    run = open_trace(tmp_path / "run")
    path = tmp_path / "all.perfetto-trace"
    write_trace(run, Scope(), path, "perfetto")
    again = open_trace(path)
    assert again.rows("SELECT DISTINCT rank, segment FROM slices ORDER BY 2") == [(2, 0), (2, 1)]
    assert Counter(again.rows(SLICES)) == Counter(run.rows(SLICES))
    assert again.segments[0].manifest["header"]["distributedInfo"] == info


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    ["ddp-gloo4", "gpt-graph-h200", "gpt-h200", "gpt-h200-stack", "hf-trainer-h200", "seqpar-gloo4",
     "seqpar-gloo4-slow2", "seqpar-nccl1-bf16", "seqpar-nccl1-fp32"],
)  # fmt: skip
def test_real_runs_are_read_back(
    name: str, dataset: Callable[[str], Path], open_real: Callable[[Path], Run], tmp_path: Path
) -> None:
    check_round_trip(open_real(dataset(name)), tmp_path)
