"""Traces of Triton's Proton: kernels have a stream, scopes are annotations; what is no timeline is told apart."""

from __future__ import annotations

import json
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from conftest import open_trace
from rankscope.analysis.core.scope import Scope
from rankscope.analysis.health.doctor import doctor
from rankscope.errors import NotATraceError
from rankscope.readers import find_reader, looks_like_a_trace

CPU, GRAPH, GPU = 0, 1_000_000, 2_000_000
"""Proton adds one of these to the number of a thread or stream."""


def named(tid: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "pid": 0, "tid": tid, "name": "thread_name", "args": {"name": name}}


def timed(category: str, name: str, tid: int, ts: float, dur: float) -> dict[str, Any]:
    args = {"call_stack": ["ROOT", name]}
    return {
        "cat": category,
        "name": name,
        "ph": "X",
        "pid": 0,
        "tid": tid,
        "ts": ts,
        "dur": dur,
        "args": args,
    }


def write_trace(path: Path, events: list[dict[str, Any]]) -> Path:
    header = {"displayTimeUnit": "us", "baseTimeNanoseconds": 1_755_000_000_000_000_000}
    path.write_text(json.dumps({**header, "traceEvents": events}, sort_keys=True, separators=(",", ":")))
    return path


def test_kernels_streams_scopes_and_arrows(tmp_path: Path) -> None:
    chance = random.Random(1)
    kernels = [
        timed(
            "kernel",
            f"kernel_{chance.randrange(5)}",
            GPU + chance.choice([7, 13]),
            10.0 * i,
            chance.randrange(1, 9),
        )
        for i in range(200)
    ]
    flow = {"name": "launch->kernel", "cat": "flow", "pid": 0, "id": 3, "bp": "e"}
    events = [
        {"ph": "M", "pid": 0, "tid": 0, "name": "process_name", "args": {"name": "Trace"}},
        named(CPU, "CPU Thread 0"),
        named(GRAPH + 7, "Graph: Stream 7"),
        named(GPU + 7, "GPU Stream 7"),
        named(GPU + 13, "GPU Stream 13"),
        timed("scope", "forward", CPU, 0, 2_000),
        timed("metric", "<flops>", CPU, 5, 1),
        timed("scope", "captured", GRAPH + 7, 0, 50),
        {**flow, "ph": "s", "tid": CPU, "ts": 0.0},
        {**flow, "ph": "f", "tid": kernels[0]["tid"], "ts": 0.0},
        *kernels,
    ]
    path = write_trace(tmp_path / "rank-3.chrome_trace", events)
    assert looks_like_a_trace(path)
    run = open_trace(path)
    assert run.ranks == [3]
    counted: Counter[tuple[str, int]] = Counter()
    for event in kernels:
        counted[event["name"], event["tid"] - GPU] += int(event["dur"] * 1000)
    rows = run.rows("SELECT name, stream, sum(dur_ns)::BIGINT FROM gpu WHERE device = 0 GROUP BY ALL")
    assert {(name, stream): total for name, stream, total in rows} == counted
    assert run.rows("SELECT name, category FROM slices WHERE category <> 'kernel' ORDER BY name") == [
        ("<flops>", "user_annotation"),
        ("captured", "gpu_user_annotation"),
        ("forward", "user_annotation"),
    ]
    assert run.rows("SELECT label FROM tracks WHERE kind = 'stream' ORDER BY stream") == [
        ("GPU 0 stream 7",),
        ("GPU 0 stream 13",),
    ]
    assert run.rows("SELECT count(*) FROM links WHERE source IS NOT NULL AND target IS NOT NULL") == [(1,)]


@pytest.mark.parametrize("kernel", ["matmul", "kernel"])
def test_cycles_inside_a_kernel_are_no_kernels(tmp_path: Path, kernel: str) -> None:
    """The category is the kernel's name, which may be any."""
    inside = [
        {
            **timed(kernel, "load", 0, 1.0 * i, 0.5),
            "pid": f"{kernel} Core{i} CTA{i}",
            "tid": "warp 0 (line 0)",
        }
        for i in range(4)
    ]
    run = open_trace(write_trace(tmp_path / "a.chrome_trace", inside))
    assert run.rows("SELECT category, count(*) FROM slices GROUP BY 1") == [("intra_kernel", 4)]
    assert run.rows("SELECT count(*) FROM gpu") == [(0,)]
    values = {row["check"]: row["value"] for row in doctor(run, Scope()).rows}
    assert values["events understood"] == "0 % of 4"


def test_a_profile_without_times_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "proton.hatchet"
    tree = {"children": [], "frame": {"name": "ROOT", "type": "function"}, "metrics": {"time (ns)": 1}}
    path.write_text(json.dumps([tree, {}]))
    with pytest.raises(NotATraceError, match="Proton") as error:
        find_reader(path)
    assert "no times" in error.value.why
    assert 'data="trace"' in error.value.hint
