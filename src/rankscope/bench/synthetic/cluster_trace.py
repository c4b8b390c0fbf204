"""A simulated job as Kineto files, one per rank: host spans, launches, GPU work, process groups.

Times are those of the rank's own clock. Collectives carry the metadata torch records for NCCL: group, sequence number,
sizes. `write_job` also writes truth.json: layout, clocks and faults.
"""

from __future__ import annotations

import gzip
import json
import random
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rankscope.bench.synthetic.cluster import (
    COMM,
    COMPUTE,
    COPY,
    EVERY_RANK,
    Job,
    RankRun,
    Work,
    simulated_steps,
)
from rankscope.bench.synthetic.rank_grid import DESCRIPTIONS
from rankscope.errors import StoreError

_UNIX_START_NS = 1_794_701_458_600_000_000
_BASE_TIME_NS = 1_790_857_026_000_000_000
_STREAM = {COMPUTE: 7, COPY: 16, COMM: 20}
TRUTH_FILE = "truth.json"

Progress = Callable[[int], None]
"""Called with the bytes that were written."""


def write_traces(job: Job, runs: list[RankRun], folder: Path) -> None:
    """Write one gzipped file a rank."""
    folder.mkdir(parents=True, exist_ok=True)
    for rank, run in enumerate(runs):
        trace = _RankTrace(job, rank)
        with gzip.open(folder / f"{_file_name(job, rank)}.gz", "wt", compresslevel=1) as file:
            file.write(trace.head() + trace.events(run) + trace.tail())


def write_job(job: Job, folder: Path, progress: Progress | None = None) -> dict[str, Any]:
    """Simulate a job and write its files as it goes, and truth.json; returns the truth.

    A few steps of each rank are in memory at a time, whatever the number of steps.
    """
    if folder.is_dir() and any(folder.iterdir()):
        raise StoreError(
            f"{folder} is not empty",
            why="Synthetic traces are not mixed with existing files.",
            hint="Choose another folder with -o",
        )
    folder.mkdir(parents=True, exist_ok=True)
    traces = [_RankTrace(job, rank) for rank in range(job.ranks)]
    for rank, trace in enumerate(traces):
        (folder / _file_name(job, rank)).write_text(trace.head())
    begin, end = [0] * job.ranks, [0] * job.ranks
    for rank, run in simulated_steps(job):
        if not traces[rank].steps:
            begin[rank] = run.steps[0][0]
        end[rank] = run.steps[-1][1]
        text = traces[rank].events(run)
        if traces[rank].steps == job.steps:
            text += traces[rank].tail()
        with (folder / _file_name(job, rank)).open("a") as file:
            file.write(text)
        if progress:
            progress(len(text))
    truth = _truth(job, (max(end) - min(begin)) / job.steps, [trace.count for trace in traces])
    (folder / TRUTH_FILE).write_text(json.dumps(truth, indent=1) + "\n")
    return truth


def _file_name(job: Job, rank: int) -> str:
    return f"rank-{rank:05d}-of-{job.ranks:05d}.pt.trace.json"


def _truth(job: Job, step_ns: float, events: list[int]) -> dict[str, Any]:
    return {
        "job": asdict(job),
        "ranks": job.ranks,
        "layout": {"pp": job.stages, "dp": job.data, "tp": job.tensor},
        "events": events,
        "step_ns": step_ns,
        "faults": [asdict(fault) for fault in job.faults],
        "late_ranks": sorted(
            {rank for fault in job.faults if fault.kind not in (*EVERY_RANK, "leak") for rank in fault.ranks}
        ),
        "nodes": [_node(job, rank) for rank in range(job.ranks)],
        "clocks": [
            {"rank": rank, "offset_ns": clock_offset_ns(job, rank), "drift_ppb": clock_drift_ppb(job, rank)}
            for rank in range(job.ranks)
        ],
    }


def _node(job: Job, rank: int) -> str:
    return f"node{rank // job.ranks_per_node}"


def clock_offset_ns(job: Job, rank: int) -> int:
    """How far a rank's clock is ahead at the start; rank 0's is true."""
    if rank == 0 or not job.offset_ns:
        return 0
    return random.Random(f"{job.seed}/clock/{rank}").randrange(-job.offset_ns, job.offset_ns + 1)


def clock_drift_ppb(job: Job, rank: int) -> int:
    """How much a rank's clock runs fast, in parts per billion; rank 0's is true."""
    if rank == 0 or not job.drift_ppb:
        return 0
    return random.Random(f"{job.seed}/drift/{rank}").randrange(-job.drift_ppb, job.drift_ppb + 1)


