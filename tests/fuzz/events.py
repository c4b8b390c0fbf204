"""Kineto events in which any field may have any value."""

from __future__ import annotations

from typing import Any

from fuzz.codes import Codes

_CATEGORIES = (
    "cpu_op", "kernel", "cuda_runtime", "user_annotation", "gpu_user_annotation", "gpu_memcpy", "ac2g", "fwdbwd",
    "python_function", "cpu_instant_event", "cuda_sync", "overhead", "Trace", "",
)  # fmt: skip
_NAMES = (
    "aten::mm", "aten::addmm", "ProfilerStep#1", "ProfilerStep#2", "cudaLaunchKernel", "gemm", "nccl:all_reduce",
    "ncclDevKernel_AllReduce_Sum_f32_RING_LL", "Memcpy HtoD (Pinned -> Device)", "[memory]", "gloo:all_reduce",
    "Optimizer.step#SGD.step", "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", "cudaStreamSynchronize",
    "process_name", "thread_name", "Iteration Start: PyTorch Profiler",
    "autograd::engine::evaluate_function: MmBackward0",
)  # fmt: skip
_ARGUMENTS = (
    "External id", "correlation", "stream", "device", "bytes", "Input Dims", "Input type", "Collective name",
    "Process Group Name", "Process Group Ranks", "Group size", "In msg nelems", "Out msg nelems", "dtype", "Seq",
    "Total Allocated", "Total Reserved", "Addr", "Device Id", "Device Type", "grid", "block", "context", "name",
    "Python id", "Python parent id", "Sequence number", "Fwd thread id", "flops", "wait_on_stream", "Ev Idx",
)  # fmt: skip
_FIELDS = ("ph", "cat", "name", "pid", "tid", "ts", "dur", "id", "bp", "args")


def odd_events(codes: Codes) -> list[dict[str, Any]]:
    """Events from the codes: sensible ones, with one field in some replaced."""
    events: list[dict[str, Any]] = []
    while not codes.ended and len(events) < 60:
        event: dict[str, Any] = {
            "ph": codes.choice("XXXXXifsMCbe"),
            "cat": codes.choice(_CATEGORIES),
            "name": codes.choice(_NAMES),
            "pid": codes.number(3),
            "tid": codes.number(4),
            "ts": 10 * codes.number(100),
            "dur": codes.number(200),
            "id": codes.number(8),
        }
        names = [codes.choice(_ARGUMENTS) for _ in range(codes.number(5))]
        event["args"] = {name: codes.value() if codes.number(3) == 0 else codes.number(8) for name in names}
        if codes.number(4) == 0:
            event[codes.choice(_FIELDS)] = codes.value()
        events.append(event)
    return events
