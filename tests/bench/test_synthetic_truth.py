"""truth.json is right: every answer is computed again, by brute force, from nothing but the JSON."""

from __future__ import annotations

import json
import tracemalloc
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rankscope_bench.synthetic import Plan, Straggler, write

Event = dict[str, Any]
GPU = ("kernel", "gpu_memcpy", "gpu_memset")
GB300 = 300  # bytes per ns: the bus bandwidth collectives are planted with


def ns(microseconds: float) -> int:
    return round(microseconds * 1000)


def interval(event: Event) -> tuple[int, int]:
    start = ns(event["ts"])
    return start, start + ns(event["dur"])


def load(folder: Path, name: str) -> list[Event]:
    events: list[Event] = json.loads((folder / name).read_text())["traceEvents"]
    return events


def class_of(event: Event) -> str:
    if event["cat"] != "kernel":
        return "copy"
    return "comm" if "Collective name" in event["args"] else "compute"


def sweep(events: list[Event], low: int, high: int) -> dict[str, Any]:
    """The breakdown of docs/definitions.md from `low` to `high`, one elementary interval after the other."""
    changes: Counter[tuple[int, str]] = Counter({(low, ""): 1, (high, ""): 1})
    for event in events:
        start, end = interval(event)
        changes[start, class_of(event)] += 1
        changes[end, class_of(event)] -= 1
    times = sorted({time for time, _ in changes})
    running = dict.fromkeys(("compute", "comm", "copy"), 0)
    spent: Counter[str] = Counter()
    for time, until in zip(times, [*times[1:], times[-1]], strict=True):
        for name in running:
            running[name] += changes.get((time, name), 0)
        length = until - time
        busy = {name for name, count in running.items() if count}
        for name in busy:
            spent[name] += length
        if {"comm", "compute"} <= busy:
            spent["overlap"] += length
        exposed = next((name for name in ("compute", "comm", "copy") if name in busy), "idle")
        spent[f"exposed {exposed}"] += length
    return {
        "span_ns": times[-1] - times[0],
        "compute_ns": spent["compute"],
        "comm_ns": spent["comm"],
        "copy_ns": spent["copy"],
        "exposed_comm_ns": spent["exposed comm"],
        "exposed_copy_ns": spent["exposed copy"],
        "idle_ns": spent["exposed idle"],
        "overlap_ns": spent["overlap"],
        "overlap_pct": 100 * spent["overlap"] / spent["comm"] if spent["comm"] else None,
    }


def steps_of(events: list[Event]) -> dict[int, tuple[int, int]]:
    return {
        int(event["name"].partition("#")[2]): interval(event)
        for event in events
        if event.get("cat") == "user_annotation" and event["name"].startswith("ProfilerStep#")
    }


def launches_of(events: list[Event]) -> dict[int, Event]:
    return {
        event["args"]["correlation"]: event
        for event in events
        if event.get("cat") in ("cuda_runtime", "cuda_driver")
    }


def check_rank(folder: Path, rank: dict[str, Any]) -> None:
    """Everything truth.json says about one file."""
    events = load(folder, rank["file"])
    gpu = [event for event in events if event.get("cat") in GPU]
    launches, steps = launches_of(events), steps_of(events)
    assert rank["launch_links"] == sum(event["args"]["correlation"] in launches for event in gpu) == len(gpu)
    assert rank["steps"] == [
        {"step": step, "start_ns": start, "dur_ns": end - start} for step, (start, end) in steps.items()
    ]
    whole, *by_step = rank["breakdown"]
    first = begin = next(iter(steps.values()))[0]
    assert whole["span_ns"] == sum(
        whole[f"{name}_ns"] for name in ("compute", "exposed_comm", "exposed_copy", "idle")
    )
    for row, (step, (start, end)) in zip(by_step, steps.items(), strict=True):
        inside = [
            event for event in gpu if start <= interval(launches[event["args"]["correlation"]])[0] < end
        ]
        stop = max([end, begin, *(interval(event)[1] for event in inside)])
        assert row == {"step": step, **sweep(inside, begin, stop)}
        begin = stop
    assert whole == {"step": None, **sweep(gpu, first, begin)}
    check_kernels(rank, gpu)
    check_counts(rank, events)
    check_memory(rank, events)


