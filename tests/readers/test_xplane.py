"""XLA's .xplane.pb: written to its published schema, with known answers; damaged."""

from __future__ import annotations

import gzip
import json
import math
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conftest import open_trace
from event_rows import event_rows
from rankscope import native
from rankscope.errors import RankscopeError
from rankscope.readers import find_reader
from rankscope.readers.xla import planes as xla_planes
from rankscope.readers.xla.xplane import XPLANE
from rankscope.timeline.reading import ingest
from rankscope.timeline.run import Run
from xspace_files import (
    US,
    PlaneFile,
    Ref,
    chunk,
    environment,
    gpu_planes,
    number,
    space,
    tpu_plane,
    write_space,
)

pytestmark = pytest.mark.usefixtures("without_workers")


def rows_of(path: Path) -> tuple[list[dict[str, Any]], Any]:
    reading = XPLANE.open(path)
    rows: list[dict[str, Any]] = []
    for batch in reading.batches():
        rows += event_rows(batch.columns())
        batch.close()
    return rows, reading


def categories(run: Run) -> dict[str, tuple[int, int]]:
    found = run.rows("SELECT category, count(*), sum(dur_ns) FROM slices GROUP BY 1")
    return {category: (count, ns) for category, count, ns in found}


def test_a_gpu_process_with_two_devices(tmp_path: Path) -> None:
    run = open_trace(write_space(tmp_path / "node.xplane.pb", *gpu_planes()))
    assert categories(run) == {
        "kernel": (12, 6 * 30_000),
        "gpu_memcpy": (6, 6 * 5_000),
        "gpu_user_annotation": (6, 6 * 55_000),
        "hip_runtime": (18, 18 * 2_000),
        "user_annotation": (3, 3 * 99_000),
        "python_function": (3, 3 * 90_000),
    }
    gpu = run.rows(
        "SELECT device, stream, count(*), count(launch), sum(bytes) FROM gpu GROUP BY 1, 2 ORDER BY 1, 2"
    )
    assert gpu == [(d, s, n, n, b) for d in (0, 1) for s, n, b in ((7, 6, None), (9, 3, 3 * 4096))]
    assert run.rows("SELECT step, dur_ns FROM steps ORDER BY 1") == [(n, 99_000) for n in range(3)]
    assert run.rows("SELECT DISTINCT kind, place FROM collectives") == [("all_reduce", "device")]
    assert run.rows("SELECT DISTINCT name FROM slices WHERE category = 'python_function'") == [
        ("train.py(12): step",)
    ]
    [segment] = run.segments
    assert segment.manifest["clock_base_ns"] == 1_700_000_000_000_000_000
    assert [one["id"] for one in segment.manifest["header"]["deviceProperties"]] == [0, 1]


def test_a_tpu(tmp_path: Path) -> None:
    """Loops and spans of asynchronous ops are not counted as kernels; a gather is counted once."""
    run = open_trace(write_space(tmp_path / "node.xplane.pb", environment(), tpu_plane()))
    kernels = run.rows(
        "SELECT name, count(*), sum(dur_ns) FROM gpu WHERE category = 'kernel' GROUP BY 1 ORDER BY 1"
    )
    assert kernels == [
        ("all-gather-start.6", 4, 2 * 41_000),
        ("all-reduce.5", 2, 40_000),
        ("fusion.1", 2, 20_000),
    ]
    assert categories(run)["gpu_memcpy"] == (2, 50_000)
    assert categories(run)["cuda_sync"] == (2, 6_000)
    assert categories(run)["gpu_user_annotation"] == (4, 2 * 125_000)
    assert run.rows("SELECT step, dur_ns FROM steps ORDER BY 1") == [(0, 100_000), (1, 100_000)]
    collectives = run.rows(
        "SELECT kind, dur_ns, group_name, group_size, dtype, in_elements, out_elements FROM collectives "
        "WHERE step = 0 OR step IS NULL ORDER BY start_ns LIMIT 2"
    )
    assert collectives == [
        ("all_reduce", 20_000, "replica groups {{0,1,2,3},{4,5,6,7}}", 4, "float32", 16384, 16384),
        ("all_gather", 40_000, "replica groups [2,4]<=[8]", 4, "bfloat16", 1024, 4096),
    ]
    assert run.rows("SELECT count(*) FROM collectives") == [(4,)]
    [(flops,)] = run.rows("SELECT DISTINCT args->>'flops' FROM events WHERE name = 'fusion.1'")
    assert int(flops) == 1 << 40


