"""What happens within a rank: overlap, launches, short kernels, syncs, data, overhead, phases, families."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from analysis.within import GPU, RUNTIME, raw, report
from conftest import DATA, kernel_event, open_trace, slice_event, write_kineto
from rankscope.analysis import REPORTS
from rankscope.analysis.core.intervals import covered_before, union
from rankscope.analysis.core.scope import Scope
from rankscope.analysis.findings import collect
from rankscope.analysis.health.doctor import doctor
from rankscope.analysis.questions import QUESTIONS
from rankscope.analysis.within_rank.kernel_families import family, kernel_name
from rankscope.analysis.within_rank.launches import queue_depth
from rankscope.store.ingest import Options
from rankscope.timeline.reading import ingest
from rankscope.timeline.run import Run
from rankscope_bench.synthetic import Plan, Straggler, write

OpenReal = Callable[[Path], Run]
WITHIN_RANK_REPORTS = (
    "overlap",
    "idle",
    "idle.gaps",
    "breakdown.phases",
    "idle.launches",
    "idle.short_kernels",
    "idle.syncs",
    "dataloader",
    "overhead",
    "kernels.families",
)


def call(name: str, ts: float, dur: float, correlation: int = 0, **fields: Any) -> dict[str, Any]:
    return slice_event(name, ts, dur, cat="cuda_runtime", args={"correlation": correlation}, **fields)


def mark(name: str, ts: float, dur: float, **fields: Any) -> dict[str, Any]:
    return slice_event(name, ts, dur, cat="user_annotation", **fields)


@pytest.fixture(scope="module")
def planted(tmp_path_factory: pytest.TempPathFactory) -> tuple[Run, Any, Path]:
    folder = tmp_path_factory.mktemp("synthetic")
    plan = Plan(
        ranks=2,
        events_per_rank=8_000,
        steps=3,
        with_stack=True,
        straggler=Straggler(1, "dataloader", 5_000_000),
    )
    truth = write(plan, folder)
    return Run(ingest([folder])), truth, folder


# overlap


@pytest.mark.slow
def test_overlap_is_the_breakdowns_and_the_truths(planted: tuple[Run, Any, Path]) -> None:
    run, truth, _ = planted
    whole = {row["rank"]: row for row in report(run, "overlap").rows if row["collective"] is None}
    steps = {(row["rank"], row["step"]): row for row in report(run, "overlap", "step").rows}
    for rank in truth["ranks"]:
        for part in rank["breakdown"]:
            row = whole[rank["rank"]] if part["step"] is None else steps[rank["rank"], part["step"]]
            assert row["comm_ns"] == part["comm_ns"]
            assert row["hidden_ns"] == part["overlap_ns"]
            assert row["exposed_ns"] == part["exposed_comm_ns"]
            assert row["overlap_pct"] == pytest.approx(part["overlap_pct"])


@pytest.mark.slow
def test_what_hides_a_collective(tmp_path: Path) -> None:
    """The all_reduce runs from 10 to 40 µs; gemm covers 12 of them, add 5; the broadcast is exposed."""
    events = [
        kernel_event(
            "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)", 10, 30, 1, stream=20
        ),
        kernel_event(
            "ncclDevKernel_Broadcast_RING_LL(ncclDevKernelArgsStorage<4096ul>)", 60, 10, 2, stream=20
        ),
        kernel_event("gemm_128x128", 0, 22, 3),
        kernel_event("void at::native::add<float>(int)", 22, 5, 4),
    ]
    result = report(open_trace(write_kineto(tmp_path / "t.json", events)), "overlap")
    found = {row["collective"]: (row["comm_ns"], row["hidden_ns"], row["hidden_by"]) for row in result.rows}
    assert found == {
        None: (40_000, 17_000, "gemm"),
        "ncclDevKernel_AllReduce_Sum_f32_RING_LL": (30_000, 17_000, "gemm"),
        "ncclDevKernel_Broadcast_RING_LL": (10_000, 0, None),
    }
    (finding,) = result.findings
    assert (finding.kind, finding.title, finding.cost_ns) == ("limit", "Communication", 23_000)


# launches


@pytest.mark.slow
def test_launch_delay_and_queue_of_a_stream(tmp_path: Path) -> None:
    """Three launched at 0, 10, 20; started at 30, 60, 70: depth 1, 2, 3, 2 and 1 for 10, 10, 10, 30, 10 µs."""
    events = [call("cudaLaunchKernel", 10 * i, 5, i + 1) for i in range(3)]
    events += [kernel_event("k", at, 5, i + 1) for i, at in enumerate((30, 60, 70))]
    events.append(kernel_event("lost", 90, 5, 99))
    result = report(open_trace(write_kineto(tmp_path / "t.json", events)), "idle.launches")
    (row,) = result.rows
    assert (row["launches"], row["delay_avg_ns"], row["delay_med_ns"], row["delay_max_ns"]) == (
        3,
        pytest.approx(130_000 / 3),
        50_000,
        50_000,
    )
    assert (row["depth_max"], row["empty_pct"], row["full_ns"]) == (3, 0.0, 0)
    assert row["depth_avg"] == pytest.approx(130 / 70)
    assert any("left out: 1 of 4" in note for note in result.notes)


@pytest.mark.slow
def test_launches_of_a_synthetic_rank_against_brute_force(planted: tuple[Run, Any, Path]) -> None:
    run, truth, folder = planted
    events = raw(folder / truth["ranks"][0]["file"])
    calls = {e["args"]["correlation"]: e["start"] for e in events if e.get("cat") in RUNTIME}
    by_stream: dict[int, list[tuple[int, int]]] = {}
    for event in events:
        if event.get("cat") in GPU:
            pair = (calls[event["args"]["correlation"]], event["start"])
            by_stream.setdefault(event["args"]["stream"], []).append(pair)
    rows = {row["stream"]: row for row in report(run, "idle.launches", ranks=frozenset([0])).rows}
    assert set(rows) == set(by_stream)
    for stream, pairs in by_stream.items():
        waiting, most = 0, 0
        for _, change in sorted([(a, 1) for a, _ in pairs] + [(b, -1) for _, b in pairs]):
            waiting += change
            most = max(most, waiting)
        assert (rows[stream]["launches"], rows[stream]["depth_max"]) == (len(pairs), most)
        assert rows[stream]["delay_max_ns"] == max(b - a for a, b in pairs)
        assert rows[stream]["delay_avg_ns"] == pytest.approx(sum(b - a for a, b in pairs) / len(pairs))


pairs_of_times = st.lists(st.tuples(st.integers(0, 30), st.integers(-2, 12)), max_size=12)


@pytest.mark.slow
@given(pairs_of_times, st.integers(1, 4))
def test_queue_depth_against_brute_force(pairs: list[tuple[int, int]], limit: int) -> None:
    launch = np.array([a for a, _ in pairs], dtype=np.int64)
    start = launch + np.array([b for _, b in pairs], dtype=np.int64)
    depths = [sum(a <= t < a + b for a, b in pairs) for t in range(-3, 50)]
    assert queue_depth(launch, start, limit) == (max(depths), sum(depth >= limit for depth in depths))


@pytest.mark.slow
@given(pairs_of_times, st.lists(st.integers(-5, 50), max_size=5))
def test_covered_before_against_brute_force(pairs: list[tuple[int, int]], times: list[int]) -> None:
    low = np.array([a for a, _ in pairs], dtype=np.int64)
    spans = union(low, low + np.array([b for _, b in pairs], dtype=np.int64))
    expected = [sum(any(a <= t < a + b for a, b in pairs) for t in range(-6, time)) for time in times]
    assert covered_before(spans, np.array(times, dtype=np.int64)).tolist() == expected


# short kernels


@pytest.mark.slow
def test_short_kernels_by_op_and_line(tmp_path: Path) -> None:
    """aten::add launches two short ones and a long one, aten::mul one of exactly 10 µs: that is not short."""
    events: list[Any] = [
        slice_event("aten::add", 0, 100),
        slice_event("train.py(7): step", 0, 150, cat="python_function", args={"Python id": 1}),
        slice_event("aten::mul", 110, 30),
    ]
    for i, (at, duration) in enumerate([(10, 2), (20, 3), (30, 50), (115, 10)]):
        events += [call("cudaLaunchKernel", at, 7, i + 1), kernel_event("k", 200 + 100 * i, duration, i + 1)]
    run = open_trace(write_kineto(tmp_path / "t.json", events))
    (row,) = report(run, "idle.short_kernels").rows
    assert row == {
        "op": "aten::add",
        "count": 2,
        "count_pct": pytest.approx(200 / 3),
        "total_ns": 5_000,
        "avg_ns": 2_500.0,
        "launch_ns": 14_000,
    }
    (row,) = report(run, "idle.short_kernels", "source").rows
    assert (row["source"], row["count"], row["count_pct"]) == ("train.py(7): step", 2, 50.0)


def test_a_graph_launch_counts_once(open_real: Callable[[Path], Run]) -> None:
    """A recorded step captured as one CUDA graph: 5 calls launched some 200 kernels each."""
    run = open_real(DATA / "gpt-graph-h200")
    result = report(run, "idle.short_kernels")
    ((calls, time),) = run.rows("""
        SELECT count(*), sum(launch_dur_ns) FROM (
            SELECT DISTINCT segment, launch, launch_dur_ns FROM gpu
            WHERE class = 'COMPUTE' AND dur_ns < 10000 AND launch IS NOT NULL)
    """)
    assert sum(row["count"] for row in result.rows) > 90 * calls
    assert sum(row["launch_ns"] for row in result.rows) == time
    assert result.findings == ()


def test_calls_that_a_graph_captured_are_no_kernels(open_real: Callable[[Path], Run], tmp_path: Path) -> None:
    """A graph of 56 nodes that is captured inside the recording, then replayed in 4 steps. Two kernels ran besides."""
    run = open_real(DATA / "graph-captured-h200")
    checks = {row["check"]: (row["value"], row["verdict"]) for row in doctor(run, Scope()).rows}
    assert checks["launches captured into CUDA graphs"] == ("56", "ok")
    assert checks["launches without their GPU event"] == ("0 of 6", "ok")
    whole = Scope(whole_file=True)
    assert sum(row["instances"] for row in REPORTS["kernels"].analyse(run, whole, None).rows) == 4 * 52 + 2
    assert {
        row["stream"]: row["launches"] for row in REPORTS["idle.launches"].analyse(run, whole, None).rows
    } == {
        7: 224,
        49: 2,
    }
    assert [row["step"] for row in report(run, "breakdown").rows] == [None, 0, 1, 2, 3]
    # Launches whose kernels are lost are still counted where nothing is captured.
    lost = [slice_event("cudaLaunchKernel", 10.0 * i, 5.0, cat="cuda_runtime") for i in range(4)]
    capture = [
        slice_event("cudaStreamBeginCapture", 9.0, 0.5, cat="cuda_runtime"),
        slice_event("cudaStreamEndCapture", 28.0, 0.5, cat="cuda_runtime"),
    ]
    run = open_trace(write_kineto(tmp_path / "t.json", [*lost, *capture]))
    checks = {row["check"]: (row["value"], row["verdict"]) for row in doctor(run, Scope()).rows}
    assert checks["launches captured into CUDA graphs"] == ("2", "ok")
    assert checks["launches without their GPU event"] == ("2 of 2", "critical")


@pytest.mark.slow
def test_many_short_kernels_are_a_finding(tmp_path: Path) -> None:
    events = [mark("ProfilerStep#1", 0, 1000)]
    for i in range(50):
        events += [call("cudaLaunchKernel", 20 * i, 9, i + 1), kernel_event("k", 20 * i + 10, 1, i + 1)]
    run = open_trace(write_kineto(tmp_path / "t.json", events))
    (small,) = QUESTIONS["idle.short_kernels"].analyse(run, Scope(), None).findings
    assert small.title == "Small kernels outside any op" and small.remedy
    assert small.lines[0].startswith("to launch them: 450 µs") and "kernels: 50, under 10 µs" in small.lines
    assert small.remedy.most_ns == pytest.approx(450_000 * 49 / 50)
    # The same time as that of the idle GPU: one limit is evidence of the other.
    (first,) = (one for one in collect(run, Scope()) if one.report in ("idle", "idle.short_kernels"))
    assert first.cost_ns is not None and 450_000 < first.cost_ns <= 950_000  # of 1 ms all but the kernels
    assert "a part of the same time: Small kernels outside any op, -r idle.short_kernels" in first.lines


# copies


@pytest.mark.parametrize(
    ("kind", "title"),
    [
        ("Memcpy HtoD (Pageable -> Device)", "Pageable copies to the device"),
        ("Memcpy DtoH (Device -> Pinned)", "Copies of pinned memory to the host"),
        ("Memcpy DtoD (Device -> Device)", "Copies on the device"),
        ("Memset (Device)", "Fills of device memory"),
        ("odd", "Copies: odd"),
    ],
)
def test_exposed_copies_are_a_limit(kind: str, title: str, tmp_path: Path) -> None:
    """A copy of 100 µs between two kernels, and one of 40 that a kernel on another stream hides."""
    events = [mark("ProfilerStep#1", 0, 30)]
    for number, (name, start, time, stream) in enumerate(
        [("a", 20, 80, 7), (kind, 100, 100, 7), ("b", 200, 200, 7), (kind, 220, 40, 9)], 1
    ):
        events += [call("cudaLaunchKernel", 3 * number, 2, number)]
        events += [kernel_event(name, start, time, number, stream=stream)]
        if name == kind:
            events[-1]["cat"] = "gpu_memset" if "Memset" in kind else "gpu_memcpy"
    run = open_trace(write_kineto(tmp_path / "t.json", events))
    (limit,) = report(run, "memcpy").findings
    assert (limit.kind, limit.title) == ("limit", title)
    assert limit.cost_ns == pytest.approx(100_000, rel=0.02)
    assert limit.cost_pct == pytest.approx(25, rel=0.02)


# syncs


@pytest.mark.slow
def test_the_lines_of_python_that_wait(tmp_path: Path) -> None:
    """A .item() at train.py(9) waits 50 µs, 20 of them with nothing on the GPU; a pageable copy waits too."""
    events = [
        mark("ProfilerStep#1", 0, 300),
        slice_event("train.py(9): log", 40, 100, cat="python_function", args={"Python id": 1}),
        slice_event("aten::item", 45, 90),
        call("cudaStreamSynchronize", 50, 50, 9),
        call("cudaMemcpyAsync", 200, 30, 2, tid=2),
        call("cudaLaunchKernel", 0, 5, 1),
        kernel_event("a", 5, 75, 1),
        kernel_event("Memcpy HtoD (Pageable -> Device)", 225, 5, 2),
    ]
    events[-1]["cat"] = "gpu_memcpy"
    result = report(open_trace(write_kineto(tmp_path / "t.json", events)), "idle.syncs")
    assert [
        tuple(row[c] for c in ("name", "op", "source", "calls", "total_ns", "gpu_idle_ns"))
        for row in result.rows
    ] == [
        ("cudaStreamSynchronize", "aten::item", "train.py(9): log", 1, 50_000, 20_000),
        ("cudaMemcpyAsync, pageable", None, None, 1, 30_000, 25_000),
    ]
    (finding,) = result.findings
    assert finding.title == "Synchronising calls: cudaStreamSynchronize"
    assert "most of it: train.py(9): log" in finding.lines
    # The host does not wait for 50 µs, but the GPU is idle for 20 of them only.
    assert finding.cost_ns == 20_000


@pytest.mark.slow
def test_the_lines_that_synchronise_in_a_real_trace(open_real: OpenReal) -> None:
    rows = report(open_real(DATA / "gpt-h200-stack"), "idle.syncs").rows
    assert [(row["name"], row["op"], row["source"], row["calls"]) for row in rows] == [
        ("cudaMemcpyAsync, pageable", "aten::copy_", "gpt.py(31): step", 3),
    ]
    rows = (
        REPORTS["idle.syncs"].analyse(open_real(DATA / "gpt-h200-stack"), Scope(whole_file=True), None).rows
    )
    assert ("cudaDeviceSynchronize", "gpt.py(47): <module>") in [(row["name"], row["source"]) for row in rows]


@pytest.mark.slow
def test_syncs_of_a_synthetic_run(planted: tuple[Run, Any, Path]) -> None:
    run, _, folder = planted
    expected = [
        e["end"] - e["start"]
        for file in folder.glob("rank-*")
        for e in raw(file)
        if e["name"] == "cudaStreamSynchronize"
    ]
    row = next(row for row in report(run, "idle.syncs").rows if row["name"] == "cudaStreamSynchronize")
    assert (row["calls"], row["total_ns"], row["max_ns"]) == (len(expected), sum(expected), max(expected))
    assert (row["op"], row["source"]) == ("aten::_local_scalar_dense", "train.py(97): log")


# dataloader


def test_a_planted_stall(planted: tuple[Run, Any, Path]) -> None:
    run, _, _ = planted
    result = report(run, "dataloader")
    waits = {(row["rank"], row["step"]): row for row in result.rows}
    assert len(waits) == 6 and all(row["waits"] == 1 for row in result.rows)
    for step in (2, 3, 4):
        extra = waits[1, step]["wait_ns"] - waits[0, step]["wait_ns"]
        assert abs(extra - 5_000_000) < 600_000  # two jitters of a wait of 2 ms
        assert waits[1, step]["wait_pct"] == pytest.approx(
            100 * waits[1, step]["wait_ns"] / waits[1, step]["step_ns"]
        )
    assert [row["rank"] for row in result.rows] == [1, 1, 1, 0, 0, 0], "the worst rank first"
    (finding,) = result.findings
    assert finding.ranks == (0, 1) and finding.kind == "limit"
    idle = sum(waits[1, step]["gpu_idle_ns"] for step in (2, 3, 4))
    # What rank 1 waits longer than rank 0 is a fault, and mended before.
    assert finding.cost_ns == pytest.approx(2_000_000, rel=0.2)
    assert idle == {row["rank"]: row["dataloader_ns"] for row in report(run, "idle").rows}[1]


@pytest.mark.parametrize("stacks", [True, False])
def test_the_line_that_loads_data(stacks: bool, tmp_path: Path) -> None:
    """clean() runs for 900 of the 1,000 us of a wait, in three calls of the dataset, below torch's own frames."""
    events: list[Any] = []
    for step in range(3):
        at = 1100 * step
        events += [
            slice_event(f"ProfilerStep#{step}", at, 1100, cat="user_annotation"),
            slice_event("enumerate(DataLoader)#Iter.__next__", at + 10, 1000, cat="user_annotation"),
            slice_event("aten::mm", at + 1020, 50),
        ]
        frames = [
            ("train.py(30): train", at, 1100),
            ("torch/utils/data/_utils/fetch.py(49): fetch", at + 11, 990),
        ]
        for call_at in (at + 20, at + 340, at + 660):
            frames += [("train.py(12): __getitem__", call_at, 310), ("train.py(19): clean", call_at + 2, 300)]
            frames += [
                ("<built-in function sorted>", call_at + 4, 290),
                ("zipfile.py(7): read", call_at + 8, 280),
            ]
        events += [
            slice_event(name, begin, time, cat="python_function", args={"Python id": number})
            for number, (name, begin, time) in enumerate(frames, 1 + 20 * step)
        ] * stacks
    (finding,) = report(open_trace(write_kineto(tmp_path / "t.json", events)), "dataloader").findings
    assert ("most of it: train.py(19): clean" in finding.lines) is stacks
    assert finding.hint.startswith("Look at train.py(19): clean. Use more" if stacks else "Use more")
    assert finding.names == (("train.py(19): clean",) if stacks else ())