def check_kernels(rank: dict[str, Any], gpu: list[Event]) -> None:
    for table, kernels in (("kernels", True), ("copies", False)):
        rows: dict[str, list[int]] = {}
        for event in gpu:
            if (event["cat"] == "kernel") == kernels:
                rows.setdefault(event["name"], []).append(ns(event["dur"]))
        expected = {(name, len(durations), sum(durations)) for name, durations in rows.items()}
        assert {(r["name"], r["instances"], r["total_ns"]) for r in rank[table]} == expected


def check_counts(rank: dict[str, Any], events: list[Event]) -> None:
    phases = Counter(event["ph"] for event in events)
    assert rank["events"] == {
        "total": len(events),
        "slices": phases["X"],
        "instants": phases["i"],
        "flows": phases["s"] + phases["f"],
        "metadata": phases["M"],
    }
    flops: Counter[str] = Counter()
    for event in events:
        if event.get("name") in ("aten::mm", "aten::addmm"):
            dims = event["args"]["Input Dims"]
            (m, k), (_, n) = dims[-4:-2] if event["name"] == "aten::addmm" else dims
            flops[event["name"]] += 2 * m * n * k
    assert rank["flops"] == flops
    assert len({event["args"]["External id"] for event in events if event.get("cat") == "cpu_op"}) == sum(
        event.get("cat") == "cpu_op" for event in events
    )


def check_memory(rank: dict[str, Any], events: list[Event]) -> None:
    memory = sorted((e for e in events if e.get("name") == "[memory]"), key=lambda e: ns(e["ts"]))
    peak = max(memory, key=lambda event: event["args"]["Total Allocated"])
    assert rank["peak_allocated_bytes"] == peak["args"]["Total Allocated"] <= peak["args"]["Total Reserved"]
    assert rank["peak_at_ns"] == ns(peak["ts"])
    allocated = memory[0]["args"]["Total Allocated"] - memory[0]["args"]["Bytes"]
    live: dict[int, int] = {}
    for event in memory:
        args = event["args"]
        allocated += args["Bytes"]
        assert args["Total Allocated"] == allocated
        if args["Bytes"] > 0:
            assert args["Addr"] not in live
            live[args["Addr"]] = args["Bytes"]
        else:
            assert live.pop(args["Addr"]) == -args["Bytes"]
    assert not live


PLANS = {
    "one rank": Plan(ranks=1, events_per_rank=2_500, steps=3),
    "four ranks": Plan(ranks=4, events_per_rank=6_000, steps=3, seed=5),
    "stacks": Plan(ranks=2, events_per_rank=4_000, steps=2, with_stack=True),
    "one layer": Plan(ranks=2, events_per_rank=1_250, steps=3),
    "tensor and data parallel": Plan(ranks=4, events_per_rank=6_000, steps=3, tensor_parallel=2),
    "tensor parallel only": Plan(ranks=2, events_per_rank=4_000, steps=2, tensor_parallel=2),
    "compute straggler": Plan(
        ranks=3, events_per_rank=5_000, steps=3, straggler=Straggler(2, "compute", 4_000_000)
    ),
    "clocks": Plan(
        ranks=3, events_per_rank=5_000, steps=3, max_offset_ns=7_000_000, max_drift_ppm=80.0, seed=9
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)
def test_brute_force_finds_every_planted_answer(plan: Plan, tmp_path: Path) -> None:
    truth = write(plan, tmp_path / "run")
    assert truth == json.loads((tmp_path / "run" / "truth.json").read_text())
    assert [rank["rank"] for rank in truth["ranks"]] == list(range(plan.ranks))
    for rank in truth["ranks"]:
        assert rank["events"]["total"] == plan.events_per_rank
        check_rank(tmp_path / "run", rank)


@pytest.mark.thorough
@settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    ranks=st.integers(1, 3),
    events=st.integers(1_300, 4_000),
    seed=st.integers(0, 2**40),
    offset=st.integers(0, 10**7),
    drift=st.floats(0, 1000),
    cause=st.sampled_from(["compute", "host", "copy", "dataloader"]),
)
def test_any_plan_keeps_its_books(
    tmp_path_factory: pytest.TempPathFactory,
    ranks: int,
    events: int,
    seed: int,
    offset: int,
    drift: float,
    cause: str,
) -> None:
    plan = Plan(
        ranks=ranks,
        events_per_rank=events,
        steps=2,
        seed=seed,
        max_offset_ns=offset,
        max_drift_ppm=drift,
        straggler=Straggler(ranks - 1, cause, 1_234_567),
    )
    folder = tmp_path_factory.mktemp("any") / "run"
    for rank in write(plan, folder)["ranks"]:
        assert rank["events"]["total"] == events
        check_rank(folder, rank)