@pytest.mark.slow
def test_without_an_asynchronous_line_the_done_is_the_collective(tmp_path: Path) -> None:
    plane = tpu_plane()
    plane.lines.pop()
    run = open_trace(write_space(tmp_path / "node.xplane.pb", plane))
    found = run.rows("SELECT s.name, c.kind FROM collectives c JOIN slices s USING (id) ORDER BY c.start_ns")
    assert found == 2 * [("all-reduce.5", "all_reduce"), ("all-gather-done.6", "all_gather")]


@pytest.mark.slow
def test_devices_of_one_process_have_their_own_groups(tmp_path: Path) -> None:
    path = write_space(tmp_path / "node.xplane.pb", tpu_plane(0), tpu_plane(1))
    run = open_trace(path)
    found = run.rows("SELECT DISTINCT group_name FROM collectives WHERE kind = 'all_reduce' ORDER BY 1")
    assert found == [(f"replica groups {{{{0,1,2,3}},{{4,5,6,7}}}}, device {n}",) for n in (0, 1)]


def test_ends_are_rounded_like_starts(tmp_path: Path) -> None:
    """Two events that follow each other at 1,999.9 ns do not overlap by a nanosecond."""
    plane = PlaneFile("/host:CPU")
    plane.line(1, "main", 5).extend(
        [plane.event("a", 400, 1_999_500), plane.event("b", 1_999_900, 100_100), plane.event("c", -1500, 500)]
    )
    rows, _ = rows_of(write_space(tmp_path / "a.xplane.pb", plane))
    times = {row["name"]: (row["ts_ns"], row["dur_ns"]) for row in rows if row["ph"] == "X"}
    assert times == {"a": (5, 1999), "b": (2004, 101), "c": (3, 1)}


VALUES = (
    st.integers(-(1 << 63), (1 << 64) - 1)
    | st.floats()
    | st.text(max_size=8)
    | st.binary(max_size=6)
    | st.builds(Ref, st.text(max_size=4))
)
STATS = st.dictionaries(st.sampled_from(["flops", 'a\n"b', "_c", "correlation_id", "é"]), VALUES, max_size=4)


