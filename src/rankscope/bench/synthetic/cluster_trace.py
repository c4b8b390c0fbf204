"""A simulated job as Kineto files, one per rank: host spans, launches, GPU work, process groups.

Times are those of the rank's own clock. Collectives carry the metadata torch records for NCCL: group, sequence number,
sizes.
"""

from __future__ import annotations

import gzip
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rankscope.bench.synthetic.cluster import COMM, COMPUTE, COPY, Job, RankRun, Work
from rankscope.bench.synthetic.rank_grid import DESCRIPTIONS

_UNIX_START_NS = 1_794_701_458_600_000_000
_BASE_TIME_NS = 1_790_857_026_000_000_000
_STREAM = {COMPUTE: 7, COPY: 16, COMM: 20}


def write_traces(job: Job, runs: list[RankRun], folder: Path) -> None:
    """Write one gzipped file a rank."""
    folder.mkdir(parents=True, exist_ok=True)
    for rank, run in enumerate(runs):
        path = folder / f"rank-{rank:05d}-of-{job.ranks:05d}.pt.trace.json.gz"
        with gzip.open(path, "wt", compresslevel=1) as file:
            file.write(_file_text(job, rank, run))


def clock_offset_ns(job: Job, rank: int) -> int:
    """How far a rank's clock is ahead; rank 0's is true."""
    if rank == 0 or not job.offset_ns:
        return 0
    return random.Random(f"{job.seed}/clock/{rank}").randrange(-job.offset_ns, job.offset_ns + 1)


def _file_text(job: Job, rank: int, run: RankRun) -> str:
    head = {
        "schemaVersion": 1,
        "deviceProperties": [{"id": 0, "name": "NVIDIA H200", "totalGlobalMem": 150_000_000_000}],
        "distributedInfo": _distributed_info(job, rank),
        "rankscope": {"rank": rank, "host": f"node{rank // job.ranks_per_node}"},
        "baseTimeNanoseconds": _BASE_TIME_NS,
    }
    events = ",\n".join(json.dumps(event) for event in _events(job, rank, run))
    return json.dumps(head)[:-1] + f',\n"traceEvents": [\n{events}\n],\n"traceName": "cluster"\n}}'


def _events(job: Job, rank: int, run: RankRun) -> Iterator[dict[str, Any]]:
    ahead = clock_offset_ns(job, rank) + _UNIX_START_NS - _BASE_TIME_NS
    identities = {id(work): number for number, work in enumerate(run.works, 1)}
    metadata = _Metadata(job, rank)
    details = {id(work): metadata.of(work) for work in run.works if work.key}

    def event(
        name: str, category: str, start: int, end: int, args: dict[str, Any], pid: int, tid: int
    ) -> dict[str, Any]:
        return {
            "ph": "X",
            "cat": category,
            "name": name,
            "pid": pid,
            "tid": tid,
            "ts": (start + ahead) / 1000,
            "dur": (end - start) / 1000,
            "args": args,
        }

    host = 1000 + rank
    for number, (start, end) in enumerate(run.steps):
        yield event(f"ProfilerStep#{number}", "user_annotation", start, end, {}, host, host)
    for span in run.spans:
        args: dict[str, Any] = {}
        if span.work is not None:
            args["External id"] = identities[id(span.work)]
            if span.category == "cuda_runtime":
                args["correlation"] = identities[id(span.work)]
            args |= details.get(id(span.work), {})
        yield event(span.name, span.category, span.start, span.end, args, host, host)
    allocated = 0
    for at, change in run.memory:
        allocated += change
        yield {
            "ph": "i",
            "cat": "cpu_instant_event",
            "s": "t",
            "name": "[memory]",
            "pid": host,
            "tid": host,
            "ts": (at + ahead) / 1000,
            "args": {
                "Total Reserved": 40 << 30,
                "Total Allocated": allocated,
                "Bytes": change,
                "Device Id": 0,
                "Device Type": 1,
                "Addr": 1 << 40,
            },
        }
    for work in run.works:
        number = identities[id(work)]
        more = {"External id": number, "correlation": number, "device": 0, "stream": _STREAM[work.stream]}
        if work.stream == COPY:
            more["bytes"] = work.ns * 25
        category = "gpu_memcpy" if work.stream == COPY else "kernel"
        yield event(
            work.name,
            category,
            work.start,
            work.end,
            more | details.get(id(work), {}),
            0,
            _STREAM[work.stream],
        )


class _Metadata:
    """What torch records of a collective: group, sequence number, sizes."""

    def __init__(self, job: Job, rank: int) -> None:
        self.job, self.rank = job, rank
        self.sequence: dict[str, int] = {}

    def of(self, work: Work) -> dict[str, Any]:
        axis = "pp" if work.peer >= 0 else work.axis
        name, group = self.job.group_name(axis, self.rank), self.job.group_ranks(axis, self.rank)
        found: dict[str, Any] = {
            "Collective name": work.axis if work.peer >= 0 else "allreduce",
            "Process Group Name": name,
            "Process Group Description": DESCRIPTIONS[axis],
            "Process Group Ranks": str(list(group)),
            "Group size": len(group),
            "dtype": "BFloat16",
            "In msg nelems": work.size // 2,
            "Out msg nelems": work.size // 2,
        }
        if work.peer >= 0:
            return found | {"Src Rank" if work.axis == "recv" else "Dst Rank": work.peer}
        self.sequence[name] = self.sequence.get(name, 0) + 1
        return found | {"Seq": self.sequence[name]}


def _distributed_info(job: Job, rank: int) -> dict[str, Any]:
    sizes = {"tp": job.tensor, "dp": job.data, "pp": job.stages}
    axes = ["world", *(axis for axis, size in sizes.items() if size > 1)]
    groups = [
        {
            "pg_name": job.group_name(axis, rank),
            "pg_desc": DESCRIPTIONS[axis],
            "backend_config": "cuda:nccl",
            "pg_size": len(job.group_ranks(axis, rank)),
            "ranks": list(job.group_ranks(axis, rank)),
        }
        for axis in axes
    ]
    return {
        "backend": "nccl",
        "rank": rank,
        "world_size": job.ranks,
        "pg_count": len(groups),
        "pg_config": groups,
    }