def collective_kernels(folder: Path, rank: dict[str, Any]) -> dict[tuple[str, int], Event]:
    return {
        (event["args"]["Process Group Name"], event["args"]["Seq"]): event
        for event in load(folder, rank["file"])
        if event.get("cat") == "kernel" and "Collective name" in event["args"]
    }


def true_time(recorded_ns: int, clock: dict[str, int]) -> float:
    return (recorded_ns - clock["zero_ns"]) / (1 + clock["drift_ppb"] / 1e9)


@pytest.mark.slow
@pytest.mark.parametrize("drift", [0.0, 50.0])
@pytest.mark.parametrize("tensor_parallel", [None, 2])
def test_ranks_leave_a_collective_together_once_the_clocks_are_undone(
    tmp_path: Path, drift: float, tensor_parallel: int | None
) -> None:
    plan = Plan(
        ranks=4,
        events_per_rank=6_000,
        steps=3,
        max_offset_ns=20_000_000,
        max_drift_ppm=drift,
        tensor_parallel=tensor_parallel,
        straggler=Straggler(1, "host", 3_000_000),
    )
    truth = write(plan, tmp_path / "run")
    kernels = [collective_kernels(tmp_path / "run", rank) for rank in truth["ranks"]]
    assert {row["kind"] for row in truth["collectives"]} == {"all_gather", "reduce_scatter", "all_reduce"}
    assert sum(len(row["ranks"]) for row in truth["collectives"]) == sum(map(len, kernels))
    for row in truth["collectives"]:
        members = [(rank, kernels[rank][row["group"], row["seq"]]) for rank in row["ranks"]]
        for i, (rank, event) in enumerate(members):
            start, end = interval(event)
            # A clock that drifts rounds to whole ns; one that does not is exact.
            slack = 1.5 if drift else 0
            assert abs(true_time(start, truth["clocks"][rank]) - row["arrival_ns"][i]) <= slack
            assert abs(true_time(end, truth["clocks"][rank]) - row["end_ns"]) <= slack
            assert row["recorded_dur_ns"][i] == end - start
            assert row["wait_ns"][i] == row["end_ns"] - row["arrival_ns"][i] - row["transfer_ns"] >= 0
            check_metadata(row, rank, event)
        assert min(row["wait_ns"]) == 0
        if row["last_rank"] is not None:
            assert row["wait_ns"][row["ranks"].index(row["last_rank"])] == 0


