"""JAX's .trace.json.gz: what XLA makes of its planes, with all stats as text and an empty event at the end."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from conftest import open_trace
from rankscope import native
from rankscope.readers import find_reader
from rankscope.readers.xla import trace_json
from rankscope.timeline.run import Run
from xspace_files import GATHER, HLO

HOST, GPU, TPU = 701, 1, 2


def names(pid: int, plane: str, lines: dict[int, str]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = [{"ph": "M", "pid": pid, "name": "process_name", "args": {"name": plane}}]
    return found + [
        {"ph": "M", "pid": pid, "tid": tid, "name": "thread_name", "args": {"name": name}}
        for tid, name in lines.items()
    ]


def slice_(pid: int, tid: int, us: float, dur: float, name: str, **args: str) -> dict[str, Any]:
    found = {"ph": "X", "pid": pid, "tid": tid, "ts": us, "dur": dur, "name": name}
    return {**found, "args": args} if args else found


def gpu_events(steps: int = 2) -> list[dict[str, Any]]:
    found = names(HOST, "/host:CPU", {1: "python", 2: "Host Threads/2"})
    found += names(
        GPU, "/device:GPU:0", {7: "Stream #7(Compute)", 9: "Stream #9(MemcpyH2D)", 50: "XLA Modules"}
    )
    for step in range(steps):
        at = step * 100.0
        ids = [str(step * 2 + place + 1) for place in range(2)]
        found += [
            slice_(HOST, 1, at, 99.0, "train", step_num=str(step)),
            slice_(HOST, 1, at + 1, 90.0, "$train.py:12 step"),
            slice_(HOST, 2, at + 2, 2.0, "cuLaunchKernelEx", correlation_id=ids[0]),
            slice_(HOST, 2, at + 5, 2.0, "cudaMemcpyAsync", correlation_id=ids[1]),
            slice_(GPU, 7, at + 10, 10.0, "fusion_1", correlation_id=ids[0], hlo_op="fusion.1"),
            slice_(
                GPU,
                9,
                at + 30,
                5.0,
                "MemcpyH2D",
                correlation_id=ids[1],
                memcpy_details="kind:x size:512 dest:0",
            ),
            slice_(GPU, 50, at + 10, 25.0, "jit_train(3)"),
        ]
    return found


def tpu_events() -> list[dict[str, Any]]:
    found = names(TPU, "/device:TPU:1", {1: "Steps", 3: "XLA Ops", 4: "Async XLA Ops"})
    found += [
        slice_(TPU, 1, 0.0, 100.0, "8"),
        slice_(TPU, 3, 0.0, 30.0, "while.3", hlo_category="while"),
        slice_(TPU, 3, 5.0, 10.0, "fusion.1", hlo_category="fusion"),
        slice_(TPU, 3, 30.0, 20.0, "all-reduce.5", long_name=HLO, hlo_category="all-reduce"),
        slice_(TPU, 4, 51.0, 40.0, "all-gather-start.6", long_name=GATHER),
        slice_(TPU, 3, 88.0, 3.0, "all-gather-done.6"),
    ]
    return found


def write(path: Path, events: list[dict[str, Any]]) -> Path:
    content = {"displayTimeUnit": "ns", "metadata": {"highres-ticks": True}, "traceEvents": [*events, {}]}
    path.write_bytes(gzip.compress(json.dumps(content, separators=(",", ":")).encode()))
    return path


def categories(run: Run) -> dict[str, tuple[int, int]]:
    found = run.rows("SELECT category, count(*), sum(dur_ns) FROM slices GROUP BY 1")
    return {category: (count, ns) for category, count, ns in found}


@pytest.mark.slow
def test_gpu(tmp_path: Path) -> None:
    path = write(tmp_path / "node.trace.json.gz", gpu_events())
    assert find_reader(path).name == "xla"
    run = open_trace(path)
    assert categories(run) == {
        "user_annotation": (2, 198_000),
        "python_function": (2, 180_000),
        "cuda_driver": (2, 4_000),
        "cuda_runtime": (2, 4_000),
        "kernel": (2, 20_000),
        "gpu_memcpy": (2, 10_000),
        "gpu_user_annotation": (2, 50_000),
    }
    gpu = run.rows("SELECT name, device, stream, count(launch), sum(bytes) FROM gpu GROUP BY ALL ORDER BY 1")
    assert gpu == [("MemcpyH2D", 0, 9, 2, 1024), ("fusion_1", 0, 7, 2, None)]
    assert run.rows("SELECT step, source FROM steps ORDER BY 1") == [(0, "annotation"), (1, "annotation")]
    assert run.segments[0].manifest["misplaced"] == 0


@pytest.mark.slow
def test_tpu(tmp_path: Path) -> None:
    run = open_trace(write(tmp_path / "node.trace.json.gz", tpu_events()))
    assert categories(run) == {
        "user_annotation": (1, 100_000),
        "gpu_user_annotation": (1, 30_000),
        "kernel": (3, 70_000),
        "cuda_sync": (1, 3_000),
    }
    found = run.rows("SELECT kind, group_size, in_elements, out_elements FROM collectives ORDER BY start_ns")
    assert found == [("all_reduce", 4, 16384, 16384), ("all_gather", 4, 1024, 4096)]
    assert run.rows("SELECT step FROM steps") == [(8,)]


def test_a_file_with_as_many_events_as_xla_writes_is_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path / "node.trace.json.gz", gpu_events())
    monkeypatch.setattr(trace_json, "_MOST_EVENTS", 14)
    reading = trace_json.TRACE_JSON.open(path)
    for batch in reading.batches():
        batch.columns()
        batch.close()
    assert "14 events: XLA leaves out what is more" in reading.report.damage


def test_the_same_without_the_c_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from event_rows import event_rows

    path = write(tmp_path / "node.trace.json.gz", [*gpu_events(), *tpu_events()])

    def rows() -> list[dict[str, Any]]:
        return [
            row for batch in trace_json.TRACE_JSON.open(path).batches() for row in event_rows(batch.columns())
        ]

    with_c = rows()
    monkeypatch.setattr(native, "functions", None)
    assert rows() == with_c


def test_cut_and_odd_files(tmp_path: Path) -> None:
    odd = [
        {"ph": "M", "pid": GPU, "tid": 7, "name": "thread_name", "args": {"name": 7}},
        {
            "ph": "X",
            "pid": GPU,
            "tid": 7,
            "ts": -5.0,
            "dur": 1e300,
            "name": "x" * 100_000,
            "args": {"step_num": -1},
        },
        {"ph": "X", "pid": TPU, "tid": 3, "ts": 1.0, "dur": 1.0, "name": "all-reduce", "args": [1]},
        {
            "ph": "X",
            "pid": HOST,
            "tid": 1,
            "ts": 1.0,
            "dur": 1.0,
            "name": "$",
            "args": {"correlation_id": "9" * 40},
        },
    ]
    content = gzip.decompress(
        write(tmp_path / "a.json.gz", [*gpu_events(), *tpu_events(), *odd]).read_bytes()
    )
    path = tmp_path / "cut.trace.json.gz"
    for size in range(600, len(content), 997):
        path.write_bytes(content[:size])
        reading = trace_json.TRACE_JSON.open(path)
        for batch in reading.batches():
            batch.columns()
            batch.close()
        assert reading.report.damage
