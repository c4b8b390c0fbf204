"""Traces whose categories are not those of today's Kineto: older torch, autograd's export, other devices, others."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from conftest import kernel_event, open_trace, slice_event, write_kineto
from rankscope.analysis import REPORTS
from rankscope.analysis.core.scope import Scope
from rankscope.analysis.health.doctor import doctor
from rankscope.timeline.run import Run

HOST: dict[str, Any] = {"pid": 500, "tid": "500"}


def meta(kind: str, name: str, pid: Any, tid: Any = 0) -> dict[str, Any]:
    key = "labels" if kind == "process_labels" else "name"
    return {"ph": "M", "name": kind, "pid": pid, "tid": tid, "ts": 0, "args": {key: name}}


def categories(run: Run) -> dict[str, str]:
    return dict(run.rows("SELECT name, category FROM slices ORDER BY id"))


def title(run: Run) -> str:
    return REPORTS["summary"].analyse(run, Scope(), None).title


def torch_1_9() -> list[Any]:
    """Two steps as torch 1.9 wrote them: annotations are ops, streams are text, no category on [memory]."""
    stream = {"pid": 0, "tid": "stream 7"}
    events: list[Any] = [
        meta("process_name", "python", 500),
        meta("process_labels", "GPU 0", 0),
        {"ph": "i", "s": "t", "name": "[memory]", "ts": 1010, "args": {"Device Type": 1, "Bytes": 4}, **HOST},
    ]
    for step in (5, 6):
        at = 1000 * (step - 4)
        device = {"device": 0, "stream": 7, "external id": 3, "queued": 0}
        events += [
            slice_event(f"ProfilerStep#{step}", at, 900, cat="Operator", **HOST),
            slice_event("enumerate(DataLoader)#_Iter.__next__", at, 50, cat="Operator", **HOST),
            slice_event("aten::mm", at + 100, 50, cat="Operator", **HOST,
                        args={"External id": 3, "Input Dims": [[8, 16], [16, 4]], "Input type": ["float", "float"]}),
            slice_event("cudaLaunchKernel", at + 110, 10, cat="Runtime", args={"correlation": step}, **HOST),
            slice_event("sgemm", at + 200, 300, cat="Kernel", args={**device, "correlation": step}, **stream),
            slice_event("Memcpy HtoD", at + 500, 40, cat="Memcpy", args=device, **stream),
            slice_event("Memset (Device)", at + 540, 10, cat="Memset", args=device, **stream),
        ]  # fmt: skip
    return events


def test_torch_1_9_has_steps_kernels_and_launches(tmp_path: Path) -> None:
    run = open_trace(write_kineto(tmp_path / "trace.json", torch_1_9(), schemaVersion=1))
    assert set(categories(run).items()) == {
        ("ProfilerStep#5", "user_annotation"),
        ("ProfilerStep#6", "user_annotation"),
        ("enumerate(DataLoader)#_Iter.__next__", "user_annotation"),
        ("aten::mm", "cpu_op"),
        ("cudaLaunchKernel", "cuda_runtime"),
        ("sgemm", "kernel"),
        ("Memcpy HtoD", "gpu_memcpy"),
        ("Memset (Device)", "gpu_memset"),
    }
    assert run.rows("SELECT step, time_ns FROM steps ORDER BY step") == [(5, 900_000), (6, 1_000_000)]
    assert run.rows("SELECT DISTINCT name, op_name, device, stream, class FROM gpu ORDER BY name") == [
        ("Memcpy HtoD", None, 0, 7, "COPY"),
        ("Memset (Device)", None, 0, 7, "COPY"),
        ("sgemm", "aten::mm", 0, 7, "COMPUTE"),
    ]
    assert run.rows("SELECT DISTINCT shapes[1] FROM computing_ops") == [("[[8,16],[16,4]]",)]
    assert title(run).startswith("A step takes")
    # The events themselves are as in the file.
    assert run.rows("SELECT count(*) FROM events WHERE category = 'Operator'") == [(6,)]


def test_the_export_of_autograd_has_ops_and_kernels(tmp_path: Path) -> None:
    """torch before 1.8: no categories, no header; the process id says what is on the host and what on the device."""
    events = [
        {"name": "aten::conv2d", "ph": "X", "ts": 10.0, "dur": 50.0, "tid": 1, "pid": "CPU functions", "args": {}},
        {"name": "conv2d", "ph": "s", "ts": 10.0, "tid": 1, "pid": "CPU functions", "id": 0, "cat": "cpu_to_cuda"},
        {"name": "conv2d", "ph": "f", "ts": 30.0, "tid": 1, "pid": "CUDA functions", "id": 0, "cat": "cpu_to_cuda"},
        {"name": "conv2d", "ph": "X", "ts": 30.0, "dur": 40.0, "tid": 1, "pid": "CUDA functions", "args": {}},
        {"name": "relu", "ph": "X", "ts": 80.0, "dur": 5.0, "tid": 1, "pid": "CPU Functions", "args": {}},
    ]  # fmt: skip
    path = tmp_path / "trace.json"
    path.write_text(json.dumps(events))
    run = open_trace(path)
    assert categories(run) == {"aten::conv2d": "cpu_op", "conv2d": "kernel", "relu": "cpu_op"}
    assert run.rows("SELECT label, device, stream FROM tracks WHERE kind = 'stream'") == [
        ("GPU 1 stream 0", 1, 0)
    ]
    assert "100 % compute" in title(run)


def test_mtia_kernels_copies_and_waits(tmp_path: Path) -> None:
    stream: dict[str, Any] = {"pid": 17, "tid": 408, "cat": "mtia_ccp_events"}
    events = [
        meta("process_labels", "MTIA 17", 17),
        meta("thread_name", "Stream 102 FW", 17, 408),
        slice_event("aten::addmm", 0, 20, **HOST),
        slice_event("runFunction", 5, 5, cat="mtia_runtime", args={"correlation": 18}, **HOST),
        slice_event("fc-dtype_Float", 30, 50, args={"correlation": 18, "stream": 102}, **stream),
        slice_event("dma_request", 80, 5, args={"stream": 102, "size": 64}, **stream),
        slice_event("event_wait", 90, 50, args={"stream": 102}, **stream),
    ]
    run = open_trace(write_kineto(tmp_path / "trace.json", events))
    found = categories(run)
    assert (found["fc-dtype_Float"], found["dma_request"], found["event_wait"]) == (
        "kernel", "gpu_memcpy", "cuda_sync",
    )  # fmt: skip
    assert run.rows("SELECT name, op_name, device FROM gpu ORDER BY name") == [
        ("dma_request", None, 17),
        ("fc-dtype_Float", "aten::addmm", 17),
    ]


def test_device_tracks_of_unknown_programs(tmp_path: Path) -> None:
    """By the name of the process, by that of the thread, and by correlation with a launch call."""
    events = [
        meta("process_name", "/device:GPU:3", 9),
        meta("thread_name", "Stream #20(Compute)", 9, 20),
        meta("thread_name", "XLA Modules", 9, 21),
        meta("process_name", "/host:CPU", 1),
        slice_event("fusion.1", 0, 5, cat="", pid=9, tid=20),
        slice_event("jit_step", 0, 9, cat="", pid=9, tid=21),
        slice_event("PjitFunction", 0, 9, cat="", pid=1, tid=1),
        slice_event("cudaLaunchKernel", 0, 1, cat="cuda_runtime", pid=1, tid=2, args={"correlation": 4}),
        slice_event("found by correlation", 2, 3, cat="accelerator", pid=8, tid=1, args={"correlation": 4}),
        slice_event("no sign of a device", 2, 3, cat="accelerator", pid=1, tid=3),
    ]
    run = open_trace(write_kineto(tmp_path / "trace.json", events))
    assert categories(run) == {
        "fusion.1": "kernel",
        "jit_step": "gpu_user_annotation",
        "PjitFunction": "",
        "cudaLaunchKernel": "cuda_runtime",
        "found by correlation": "kernel",
        "no sign of a device": "accelerator",
    }
    assert run.rows("SELECT device, stream FROM gpu WHERE name = 'fusion.1'") == [(3, 20)]


def test_ends_without_a_category_belong_to_their_begins(tmp_path: Path) -> None:
    stream: dict[str, Any] = {"pid": 0, "tid": 7}
    events = [
        {"ph": "B", "cat": "kernel", "name": "k1", "ts": 10, **stream},
        {"ph": "E", "ts": 15, **stream},
        {"ph": "B", "cat": "kernel", "name": "k2", "ts": 20, **stream},
        {"ph": "E", "ts": 22, **stream},
        {"ph": "E", "ts": 23, **stream},
        {"ph": "B", "name": "aten::mm", "ts": 1, **HOST},
        {"ph": "E", "ts": 3, **HOST},
        {"ph": "B", "name": "never ends", "ts": 4, **HOST},
    ]
    run = open_trace(write_kineto(tmp_path / "trace.json", events))
    assert run.rows("SELECT name, category, dur_ns FROM slices ORDER BY start_ns") == [
        ("aten::mm", "cpu_op", 2_000),
        ("never ends", "", 19_000),
        ("k1", "kernel", 5_000),
        ("k2", "kernel", 2_000),
    ]
    assert run.segments[0].manifest["unpaired"] == 2


def test_a_trace_of_another_program_is_described_and_gets_no_a(tmp_path: Path) -> None:
    events = [
        *(slice_event(f"task {n % 2}", 100 * n, 50 + 10 * (n % 2), cat="task", pid=1, tid=n % 2) for n in range(8)),
        slice_event("main", 0, 5000, cat="", pid=1, tid=9),
    ]  # fmt: skip
    run = open_trace(write_kineto(tmp_path / "trace.json", events))
    assert title(run) == (
        "3 threads, 9 ranges in 5.00 ms; longest: main 5.00 ms, task 1 240 µs in 4 ranges, task 0 200 µs in 4 ranges"
    )
    result = doctor(run, Scope())
    row = next(row for row in result.rows if row["check"] == "events understood")
    assert (row["verdict"], row["value"]) == ("critical", "0 % of 9")
    assert result.findings[0].advice.startswith('8 of category "task", 1 without a category')
    assert result.title.endswith("Grade F")


def test_a_share_that_is_not_understood_lowers_the_grade(tmp_path: Path) -> None:
    def verdict(unknown: int) -> tuple[str, str]:
        known = [slice_event("aten::mm", 10 * n, 5) for n in range(10)]
        others = [slice_event("x", 10 * n, 5, cat="task", tid=2) for n in range(unknown)]
        steps = [slice_event("ProfilerStep#1", 0, 200, cat="user_annotation", tid=3)]
        run = open_trace(write_kineto(tmp_path / str(unknown) / "t.json", [*known, *others, *steps]))
        result = doctor(run, Scope())
        row = next(row for row in result.rows if row["check"] == "events understood")
        return str(row["verdict"]), result.title[-1]

    assert verdict(1) == ("ok", "A")
    assert verdict(3) == ("info", "B")
    assert verdict(20) == ("warning", "C")


def test_known_categories_are_not_joined(tmp_path: Path) -> None:
    """A kernel without its device stays as it is: only unknown categories are looked at."""
    events = [kernel_event("k", 0, 5), slice_event("aten::mm", 0, 3), slice_event("op", 4, 3)]
    run = open_trace(write_kineto(tmp_path / "trace.json", events))
    assert categories(run) == {"k": "kernel", "aten::mm": "cpu_op", "op": "cpu_op"}
