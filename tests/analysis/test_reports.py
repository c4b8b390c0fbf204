"""Reports: the figures of docs/definitions.md, brute force on real traces, and what they say when data is missing."""

from __future__ import annotations

import gzip
import json
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from statistics import mean, median, stdev
from typing import Any

import pytest

from conftest import DATA, kernel_event, open_trace, slice_event, write_kineto
from rankscope.analysis import REPORTS
from rankscope.analysis.core.result import Result, Row
from rankscope.analysis.core.scope import Scope
from rankscope.analysis.health.doctor import doctor, grade
from rankscope.analysis.health.doubts import doubts, percent
from rankscope.timeline.run import Run
from rankscope.views import render

OpenReal = Callable[[Path], Run]


def report(run: Run, name: str, by: str | None = None, **scope: Any) -> Result:
    return REPORTS[name].analyse(run, Scope(**scope), by)


def whole(result: Result) -> Row:
    return result.rows[0]


@pytest.mark.slow
def test_figures_of_hta_nccl_data(shared: Path, open_real: OpenReal) -> None:
    row = whole(report(open_real(shared / "public/hta/nccl_data.json.gz"), "breakdown", whole_file=True))
    busy = row["span_ns"] - row["idle_ns"]
    figures = [row["compute_ns"], row["comm_ns"], busy, row["span_ns"]]
    assert [round(ns / 1000, 1) for ns in figures] == [115655.8, 46876.5, 157500.0, 660551.0]
    assert round(row["overlap_pct"], 2) == 15.61


@pytest.mark.slow
def test_figures_of_tracelens_h100_qwen(shared: Path, open_real: OpenReal) -> None:
    row = whole(
        report(open_real(shared / "public/tracelens/h100_qwen.json.gz"), "breakdown", whole_file=True)
    )
    figures = [row["compute_ns"], row["span_ns"] - row["idle_ns"], row["span_ns"], row["idle_ns"]]
    assert [round(ns / 1000, 1) for ns in figures] == [45432.7, 45647.3, 49652.8, 4005.5]
    assert row["overlap_pct"] is None


@pytest.mark.slow
@pytest.mark.parametrize("name", ["ddp-gloo4", "seqpar-gloo4-slow2", "gpt-h200-stack"])
def test_the_parts_fill_the_span_exactly(name: str, open_real: OpenReal) -> None:
    for row in report(open_real(DATA / name), "breakdown").rows:
        parts = [row[f"{part}_ns"] for part in ("compute", "exposed_comm", "exposed_copy", "idle")]
        assert sum(parts) == row["span_ns"]
        assert min(parts) >= 0
        assert row["exposed_comm_ns"] <= row["comm_ns"]


def test_a_host_collective_that_waits_for_its_own_gpu_is_seen_through(open_real: OpenReal) -> None:
    """Rank 2's gloo:all_reduce starts at once and waits 12.5 ms a step for its own GPU (data/README)."""
    rows = {row["rank"]: row for row in report(open_real(DATA / "seqpar-gloo4-slow2"), "breakdown").rows[:4]}
    assert rows[2]["compute_ns"] > 76e6 and rows[2]["comm_ns"] < 17e6
    assert all(rows[rank]["comm_ns"] > 80e6 and rows[rank]["compute_ns"] < 1e5 for rank in (0, 1, 3))


