"""Ascend's trace_view.json, written as torch_npu writes it, with known answers; damaged; several ranks."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from ascend_files import GROUP_ID, START_NS, events, group_hash, write_rank
from conftest import open_trace
from event_rows import event_rows
from rankscope import native
from rankscope.errors import RankscopeError
from rankscope.readers import find_reader
from rankscope.readers.ascend import recording
from rankscope.readers.ascend.reader import ASCEND
from rankscope.readers.kineto import reader as kineto
from rankscope.timeline.reading import ingest
from rankscope.timeline.run import Run


def write(path: Path, content: list[dict[str, Any]]) -> Path:
    path.write_text(json.dumps(content), encoding="utf-8")
    return path


def rows_of(path: Path) -> tuple[list[dict[str, Any]], Any]:
    reading = ASCEND.open(path)
    rows: list[dict[str, Any]] = []
    for batch in reading.batches():
        rows += event_rows(batch.columns())
        batch.close()
    return rows, reading


def test_one_rank(tmp_path: Path) -> None:
    run = open_trace(write_rank(tmp_path, 0, 2))
    found = run.rows(
        "SELECT category, count(*), sum(dur_ns), count(launch) FROM slices GROUP BY 1 ORDER BY 1"
    )
    assert found == [
        ("cpu_op", 4, 32_000, 0),
        ("cuda_sync", 2, 6_000, 0),
        ("dequeue", 4, 24_000, 0),
        ("enqueue", 4, 8_000, 0),
        ("gpu_memcpy", 2, 8_000, 0),
        ("gpu_user_annotation", 6, 2 * 40_000, 0),
        ("kernel", 6, 4 * 10_000 + 2 * 20_000, 4),
        ("privateuse1_runtime", 8, 24_000, 0),
        ("user_annotation", 2, 198_000, 0),
    ]
    gpu = run.rows(
        "SELECT g.name, g.device, g.stream, s.name, g.op_name, g.launch_ns FROM gpu g JOIN slices s ON s.id = g.launch "
        "ORDER BY g.start_ns LIMIT 2"
    )
    assert gpu == [
        ("MatMul", 0, 3, "Node@launch", "aten::mm", 8_000),
        ("MatMul", 0, 3, "Node@launch", "aten::mm", 28_000),
    ]
    assert run.rows("SELECT step, dur_ns FROM steps ORDER BY 1") == [(0, 99_000), (1, 99_000)]
    assert run.rows("SELECT name, value FROM counters") == 2 * [("AI Core Freq", 1850.0)]
    [segment] = run.segments
    assert (segment.unix_origin_ns, segment.rank_source) == (START_NS, "profiler_info")


@pytest.mark.slow
def test_collectives_of_two_ranks_are_matched(tmp_path: Path) -> None:
    write_rank(tmp_path, 0, 2)
    write_rank(tmp_path, 1, 2, events(late=5.0))
    run = Run(ingest([tmp_path]))
    assert [entry.rank for entry in run.segments] == [0, 1]
    found = run.rows(
        "SELECT rank, kind, group_name, group_description, group_ranks, group_size, dtype, in_elements, dur_ns "
        "FROM collectives ORDER BY rank, start_ns"
    )
    about = ("all_reduce", str(group_hash(GROUP_ID)), "dp", "[0, 1]", 2, "float32", 1024)
    assert found == [(0, *about, 20_000)] * 2 + [(1, *about, 15_000)] * 2


def test_the_names_of_layers_may_come_in_another_block(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path / "trace_view.json", events(steps=20))
    whole, _ = rows_of(path)
    monkeypatch.setattr(kineto, "BLOCK_BYTES", 4000)
    in_blocks, _ = rows_of(path)
    assert in_blocks == whole
    assert len(whole) == len(events(steps=20))


def test_the_same_without_the_c_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / "trace_view.json", events())
    with_c, _ = rows_of(path)
    monkeypatch.setattr(native, "functions", None)
    assert rows_of(path)[0] == with_c


def test_recognised_by_content(tmp_path: Path) -> None:
    path = write(tmp_path / "renamed.json", events())
    packed = tmp_path / "packed.json"
    packed.write_bytes(gzip.compress(path.read_bytes()))
    assert find_reader(path).name == find_reader(packed).name == "ascend"
    assert rows_of(packed)[0] == rows_of(path)[0]


@pytest.mark.slow
def test_without_the_other_files_groups_have_the_end_of_their_hash(tmp_path: Path) -> None:
    run = open_trace(write(tmp_path / "trace_view.json", events()))
    found = run.rows("SELECT DISTINCT group_name, group_description, group_size FROM collectives")
    assert found == [(str(group_hash(GROUP_ID) % 1000), "Group 0 Communication", None)]


@pytest.mark.parametrize(
    "content",
    [
        "",
        "[",
        "{}",
        '{"parallel_group_info": [1]}',
        '{"parallel_group_info": {"a": {"global_ranks": "x"}}}',
        "[" * 99_999,
    ],
)
def test_damaged_files_beside_the_trace(content: str, tmp_path: Path) -> None:
    trace = write_rank(tmp_path, 3, 4)
    for path in (trace.parent / "communication.json", trace.parent.parent / "profiler_metadata.json"):
        path.write_text(content, encoding="utf-8")
    assert recording.identity_of(trace).rank == 3
    assert recording.read_recording(trace).group("hcom_allReduce__7_0_1") == recording.Group("7")


def test_cut_anywhere(tmp_path: Path) -> None:
    path = tmp_path / "trace_view.json"
    text = json.dumps(events(steps=1)).encode()
    whole = len(events(steps=1))
    for size in range(300, len(text) - 1, 401):
        path.write_bytes(text[:size])
        rows, reading = rows_of(path)
        assert len(rows) < whole and reading.report.damage


@pytest.mark.parametrize(
    "odd",
    [
        {"ph": "X", "pid": 800, "tid": "odd", "ts": "-5.5", "dur": -1, "name": "x" * (1 << 20)},
        {
            "ph": "X",
            "pid": 900,
            "tid": 0,
            "ts": "1",
            "dur": 1,
            "name": "hcom_allReduce__",
            "args": {"count": 1 << 70},
        },
        {"ph": "X", "pid": 900, "tid": 0, "ts": "1", "dur": 1, "name": "hcom_allGather__1_2_3", "args": [1]},
        {"ph": "f", "cat": "async_npu", "id": "no number", "pid": 800, "tid": 3, "ts": "5"},
        {"ph": "M", "name": "process_name", "pid": 5, "tid": 0, "args": {"name": ["CANN"]}},
        {"ph": "X", "pid": 800, "tid": 3, "ts": "soon", "dur": 1, "name": "late"},
        {"ph": "X", "pid": 800, "tid": 3, "ts": "1e300", "dur": "x", "name": "late"},
    ],
)
def test_odd_events_leave_the_others_alone(odd: dict[str, Any], tmp_path: Path) -> None:
    path = write(tmp_path / "trace_view.json", [*events(steps=1), odd])
    rows, _ = rows_of(path)
    kernels = [row["name"] for row in rows if row["category"] == "kernel" and row["name"] == "MatMul"]
    assert kernels == ["MatMul"] * 2


def test_not_a_trace(tmp_path: Path) -> None:
    path = tmp_path / "trace_view.json"
    path.write_bytes(b"[]")
    with pytest.raises(RankscopeError):
        open_trace(path)
