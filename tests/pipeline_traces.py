"""A small pipeline-parallel run in Kineto's format: micro-batches go forward through the stages, then backward.

    plan = PipelinePlan(stages=4, tensor=2, data=2, micro_batches=8)
    truth = write_pipeline(plan, Path("run"))

The GPU of a rank does one thing after another: receive, compute, all_reduce in the tensor group, send; at the end
an all_reduce of the gradients in the data group. A send and its receive end together. The host launches far ahead
and waits for the GPU at the end of the step. There is no jitter: every answer is exact.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rankscope.errors import UsageError
from rankscope_bench.synthetic.rank_grid import DESCRIPTIONS, RankGrid

_UNIX_START_NS = 1_794_701_458_600_000_000
_BASE_TIME_NS = 1_790_857_026_000_000_000
_FIRST_NS, _BETWEEN_STEPS_NS = 250_000, 50_000
_HOST_PER_LAUNCH_NS, _LATENCY_NS, _GAP_NS, _SYNC_NS = 8_000, 5_000, 1_000, 3_000
_STREAMS = {"compute": 7, "dp": 20, "pp": 24, "tp": 28}
_KERNELS = {
    "forward": "nvjet_sm90_tst_256x128_64x4_1x2_h_bz_coopA_TNT",
    "backward": "nvjet_sm90_tst_128x256_64x4_2x1_v_bz_coopA_NTN",
    "all_reduce": "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
    "send": "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)",
    "recv": "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)",
}


@dataclass(frozen=True, kw_only=True)
class PipelinePlan(RankGrid):
    """A run of stages * data * tensor ranks; ranks count tensor first, then data, then stages."""

    stages: int
    data: int = 1
    tensor: int = 1
    micro_batches: int = 4
    steps: int = 3
    forward_ns: int = 400_000
    backward_ns: int = 800_000
    send_ns: int = 30_000
    sum_ns: int = 60_000
    """Transfer time of an all_reduce in the tensor group; that of the gradients takes ten times as long."""
    slow_stage: int | None = None
    slow_ns: int = 0
    """Extra time in every forward of that stage."""
    described: bool = True
    """False: the groups have no description of their purpose."""

    def __post_init__(self) -> None:
        if min(self.stages, self.data, self.tensor, self.micro_batches, self.steps) < 1 or self.stages < 2:
            raise UsageError(
                "a pipeline needs at least two stages, and one of everything else",
                why=f"{self.stages} stages, {self.data} data, {self.tensor} tensor, {self.micro_batches} batches.",
                hint="Write it like PipelinePlan(stages=4, micro_batches=8)",
            )

    def group(self, axis: str, rank: int) -> tuple[str, str, list[int]]:
        """Name, description and ranks of a rank's group of an axis."""
        described = self.described or axis == "world"
        description = DESCRIPTIONS[axis] if described else "undefined"
        return self.group_name(axis, rank), description, list(self.group_ranks(axis, rank))


@dataclass
class _Work:
    """One kernel on the GPU of a rank."""

    what: str
    axis: str
    ns: int
    label: str = ""
    peer: int = -1
    start: int = -1
    end: int = -1


@dataclass
class _Rank:
    program: list[_Work]
    launched: list[int] = field(default_factory=list)
    done: int = 0
    free: int = 0


def _program(plan: PipelinePlan, rank: int) -> list[_Work]:
    """All forwards, then all backwards (GPipe), then the gradients."""
    stage, data, tensor = plan.place(rank)
    before = plan.rank_at(stage - 1, data, tensor) if stage else -1
    after = plan.rank_at(stage + 1, data, tensor) if stage + 1 < plan.stages else -1
    forward = plan.forward_ns + (plan.slow_ns if stage == plan.slow_stage else 0)
    work: list[_Work] = []
    for name, ns, source, target in (
        ("forward", forward, before, after),
        ("backward", plan.backward_ns, after, before),
    ):
        for batch in range(plan.micro_batches):
            label = f"{name} {batch}"
            if source >= 0:
                work.append(_Work("recv", "pp", plan.send_ns, label, source))
            work.append(_Work(name, "compute", ns, label))
            if plan.tensor > 1:
                work.append(_Work("all_reduce", "tp", plan.sum_ns, label))
            if target >= 0:
                work.append(_Work("send", "pp", plan.send_ns, label, target))
    if plan.data > 1:
        work.append(_Work("all_reduce", "dp", 10 * plan.sum_ns, "gradients"))
    return work


def _partners(plan: PipelinePlan, rank: int, work: _Work) -> list[int]:
    """The ranks that must have started the same work before it can end."""
    if work.axis == "compute":
        return [rank]
    return [rank, work.peer] if work.axis == "pp" else plan.group(work.axis, rank)[2]


def _play(plan: PipelinePlan, start: list[int]) -> list[_Rank]:
    """One step: each rank runs until it must wait for a rank that has not arrived."""
    ranks = [_Rank(_program(plan, rank)) for rank in range(plan.ranks)]
    for rank, state in enumerate(ranks):
        state.launched = [start[rank] + (1 + i) * _HOST_PER_LAUNCH_NS for i in range(len(state.program))]
    moved = True
    while moved:
        moved = False
        for rank, state in enumerate(ranks):
            while state.done < len(state.program):
                work = state.program[state.done]
                if work.start < 0:
                    work.start = max(state.free + _GAP_NS, state.launched[state.done] + _LATENCY_NS)
                others = _partners(plan, rank, work)
                found = [_matching(ranks[other], work, rank) for other in others]
                if any(one is None or one.start < 0 for one in found):
                    break
                work.end = max(one.start for one in found if one) + work.ns
                state.free, state.done, moved = work.end, state.done + 1, True
    return ranks