def test_the_line_before_whose_launches_the_gpu_is_idle(open_real: Callable[[Path], Run]) -> None:
    (finding,) = report(open_real(DATA / "gpt-h200-stack"), "idle").findings
    assert finding.lines[-1] == (
        "a GPU waits for a launch: 4.49 ms, rank 0, before launches at gpt.py(14): forward, per step"
    )


# overhead


def test_profiler_overhead(tmp_path: Path) -> None:
    events = [mark("ProfilerStep#1", 0, 100), kernel_event("k", 10, 5)]
    events += [slice_event("Activity Buffer Request", at, 20, cat="overhead", tid=3) for at in (10, 90)]
    events += [slice_event("Instrumentation", 15, 5, cat="overhead", tid=4)]
    result = report(open_trace(write_kineto(tmp_path / "t.json", events)), "overhead")
    rows = [
        (row["name"], row["calls"], row["total_ns"], row["in_steps_ns"], row["step_pct"])
        for row in result.rows
    ]
    assert rows == [
        ("Activity Buffer Request", 2, 40_000, 30_000, 30.0),
        ("Instrumentation", 1, 5_000, 5_000, 5.0),
    ]
    (finding,) = result.findings
    assert (finding.severity, finding.cost_ns) == ("critical", None) and "30 %" in finding.title


