"""Kernels of CUDA graphs and of compiled code: where they come from, against planted captures and logs."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from conftest import kernel_event, open_trace, slice_event, write_kineto
from rankscope.analysis.core.scope import Scope
from rankscope.analysis.within_rank.event_tables import kernels
from rankscope.analysis.within_rank.ops import ops
from rankscope.readers.torch_trace import TorchTrace, is_torch_trace
from rankscope.timeline.run import Run
from rankscope.viewer.session import Session
from rankscope.viewer.slices import slice as slice_details

Events = list[dict[str, Any]]
MODULES = ("Embedding_0", "Linear_0", "Linear_1", "LayerNorm_0")


def call(name: str, ts: float, correlation: int, dur: float = 1.0, **args: Any) -> dict[str, Any]:
    return slice_event(name, ts, dur, cat="cuda_runtime", args={"correlation": correlation, **args})


def captured(
    begin: float, nodes: list[str], correlation: int, modules: tuple[str, ...] = MODULES, **args: Any
) -> Events:
    """A capture: one op, called from one module and line, for each node. No call has device activity."""
    end = begin + 100 * len(nodes) + 90
    found = [
        call("cudaStreamBeginCapture", begin, correlation),
        call("cudaStreamEndCapture", end, correlation + 1),
    ]
    for number, node in enumerate(nodes):
        at, module = begin + 10 + 100 * number, modules[number % len(modules)]
        found += [
            slice_event(f"nn.Module: {module}", at, 80, cat="python_function"),
            slice_event(f"model.py({number}): forward", at + 1, 70, cat="python_function"),
            slice_event(f"aten::op{number}", at + 2, 50),
            call(node, at + 5, correlation + 2 + number),
        ]
    return found


def replayed(begin: float, durations: list[float], correlation: int, with_ids: bool = True) -> Events:
    """A replay. Where nodes have ids they start in another order than they were captured in."""
    order = list(range(len(durations)))
    if with_ids:
        random.Random(correlation).shuffle(order)
    found = [call("cudaGraphLaunch", begin, correlation)]
    for place, number in enumerate(order):
        ids = {"graph id": 3, "graph node id": (3 << 32) + number + 1} if with_ids else {}
        found.append(
            kernel_event(f"kernel{number}", begin + 5 + 20 * place, durations[number], correlation, **ids)
        )
    return found


def by(run: Run, key: str) -> dict[str, tuple[str | None, int, int]]:
    return {
        row["name"]: (row[key], row["instances"], row["total_ns"]) for row in kernels(run, Scope(), key).rows
    }


LAUNCH = "cudaLaunchKernel"


@pytest.mark.parametrize("with_ids", [True, False])
def test_a_replay_has_the_ops_of_its_capture(tmp_path: Path, with_ids: bool) -> None:
    events = captured(0, [LAUNCH] * 12, 100)
    times = [[1.0 + number + replay for number in range(12)] for replay in range(3)]
    for replay, durations in enumerate(times):
        events += replayed(2000 + 1000 * replay, durations, 500 + replay, with_ids)
    run = open_trace(write_kineto(tmp_path / "trace.json", events))
    totals = [round(1000 * sum(times[replay][number] for replay in range(3))) for number in range(12)]
    origins = {
        "op": [f"aten::op{n}" for n in range(12)],
        "module": [f"nn.Module: {MODULES[n % 4]}" for n in range(12)],
        "source": [f"model.py({n}): forward" for n in range(12)],
    }
    for key, texts in origins.items():
        assert by(run, key) == {f"kernel{n}": (texts[n], 3, totals[n]) for n in range(12)}
    assert run.rows("SELECT DISTINCT known_by, compiled FROM origins") == [("capture", None)]
    rows = {row["name"]: row for row in ops(run, Scope()).rows}
    assert [rows[f"aten::op{n} (graph replay)"]["self_device_ns"] for n in range(12)] == totals
    assert kernels(run, Scope()).notes == (
        "36 kernels are replays of CUDA graphs; of 36 the op is known from the capture: --by op, module or source",
    )


def test_no_time_is_counted_twice(tmp_path: Path) -> None:
    """The graph is launched inside an op, which also launches a kernel of its own."""
    events = captured(0, [LAUNCH] * 3, 100) + replayed(2010, [3, 4, 5], 500)
    events += [
        slice_event("CompiledFunction", 2000, 300),
        call(LAUNCH, 2200, 600),
        kernel_event("own", 2210, 7, 600),
    ]
    rows = {
        row["name"]: row for row in ops(open_trace(write_kineto(tmp_path / "t.json", events)), Scope()).rows
    }
    assert sum(row["self_device_ns"] for row in rows.values()) == 19_000
    assert rows["CompiledFunction"]["self_device_ns"] == 7_000
    assert rows["CompiledFunction"]["total_device_ns"] == 19_000
    assert rows["aten::op1 (graph replay)"]["calls"] == 1


@pytest.mark.parametrize(
    "nodes", [[], [LAUNCH] * 2, [LAUNCH, LAUNCH, "cudaMemcpyAsync"]], ids=["none", "fewer", "copy"]
)
def test_a_replay_without_its_capture_has_the_numbers_of_its_nodes(tmp_path: Path, nodes: list[str]) -> None:
    events = replayed(5000, [1, 2, 3], 500) + (captured(0, nodes, 100) if nodes else [])
    run = open_trace(write_kineto(tmp_path / "trace.json", events))
    for key in ("op", "module", "source"):
        assert by(run, key) == {
            f"kernel{n}": (f"graph replay, node {n}", 1, 1000 * (n + 1)) for n in range(3)
        }
    (row,) = (row for row in ops(run, Scope()).rows if row["name"] == "graph replay")
    assert row["self_device_ns"] == 6000


def test_only_what_all_fitting_captures_say_is_known(tmp_path: Path) -> None:
    layers = [
        captured(5000 * layer, [LAUNCH] * 2, 100 * layer + 10, (f"Layer_{layer}",)) for layer in range(3)
    ]
    events = [event for layer in layers for event in layer] + replayed(50_000, [1, 2], 900)
    run = open_trace(write_kineto(tmp_path / "trace.json", events))
    assert by(run, "op")["kernel1"][0] == "aten::op1"
    assert by(run, "module")["kernel1"][0] == "graph replay, node 1"


def test_a_capture_beside_the_trace(tmp_path: Path) -> None:
    """HIP's calls name their kernels: of two captures with as many nodes the right one is used."""
    write_kineto(tmp_path / "rank0.json", replayed(0, [1, 2, 3], 500, with_ids=False))
    for size in (1, 8):
        events = captured(0, [LAUNCH] * 3, 100, (f"Batch_{size}",))
        for number, event in enumerate(event for event in events if event["name"] == LAUNCH):
            event["args"]["kernel"] = f"kernel{number}" if size == 8 else "another"
        write_kineto(tmp_path / "capture_traces" / f"bs_{size}_rank0.json", events)
    run = open_trace(tmp_path)
    assert by(run, "module")["kernel2"] == ("nn.Module: Batch_8", 1, 3000)
    assert len(run.segments) == 1
    used = [bool(one["used"]) for one in run.segments[0].manifest["companions"]]
    assert used == [False, True]


