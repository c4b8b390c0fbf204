"""The text of synthetic traces has the shape of real ones: line breaks, blanks, keys and their order."""

from __future__ import annotations

import gzip
import json
import re
from pathlib import Path
from typing import Any

import pytest

from conftest import DATA
from rankscope_bench.synthetic import Plan, write


def split_events(text: str) -> list[str]:
    body = text.partition('"traceEvents": [\n  {\n')[2].rpartition("\n  }\n  ],\n")[0]
    return body.split("\n  },\n  {\n")


def shape_of(event: str) -> str:
    """An event with its values taken out: T a time, N a number, S a string, L a list."""
    event = re.sub(r'"(ts|dur)": \d+\.\d{3}(?!\d)', r'"\1": T', event)
    event = re.sub(r'"(?:[^"\\]|\\.)*"(:?)', lambda match: match[0] if match[1] else "S", event)
    while (shorter := re.sub(r"\[[^\[\]]*\]", "L", event)) != event:
        event = shorter
    return re.sub(r"(?<![\w\"])-?\d+(?:\.\d+)?(?:e-?\d+)?(?!\w)", "N", event)


def shapes_by_kind(text: str) -> dict[tuple[str, str], set[str]]:
    shapes: dict[tuple[str, str], set[str]] = {}
    for event in split_events(text):
        phase = re.search(r'"ph": "(.)"', event)
        category = re.search(r'"cat": "(\w+)"', event)
        assert phase
        key = phase[1], category[1] if category else ""
        shapes.setdefault(key, set()).add(shape_of(event))
    return shapes