def test_recorded_stacks_are_reported(open_real: OpenReal) -> None:
    (finding,) = report(open_real(DATA / "gpt-h200-stack"), "overhead").findings
    assert finding.severity == "info" and "4,494 frames" in finding.title


# phases


@pytest.mark.slow
def test_phases_of_a_small_step(tmp_path: Path) -> None:
    """Data 0-10, forward 20-60 (a pause inside), backward 70-100 on its own thread, optimizer 110-130."""
    events = [
        mark("ProfilerStep#1", 0, 150),
        mark("enumerate(DataLoader)#Iter.__next__", 0, 10),
        slice_event("aten::linear", 20, 10),
        slice_event("aten::gelu", 50, 10),
        slice_event("autograd::engine::evaluate_function: GeluBackward0", 70, 30, tid=2),
        mark("Optimizer.step#AdamW.step", 110, 20),
        slice_event("aten::_fused_adamw_", 112, 10),
        slice_event("aten::item", 140, 5),
    ]
    for i, (at, duration) in enumerate([(22, 3), (55, 4), (80, 20), (115, 2), (142, 1)]):
        events += [call("cudaLaunchKernel", at, 1, i + 1, tid=2 if at == 80 else 1)]
        events += [kernel_event("k", 200 + 30 * i, duration, i + 1)]
    rows = report(open_trace(write_kineto(tmp_path / "t.json", events)), "breakdown.phases").rows
    assert {
        row["phase"]: (row["host_ns"] // 1000, row["device_ns"] // 1000, row["events"]) for row in rows
    } == {
        "dataloader": (10, 0, 0),
        "forward": (40, 7, 2),
        "backward": (30, 20, 1),
        "optimizer": (20, 2, 1),
        "other": (50, 1, 1),
    }


@pytest.mark.slow
@pytest.mark.parametrize("name", ["gpt-h200-stack", "ddp-gloo4", "seqpar-gloo4-slow2"])
def test_phases_add_up(name: str, open_real: OpenReal) -> None:
    run = open_real(DATA / name)
    rows = report(run, "breakdown.phases").rows
    for rank in run.ranks:
        ((steps,),) = run.rows(f"SELECT sum(dur_ns) FROM steps WHERE rank = {rank}")
        ((device, events),) = run.rows(
            f"SELECT sum(dur_ns), count(*) FROM gpu WHERE rank = {rank} AND step IS NOT NULL"
        )
        own = [row for row in rows if row["rank"] == rank]
        assert sum(row["host_ns"] for row in own) == steps
        assert (sum(row["device_ns"] for row in own), sum(row["events"] for row in own)) == (device, events)
        assert all(row["host_ns"] >= 0 for row in own)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["reentrant", "plain"])
