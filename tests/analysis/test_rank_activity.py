"""The classification of a rank's time: its parts cover the window once, as a count of nanoseconds gives them."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from conftest import open_trace
from rankscope.analysis.core.device_events import gpu_ranks, has_gpu
from rankscope.analysis.core.host_spans import dataloader_spans
from rankscope.analysis.core.intervals import Intervals, join, subtract, union
from rankscope.analysis.core.rank_activity import Parts, RankActivity, rank_activity, waiting_times
from rankscope.analysis.core.scope import Scope
from rankscope.analysis.core.step_times import windows
from rankscope.analysis.within_rank.breakdown import breakdown
from rankscope.timeline.run import Run

PARTS = Parts._fields
Spans = list[tuple[int, int]]
spans = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 20)), max_size=8).map(
    lambda pairs: [(start, start + length) for start, length in pairs]
)


def as_set(pairs: Spans) -> Intervals:
    return union(*(np.array([pair[side] for pair in pairs], dtype=np.int64) for side in (0, 1)))


def labels(parts: Parts, end: int) -> list[list[str]]:
    """By nanosecond, the parts that it is in."""
    names: list[list[str]] = [[] for _ in range(end)]
    for name, times in zip(PARTS, parts, strict=True):
        for start, stop in zip(*(side.tolist() for side in times), strict=True):
            for time in range(start, stop):
                names[time].append(name)
    return names


def first_that_applies(time: int, window: Spans, sets: dict[str, Spans]) -> list[str]:
    def inside(pairs: Spans) -> bool:
        return any(start <= time < end for start, end in pairs)

    if not inside(window):
        return []
    if inside(sets["compute"]):
        return ["compute"]
    if inside(sets["communication"]):
        return ["waiting" if inside(sets["waiting"]) else "communication"]
    return [next((name for name in ("copy", "data_loading") if inside(sets[name])), "idle")]


@pytest.mark.slow
@given(spans, spans, spans, spans, spans, spans)
def test_each_nanosecond_of_the_window_is_in_one_part(
    window: Spans, compute: Spans, communication: Spans, copy: Spans, waiting: Spans, data_loading: Spans
) -> None:
    busy, comm, copies = as_set(compute), as_set(communication), as_set(copy)
    exposed = subtract(comm, busy), subtract(copies, join(busy, comm))
    activity = RankActivity(True, busy, comm, copies, *exposed)
    parts = activity.parts(as_set(window), as_set(waiting), as_set(data_loading))
    sets = dict(zip(("compute", "communication", "copy"), (compute, communication, copy), strict=True))
    sets |= {"waiting": waiting, "data_loading": data_loading}
    assert labels(parts, 80) == [first_that_applies(time, window, sets) for time in range(80)]


def random_rank(random: Random, gpu: bool) -> list[dict[str, Any]]:
    """A trace of some hundred nanoseconds: kernels, collectives, copies, ops, waits for data."""
    events: list[dict[str, Any]] = []

    def add(category: str, name: str, thread: int, start: int, length: int, **args: Any) -> None:
        events.append(
            {"ph": "X", "cat": category, "name": name, "pid": 0 if gpu and thread < 20 else 1, "tid": thread,
             "ts": start / 1000, "dur": length / 1000, "args": args}
        )  # fmt: skip

    add("cpu_op", "aten::start", 90, 0, 1)
    time = 10
    for number in range(random.randint(6, 9)):
        for stream in (7, 8) if gpu else ():
            device = {"device": stream - 7, "stream": stream}
            kind, name = random.choice(
                [("kernel", "gemm"), ("gpu_memcpy", "Memcpy HtoD"), ("gpu_memset", "Memset")]
            )
            start = time + random.randint(0, 20)
            add(kind, name, stream, start, random.randint(0, 60), **device)
        if not gpu:
            length = random.randint(2, 50)
            outer = random.choice(["aten::outer", "autograd::engine::evaluate_function: AddBackward0"])
            inner = random.choice(["aten::inner", "Work::wait", "c10d::allreduce_", "SelectBackward0"])
            add("cpu_op", outer, 90, time, length)
            for child in range(random.randint(0, 2)):
                add("cpu_op", inner, 90, time + child * length // 2, length // 2 - 1)
        if random.random() < 0.5:
            add("user_annotation", "enumerate(DataLoader)#next", 91, time + random.randint(0, 9), 40)
        if random.random() < 0.5:
            add("user_annotation", "gloo:barrier", 92, time + random.randint(0, 9), random.randint(0, 30))
        if gpu:
            add(
                "kernel", "ncclDevKernel_AllReduce", 9, time + random.randint(0, 5), random.randint(1, 50), device=0,
                stream=9, Seq=number, **{"Collective name": "allreduce", "Process Group Name": "0",
                "In msg nelems": 8, "dtype": "Float", "Group size": 2},
            )  # fmt: skip
        time += 70
    return events


def working_times(rows: list[tuple[Any, ...]]) -> list[int]:
    """The nanoseconds in which the innermost op does not wait. The ops are on one thread."""

    def during(time: int, category: str, part: str) -> list[tuple[Any, ...]]:
        return [row for row in rows if row[1] == category and part in row[2] and row[3] <= time < row[4]]

    working = []
    for time in range(max(row[4] for row in rows)):
        ops = sorted(during(time, "cpu_op", ""), key=lambda row: row[4] - row[3])
        if not ops or during(time, "user_annotation", "DataLoader"):
            continue
        number, name = ops[0][0], ops[0][2]
        calls_others = "aten" not in name and any(row[5] == number for row in rows if row[1] == "cpu_op")
        waits = "wait" in name or "c10d" in name
        if not waits and not (calls_others and during(time, "user_annotation", "gloo:")):
            working.append(time)
    return working


def expected(run: Run, rank: int) -> dict[str, Spans]:
    """From the rows of the run, by the words of docs/definitions.md."""
    rows = run.rows(
        f"SELECT id, category, name, start_ns, start_ns + dur_ns, op FROM slices WHERE rank = {rank}"
    )
    sets: dict[str, Spans] = {name: [] for name in PARTS}
    has_kernels = any(row[1] == "kernel" for row in rows)
    sets["compute"] = [] if has_kernels else [(time, time + 1) for time in working_times(rows)]
    for _, category, name, start, end, _ in rows:
        if name.startswith(("nccl", "gloo:")):
            sets["communication"].append((start, end))
        elif category.startswith("gpu_mem"):
            sets["copy"].append((start, end))
        elif category == "kernel":
            sets["compute"].append((start, end))
        elif "DataLoader" in name:
            sets["data_loading"].append((start, end))
    by_match: dict[int, list[tuple[int, int, int]]] = {}
    entries = run.collectives
    for who, match, start, end in zip(entries.rank, entries.match, entries.start, entries.end, strict=True):
        by_match.setdefault(int(match), []).append((int(who), int(start), int(end)))
    for match, members in by_match.items():
        shortest = min(end - start for _, start, end in members)
        if match >= 0:
            sets["waiting"] += [(start, end - shortest) for who, start, end in members if who == rank]
    return sets


@pytest.mark.parametrize("seed", range(6))
def test_random_traces(seed: int, tmp_path: Path) -> None:
    random = Random(seed)
    for rank in range(2):
        events = random_rank(random, gpu=seed != 5 and (seed != 4 or rank == 0))
        info = {"rank": rank, "world_size": 2}
        content = {
            "schemaVersion": 1,
            "distributedInfo": info,
            "traceEvents": events,
            "trace_id": f"{seed} {rank}",
        }
        (tmp_path / f"rank{rank}.json").write_text(json.dumps(content))
    run = open_trace(tmp_path)
    assert gpu_ranks(run) == {4: {0}, 5: set()}.get(seed, {0, 1})
    seen: set[str] = set()
    rows = {row["rank"]: row for row in breakdown(run, Scope()).rows}
    for rank in run.ranks:
        window = windows(run, Scope()).of(rank).intervals
        activity = rank_activity(run, rank)
        assert activity.has_gpu == has_gpu(run, Scope(frozenset({rank})))
        parts = activity.parts(window, waiting_times(run)[rank], dataloader_spans(run, rank))
        times = [*zip(*(side.tolist() for side in window), strict=True)]
        sets, end = expected(run, rank), int(window.end[-1]) + 1
        assert labels(parts, end) == [first_that_applies(time, times, sets) for time in range(end)]
        compute, waiting, transfer, copy, loading, idle = (int((p.end - p.start).sum()) for p in parts)
        row = rows[rank]
        assert (row["compute_ns"], row["exposed_wait_ns"], row["exposed_comm_ns"]) == (
            compute, waiting, waiting + transfer
        )  # fmt: skip
        assert (row["exposed_copy_ns"], row["idle_ns"]) == (copy, loading + idle)
        seen.update(name for name, times in zip(PARTS, parts, strict=True) if len(times.start))
    if seed < 4:
        assert seen == {*PARTS}