def check_metadata(row: dict[str, Any], rank: int, event: Event) -> None:
    args = event["args"]
    assert (
        args["Collective name"]
        == {
            "all_gather": "_allgather_base",
            "reduce_scatter": "_reduce_scatter_base",
            "all_reduce": "allreduce",
        }[row["kind"]]
    )
    assert args["Group size"] == len(row["ranks"])
    assert json.loads(args["Process Group Ranks"]) == row["ranks"]
    assert rank in row["ranks"]
    assert (args["In msg nelems"], args["Out msg nelems"]) == (row["in_nelems"], row["out_nelems"])
    assert args["stream"] == event["tid"] == row["stream"]
    size = {"BFloat16": 2, "Float": 4}[args["dtype"]]
    assert row["bytes"] == max(row["in_nelems"], row["out_nelems"]) * size


@pytest.mark.slow
def test_the_bus_is_never_faster_than_planted(tmp_path: Path) -> None:
    truth = write(Plan(ranks=4, events_per_rank=6_000, steps=2), tmp_path / "run")
    for row in truth["collectives"]:
        n = len(row["ranks"])
        factor = (2 if row["kind"] == "all_reduce" else 1) * (n - 1) / n
        assert row["bytes"] * factor / row["transfer_ns"] < GB300


@pytest.mark.slow
@pytest.mark.parametrize("cause", ["compute", "host", "copy", "dataloader"])
def test_the_straggler_comes_last_and_the_others_wait(tmp_path: Path, cause: str) -> None:
    late = 6_000_000
    plan = Plan(ranks=4, events_per_rank=6_000, steps=4, straggler=Straggler(2, cause, late))
    truth = write(plan, tmp_path / "run")
    planted = truth["straggler"]
    assert (planted["rank"], planted["cause"], planted["ns_per_step"]) == (2, cause, late)
    for step, caused in enumerate(planted["caused_wait_ns_by_step"]):
        first = next(row for row in truth["collectives"] if row["step"] == 2 + step)
        assert first["last_rank"] == 2
        # Three ranks wait as long as rank 2 is late, give or take the jitter of a step's beginning.
        assert caused == pytest.approx(3 * late, rel=0.15)
    rows = truth["stragglers"]
    assert max(rows, key=lambda row: row["caused_wait_ns"])["rank"] == 2
    assert sum(row["caused_wait_ns"] for row in rows) == sum(row["own_wait_ns"] for row in rows)
    assert planted["caused_wait_ns"] == rows[2]["caused_wait_ns"]


@pytest.mark.slow
def test_the_delay_is_where_the_cause_says(tmp_path: Path) -> None:
    late = 6_000_000

    def figures(cause: str | None) -> dict[str, int]:
        straggler = Straggler(1, cause, late) if cause else None
        folder = tmp_path / str(cause)
        truth = write(Plan(ranks=2, events_per_rank=4_000, steps=1, straggler=straggler), folder)
        row = truth["ranks"][1]["breakdown"][1]
        wait = next(e for e in load(folder, truth["ranks"][1]["file"]) if "DataLoader" in e.get("name", ""))
        return {
            "compute": row["compute_ns"],
            "host": row["idle_ns"] - ns(wait["dur"]),  # the GPU is idle while the host waits for data
            "copy": row["exposed_copy_ns"],
            "dataloader": ns(wait["dur"]),
        }

    usual = figures(None)
    for cause in usual:
        changed = figures(cause)
        assert changed[cause] - usual[cause] == pytest.approx(late, rel=0.05)
        others = set(usual) - {cause}
        # A longer copy hides the host's gap behind it, and so some idle time; nothing else may move.
        assert all(abs(changed[other] - usual[other]) < late / 10 for other in others)


@pytest.mark.slow
def test_without_a_straggler_nobody_is_to_blame(tmp_path: Path) -> None:
    truth = write(Plan(ranks=4, events_per_rank=20_000, steps=4), tmp_path / "run")
    step_ns = sum(step["dur_ns"] for step in truth["ranks"][0]["steps"])
    assert truth["straggler"] is None
    assert max(row["caused_wait_ns"] for row in truth["stragglers"]) / 3 < step_ns / 10