def test_recomputation_of_both_kinds_of_checkpointing(kind: str, tmp_path: Path) -> None:
    """Real traces of torch.utils.checkpoint on a CPU: two blocks of layer_norm, linear, gelu; two steps."""
    path = DATA / "checkpoint-cpu" / f"{kind}.pt.trace.json.gz"
    run = Run(ingest([path], Options(cache=tmp_path)))
    rows = {row["phase"]: row for row in report(run, "breakdown.phases").rows}
    # Where the forward ops inside the backward pass begin and end, read off the trace by their names.
    blocks = run.rows("""
        SELECT min(s.start_ns), max(s.start_ns + s.dur_ns) FROM slices s JOIN slices p ON p.id = s.op
        WHERE s.name IN ('aten::layer_norm', 'aten::linear', 'aten::gelu') AND p.name LIKE '%Backward%' GROUP BY p.id
    """)
    assert len(blocks) == 4
    assert rows["recompute"]["host_ns"] == sum(end - start for start, end in blocks)
    assert rows["recompute"]["device_pct"] is None
    assert rows["backward"]["host_ns"] > 0


@pytest.mark.slow
def test_a_trace_without_ops_has_phases_by_the_names_of_ranges(tmp_path: Path) -> None:
    """As from nsys: NVTX ranges and launches, no ops. Numbered ranges are steps, not annotations."""
    events = [mark("step 1", 0, 100), mark("forward", 10, 20), mark("backward", 40, 30)]
    for i, at in enumerate((12, 45, 90)):
        events += [call("cudaLaunchKernel", at, 1, i + 1), kernel_event("k", at + 5, 2, i + 1)]
    run = open_trace(write_kineto(tmp_path / "t.json", events))
    rows = {row["phase"]: (row["host_ns"], row["events"]) for row in report(run, "breakdown.phases").rows}
    assert rows == {"forward": (20_000, 1), "backward": (30_000, 1), "other": (50_000, 1)}
    result = report(run, "idle.gaps")
    assert [row["within"] for row in result.rows] == ["other", "backward", "forward", None]
    assert any("no ops" in note for note in result.notes)
    bare = open_trace(write_kineto(tmp_path / "b.json", [events[0], *events[3:]]))
    assert [(row["phase"], row["host_ns"]) for row in report(bare, "breakdown.phases").rows] == [
        ("other", 100_000)
    ]


