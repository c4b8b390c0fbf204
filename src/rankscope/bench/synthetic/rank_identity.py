"""The identity of a rank in its file: process, threads, device, groups; and the header and tail that hold it."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from rankscope.bench.synthetic import kineto_text as text
from rankscope.bench.synthetic.plan import Group, Plan
from rankscope.bench.synthetic.tree_compiler import COMPUTE_STREAM

GPUS_PER_NODE = 8
# NCCL runs each process group on its own stream. No plan has both world and data groups.
STREAMS = {"world": 20, "data": 20, "tensor": 24}
_SYNCHRONIZE_NS = 41_000


@dataclass(frozen=True, kw_only=True)
class Identity:
    rank: int
    world_size: int
    pid: int
    autograd_tid: int
    device: int
    trace_id: str
    groups: tuple[Group, ...]
    streams: tuple[int, ...]

    def tokens(self) -> dict[str, str]:
        return {
            "pid": str(self.pid),
            "main_tid": str(self.pid),
            "autograd_tid": str(self.autograd_tid),
            "device": str(self.device),
        }


def identity_of(plan: Plan, rank: int) -> Identity:
    pid = 4_100 + 97 * rank
    axes = ("world",) if plan.tensor_parallel is None else ("tensor", "data")
    streams = {STREAMS[axis] for axis in axes if len(plan.groups(axis)[0].ranks) > 1}
    return Identity(
        rank=rank,
        world_size=plan.ranks,
        pid=pid,
        autograd_tid=pid + 27,
        device=rank % GPUS_PER_NODE,
        trace_id=hashlib.md5(f"{plan.seed} {rank}".encode(), usedforsecurity=False).hexdigest().upper(),
        groups=tuple(plan.groups_of(rank)),
        streams=(COMPUTE_STREAM, *sorted(streams)),
    )


def group_tokens(group: Group, axis: str, rank: int, metadata_name: str, dtype: str) -> dict[str, str]:
    """The placeholders of a collective's process group."""
    return {
        "stream": str(STREAMS[axis]),
        "collective": metadata_name,
        "dtype": dtype,
        "group_name": group.name,
        "group_description": group.description,
        "group_ranks": str(list(group.ranks)),
        "group_size": str(len(group.ranks)),
        "group_rank": str(group.ranks.index(rank)),
        "group_start": str(group.ranks[0]),
        "group_stride": str(group.stride),
    }


def header(identity: Identity, base_time_ns: int, *, with_stack: bool) -> str:
    groups = [
        {
            "pg_name": group.name,
            "pg_desc": group.description,
            "backend_config": "cuda:nccl",
            "pg_size": len(group.ranks),
            "ranks": list(group.ranks),
        }
        for group in identity.groups
    ]
    distributed: dict[str, object] = {
        "backend": "nccl",
        "rank": identity.rank,
        "world_size": identity.world_size,
        "pg_count": len(groups),
        "pg_config": groups,
        "nccl_version": "2.28.9",
    }
    return text.header(identity.device, identity.trace_id, distributed, base_time_ns, with_stack=with_stack)


def tail_events(identity: Identity, *, start_ns: int, end_ns: int, correlation: int) -> list[str]:
    """The profiler's last call, the names of processes, threads and streams, and the closing events."""
    pid, device = identity.pid, identity.device
    events = text.device_synchronize(pid, end_ns, _SYNCHRONIZE_NS, correlation)
    events += text.process_metadata(start_ns, pid, "CPU", pid)
    for gpu in range(GPUS_PER_NODE):
        events += text.process_metadata(start_ns, gpu, f"GPU {gpu}", 5_000_000 + gpu)
    for stream in identity.streams:
        events += text.thread_metadata(start_ns, device, stream, f"stream {stream} ")
    autograd = identity.autograd_tid
    events += text.thread_metadata(start_ns, pid, autograd, f"thread {autograd} (pt_autograd_{device})")
    events += text.thread_metadata(start_ns, pid, pid, f"thread {pid} (python3)")
    return events + text.closing_events(start_ns, end_ns - start_ns, end_ns + 2 * _SYNCHRONIZE_NS)
