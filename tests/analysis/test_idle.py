"""Idle time by cause: hand-made traces, brute force on whole traces, random gaps, planted delays."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from analysis.within import CAUSES, idle_causes, raw, report
from conftest import DATA, kernel_event, open_trace, slice_event, write_kineto
from rankscope.analysis.core.device_events import UNKNOWN, DeviceEvents
from rankscope.analysis.core.intervals import Intervals, union
from rankscope.analysis.within_rank.idle import find_gaps
from rankscope.timeline.reading import ingest
from rankscope.timeline.run import Run
from rankscope_bench.synthetic import Plan, Straggler, write

OpenReal = Callable[[Path], Run]


def launch(correlation: int, ts: float, dur: float = 5, name: str = "cudaLaunchKernel") -> dict[str, Any]:
    return slice_event(name, ts, dur, cat="cuda_runtime", args={"correlation": correlation})


def idle_row(path: Path, events: list[Any]) -> dict[str, int]:
    row = report(open_trace(write_kineto(path, events)), "idle").rows[0]
    return {cause: row[f"{cause}_ns"] // 1000 for cause in CAUSES if row[f"{cause}_ns"]}


def two_kernels(*more: Any, start: float = 200, launched: float | None = 150) -> list[Any]:
    """One kernel until 100 µs, one from `start` on, and what happens in between."""
    events = [kernel_event("a", 0, 100, 1), kernel_event("b", start, 10, 2), *more]
    return events + ([launch(2, launched)] if launched is not None else [])


@pytest.mark.slow
def test_each_cause_alone(tmp_path: Path) -> None:
    data = slice_event("enumerate(DataLoader)#Iter.__next__", 0, 500, cat="user_annotation")
    sync = launch(9, 90, 400, "cudaStreamSynchronize")
    assert idle_row(tmp_path / "1.json", two_kernels()) == {"host_bound": 50, "launch_latency": 50}
    assert idle_row(tmp_path / "2.json", two_kernels(launched=20)) == {"other": 100}
    assert idle_row(tmp_path / "3.json", two_kernels(launched=None)) == {"other": 100}
    assert idle_row(tmp_path / "4.json", two_kernels(sync)) == {"sync": 100}
    assert idle_row(tmp_path / "4q.json", two_kernels(sync, launched=20)) == {"other": 100}
    assert idle_row(tmp_path / "5.json", two_kernels(data)) == {"dataloader": 100}
    assert idle_row(tmp_path / "6.json", two_kernels(sync, data)) == {"dataloader": 100}


@pytest.mark.slow
def test_causes_share_a_gap(tmp_path: Path) -> None:
    """100 to 200 µs: data until 120, a synchronising call from 110 to 140, the launch at 170."""
    events = two_kernels(
        slice_event("enumerate(DataLoader)#Iter.__next__", 50, 70, cat="user_annotation"),
        launch(9, 110, 30, "cudaDeviceSynchronize"),
        launched=170,
    )
    assert idle_row(tmp_path / "t.json", events) == {
        "dataloader": 20,
        "sync": 20,
        "host_bound": 30,
        "launch_latency": 30,
    }


@pytest.mark.slow
def test_a_collective_on_the_host_is_not_idle_time(tmp_path: Path) -> None:
    gloo = slice_event("gloo:all_reduce", 120, 20, cat="user_annotation", tid=9)
    run = open_trace(write_kineto(tmp_path / "t.json", two_kernels(gloo)))
    row = report(run, "idle").rows[0]
    assert [row[f"{cause}_ns"] // 1000 for cause in CAUSES] == [30, 50, 0, 0, 0]
    assert report(run, "breakdown").rows[0]["idle_ns"] == 80_000


@pytest.mark.slow
def test_two_devices_have_causes_of_their_own(tmp_path: Path) -> None:
    other = [kernel_event("c", 0, 10, 5), kernel_event("d", 30, 10, 6), launch(6, 20)]
    for event in other[:2]:
        event["args"]["device"] = event["pid"] = 1
    rows = report(open_trace(write_kineto(tmp_path / "t.json", two_kernels() + other)), "idle").rows
    assert [(row["device"], row["host_bound_ns"], row["launch_latency_ns"]) for row in rows] == [
        (0, 50_000, 50_000),
        (1, 10_000 + 170_000, 10_000),  # nothing runs on it after 40 µs, until the rank's last event ends
    ]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["gpt-h200-stack", "captured-h200"])
def test_real_traces_against_brute_force(name: str, open_real: OpenReal) -> None:
    run = open_real(DATA / name)
    expected = idle_causes(raw(next(path for path in (DATA / name).iterdir() if ".json" in path.name)))
    found = {
        row["device"]: {c: row[f"{c}_ns"] for c in CAUSES}
        for row in report(run, "idle", whole_file=True).rows
    }
    assert found == expected
    assert sum(found[0].values()) == report(run, "breakdown", whole_file=True).rows[0]["idle_ns"]


@pytest.mark.slow
def test_synthetic_ranks_against_brute_force(tmp_path: Path) -> None:
    truth = write(Plan(ranks=2, events_per_rank=6_000, steps=2, tensor_parallel=2), tmp_path / "run")
    run = Run(ingest([tmp_path / "run"]))
    rows = {row["rank"]: row for row in report(run, "idle", whole_file=True).rows}
    in_steps = {row["rank"]: row for row in report(run, "idle").rows}
    for rank in truth["ranks"]:
        ((_, expected),) = idle_causes(raw(tmp_path / "run" / rank["file"])).items()
        assert {cause: rows[rank["rank"]][f"{cause}_ns"] for cause in CAUSES} == expected
        found = sum(in_steps[rank["rank"]][f"{cause}_ns"] for cause in CAUSES)
        assert found == rank["breakdown"][0]["idle_ns"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("cause", "column", "steps"), [("dataloader", "dataloader", 4), ("host", "host_bound", 4)]
)
def test_a_planted_delay_comes_back_to_the_nanosecond(
    cause: str, column: str, steps: int, tmp_path: Path
) -> None:
    """The same run with and without it."""
    found = []
    for delay in (1_000_000, 4_000_000):
        folder = tmp_path / str(delay)
        write(Plan(ranks=1, events_per_rank=6_000, steps=4, straggler=Straggler(0, cause, delay)), folder)
        found.append(report(Run(ingest([folder])), "idle").rows[0])
    assert found[1][f"{column}_ns"] - found[0][f"{column}_ns"] == steps * 3_000_000
    for other in set(CAUSES) - {column}:
        assert found[1][f"{other}_ns"] == found[0][f"{other}_ns"]


times = st.integers(0, 40)
spans = st.lists(st.tuples(times, st.integers(0, 9)), max_size=4)


@pytest.mark.slow
@given(
    st.lists(st.tuples(times, st.integers(0, 6), st.integers(-1, 40)), min_size=1, max_size=8),
    spans,
    spans,
    spans,
    st.tuples(times, st.integers(1, 30), st.integers(1, 20)),
)
def test_random_gaps_against_brute_force(
    work: list[tuple[int, int, int]], busy: Any, data: Any, sync: Any, edges: tuple[int, int, int]
) -> None:
    """Two windows, one after the other; idle time before the first and after the last event counts."""
    work = sorted(work, key=lambda w: (w[0], w[2]))
    start, size, launched = np.array(work, dtype=np.int64).T
    zeros = np.zeros(len(start), dtype=np.int64)
    columns: dict[str, Any] = dict.fromkeys((field.name for field in fields(DeviceEvents)), zeros)
    columns |= {"start": start, "end": start + size, "launch_start": launched, "launch_end": launched}
    events = DeviceEvents(**columns)

    def as_set(pairs: list[tuple[int, int]]) -> Any:
        low = np.array([p[0] for p in pairs], dtype=np.int64)
        return union(low, low + np.array([p[1] for p in pairs], dtype=np.int64))

    low, first, second = edges
    windows = [(low, low + first), (low + first, low + first + second)]
    window = Intervals(*np.array(windows, dtype=np.int64).T)
    gaps = find_gaps(events, window, as_set(busy), as_set(data), as_set(sync))
    expected = dict.fromkeys(CAUSES, 0)

    def runs(time: int) -> bool:
        return any(s <= time < s + d for s, d, _ in work)

    for time in range(low, low + first + second):
        if runs(time) or any(s <= time < s + d for s, d in busy):
            continue
        stop = next(high for _, high in windows if time < high)
        end = next((moment for moment in range(time, stop) if runs(moment)), stop)
        following = [at for s, _, at in work if s >= end]
        launch_at = following[0] if following else end
        previous = max((s + d for s, d, _ in work if s < end), default=-1)
        if any(s <= time < s + d for s, d in data):
            expected["dataloader"] += 1
        elif following and (launch_at == UNKNOWN or launch_at <= previous):
            expected["other"] += 1
        elif any(s <= time < s + d for s, d in sync):
            expected["sync"] += 1
        else:
            expected["host_bound" if time < launch_at else "launch_latency"] += 1
    assert dict(zip(CAUSES, gaps.causes.sum(axis=1).tolist(), strict=True)) == expected


@pytest.mark.parametrize("name", ["graph-captured-h200", "captured-h200", "gpt-graph-h200"])
def test_queued_work_is_not_blamed_on_a_synchronising_call(name: str, open_real: OpenReal) -> None:
    """`syncs` and `idle` agree: no call is charged for gaps between kernels of a graph that is running."""
    run = open_real(DATA / name)
    (row,), calls = report(run, "idle").rows, report(run, "idle.syncs").rows
    assert row["sync_ns"] == sum(c["gpu_idle_ns"] for c in calls if not c["name"].endswith("pageable"))
    if name == "graph-captured-h200":
        assert row["sync_ns"] < 60_000 and row["other_ns"] > 100_000  # all of it was 'sync'


def test_gaps_add_up_to_idle_and_name_the_place(open_real: OpenReal) -> None:
    run = open_real(DATA / "gpt-h200-stack")
    idle = report(run, "breakdown").rows[0]["idle_ns"]
    for by in (None, "rank", "source"):
        assert sum(row["idle_ns"] for row in report(run, "idle.gaps", by).rows) == idle
    places = {(row["within"], row["op"]): row for row in report(run, "idle.gaps").rows}
    optimizer = places["Optimizer.step#AdamW.step", "aten::_foreach_add_"]
    assert (optimizer["gaps"], optimizer["cause"]) == (3, "host_bound")
    assert any(
        (row["source"] or "").startswith("gpt.py(31)") for row in report(run, "idle.gaps", "source").rows
    )


@pytest.mark.slow
def test_the_finding_names_the_place_and_the_reason(tmp_path: Path) -> None:
    """9 of 31 µs idle before the optimizer, whose launch comes late; 1 µs before the first kernel."""
    events = [
        slice_event("ProfilerStep#1", 0, 31, cat="user_annotation"),
        slice_event("Optimizer.step#AdamW.step", 15, 10, cat="user_annotation"),
        slice_event("aten::_foreach_add_", 17, 4),
        launch(1, 0, 1),
        launch(2, 18, 1),
        kernel_event("a", 1, 9, 1),
        kernel_event("b", 19, 12, 2),
    ]
    (finding,) = report(open_trace(write_kineto(tmp_path / "t.json", events)), "idle").findings
    assert (finding.kind, finding.title) == ("limit", "Host gaps")
    assert finding.cost_ns is not None and 8_000 <= finding.cost_ns <= 10_000
    assert "9.00 µs, rank 0, before work launched in Optimizer.step#AdamW.step" in finding.evidence
    assert finding.span == (10_000, 19_000) and "fused=True" in finding.hint