# families


def test_kernel_names_without_sizes() -> None:
    names = {
        "nvjet_sm90_tst_128x256_64x4_2x1_v_bz_coopB_TNN": "nvjet_sm90_tst",
        "void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm_relu_bf16_256x64_32x4_tn_align8>(Params)": (
            "cutlass_80_tensorop_bf16_s16816gemm_relu_bf16"
        ),
        "ampere_sgemm_128x64_tn": "ampere_sgemm",
        "void at::native::vectorized_elementwise_kernel<8, at::native::GeluCUDAKernelImpl(at::TensorIteratorBase&)"
        "::{lambda()#2}, std::array<char*, 2ul> >(int)": "vectorized_elementwise_kernel: GeluCUDAKernelImpl",
        "Memset (Device)": "Memset",
        "triton_poi_fused_add_mul_12": "triton_poi_fused_add_mul",
        "": "",
    }
    assert {name: kernel_name(name) for name in names} == names
    assert family("void at::native::copy_kernel<foo(lambda)>()") == "elementwise"  # no LAMB in lambda


def test_families_add_up_to_kernels(open_real: OpenReal) -> None:
    run = open_real(DATA / "gpt-h200-stack")
    kernels = report(run, "kernels").rows
    for by in (None, "rank"):
        rows = report(run, "kernels.families", by).rows
        assert sum(row["total_ns"] for row in rows) == sum(row["total_ns"] for row in kernels)
        assert sum(row["variants"] for row in rows) == len(kernels)
        assert sum(row["time_pct"] for row in rows) == pytest.approx(100)