@pytest.mark.slow
def test_a_trace_of_our_own_capture_on_an_h200(open_real: OpenReal) -> None:
    """`rankscope profile --steps 5:6 torchrun … examples/gpt_train.py` on a GPU (tests/gpu/capture.sh)."""
    run = open_real(DATA / "captured-h200")
    rows = report(run, "breakdown").rows
    assert [row["step"] for row in rows] == [None, 5, 6]
    assert [rows[0][part] // 1000 for part in ("span_ns", "compute_ns", "idle_ns")] == [21154, 1396, 19746]
    assert run.segments[0].manifest["header"]["rankscope"]["rank"] == 0


def raw_events(path: Path) -> list[dict[str, Any]]:
    with gzip.open(path) as file:
        events: list[dict[str, Any]] = json.load(file)["traceEvents"]
    return events


def ns(microseconds: float) -> int:
    return round(microseconds * 1000)


@pytest.mark.slow
def test_kernels_against_brute_force(open_real: OpenReal) -> None:
    durations = defaultdict(list)
    for event in raw_events(DATA / "gpt-h200-stack" / "gpt.pt.trace.json.gz"):
        if event.get("cat") == "kernel":
            durations[event["name"]].append(ns(event["dur"]))
    total = sum(map(sum, durations.values()))
    rows = {row["name"]: row for row in report(open_real(DATA / "gpt-h200-stack"), "kernels").rows}
    assert set(rows) == set(durations)
    for name, values in durations.items():
        row = rows[name]
        assert (row["total_ns"], row["instances"], row["min_ns"], row["max_ns"], row["med_ns"]) == (
            sum(values),
            len(values),
            min(values),
            max(values),
            median(values),
        )
        assert row["time_pct"] == pytest.approx(100 * sum(values) / total)
        assert row["avg_ns"] == pytest.approx(mean(values))
        assert row["stddev_ns"] == pytest.approx(stdev(values) if len(values) > 1 else 0)
    totals = [row["total_ns"] for row in report(open_real(DATA / "gpt-h200-stack"), "kernels").rows]
    assert totals == sorted(totals, reverse=True)


@pytest.mark.slow
def test_ops_against_brute_force(open_real: OpenReal) -> None:
    """Calls and host time by name; device time through External id, the way torch's own tables do it."""
    events = raw_events(DATA / "gpt-h200-stack" / "gpt.pt.trace.json.gz")
    ops = {event["args"]["External id"]: event["name"] for event in events if event.get("cat") == "cpu_op"}
    host: defaultdict[str, int] = defaultdict(int)
    calls: defaultdict[str, int] = defaultdict(int)
    device: defaultdict[str, int] = defaultdict(int)
    for event in events:
        if event.get("cat") == "cpu_op":
            host[event["name"]] += ns(event["dur"])
            calls[event["name"]] += 1
        elif event.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset"):
            device[ops[event["args"]["External id"]]] += ns(event["dur"])
    rows = {row["name"]: row for row in report(open_real(DATA / "gpt-h200-stack"), "ops").rows}
    assert {name: row["total_host_ns"] for name, row in rows.items()} == host
    assert {name: row["calls"] for name, row in rows.items()} == calls
    assert {name: row["self_device_ns"] for name, row in rows.items() if row["self_device_ns"]} == device
    assert all(row["self_device_ns"] <= row["total_device_ns"] for row in rows.values())
    assert rows["aten::linear"]["total_device_ns"] >= rows["aten::addmm"]["self_device_ns"] > 0


def test_ops_by_key_add_up_to_ops(open_real: OpenReal) -> None:
    run = open_real(DATA / "gpt-h200-stack")
    plain = sum(row["self_host_ns"] for row in report(run, "ops").rows)
    for key in ("rank", "shape", "module", "source"):
        result = report(run, "ops", key)
        assert sum(row["self_host_ns"] for row in result.rows) == plain
        assert any(row[key] for row in result.rows) or key == "rank"
        assert result.notes == ()


@pytest.mark.slow
def test_flops_of_matrix_products(tmp_path: Path) -> None:
    shapes = {
        "aten::mm": [[2, 3], [3, 4]],
        "aten::addmm": [[4], [2, 3], [3, 4]],
        "aten::bmm": [[5, 2, 3], [5, 3, 4]],
    }
    events = [
        slice_event(name, 10 * i, 5, args={"Input Dims": dims})
        for i, (name, dims) in enumerate(shapes.items())
    ]
    events.append(slice_event("aten::add", 90, 5, args={"Input Dims": [[2], [2]]}))
    rows = report(open_trace(write_kineto(tmp_path / "t.json", events)), "ops").rows
    assert {row["name"]: row["flops"] for row in rows} == {
        "aten::mm": 48,
        "aten::addmm": 48,
        "aten::bmm": 240,
        "aten::add": None,
    }


@pytest.mark.slow
def test_a_run_without_a_gpu_is_broken_down_by_host_work(tmp_path: Path) -> None:
    events = [
        slice_event("ProfilerStep#1", 0, 100, cat="user_annotation"),
        slice_event("aten::linear", 10, 30),
        slice_event("aten::mm", 15, 20),
        slice_event("gloo:all_reduce", 30, 20, cat="user_annotation", tid=2),
        slice_event("c10d::barrier", 60, 10),
    ]
    result = report(open_trace(write_kineto(tmp_path / "t.json", events)), "breakdown")
    row = whole(result)
    parts = {part: row[f"{part}_ns"] // 1000 for part in ("span", "compute", "comm", "exposed_comm", "idle")}
    assert parts == {"span": 100, "compute": 30, "comm": 20, "exposed_comm": 10, "idle": 60}
    assert row["overlap_pct"] == 50
    assert any("no GPU events" in note for note in result.notes)


@pytest.mark.slow
def test_an_op_that_only_has_its_flags_checked_inside_is_a_leaf(tmp_path: Path) -> None:
    events = [
        slice_event("aten::mm", 10, 20),
        slice_event("aten::resolve_conj", 12, 1),
        slice_event("aten::add", 40, 5),
    ]
    row = whole(report(open_trace(write_kineto(tmp_path / "t.json", events)), "breakdown"))
    assert (row["span_ns"], row["compute_ns"]) == (35_000, 25_000)


@pytest.mark.slow
def test_memory_peaks(tmp_path: Path) -> None:
    def memory(ts: float, allocated: int, reserved: int, kind: int = 1) -> dict[str, Any]:
        args = {
            "Total Allocated": allocated,
            "Total Reserved": reserved,
            "Device Id": 0,
            "Device Type": kind,
            "Bytes": 1,
        }
        event = {"ph": "i", "cat": "cpu_instant_event", "name": "[memory]", "s": "t", "pid": 1, "tid": 1}
        return event | {"ts": ts, "args": args}

    events = [
        slice_event("op", 0, 9),
        memory(1, 5, 50),
        memory(2, 9, 40),
        memory(3, 9, 60),
        memory(4, 1, 1, kind=0),
    ]

    def rest(unused: int) -> dict[str, Any]:
        return {"unused_bytes": unused, "growth_bytes": None}

    rows = list(report(open_trace(write_kineto(tmp_path / "t.json", events)), "memory").rows)
    assert rows == [
        {"rank": 0, "device": "CPU", "peak_allocated_bytes": 1, "peak_reserved_bytes": 1, "at_ns": 4000}
        | rest(0),
        {"rank": 0, "device": "GPU 0", "peak_allocated_bytes": 9, "peak_reserved_bytes": 60, "at_ns": 2000}
        | rest(31),
    ]


def test_a_window_of_steps_says_what_it_leaves_out(open_real: OpenReal) -> None:
    run = open_real(DATA / "ddp-gloo4")
    result = report(run, "kernels", steps=(3, 4), ranks=frozenset({1}))
    assert result.window == "steps 3:4"
    assert sum(row["instances"] for row in result.rows) < 504
    assert any("outside steps 3:4" in note for note in result.notes)
    assert {row["rank"] for row in report(run, "breakdown", ranks=frozenset({1})).rows} == {1}
    assert {row["step"] for row in report(run, "breakdown", steps=(3, 4)).rows} == {None, 3, 4}


@pytest.mark.slow
def test_a_pattern_of_the_users_makes_a_kernel_communication(tmp_path: Path) -> None:
    from rankscope.timeline.reading import ingest

    path = write_kineto(tmp_path / "t.json", [kernel_event("my_ring", 0, 10), kernel_event("gemm", 10, 10)])
    ingested = ingest([path])
    assert whole(report(Run(ingested), "breakdown"))["comm_ns"] == 0
    assert whole(report(Run(ingested, ["^my_ring"]), "breakdown"))["comm_ns"] == 10_000


COLLECTIVES = """ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)
ncclKernel_SendRecv
rcclGenericKernel
void oneccl_allreduce<float>()
mscclKernel_Sum
nvshmem_barrier
void deep_ep::internode::dispatch<int>()
void vllm::cross_device_reduce_1stage<c10::BFloat16, 8>(vllm::RankData*)""".splitlines()


@pytest.mark.slow
@pytest.mark.parametrize("name", COLLECTIVES)
def test_collectives_in_the_wild(name: str, tmp_path: Path) -> None:
    run = open_trace(
        write_kineto(tmp_path / "t.json", [kernel_event(name, 0, 1), kernel_event("gemm_tn", 5, 1)])
    )
    assert dict(run.rows("SELECT name, class FROM gpu")) == {name: "COMM", "gemm_tn": "COMPUTE"}


@pytest.mark.slow
def test_metadata_goes_before_the_name(tmp_path: Path) -> None:
    metadata: dict[str, Any] = {"Collective name": "allreduce"}
    event = kernel_event("strange_name", 0, 1, **metadata)
    run = open_trace(write_kineto(tmp_path / "t.json", [event]))
    assert run.rows("SELECT class, collective FROM gpu") == [("COMM", "allreduce")]


# Reports that have rows for a trace with ops only; the others need a note on what is missing.
NEED_ONLY_OPS = ("ops", "breakdown", "breakdown.phases", "summary", "clocks", "layout", "layout.groups")


@pytest.mark.slow
def test_every_report_of_a_bare_run_says_what_is_missing(tmp_path: Path) -> None:
    """One op, no GPU, no steps, no shapes, no stacks, no memory: no report fails, each has rows or a note."""
    run = open_trace(write_kineto(tmp_path / "t.json", [slice_event("aten::add", 0, 1)]))
    for name, known in REPORTS.items():
        for key in (None, *known.keys):
            result = report(run, name, key)
            assert result.rows or result.notes, name
            assert result.notes or name in NEED_ONLY_OPS, name
    assert "record_shapes" in " ".join(report(run, "ops", "shape").notes)


@pytest.mark.slow
def test_an_empty_run_has_empty_reports(tmp_path: Path) -> None:
    run = open_trace(write_kineto(tmp_path / "t.json", []))
    with_rows = {name for name in REPORTS if report(run, name).rows}
    assert with_rows <= {"layout", "clocks", "groups"}  # an empty run still has ranks
    assert doctor(run, Scope()).rows


def test_shares_of_the_doctor_have_no_exponent() -> None:
    assert [percent(share) for share in (100, 99.7, 12.3, 4.56, 0.00001)] == [
        "100", "100", "12", "4.6", "under 0.1",
    ]  # fmt: skip


@pytest.mark.slow
def test_doctor_of_clean_and_damaged_runs(tmp_path: Path, open_real: OpenReal) -> None:
    clean = doctor(open_real(DATA / "gpt-h200-stack"), Scope())
    assert clean.title.endswith("Grade A") and clean.findings == ()
    steps = [slice_event(f"ProfilerStep#{n}", 100 * n + (300 if n else 0), 350 if n == 0 else 90, cat="user_annotation")
             for n in range(4)]  # fmt: skip
    kernels = [kernel_event("mystery", 1000 * n, 10 if n else -5) for n in range(5)]
    header = {"distributedInfo": {"rank": 2, "world_size": 4}}
    sick = doctor(open_trace(write_kineto(tmp_path / "rank-1.json", [*steps, *kernels], **header)), Scope())
    verdicts = {row["check"]: row["verdict"] for row in sick.rows}
    assert verdicts["GPU events without their launch"] == "critical"
    assert verdicts["warm-up inside the recording"] == "warning"
    assert verdicts["negative durations"] == "warning"
    assert verdicts["missing ranks"] == "info"
    assert verdicts["file names that contradict the rank inside"] == "warning"
    assert verdicts["kernel time of unknown kind"] == "info"
    assert sick.title.endswith("Grade F")
    assert sick.findings[0].severity == "critical"


def test_grades() -> None:
    assert [
        grade([]),
        grade(["info"]),
        grade(["warning"]),
        grade(["warning"] * 3),
        grade(["critical"]),
    ] == list("ABCDF")


@pytest.mark.slow
@pytest.mark.parametrize("dur", [0.0, 3.0])
def test_every_report_of_events_that_are_all_at_one_time(dur: float, tmp_path: Path) -> None:
    """As after a clock that stood still: no rate, share or ratio may be over a time of zero."""
    numbers = range(1, 4)
    collective = {"Collective name": "allreduce", "Process Group Ranks": "[0, 1]", "Group size": 2}
    memory = {"Total Reserved": 1000, "Bytes": 10, "Device Id": 0, "Device Type": 1}
    events: list[Any] = [
        event
        for number in numbers
        for event in (
            slice_event(f"ProfilerStep#{number}", 5.0, dur, cat="user_annotation"),
            slice_event("aten::mm", 5.0, dur, args={"External id": number}),
            slice_event("cudaLaunchKernel", 5.0, dur, cat="cuda_runtime", args={"correlation": number}),
            kernel_event("gemm", 5.0, dur, args={"correlation": number, "stream": 7, "device": 0}),
            kernel_event("ncclDevKernel_AllReduce", 5.0, dur, args={"stream": 8, "device": 0, **collective}),
            slice_event(
                "[memory]", 5.0, dur, cat="cpu_instant_event", ph="i", args={**memory, "Addr": number}
            ),
        )
    ]
    for rank in range(2):
        about = {"rank": rank, "world_size": 2}
        write_kineto(tmp_path / f"rank-{rank}.json", events, distributedInfo=about)
    run = open_trace(tmp_path)
    for name in REPORTS:
        render(report(run, name))
    assert not [doubt for doubt in doubts(run, Scope()) if "warm-up" in doubt.title]