def shown(value: Any) -> Any:
    """A value of a stat as an argument."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, bytes):
        return f"{len(value)} bytes"
    plain = value.text if isinstance(value, Ref) else value
    return plain.replace("\0", "\ufffd") if isinstance(plain, str) else plain


@given(
    st.lists(
        st.tuples(st.integers(0, 3), st.integers(-9, 1 << 62), st.integers(-9, 1 << 62), STATS), max_size=6
    )
)
@settings(max_examples=20, deadline=None)
def test_what_was_written_is_read(events: list[tuple[int, int, int, dict[str, Any]]]) -> None:
    plane = PlaneFile("/host:CPU")
    line = plane.line(1, "main")
    for kind, begin, duration, stats in events:
        line.append(plane.event(f"event {kind}", begin, duration, **stats))
    line.append(number(1, 1) + number(5, 7))  # only counted
    line.append(number(1, 999) + number(2, 7))  # without metadata
    content = next(iter(xla_planes.read_planes(memoryview(space(plane)))))
    assert isinstance(content, xla_planes.Plane)
    ids = {name: id for id, name in content.stat_names.items()}
    shared = xla_planes.NamedTexts.of(dict.fromkeys(content.events, ""))
    picked = np.array([ids.get("correlation_id", -5)], dtype=np.int64)
    [piece] = content.lines[0].pieces
    columns, *lost = native.functions.line_events(piece, shared.buffers, content.stat_texts.buffers, picked)
    assert lost == [1, 1, 0, 0], "without time, without metadata, damaged, without arguments"
    numbers = (columns[at] for at in (0, 1, 2, 5))
    read = map(np.frombuffer, numbers, (np.int32, np.int64, np.int64, np.uint32))
    labels = [content.events[id].label for id in shared.ids.tolist()]
    rows, args = zip(*read, strict=True), bytes(columns[4])
    for (kind, begin, duration, stats), (index, offset, length, args_at) in zip(events, rows, strict=True):
        assert (labels[index], offset, length) == (f"event {kind}", begin, duration)
        named = {key: value for key, value in stats.items() if not key.startswith("_")}
        # A reference to a name that is left out is empty.
        wanted = {
            key: "" if isinstance(value, Ref) and value.text.startswith("_") else shown(value)
            for key, value in named.items()
        }
        size = int.from_bytes(args[args_at : args_at + 4], "little") if named else 0
        text = args[args_at + 4 : args_at + 4 + size] if named else b"{}"
        assert json.loads(text) == wanted


def test_any_byte_of_a_line_may_be_damaged() -> None:
    """What is whole is read, what is damaged is counted, and arguments are JSON."""
    plane = PlaneFile("/host:CPU")
    events = [
        plane.event(
            f"e{n % 3}", n * 1000, 500, a=1.5 * n, b="té\n\x01", c=Ref("r"), d=b"xyz", e=-n, f=1 << 63
        )
        for n in range(6)
    ]
    content = number(1, 1) + b"".join(chunk(4, event) for event in events) + chunk(11, "main")
    shared = xla_planes.NamedTexts.of({1: '"x":1', 2: "", 3: '"y":2'})
    stats = xla_planes.NamedTexts.of({id: f'"n{id}"' for id in range(1, 8)})
    picked = np.array([1, 5, -3, 6], dtype=np.int64)
    chance = random.Random(5)
    for _ in range(150):
        damaged = bytearray(content)
        for _ in range(chance.choice((1, 2, 8))):
            damaged[chance.randrange(len(damaged))] = chance.randrange(256)
        line = memoryview(bytes(damaged[: chance.randrange(1, 2 * len(damaged))]))
        (ends, _), count, _ = native.functions.line_cuts(line, xla_planes.PIECE_BYTES)
        cuts = np.frombuffer(ends, np.int64).tolist()
        whole = line[: cuts[-1] if cuts else 0]
        columns, *lost = native.functions.line_events(whole, shared.buffers, stats.buffers, picked)
        assert len(np.frombuffer(columns[0], np.int32)) + sum(lost[:3]) == count
        args = bytes(columns[4])
        for at in np.frombuffer(columns[5], np.uint32).tolist():
            if at < 0xFFFF_FFFF:
                json.loads(args[at + 4 : at + 4 + int.from_bytes(args[at : at + 4], "little")])


def test_long_lines_are_read_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_space(tmp_path / "a.xplane.pb", *gpu_planes())
    whole, _ = rows_of(path)
    monkeypatch.setattr(xla_planes, "PIECE_BYTES", 64)
    in_pieces, _ = rows_of(path)
    assert in_pieces == whole


def test_cut_at_any_byte(tmp_path: Path) -> None:
    """An error in three parts, or what is there and a note. The names of events come after them."""
    content = space(*gpu_planes(devices=1, steps=1))
    path = tmp_path / "a.xplane.pb"
    path.write_bytes(content)
    whole = len(rows_of(path)[0])
    for size in range(16, len(content), 23):
        path.write_bytes(content[:size])
        try:
            rows, reading = rows_of(path)
        except RankscopeError as error:
            assert error.why and error.hint
        else:
            assert reading.report.damage or size >= len(content) - 10
            assert len(rows) <= whole


def test_changed_bytes(tmp_path: Path) -> None:
    content = space(*gpu_planes(devices=1, steps=1), tpu_plane(steps=1))
    path = tmp_path / "a.xplane.pb"
    chance = random.Random(7)
    for _ in range(25):
        damaged = bytearray(content)
        for _ in range(chance.choice((1, 5, 50))):
            damaged[chance.randrange(16, len(damaged))] = chance.randrange(256)
        path.write_bytes(damaged)
        try:
            rows_of(path)
        except RankscopeError as error:
            assert error.why and error.hint


def test_damaged_events_are_counted_and_the_others_read(tmp_path: Path) -> None:
    plane = PlaneFile("/host:CPU")
    line = plane.line(1, "main")
    line += [plane.event("good", 0, US), b"\x22\xff", plane.event("bad text", 2 * US, US, a=b"x")]
    line.append(plane.event("good", 4 * US, US) + chunk(4, number(1, 1) + chunk(5, b"\xff\xfe")))
    line.append(number(1, 1) + number(5, 3))
    rows, reading = rows_of(write_space(tmp_path / "a.xplane.pb", plane))
    assert [row["name"] for row in rows if row["ph"] == "X"] == ["good", "bad text", "good"]
    assert reading.report.events_lost == 2
    assert any("number of occurrences" in text for text in reading.report.examples)


def test_hostile_values(tmp_path: Path) -> None:
    plane = PlaneFile("/host:CPU", stats={"long": "x" * 100_000})
    line = plane.line((1 << 64) - 1, "\x1b[31m\0" + "x" * 1000, (1 << 63) - 1)
    long = "y" * (10 << 20)
    line += [
        plane.event(long, (1 << 63) - 1, (1 << 63) - 1, step_num=1 << 62, correlation_id=(1 << 64) - 1),
        plane.event("nul \0", -(1 << 63), 5, value=float("nan"), text='"\\\x01\0é'),
    ]
    path = write_space(tmp_path / "a.xplane.pb", plane, environment(1 << 63))
    rows, _ = rows_of(path)
    assert [len(row["name"]) for row in rows if row["ph"] == "X"] == [10 << 20, 5]
    assert rows[-1]["args"] == {"value": None, "text": '"\\\x01\ufffdé'}
    with pytest.raises(RankscopeError):
        find_reader(write_bytes(tmp_path / "b.xplane.pb", b""))


def write_bytes(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


@pytest.mark.slow
def test_no_events_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(RankscopeError, match="has no events"):
        open_trace(write_space(tmp_path / "a.xplane.pb", environment()))


def test_recognised_by_content_also_compressed(tmp_path: Path) -> None:
    content = space(*gpu_planes(devices=1, steps=1))
    plain = write_bytes(tmp_path / "anything", content)
    packed = write_bytes(tmp_path / "packed", gzip.compress(content))
    assert find_reader(plain).name == find_reader(packed).name == "xla"
    assert rows_of(packed)[0] == rows_of(plain)[0]
    half = write_bytes(tmp_path / "half", gzip.compress(content)[:-200])
    assert "gzip" in rows_of(half)[1].report.damage


@pytest.mark.slow
def test_hosts_of_a_recording(tmp_path: Path) -> None:
    """The last recording below a log folder; its hosts are ranks, and the JSON beside is the same once more."""
    for date in ("2026_01_01", "2026_01_02"):
        for host in ("a", "b"):
            folder = tmp_path / "plugins" / "profile" / date
            write_space(folder / f"{host}.xplane.pb", *gpu_planes(devices=1))
            (folder / f"{host}.trace.json.gz").write_bytes(b"not read")
        (folder / "perfetto_trace.json.gz").write_bytes(b"not read")
    found = ingest([tmp_path])
    run = Run(found)
    assert [(entry.rank, entry.source.name) for entry in run.segments] == [
        (0, "a.xplane.pb"),
        (1, "b.xplane.pb"),
    ]
    assert {entry.source.parent.name for entry in run.segments} == {"2026_01_02"}
    assert {entry.rank_source for entry in run.segments} == {"place among the hosts"}