# notes on missing data


KERNELS = [call("cudaLaunchKernel", 0, 5, 1), kernel_event("k", 10, 5, 1), kernel_event("k", 40, 5, 2)]
BARE = {
    "no events of use": [slice_event("noise", 0, 1, cat="odd")],
    "no GPU": [mark("ProfilerStep#1", 0, 100), slice_event("aten::mm", 10, 50)],
    "no steps": [*KERNELS, slice_event("aten::mm", 0, 50)],
    "one empty kernel": [kernel_event("k", 10, 0, 7)],
    "no ops": [*KERNELS, mark("ProfilerStep#1", 0, 100)],
}


@pytest.mark.slow(every_variation=True)
@pytest.mark.parametrize("kind", BARE)
def test_bare_traces_have_rows_or_notes(kind: str, tmp_path: Path) -> None:
    run = open_trace(write_kineto(tmp_path / "t.json", BARE[kind]))
    for name in WITHIN_RANK_REPORTS:
        for by in (None, *REPORTS[name].keys):
            result = report(run, name, by)
            assert result.rows or result.notes, name
            for row in result.rows:
                assert set(row) == {column.name for column in result.columns}
                assert not any(isinstance(v, float) and not math.isfinite(v) for v in row.values()), (
                    name,
                    row,
                )


