"""Generated traces with what lies beside them: an execution trace of the same ops, the capture of a replayed graph."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

_NODES = 500


def execution_trace(folder: Path, size: int) -> tuple[Path, int]:
    """A Kineto trace without shapes and the execution trace of its ops, of about `size` bytes; and their number."""
    folder.mkdir(parents=True, exist_ok=True)
    nodes = [_node(number) for number in range(1, size // len(json.dumps(_node(1_000_000))))]
    text = ",\n".join(map(json.dumps, nodes))
    path = folder / "et_rank0.json"
    path.write_text(f'{{"schema": "1.1.1-chakra.0.0.4", "pid": 1,\n"nodes": [\n{text}\n], "finish_ts": 2}}\n')
    ops = [_op(node["name"], number, {"Record function id": number}) for number, node in enumerate(nodes, 1)]
    _write(folder / "rank0.json", ops)
    return path, len(nodes)


def replays(folder: Path, count: int) -> tuple[Path, int]:
    """A trace of the capture of a graph of 500 kernels and of its replays; and its number of events."""
    folder.mkdir(parents=True, exist_ok=True)
    events: list[dict[str, Any]] = [
        _call("cudaStreamBeginCapture", 0, 1),
        _call("cudaStreamEndCapture", 10 * _NODES + 10, 2),
    ]
    for node in range(_NODES):
        events += [_op("aten::mm", node + 1, {}), _call("cudaLaunchKernel", 10 * (node + 1) + 1, 10 + node)]
    for replay in range(count):
        begin, correlation = 10 * (replay + 2) * _NODES, 1000 + replay
        events.append(_call("cudaGraphLaunch", begin, correlation))
        events += [_kernel(node, begin + 10 * node + 5, correlation) for node in range(_NODES)]
    return _write(folder / "rank0.json", events), len(events)


def _node(number: int) -> dict[str, Any]:
    shapes = [[16, 32], [32, 64 + number % 100]]
    return {
        "id": number + 1,
        "name": "aten::mm",
        "ctrl_deps": 1,
        "inputs": {
            "values": [[number, 10, 0, 512, 4, "cuda:0"], [14, 8, 0, 2048, 4, "cuda:0"]],
            "shapes": shapes,
            "types": ["Tensor(float)", "Tensor(float)"],
        },
        "outputs": {
            "values": [[20, 21, 0, 1024, 4, "cuda:0"]],
            "shapes": [[16, 64]],
            "types": ["Tensor(float)"],
        },
        "attrs": [
            {"name": "rf_id", "type": "uint64", "value": number},
            {"name": "scope", "type": "uint64", "value": 0},
        ],
    }


def _event(name: str, category: str, ts: float, dur: float, tid: int, args: dict[str, Any]) -> dict[str, Any]:
    return {
        "ph": "X", "cat": category, "name": name, "pid": int(tid == 7), "tid": tid, "ts": ts, "dur": dur, "args": args
    }  # fmt: skip


def _op(name: str, number: int, args: dict[str, Any]) -> dict[str, Any]:
    return _event(name, "cpu_op", 10 * number, 9, 1, args)


def _call(name: str, ts: float, correlation: int) -> dict[str, Any]:
    return _event(name, "cuda_runtime", ts, 1, 1, {"correlation": correlation})


def _kernel(node: int, ts: float, correlation: int) -> dict[str, Any]:
    args = {"correlation": correlation, "device": 0, "stream": 7, "graph id": 1, "graph node id": node + 1}
    return _event(f"kernel_{node % 20}", "kernel", ts, 9, 7, args)


def _write(path: Path, events: list[dict[str, Any]]) -> Path:
    path.write_text('{"traceEvents": [\n' + ",\n".join(map(json.dumps, events)) + "\n]}\n")
    return path