@pytest.fixture(scope="module")
def synthetic(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("layout") / "run"
    write(Plan(ranks=2, events_per_rank=3_000, steps=2, with_stack=True), folder)
    return (folder / "rank-00001-of-00002.pt.trace.json").read_text()


@pytest.fixture(scope="module")
def real_shapes() -> dict[tuple[str, str], set[str]]:
    shapes: dict[tuple[str, str], set[str]] = {}
    for path in sorted(DATA.glob("*/*.json.gz")):
        if path.parent.name in ("gpt-h200-stack", "seqpar-nccl1-bf16"):
            for key, found in shapes_by_kind(gzip.decompress(path.read_bytes()).decode()).items():
                shapes.setdefault(key, set()).update(found)
    return shapes


def is_collective(shape: str) -> bool:
    return '"Collective name"' in shape


@pytest.mark.slow
def test_every_event_has_a_shape_that_real_traces_have(
    synthetic: str, real_shapes: dict[tuple[str, str], set[str]]
) -> None:
    strange = {
        key: [shape for shape in shapes - real_shapes.get(key, set()) if not is_collective(shape)]
        for key, shapes in shapes_by_kind(synthetic).items()
    }
    assert {key: shapes for key, shapes in strange.items() if shapes} == {}


def test_record_param_comms_has_the_keys_of_a_real_one_and_a_sequence_number(synthetic: str) -> None:
    def keys(text: str) -> set[str]:
        event = next(event for event in split_events(text) if '"record_param_comms"' in event)
        return set(json.loads("{" + event + "}")["args"])

    real = gzip.decompress((DATA / "seqpar-nccl1-bf16/rank-0-of-1.json.gz").read_bytes()).decode()
    assert keys(synthetic) == keys(real) | {"Seq"}


def test_nccl_kernels_carry_their_collective_as_real_ones_do(synthetic: str, shared: Path) -> None:
    real = gzip.decompress((shared / "public/hta/nccl_data.json.gz").read_bytes()).decode()
    real_kernel = next(event for event in split_events(real) if '"name": "ncclKernel_AllReduce' in event)
    kernel = next(event for event in split_events(synthetic) if '"name": "ncclDevKernel_AllReduce' in event)
    # Only newer versions add the sequence number, as the last key.
    assert shape_of(kernel).replace(', "Seq": N', "") == shape_of(real_kernel)
    assert re.search(r'"Process Group Ranks": "\[0, 1\]", "Seq": \d+\n', kernel)


def test_header_and_end_are_those_of_a_real_file(synthetic: str) -> None:
    real = gzip.decompress((DATA / "seqpar-nccl1-bf16/rank-0-of-1.json.gz").read_bytes()).decode()

    def header_lines(text: str) -> list[str]:
        head = text.partition('"traceEvents"')[0]
        return sorted(re.sub(r'\{"backend".*\}', "INFO", shape_of(line)) for line in head.splitlines())

    def end(text: str) -> str:
        return shape_of(text[text.rindex('  {\n    "name": "Record Window End"') :])

    ours = [line for line in header_lines(synthetic) if "with_stack" not in line]
    assert ours == header_lines(real)
    assert end(synthetic) == end(real)


def test_the_file_parses_and_says_whose_it_is(synthetic: str) -> None:
    trace: dict[str, Any] = json.loads(synthetic)
    assert list(trace)[:3] == ["schemaVersion", "deviceProperties", "trace_id"]
    assert list(trace)[-2:] == ["traceEvents", "traceName"]
    info = trace["distributedInfo"]
    assert (info["backend"], info["rank"], info["world_size"], info["pg_count"]) == ("nccl", 1, 2, 1)
    assert info["pg_config"] == [
        {
            "pg_name": "0",
            "pg_desc": "default_pg",
            "backend_config": "cuda:nccl",
            "pg_size": 2,
            "ranks": [0, 1],
        }
    ]
    assert trace["displayTimeUnit"] == "ms"
    assert len(trace["traceEvents"]) == 3_000


def test_threads_come_one_after_the_other_then_the_gpu_then_the_names(synthetic: str) -> None:
    def section(event: dict[str, Any]) -> str:
        category = event.get("cat", event["ph"])
        if category in ("cpu_op", "user_annotation", "fwdbwd"):
            return f"ops {event['tid'] - event['pid']}"
        if category == "cpu_instant_event":
            return f"memory {event['tid'] - event['pid']}"
        return {"python_function": "python", "gpu_user_annotation": "annotations"}.get(
            category, "names" if category in ("M", "Trace", "i") else "gpu"
        )

    order: list[str] = []
    for event in json.loads(synthetic)["traceEvents"]:
        if not order or section(event) != order[-1]:
            order.append(section(event))
    # The profiler's own cudaDeviceSynchronize is the last CUDA call.
    assert order == [
        "ops 27",
        "memory 27",
        "ops 0",
        "memory 0",
        "python",
        "gpu",
        "annotations",
        "gpu",
        "names",
    ]


@pytest.mark.slow
def test_the_mix_of_events_is_that_of_training(tmp_path: Path) -> None:
    truth = write(Plan(ranks=1, events_per_rank=60_000, steps=2), tmp_path / "run")
    text = (tmp_path / "run" / truth["files"][0]).read_text()
    assert 300 <= len(text) / 60_000 <= 335
    events = json.loads(text)["traceEvents"]

    def share(*categories: str) -> float:
        return sum(event.get("cat") in categories for event in events) / len(events)

    assert 0.40 < share("cpu_op") < 0.50
    assert 0.05 < share("kernel") < 0.10
    assert 0.12 < share("cpu_instant_event") < 0.18
    assert share("ac2g") > 0.12
    assert share("fwdbwd") > 0.05
    assert share("user_annotation", "gpu_user_annotation") > 0
    for name in ("fwdbwd", "ac2g"):
        ids = [event["id"] for event in events if event.get("cat") == name and event["ph"] == "s"]
        assert len(set(ids)) == len(ids)


def test_ops_nest_six_deep_and_never_cross(synthetic: str) -> None:
    tracks: dict[Any, list[tuple[int, int]]] = {}
    for event in json.loads(synthetic)["traceEvents"]:
        if event["ph"] == "X" and event["cat"] in (
            "cpu_op",
            "user_annotation",
            "cuda_runtime",
            "cuda_driver",
        ):
            start = round(event["ts"] * 1000)
            tracks.setdefault(event["tid"], []).append((start, start + round(event["dur"] * 1000)))
    deepest = 0
    for slices in tracks.values():
        open_ends: list[int] = []
        for start, end in sorted(slices, key=lambda slice_: (slice_[0], -slice_[1])):
            while open_ends and open_ends[-1] <= start:
                open_ends.pop()
            assert not open_ends or end <= open_ends[-1], "a slice ends outside its parent"
            open_ends.append(end)
            deepest = max(deepest, len(open_ends))
    assert deepest == 6


def test_flows_point_from_forward_to_backward_and_from_launch_to_kernel(synthetic: str) -> None:
    events = json.loads(synthetic)["traceEvents"]
    for category in ("fwdbwd", "ac2g"):
        starts = {e["id"]: e["ts"] for e in events if e.get("cat") == category and e["ph"] == "s"}
        ends = {e["id"]: e["ts"] for e in events if e.get("cat") == category and e["ph"] == "f"}
        assert starts
        assert set(starts) <= set(ends)
        assert all(starts[identity] < ends[identity] for identity in starts)


def test_gpu_work_names_the_op_that_launched_it(synthetic: str) -> None:
    events = json.loads(synthetic)["traceEvents"]
    ops = {e["args"]["External id"]: e["name"] for e in events if e.get("cat") == "cpu_op"}
    calls = {e["args"]["correlation"]: e for e in events if e.get("cat") in ("cuda_runtime", "cuda_driver")}
    for event in (e for e in events if e.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset")):
        op, call = ops[event["args"]["External id"]], calls[event["args"]["correlation"]]
        assert call["args"]["External id"] == event["args"]["External id"]
        assert call["ts"] < event["ts"]
        assert ("Collective name" in event["args"]) == (op == "record_param_comms")


def test_python_frames_have_parents_and_only_appear_on_request(synthetic: str, tmp_path: Path) -> None:
    frames = [e for e in json.loads(synthetic)["traceEvents"] if e.get("cat") == "python_function"]
    by_id = {frame["args"]["Python id"]: frame for frame in frames}
    assert len(by_id) == len(frames) > 50
    for frame in frames:
        parent = frame["args"]["Python parent id"]
        if parent is None:
            assert frame["name"] == "train.py(88): train_step"
        else:
            outer = by_id[parent]
            assert outer["ts"] <= frame["ts"]
            assert frame["ts"] + frame["dur"] <= outer["ts"] + outer["dur"] + 1e-3
    write(Plan(ranks=1, events_per_rank=2_000, steps=2), tmp_path / "run")
    assert "python_function" not in (tmp_path / "run" / "rank-00000-of-00001.pt.trace.json").read_text()
