"""Writes NCCL's own files to their published schema: plugins/profiler in NCCL's sources is the reference."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

WORLD = "0x7f8c496ae9f661"
UNIX_US = 1_752_867_229_000_000
PER_RANK = ("AllGather", "ReduceScatter", "All2All")


@dataclass(frozen=True)
class Op:
    """One operation of a rank. Times are in µs after UNIX_US."""

    function: str
    seq: int
    bytes: int
    took_us: int
    start_us: int = 0
    comm: str = WORLD
    name: str = "unknown"
    ranks: int = 2
    peer: int | None = None
    channels: int = 2


def bandwidths(op: Op) -> tuple[float, float]:
    """As inspectorComputeOpBw: algbw and busbw in GB/s."""
    size = op.bytes * op.ranks if op.function in PER_RANK else op.bytes
    algbw = size / 1e9 / (op.took_us / 1e6) if op.took_us and op.function != "All2All" else 0.0
    share = (op.ranks - 1) / op.ranks
    factor = {"AllReduce": 2 * share, "AllGather": share, "ReduceScatter": share}.get(op.function, 1.0)
    return algbw, algbw * factor


def inspector_line(
    op: Op, rank: int, *, verbose: bool = True, named: bool = True, version: str = "v4.0"
) -> dict[str, Any]:
    """`named`: with comm_name, which NCCL 2.28 does not write."""
    kind = "coll" if op.peer is None else "p2p"
    algbw, busbw = bandwidths(op)
    begin = UNIX_US + op.start_us
    perf: dict[str, Any] = {kind: op.function, f"{kind}_sn": op.seq}
    if op.peer is not None:
        perf["p2p_peer"] = op.peer
    perf |= {
        f"{kind}_msg_size_bytes": op.bytes,
        f"{kind}_exec_time_us": op.took_us,
        f"{kind}_timing_source": "kernel_gpu",
        f"{kind}_algobw_gbs": round(algbw, 6),
        f"{kind}_busbw_gbs": round(busbw, 6),
    }
    if verbose:
        perf["event_trace_ts"] = {
            f"{kind}_start_ts": begin - 20,
            f"{kind}_stop_ts": begin - 15,
            "kernel_events": [
                {
                    "channel_id": channel,
                    "kernel_start_ts": begin + channel,
                    "kernel_stop_ts": begin + op.took_us,
                    "kernel_record_ts": begin + op.took_us,
                }
                for channel in range(op.channels)
            ],
        }
    header = {
        "id": op.comm,
        **({"comm_name": op.name} if named else {}),
        "rank": rank,
        "n_ranks": op.ranks,
        "nnodes": 1,
    }
    metadata = {
        "inspector_output_format_version": version,
        "git_rev": "",
        "rec_mechanism": "nccl_profiler_interface",
        "dump_timestamp_us": begin + op.took_us + 500,
        "hostname": f"node-{rank // 8}",
        "pid": 1000 + rank,
    }
    return {"header": header, "metadata": metadata, f"{kind}_perf": perf}


def write_inspector(folder: Path, rank: int, ops: list[Op], **options: Any) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"node-{rank // 8}-pid{1000 + rank}.log"
    lines = (json.dumps(inspector_line(op, rank, **options), separators=(",", ":")) for op in ops)
    path.write_text("".join(f"{line}\n" for line in lines))
    return path


def prometheus_text(
    gpu: int, rows: list[tuple[str, str, float, float]], *, nodes: int = 1, ranks: int = 4
) -> str:
    """Rows of function, range of sizes, busbw in GB/s and time in µs."""
    text = ""
    for function, size, busbw, took in rows:
        p2p = function in ("Send", "Recv")
        labels = {
            "version": "v5.1", "slurm_job_id": "unknown", "node": "node-0", "gpu": f"GPU{gpu}",
            "comm_name": "DP Group 0",
            "n_nodes": nodes, "nranks": ranks, "p2p_operation" if p2p else "collective": function, "message_size": size,
            **({} if p2p else {"algo_proto": "Ring_ll"}),
        }  # fmt: skip
        inside = ",".join(f'{name}="{value}"' for name, value in labels.items())
        kind = "p2p" if p2p else "collective"
        text += f"nccl_{'p2p_' * p2p}bus_bandwidth_gbs{{{inside}}} {busbw:.6g}\n"
        text += f"nccl_{kind}_exec_time_microseconds{{{inside}}} {took:.6g}\n"
    return text


GPU_NS = 1_756_135_989_000_000_000
TYPES = {"ncclFloat32": (7, 4), "ncclBfloat16": (9, 2)}


def plugin_dump(
    rank: int, ops: list[Op], *, version: str = "2.30", kernels: bool = True, pid: int | None = None
) -> str:
    """A dump of the example profiler: each operation inside its call, the kernels of its channels inside it.

    2.23 writes numbers for data types and no kernels; 2.28 writes types and addresses of calls without quotes.
    """
    lines = ["["]
    process = 1000 + rank if pid is None else pid

    def add(name: str, category: str, phase: str, number: int, time: float, args: str = "") -> None:
        inside = f', "args": {{{args}}}' if args else ""
        lines.append(
            f'{{"name": "{name}", "cat": "{category}", "ph": "{phase}", "id": {number}, "pid": {process}, "tid": 1, '
            f'"ts": {time:f}{inside}}},'
        )

    for number, op in enumerate(ops):
        begin, end = float(op.start_us), float(op.start_us + op.took_us)
        kind = "COLL" if op.peer is None else "P2P"
        count = op.bytes // 4
        datatype = 7 if version == "2.23" else '"ncclFloat32"'
        call_type, stream = (
            ("ncclFloat32", "0x5020000567d0") if version == "2.28" else ('"ncclFloat32"', '"0x502"')
        )
        if version != "2.23":
            add("Group API", "GROUP_API", "b", number, begin - 30, '"groupApiId": 0, "groupDepth":1')
            call = (
                f'"count": {count}, "datatype": {call_type}, "root": 0, "GraphCaptured":0, "Stream": {stream}'
            )
            add(op.function, f"{kind}_API", "b", number, begin - 25, call)
        who = f'"CommHash": {int(op.comm, 16)}, "Rank": {rank}'
        if kind == "COLL":
            how = f'"Algorithm": "RING", "Protocol": "SIMPLE", "n{"Max" * (version == "2.23")}Channels": {op.channels}'
            args = f'"SeqNum": {op.seq}, {who}, "Count": {count}, "Datatype": {datatype}, {how}'
        else:
            args = f'{who}, "Peer": {op.peer}, "Count": {count}, "Datatype": {datatype}, "nChannels": {op.channels}'
        add(op.function, kind, "b", number, begin - 20, args)
        for channel in range(op.channels):
            if kernels and version != "2.23":
                clocks = (
                    f'"StartGpuClk": {GPU_NS + int(begin * 1000)}, "StopGpuClk": {GPU_NS + int(end * 1000)}'
                )
                add("KernelCh", "GPU", "b", 0, begin, f'"Channel": {channel}, {clocks}')
            size = f'"Channel": {channel}, "Peer": 1, "Steps": 4, "ChunkSize": 4194304, "transSize": 524288'
            add("ScheduleSend", "PROXY", "b", number, begin - 5, size)
            add("ScheduleSend", "PROXY", "e", number, begin)
            if kernels and version != "2.23":
                add("KernelCh", "GPU", "e", 0, end)
        add(op.function, kind, "e", number, begin - 15)
        if version != "2.23":
            add(op.function, f"{kind}_API", "e", number, begin - 14)
            add("Group API", "GROUP_API", "e", number, begin - 10)
    return "\n".join([*lines, "{}]", ""])