@pytest.mark.slow
def test_communication_is_partly_hidden_behind_compute(tmp_path: Path) -> None:
    truth = write(Plan(ranks=4, events_per_rank=20_000, steps=2), tmp_path / "run")
    assert all(50 < rank["breakdown"][0]["overlap_pct"] < 95 for rank in truth["ranks"])
    exposed = write(Plan(ranks=4, events_per_rank=20_000, steps=2, tensor_parallel=4), tmp_path / "tp")
    assert all(rank["breakdown"][0]["overlap_pct"] < 5 for rank in exposed["ranks"])


@pytest.mark.slow
def test_clocks_reach_the_spread_asked_for(tmp_path: Path) -> None:
    plan = Plan(ranks=5, events_per_rank=2_000, steps=1, max_offset_ns=3_000_000, max_drift_ppm=12.5)
    clocks = write(plan, tmp_path / "run")["clocks"]
    assert (clocks[0]["offset_ns"], clocks[0]["drift_ppb"]) == (0, 0)
    assert max(abs(clock["offset_ns"]) for clock in clocks) == 3_000_000
    assert max(abs(clock["drift_ppb"]) for clock in clocks) == 12_500
    for rank, clock in enumerate(clocks):
        trace = json.loads((tmp_path / "run" / f"rank-{rank:05d}-of-00005.pt.trace.json").read_text())
        assert trace["baseTimeNanoseconds"] == clock["base_time_ns"]
    assert len({clock["base_time_ns"] for clock in clocks}) == 5


@pytest.mark.slow
def test_same_seed_same_bytes_other_seed_other_bytes(tmp_path: Path) -> None:
    def contents(name: str, seed: int) -> dict[str, bytes]:
        write(Plan(ranks=2, events_per_rank=3_000, steps=2, seed=seed, max_offset_ns=10**6), tmp_path / name)
        return {path.name: path.read_bytes() for path in (tmp_path / name).iterdir()}

    first = contents("a", 1)
    assert contents("b", 1) == first
    other = contents("c", 2)
    assert all(other[name] != text for name, text in first.items())


def test_trace_ids_are_unique(tmp_path: Path) -> None:
    write(Plan(ranks=3, events_per_rank=2_000, steps=1), tmp_path / "run")
    ids = {json.loads(path.read_text())["trace_id"] for path in (tmp_path / "run").glob("rank-*")}
    assert len(ids) == 3


@pytest.mark.slow
def test_missing_ranks_took_part_but_left_no_file(tmp_path: Path) -> None:
    plan = Plan(ranks=4, events_per_rank=3_000, steps=2, missing=(1, 3))
    truth = write(plan, tmp_path / "run")
    assert truth["missing"] == [1, 3]
    assert truth["files"] == ["rank-00000-of-00004.pt.trace.json", "rank-00002-of-00004.pt.trace.json"]
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == [*truth["files"], "truth.json"]
    assert all(row["ranks"] == [0, 1, 2, 3] for row in truth["collectives"])
    whole = write(Plan(ranks=4, events_per_rank=3_000, steps=2), tmp_path / "whole")
    assert truth["collectives"] == whole["collectives"]


def test_a_run_of_one_rank_has_no_collectives(tmp_path: Path) -> None:
    truth = write(Plan(ranks=1, events_per_rank=2_000, steps=1), tmp_path / "run")
    assert truth["collectives"] == []
    assert truth["ranks"][0]["breakdown"][0]["overlap_pct"] is None


@pytest.mark.thorough
def test_memory_hardly_grows_with_the_trace(tmp_path: Path) -> None:
    """What is simulated stays in memory, a hundredth of its text; the text does not."""

    def peak(events: int) -> tuple[int, int]:
        tracemalloc.start()
        plan = Plan(ranks=1, events_per_rank=events, steps=events // 3_000)
        truth = write(plan, tmp_path / "run", force=True)
        _, most = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        return most, truth["ranks"][0]["text_bytes"]

    peak(6_000)  # what is imported and cached on first use
    (small, few), (large, many) = peak(9_000), peak(36_000)
    assert large - small < 0.015 * (many - few)