@pytest.mark.slow
def test_notes_name_the_option_that_records_missing_data(tmp_path: Path) -> None:
    cpu = open_trace(write_kineto(tmp_path / "cpu.json", BARE["no GPU"]))
    for name in (
        "overlap",
        "idle",
        "idle.gaps",
        "idle.launches",
        "idle.short_kernels",
        "idle.syncs",
        "kernels.families",
    ):
        assert any("ProfilerActivity.CUDA" in note for note in report(cpu, name).notes), name
    gpu = open_trace(write_kineto(tmp_path / "gpu.json", BARE["no steps"]))
    for name in ("idle.gaps", "idle.short_kernels"):
        assert any("--with-stack" in note for note in report(gpu, name, "source").notes), name
    assert any("no communication" in note for note in report(gpu, "overlap").notes)
    assert any("no steps" in note for note in report(gpu, "breakdown.phases").notes)
    assert any("DataLoader" in note for note in report(gpu, "dataloader").notes)
    assert any("overhead" in note for note in report(gpu, "overhead").notes)


def test_a_window_of_steps_is_named_and_adds_up(planted: tuple[Run, Any, Path]) -> None:
    run, truth, _ = planted
    parts = {r["rank"]: {p["step"]: p for p in r["breakdown"]} for r in truth["ranks"]}
    for row in report(run, "idle", steps=(3, 3)).rows:
        assert sum(v for k, v in row.items() if k.endswith("_ns")) == parts[row["rank"]][3]["idle_ns"]
    for name in WITHIN_RANK_REPORTS:
        assert report(run, name, steps=(3, 3)).window == "step 3"


def test_a_run_whose_events_do_not_fit_is_read_rank_by_rank(
    planted: tuple[Run, Any, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rows are the same if no events are kept in memory between reports."""
    run, _, folder = planted
    kept = [report(run, name).rows for name in WITHIN_RANK_REPORTS]
    for module in ("core.device_events", "core.rank_activity"):
        monkeypatch.setattr(f"rankscope.analysis.{module}.KEPT_EVENTS", 1)
    again = Run(ingest([folder]))
    assert [report(again, name).rows for name in WITHIN_RANK_REPORTS] == kept
    assert REPORTS["idle"].analyse(again, Scope(ranks=frozenset([1])), None).rows[0]["rank"] == 1