@pytest.mark.parametrize(("lost", "is_known"), [(1, True), (4, False)])
def test_nodes_that_the_tracer_lost_at_the_end(tmp_path: Path, lost: int, is_known: bool) -> None:
    """Where the calls name their kernels a replay without the last of 120 nodes is recognised."""
    events = captured(0, [LAUNCH] * 120, 1000) + replayed(20_000, [1.0] * (120 - lost), 500, with_ids=False)
    for number, event in enumerate(event for event in events if event["name"] == LAUNCH):
        event["args"]["kernel"] = f"kernel{number}"
    run = open_trace(write_kineto(tmp_path / "trace.json", events))
    assert by(run, "op")["kernel7"][0] == ("aten::op7" if is_known else "graph replay, node 7")


def test_a_damaged_capture_is_no_error_of_the_run(tmp_path: Path) -> None:
    write_kineto(tmp_path / "rank0.json", replayed(0, [1, 2, 3], 500))
    (tmp_path / "capture_traces").mkdir()
    (tmp_path / "capture_traces" / "rank0.json").write_text('{"traceEvents": [{"ph": "X", "ts"')
    run = open_trace(tmp_path)
    assert by(run, "op")["kernel0"][0] == "graph replay, node 0"
    (record,) = run.segments[0].manifest["companions"]
    assert len(record["unused"]) == 3 and all(record["unused"])


def compiled(region: str | None, graph: str, op: str, begin: float, number: int, **args: Any) -> Events:
    """A kernel that Inductor's code launches. Backward has no region: it runs in autograd's thread."""
    around = [slice_event(f"Torch-Compiled Region: {region}", begin, 90)] if region else []
    return [
        *around,
        slice_event(f"## Call CompiledFxGraph {graph} ##", begin + 1, 80, cat="user_annotation"),
        slice_event(op, begin + 2, 20, args=args),
        call("cuLaunchKernel", begin + 3, number),
        kernel_event(op, begin + 50, 4.0, number),
    ]


def log_line(payload: str = "", **fields: Any) -> str:
    record = {**fields, "frame_id": 0, "frame_compile_id": 0, "attempt": 0}
    text = f"V1117 03:01:32.944000 1546 torch/_dynamo/utils.py:2350] {json.dumps(record)}\n"
    return text + "".join(f"\t{line}\n" for line in payload.splitlines())


