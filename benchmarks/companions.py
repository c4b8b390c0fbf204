"""A generated trace of a CUDA graph: its capture and its replays."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

_NODES = 500


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
