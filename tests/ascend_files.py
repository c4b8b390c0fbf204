"""Writes what Ascend's profilers write: trace_view.json and the files beside it, with known answers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

START_NS = 1_704_161_511_420_000_000
PYTHON, CANN, HARDWARE, HCCL, OVERLAP = 4000, 400001, 800, 900, 40001100
MAIN, QUEUE = 4000, 4001
"""Threads: that of the ops, and that which launches them."""
GROUP_ID = "10.0.0.1%eth0_60000_0_1704161511"


def group_hash(id: str) -> int:
    high = low = 0
    for letter in id:
        high, low = (high * 29 + ord(letter)) % (1 << 32), (low * 131 + ord(letter)) % (1 << 32)
    return high * (1 << 32) + low


def time(us: float) -> str:
    """Microseconds since 1970 as text, with three decimals."""
    ns = START_NS + round(us * 1000)
    return f"{ns // 1000}.{ns % 1000:03}"


def slice_(name: str, pid: int, tid: int, us: float, dur: float, **fields: Any) -> dict[str, Any]:
    return {"ph": "X", "name": name, "pid": pid, "tid": tid, "ts": time(us), "dur": dur, **fields}


def flow(
    category: str, id: Any, source: tuple[int, int, float], target: tuple[int, int, float]
) -> list[dict[str, Any]]:
    return [
        {
            "ph": phase,
            "bp": "e",
            "name": category,
            "id": id,
            "pid": pid,
            "tid": tid,
            "ts": time(us),
            "cat": category,
        }
        for phase, (pid, tid, us) in (("s", source), ("f", target))
    ]


def names(pid: int, process: str, label: str, threads: dict[int, str]) -> list[dict[str, Any]]:
    def meta(name: str, tid: int, /, **args: Any) -> dict[str, Any]:
        return {"ph": "M", "name": name, "pid": pid, "tid": tid, "args": args}

    found = [meta("process_name", 0, name=process), meta("process_labels", 0, labels=label)]
    return found + [meta("thread_name", tid, name=name) for tid, name in threads.items()]


def events(steps: int = 2, late: float = 0.0) -> list[dict[str, Any]]:
    """In each step of 100 µs: two ops that launch a kernel of 10 µs each from another thread, a copy of 4 µs, a wait of
    3 µs, and an all-reduce of 20 µs with 1,024 numbers, whose task is on a stream too."""
    found: list[dict[str, Any]] = []
    group = group_hash(GROUP_ID) % 1000
    for step in range(steps):
        at = step * 100.0 + late
        found.append(slice_(f"ProfilerStep#{step}", PYTHON, MAIN, at, 99.0, cat="cpu_op"))
        for place in range(2):
            number = step * 2 + place
            begin = at + 2 + 20 * place
            found.append(
                slice_("aten::mm", PYTHON, MAIN, begin, 8.0, cat="cpu_op", args={"Sequence number": number})
            )
            queue = {"correlation_id": number}
            found.append(slice_("Enqueue", PYTHON, MAIN, begin + 1, 2.0, cat="enqueue", args=queue))
            found.append(slice_("Dequeue@aclnnMm", PYTHON, QUEUE, begin + 4, 6.0, cat="dequeue", args=queue))
            call = {"Mode": "node", "level": "node", "connection_id": number}
            found.append(slice_("AscendCL@aclnnMm", CANN, QUEUE, begin + 5, 4.0, args=call))
            found.append(slice_("Node@launch", CANN, QUEUE, begin + 6, 2.0, args=call))
            task = {"Task Type": "AI_CORE", "Stream Id": 3, "Task Id": number, "connection_id": number}
            found.append(slice_("MatMul", HARDWARE, 3, begin + 9, 10.0, args=task))
            device = (HARDWARE, 3, begin + 9)
            found += flow("HostToDevice", str(number << 32 | 0xFFFFFFFF), (CANN, QUEUE, begin + 6.5), device)
            found += flow("async_npu", START_NS + number, (PYTHON, MAIN, begin), device)
        copy = {"Task Type": "SDMA_SQE", "Stream Id": 5}
        found.append(slice_("MEMCPY_ASYNC", HARDWARE, 5, at + 45, 4.0, args=copy))
        wait = {"Task Type": "EVENT_WAIT_SQE", "Stream Id": 5}
        found.append(slice_("EVENT_WAIT", HARDWARE, 5, at + 50, 3.0, args=wait))
        operation = {"connection_id": 900 + step, "data_type": "FP32", "alg_type": "MESH-RING", "count": 1024}
        found.append(
            slice_(f"hcom_allReduce__{group}_{step}_1", HCCL, 0, at + 60, 20.0 - late, args=operation)
        )
        plane = {"stream id": 7, "task id": 1, "task type": "Memcpy", "size(Byte)": 4096}
        found.append(slice_("Memcpy", HCCL, 1, at + 61, 15.0, args=plane))
        found.append(
            slice_("Memcpy", HARDWARE, 7, at + 61, 15.0, args={"Task Type": "SDMA_SQE", "Stream Id": 7})
        )
        found.append(slice_("Computing", OVERLAP, 0, at + 11, 10.0))
        found.append(
            {"ph": "C", "name": "AI Core Freq", "pid": 77, "tid": 0, "ts": time(at), "args": {"MHz": 1850}}
        )
    found += names(PYTHON, "Python", "CPU", {MAIN: "Thread 4000", QUEUE: "Thread 4001"})
    found += names(CANN, "CANN", "CPU", {QUEUE: "Thread 4001"})
    found += names(HARDWARE, "Ascend Hardware", "NPU 0", {3: "Stream 3", 5: "Stream 5", 7: "Stream 7"})
    found += names(HCCL, "HCCL", "NPU 0", {0: "Group 0 Communication", 1: "Plane 0"})
    return found + names(OVERLAP, "Overlap Analysis", "NPU 0", {0: "Computing"})


def write_rank(folder: Path, rank: int, world: int, content: list[dict[str, Any]] | None = None) -> Path:
    """The folder of one rank; returns its trace."""
    top = folder / f"node_{4000 + rank}_20240102_ascend_pt"
    trace = top / "ASCEND_PROFILER_OUTPUT" / "trace_view.json"
    trace.parent.mkdir(parents=True)
    trace.write_text(json.dumps(events() if content is None else content), encoding="utf-8")
    (top / f"profiler_info_{rank}.json").write_text(json.dumps({"config": {}}), encoding="utf-8")
    about = {"group_name": "dp", "group_rank": rank, "global_ranks": list(range(world))}
    (top / "profiler_metadata.json").write_text(
        json.dumps({"parallel_group_info": {GROUP_ID: about}}), encoding="utf-8"
    )
    hash = group_hash(GROUP_ID)
    operations: dict[str, Any] = {f"hcom_allReduce__{hash % 1000}_{n}_1@{hash}": {} for n in range(2)}
    (trace.parent / "communication.json").write_text(
        json.dumps({"step0": {"collective": operations, "p2p": {}}}), encoding="utf-8"
    )
    return trace