def _matching(state: _Rank, work: _Work, rank: int) -> _Work | None:
    """The matching work in another rank's program: the send of a receive, or the same collective."""
    kind = {"send": "recv", "recv": "send"}.get(work.what, work.what)
    for one in state.program:
        if one is work:
            return one
        if (one.what, one.axis, one.label) == (kind, work.axis, work.label) and one.peer in (-1, rank):
            return one
    return None


def write_pipeline(plan: PipelinePlan, folder: Path) -> dict[str, Any]:
    """Write one file per rank, and return the answers: each rank's place, its work, and its steps on the host."""
    folder.mkdir(parents=True, exist_ok=True)
    events: list[list[dict[str, Any]]] = [[] for _ in range(plan.ranks)]
    counters = [_Counters() for _ in range(plan.ranks)]
    start = [_FIRST_NS] * plan.ranks
    works: list[list[_Work]] = [[] for _ in range(plan.ranks)]
    steps = []
    for number in range(plan.steps):
        ranks = _play(plan, start)
        ends = []
        for rank, state in enumerate(ranks):
            host_end = max(state.free + _SYNC_NS, state.launched[-1] + _HOST_PER_LAUNCH_NS)
            _write_step(plan, rank, state, counters[rank], events[rank], start[rank], host_end, number)
            ends.append(host_end)
        for rank, state in enumerate(ranks):
            works[rank] += state.program
        steps.append(
            {"start_ns": start[0], "end_ns": max(ends), "windows": list(zip(start, ends, strict=True))}
        )
        start = [max(ends) + _BETWEEN_STEPS_NS] * plan.ranks
    for rank in range(plan.ranks):
        path = folder / f"rank-{rank:05d}-of-{plan.ranks:05d}.pt.trace.json"
        path.write_text(_file_text(plan, rank, events[rank]))
    places = [plan.place(rank) for rank in range(plan.ranks)]
    return {"steps": steps, "places": places, "works": works}


@dataclass
class _Counters:
    external: int = 0
    seq: dict[str, int] = field(default_factory=dict)


def _write_step(
    plan: PipelinePlan,
    rank: int,
    state: _Rank,
    counters: _Counters,
    events: list[dict[str, Any]],
    start: int,
    end: int,
    number: int,
) -> None:
    def add(name: str, category: str, begin: int, finish: int, args: dict[str, Any], **place: Any) -> None:
        row = {"ph": "X", "cat": category, "name": name, "pid": 100 + rank, "tid": 100 + rank}
        events.append({**row, "ts": _us(begin), "dur": (finish - begin) / 1000, "args": args, **place})

    add(f"ProfilerStep#{number}", "user_annotation", start, end, {})
    for work, launched in zip(state.program, state.launched, strict=True):
        counters.external += 1
        identity = {"External id": counters.external}
        metadata = _metadata(plan, rank, work, counters) if work.axis != "compute" else {}
        op = "record_param_comms" if metadata else f"aten::{'mm' if work.what == 'forward' else 'bmm'}"
        shape = {} if metadata else {"Input Dims": [[1024, 1024], [1024, 1024]]}
        add(op, "cpu_op", launched - 2_000, launched + 3_000, {**identity, **metadata, **shape})
        add(
            "cudaLaunchKernel",
            "cuda_runtime",
            launched,
            launched + 2_000,
            {**identity, "correlation": counters.external},
        )
        stream = _STREAMS[work.axis]
        more = {"device": 0, "stream": stream, "correlation": counters.external, **identity, **metadata}
        add(_KERNELS[work.what], "kernel", work.start, work.end, more, pid=0, tid=stream)
    add("cudaStreamSynchronize", "cuda_runtime", state.launched[-1] + 4_000, end, {})


def _metadata(plan: PipelinePlan, rank: int, work: _Work, counters: _Counters) -> dict[str, Any]:
    name, description, ranks = plan.group(work.axis, rank)
    counters.seq[name] = counters.seq.get(name, 0) + 1
    elements = work.ns * 16
    found = {
        "Collective name": {"all_reduce": "allreduce"}.get(work.what, work.what),
        "Process Group Name": name,
        "Process Group Description": description,
        "Process Group Ranks": str(ranks),
        "Group size": len(ranks),
        "dtype": "BFloat16",
        "In msg nelems": elements,
        "Out msg nelems": elements,
    }
    if work.axis == "pp":
        return found | {"Src Rank" if work.what == "recv" else "Dst Rank": work.peer}
    return found | {"Seq": counters.seq[name]}


def _us(ns: int) -> float:
    return (ns + _UNIX_START_NS - _BASE_TIME_NS) / 1000


def _file_text(plan: PipelinePlan, rank: int, events: list[dict[str, Any]]) -> str:
    axes = ["world"] + [axis for axis, size in (("tp", plan.tensor), ("dp", plan.data)) if size > 1] + ["pp"]
    config = [
        {
            "pg_name": name,
            "pg_desc": description,
            "backend_config": "cuda:nccl",
            "pg_size": len(ranks),
            "ranks": ranks,
        }
        for name, description, ranks in (plan.group(axis, rank) for axis in axes)
    ]
    info = {
        "backend": "nccl",
        "rank": rank,
        "world_size": plan.ranks,
        "pg_count": len(config),
        "pg_config": config,
    }
    head = {"schemaVersion": 1, "distributedInfo": info, "baseTimeNanoseconds": _BASE_TIME_NS}
    return json.dumps({**head, "traceEvents": events, "traceName": "pipeline"}, indent=1)