class _RankTrace:
    """The text of one rank's file, in pieces: the head, any number of steps, the tail."""

    def __init__(self, job: Job, rank: int) -> None:
        self.job, self.rank = job, rank
        self.steps = self.count = 0
        self._works = 0
        self._allocated = 0
        self._metadata = _Metadata(job, rank)
        self._ahead = clock_offset_ns(job, rank) + _UNIX_START_NS - _BASE_TIME_NS
        self._drift_ppb = clock_drift_ppb(job, rank)
        self._host = f'"pid": {1000 + rank}, "tid": {1000 + rank}'

    def head(self) -> str:
        head = {
            "schemaVersion": 1,
            "deviceProperties": [{"id": 0, "name": "NVIDIA H200", "totalGlobalMem": 150_000_000_000}],
            "distributedInfo": _distributed_info(self.job, self.rank),
            "rankscope": {"rank": self.rank, "host": _node(self.job, self.rank)},
            "baseTimeNanoseconds": _BASE_TIME_NS,
        }
        return json.dumps(head)[:-1] + ',\n"traceEvents": [\n'

    def tail(self) -> str:
        return '\n],\n"traceName": "cluster"\n}'

    def events(self, run: RankRun) -> str:
        """The events of some steps, in the order of the program."""
        lines = list(self._lines(run))
        before = ",\n" if self.count else ""
        self.count += len(lines)
        self.steps += len(run.steps)
        return before + ",\n".join(lines)

    def _lines(self, run: RankRun) -> Iterator[str]:
        numbers = {id(work): self._works + place for place, work in enumerate(run.works, 1)}
        self._works += len(run.works)
        details = {id(work): self._metadata.of(work) for work in run.works if work.key}
        for number, (start, end) in enumerate(run.steps, self.steps):
            yield self._slice(f"ProfilerStep#{number}", "user_annotation", start, end, "", self._host)
        for span in run.spans:
            args = ""
            if span.work is not None:
                number = numbers[id(span.work)]
                args = f'"External id": {number}'
                if span.category == "cuda_runtime":
                    args += f', "correlation": {number}'
                args += details.get(id(span.work), "")
            yield self._slice(span.name, span.category, span.start, span.end, args, self._host)
        for at, change in run.memory:
            self._allocated += change
            yield (
                f'{{"ph": "i", "cat": "cpu_instant_event", "s": "t", "name": "[memory]", {self._host}, '
                f'"ts": {self._microseconds(at)}, "args": {{"Total Reserved": {40 << 30}, '
                f'"Total Allocated": {self._allocated}, "Bytes": {change}, "Device Id": 0, "Device Type": 1, '
                f'"Addr": {1 << 40}}}}}'
            )
        for work in run.works:
            number, stream = numbers[id(work)], _STREAM[work.stream]
            args = f'"External id": {number}, "correlation": {number}, "device": 0, "stream": {stream}'
            if work.stream == COPY:
                args += f', "bytes": {work.ns * 25}'
            category = "gpu_memcpy" if work.stream == COPY else "kernel"
            args += details.get(id(work), "")
            yield self._slice(work.name, category, work.start, work.end, args, f'"pid": 0, "tid": {stream}')

    def _slice(self, name: str, category: str, start: int, end: int, args: str, where: str) -> str:
        begin = self._recorded(start)
        took = self._recorded(end) - begin
        return (
            f'{{"ph": "X", "cat": "{category}", "name": "{name}", {where}, '
            f'"ts": {begin // 1000}.{begin % 1000:03d}, "dur": {took // 1000}.{took % 1000:03d}, '
            f'"args": {{{args}}}}}'
        )

    def _recorded(self, true_ns: int) -> int:
        """A true time, by the rank's clock, in ns after the base time."""
        return true_ns + true_ns * self._drift_ppb // 1_000_000_000 + self._ahead

    def _microseconds(self, true_ns: int) -> str:
        recorded = self._recorded(true_ns)
        return f"{recorded // 1000}.{recorded % 1000:03d}"


class _Metadata:
    """What torch records of a collective: group, sequence number, sizes."""

    def __init__(self, job: Job, rank: int) -> None:
        self.sequence: dict[str, int] = {}
        self.names = {axis: job.group_name(axis, rank) for axis in DESCRIPTIONS}
        self.texts = {axis: self._group(job, rank, axis) for axis in self.names}

    def _group(self, job: Job, rank: int, axis: str) -> str:
        group = job.group_ranks(axis, rank)
        known = {
            "Process Group Name": self.names[axis],
            "Process Group Description": DESCRIPTIONS[axis],
            "Process Group Ranks": str(list(group)),
            "Group size": len(group),
            "dtype": "BFloat16",
        }
        return json.dumps(known)[1:-1]

    def of(self, work: Work) -> str:
        """As JSON, to be added to other arguments."""
        axis = "pp" if work.peer >= 0 else work.axis
        kind = work.axis if work.peer >= 0 else "allreduce"
        elements = work.size // 2
        text = (
            f', "Collective name": "{kind}", {self.texts[axis]}, '
            f'"In msg nelems": {elements}, "Out msg nelems": {elements}'
        )
        if work.peer >= 0:
            return text + f', "{"Src" if work.axis == "recv" else "Dst"} Rank": {work.peer}'
        name = self.names[axis]
        self.sequence[name] = self.sequence.get(name, 0) + 1
        return text + f', "Seq": {self.sequence[name]}'


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