GRAPH = """
class GraphModule(torch.nn.Module):
    def forward(self, L_x_: "f32[16]"):
        # File: /src/model.py:8 in forward, code: return torch.relu(self.a(x)) * 2
        linear: "f32[16, 64]" = torch._C._nn.linear(l_x_, w)
        relu: "f32[16, 64]" = torch.relu(linear)
        # File: /src/model.py:9 in scale, code: return y * 2
        mul: "f32[16, 64]" = relu * 2
"""
CODE = """
# kernel path: /tmp/inductor/aa/caa.py
# Topologically Sorted Source Nodes: [linear, relu, mul], Original ATen: [aten.relu, aten.mul]
# Source node to ATen node mapping:
triton_poi_fused_relu_0 = async_compile.triton('triton_poi_fused_relu_0', ...)
        # Topologically Sorted Source Nodes: [linear], Original ATen: [aten.addmm]
# kernel path: /tmp/inductor/bb/cbb.py
# Unsorted Source Nodes: [mul], Original ATen: [aten.mul]
triton_poi_fused_mul_1 = async_compile.triton('triton_poi_fused_mul_1', ...)
"""
METRICS = {"compile_id": "0/0", "co_name": "forward", "co_filename": "/src/model.py", "co_firstlineno": 7}
LOG = (
    log_line(chromium_event={}, has_payload="a")
    + log_line(GRAPH, dynamo_output_graph={"sizes": {}}, has_payload="b")
    + log_line(CODE, inductor_output_code={"filename": "/tmp/x.py"}, has_payload="c")
    + log_line('{"key": "fbackward"}', artifact={"name": "fx_graph_cache_miss"}, has_payload="d")
    + log_line(compilation_metrics=METRICS)
)
COMPILED = [
    *compiled("0/0", "fforward", "triton_poi_fused_relu_0", 0, 1, kernel_file="/tmp/inductor/aa/caa.py"),
    *compiled(None, "fbackward", "triton_poi_fused_mul_1", 200, 2, kernel_file="/elsewhere/cbb.py"),
    *compiled("1/0", "fother", "aten::mm", 400, 3),
    slice_event("aten::eager", 600, 20), call(LAUNCH, 601, 4), kernel_event("eager", 610, 1.0, 4),
]  # fmt: skip


def test_compiled_kernels_without_a_log_have_their_region(tmp_path: Path) -> None:
    run = open_trace(write_kineto(tmp_path / "trace.json", COMPILED))
    found = dict(run.rows("SELECT g.name, o.compiled FROM origins o JOIN gpu g USING (rank, segment, id)"))
    assert found == {
        "triton_poi_fused_relu_0": "0/0", "triton_poi_fused_mul_1": "FX graph fbackward", "aten::mm": "1/0"
    }  # fmt: skip
    assert by(run, "source")["aten::mm"][0] == "compiled 1/0"
    assert by(run, "source")["eager"][0] is None
    assert by(run, "op")["eager"][0] == "aten::eager"


def test_a_log_of_torch_compile_tells_lines_and_functions(tmp_path: Path) -> None:
    write_kineto(tmp_path / "rank0.json", COMPILED)
    (tmp_path / "dedicated_log_torch_trace_rank_0_x.log").write_text(LOG)
    run = open_trace(tmp_path)
    assert by(run, "source") == {
        "triton_poi_fused_relu_0": ("/src/model.py(8): forward + /src/model.py(9): scale", 1, 4000),
        "triton_poi_fused_mul_1": ("/src/model.py(9): scale", 1, 4000),
        "aten::mm": ("compiled 1/0", 1, 4000),
        "eager": (None, 1, 1000),
    }
    rows = run.rows("SELECT compiled, count(*) FROM origins GROUP BY 1 ORDER BY 1")
    assert rows == [("0/0 /src/model.py(7): forward", 2), ("1/0", 1)]
    (record,) = run.segments[0].manifest["companions"]
    assert record["used"] == "1 compiled functions; the lines of 2 kernels"


@pytest.mark.parametrize("damage", ["cut", "garbage", "bytes", "long line", "deep"])
def test_a_damaged_log(tmp_path: Path, damage: str) -> None:
    content = LOG.encode()
    middle = len(content) // 2
    content = {
        "cut": content[:middle],
        "garbage": content[:middle]
        + b"\nno record\nV1117 x y z:1] {not json compilation_metrics\n"
        + content[middle:],
        "bytes": content[:middle] + bytes(range(256)) + content[middle:],
        "long line": content + b"V" * (17 << 20),
        "deep": content
        + log_line(compilation_metrics="D").replace('"D"', "[" * 50_000 + "]" * 50_000).encode(),
    }[damage]
    path = tmp_path / "torch_trace.log"
    path.write_bytes(content)
    assert is_torch_trace(content[: 1 << 16])
    log = TorchTrace(path)
    found = log.read()
    assert found.functions in ({}, {"0/0": "/src/model.py(7): forward"})
    assert damage in ("cut", "bytes") or log.report.events_lost


def test_the_viewer_tells_the_origin_of_a_slice(tmp_path: Path) -> None:
    path = write_kineto(tmp_path / "trace.json", captured(0, [LAUNCH] * 2, 100) + replayed(2000, [1, 2], 500))
    run = open_trace(path)
    ((id,),) = run.rows("SELECT id FROM gpu WHERE name = 'kernel1'")
    session = Session(run, "a run")
    answer: Any = slice_details(session, {"rank": "0", "segment": "0", "id": str(id)})
    assert answer["origin"] == {
        "rank": 0, "segment": 0, "id": id, "graph": 3, "node": 1, "op": "aten::op1", "module": "nn.Module: Linear_0",
        "line": "model.py(1): forward", "compiled": None, "known_by": "capture",
    }  # fmt: skip
