"""A simulated job as Kineto files, one per rank, in the recorded text.

Times are those of the rank's own clock. Collectives carry the metadata torch records for NCCL: group, sequence number,
sizes. `write_job` also writes truth.json: layout, clocks, faults and the times of a balanced step.
"""

from __future__ import annotations

import gc
import hashlib
import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from rankscope_bench.synthetic.balance import Taken
from rankscope_bench.synthetic.cluster import simulated_steps
from rankscope_bench.synthetic.forks import Fork
from rankscope_bench.synthetic.host import RankRun, Work
from rankscope_bench.synthetic.job import OF_RANKS, Clock, Job
from rankscope_bench.synthetic.rank_grid import DESCRIPTIONS
from rankscope_bench.synthetic.recording import (
    AUTOGRAD_TID,
    PID,
    Integers,
    Segment,
    recording,
    render,
    segment,
)
from rankscope_bench.synthetic.trace_files import Progress, new_folder, write_pieces

TRUTH_FILE = "truth.json"
_SECTIONS = (
    ("ops", True),
    ("memory", True),
    ("ops", False),
    ("memory", False),
    ("python", False),
    ("gpu", None),
    ("annotations", None),
)
"""In Kineto's order: each thread after the other, that of autograd (True) first; then the GPU."""
_GPUS_PER_NODE = 8
_WORKS_AT_A_TIME = 200_000
"""In memory, before processes write them: some 200 MB."""


def write_traces(job: Job, runs: list[RankRun], folder: Path) -> None:
    """Write one gzipped file a rank."""
    folder.mkdir(parents=True, exist_ok=True)
    for rank, run in enumerate(runs):
        name = f"{file_name(job, rank)}.gz"
        write_pieces(folder / name, RankTrace(job, rank).file(run, name))


def write_job(
    job: Job, folder: Path, progress: Progress | None = None, *, balanced: bool = True, processes: int = 1
) -> dict[str, Any]:
    """Simulate a job and write its files as it goes, and truth.json; returns the truth.

    A few steps of each rank are in memory at a time, whatever the number of steps. `balanced`: the truth has the
    balanced times too, which takes up to three more simulations. The files do not depend on `processes`.
    """
    new_folder(folder, "Synthetic traces are not mixed with existing files.")
    begins, ends, taken = [], [], Taken(job)
    writers = _Writers(job, folder, processes, progress or (lambda written: None))
    gc.disable()  # a simulation makes no cycles; to look for them takes a sixth of its time
    try:
        for rank, run in simulated_steps(job):
            begins.append(run.steps[0][0])
            ends.append(run.steps[-1][1])
            if balanced:
                taken.add(rank, run)
            writers.add(rank, run)
        writers.flush()
        balance = taken.balance(processes, writers.collect) if balanced else None
        writers.collect(wait=True)
    finally:
        gc.enable()
        writers.end()
    truth = _truth(job, (max(ends) - min(begins)) / job.steps, [trace.count for trace in writers.traces])
    if balance:
        truth["balance"] = balance
    (folder / TRUTH_FILE).write_text(json.dumps(truth, indent=1) + "\n")
    return truth


class _Writers:
    """Write the files of all ranks, some steps at a time, in forks of this process."""

    def __init__(self, job: Job, folder: Path, processes: int, progress: Progress) -> None:
        self.traces = [RankTrace(job, rank) for rank in range(job.ranks)]
        self._folder, self._processes, self._progress = folder, processes, progress
        self._pending: dict[int, list[RankRun]] = defaultdict(list)
        self._works = 0
        self._forks: list[Fork] = []

    def add(self, rank: int, run: RankRun) -> None:
        self._pending[rank].append(run)
        self._works += len(run.works)
        if self._processes == 1 or self._works >= _WORKS_AT_A_TIME:
            self.flush()
        self.collect()

    def flush(self) -> None:
        """Begin to write what was added."""
        self.collect(wait=True)  # the next steps follow those
        pending, self._pending, self._works = list(self._pending.items()), defaultdict(list), 0
        if self._processes == 1:
            self._take(self._written(pending))
            return
        shares = [pending[i :: self._processes] for i in range(min(self._processes, len(pending)))]
        self._forks = [Fork(partial(self._written, share)) for share in shares]

    def _written(self, share: list[tuple[int, list[RankRun]]]) -> Iterator[tuple[int, Numbers, int]]:
        """Append these steps to the files; gives the counters of each rank after them, and the bytes."""
        for rank, runs in share:
            trace, name = self.traces[rank], file_name(self.traces[rank].job, rank)
            for run in runs:
                with (self._folder / name).open("a") as file:
                    written = sum(map(file.write, trace.steps(run, name)))
                yield rank, trace.numbers, written

    def _take(self, results: Iterable[tuple[int, Numbers, int]]) -> None:
        for rank, numbers, written in results:
            self.traces[rank].numbers = numbers
            self._progress(written)

    def collect(self, *, wait: bool = False) -> None:
        for fork in self._forks:
            self._take(fork.results(wait=wait))
        self._progress(0)

    def end(self) -> None:
        for fork in self._forks:
            fork.end()


def file_name(job: Job, rank: int) -> str:
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
            {
                rank
                for fault in job.faults
                if fault.kind in (*OF_RANKS, "moving") or (fault.kind == "experts" and len(fault.ranks) == 1)
                for rank in fault.ranks
            }
        ),
        "late_stages": sorted(
            {job.place(fault.ranks[0])[0] for fault in job.faults if fault.kind == "stages"}
        ),
        "nodes": [_node(job, rank) for rank in range(job.ranks)],
        "clocks": [
            {"rank": rank, "offset_ns": clock.offset_ns, "drift_ppb": clock.drift_ppb}
            for rank, clock in enumerate(job.clocks)
        ],
    }


def _node(job: Job, rank: int) -> str:
    return f"node{rank // job.ranks_per_node}"


def recorded(clock: Clock, true_ns: Integers) -> Integers:
    """True times as the rank's clock records them, in ns."""
    drift = true_ns * clock.drift_ppb // 1_000_000_000 if clock.drift_ppb else 0
    return true_ns + (clock.zero_ns + drift)


class Numbers:
    """The counters of a rank's file: ids, sequence numbers, allocated bytes."""

    def __init__(self, job: Job, reserved_bytes: int = 0) -> None:
        self._layers, self._layers_of_step = job.layers, job.batches * job.layers
        self.step = -1
        self.events = self.indexed = 0
        """Written, and those of them with an Ev Idx."""
        self.sequence: Counter[str] = Counter()
        self.running = {"external": 1, "correlation": 7001, "python": 1, "allocated": 0}
        self.fixed = {"reserved": reserved_bytes, "step_frame": 1}

    def of(self, work: Work) -> dict[str, int]:
        """The counters at the first repetition of the next work."""
        running = self.running
        if work.segment.name.endswith(".step"):
            self.step += 1
            self.fixed["step_frame"] = running["python"]
        running["allocated"] += work.nbytes
        node = (self.step * self._layers_of_step + work.layer) * work.segment.strides["sequence"]
        layer = work.layer % self._layers
        bases = {
            **running,
            **self.fixed,
            "step": self.step,
            "layer": layer,
            "sequence": node,
            "address": (1 + layer) * work.segment.strides["address"],
            "bytes": work.nbytes,
            "peer": work.peer,
            "in_nelems": work.nelems[0],
            "out_nelems": work.nelems[1],
        }
        if work.key:
            bases["seq"] = self.sequence[work.axis]
            self.sequence[work.axis] += 1
        for counter in running:
            running[counter] += work.blocks * work.segment.strides[counter]
        return bases


class RankTrace:
    """The text of one rank's file, in pieces: the head, any number of steps, the tail."""

    def __init__(
        self, job: Job, rank: int, *, with_stack: bool = False, reserved_bytes: int = 40 << 30
    ) -> None:
        self.job, self.rank, self.with_stack = job, rank, with_stack
        self.clock = job.clocks[rank]
        self.numbers = Numbers(job, reserved_bytes)
        self._group_names = {axis: job.group_name(axis, rank) for axis in DESCRIPTIONS}
        self._bound: dict[tuple[str, str, bool, int, int], tuple[Segment, Mapping[str, int]]] = {}
        self._device = rank % min(job.ranks_per_node, _GPUS_PER_NODE)

    def head(self) -> str:
        job, rank = self.job, self.rank
        trace_id = hashlib.md5(f"{job.seed} {rank}".encode(), usedforsecurity=False).hexdigest().upper()
        text = recording()["head"].replace("@trace_id@", trace_id)
        text = text.replace("@base_time_ns@", str(self.clock.base_time_ns))
        text = text.replace("@distributedInfo@", json.dumps(_distributed_info(job, rank)))
        if not self.with_stack:
            text = text.replace('      "with_stack": 1,\n', "")
        if job.model == "plain":  # as rankscope's capture says it
            more = json.dumps({"rank": rank, "host": _node(job, rank)})
            text = text.replace('  "displayTimeUnit"', f'      "rankscope": {more},\n  "displayTimeUnit"')
        return text.replace('"id": 0,', f'"id": {self._device},')

    @property
    def count(self) -> int:
        """The events that were written."""
        return self.numbers.events

    def file(self, run: RankRun, name: str) -> Iterator[bytes]:
        """A whole file, in pieces."""
        return (piece.encode() for piece in self.steps(run, name))

    def steps(self, run: RankRun, name: str) -> Iterator[str]:
        """The next steps, in pieces; with the head before the first of all, and the tail after the last."""
        if self.numbers.step < 0:
            yield self.head()
        yield from self.events(run)
        if self.numbers.step + 1 == self.job.steps:
            yield self.tail(run.steps[-1][1], name)

    def events(self, run: RankRun) -> Iterator[str]:
        """The events of some steps, in pieces."""
        timed = [(work, self.numbers.of(work), self._points(work)) for work in run.works]
        for section, on_autograd in _SECTIONS:
            if section == "python" and not self.with_stack:
                continue
            for work, bases, points in timed:
                if section in work.segment.sections and on_autograd in (None, work.on_autograd):
                    yield self._text(section, work, bases, points)
        self.numbers.events += sum(work.blocks * self._count(work.segment) for work in run.works)

    def tail(self, end_ns: int, name: str) -> str:
        """The profiler's last call, the names of processes, threads and streams, and the end of the file."""
        last = segment("tail")
        work = Work(
            segment=last,
            host_ns=0,
            noise=(np.ones(1), np.ones(1)),
            noise_at=0,
            pause=end_ns - int(last.increments.max()),
        )
        self.numbers.events += self._count(last)
        text = self._text("tail", work, self.numbers.of(work), self._points(work)).removesuffix(",\n")
        return f'{text}\n  ],\n  "traceName": {json.dumps(name)}\n}}'

    def _count(self, events: Segment) -> int:
        return sum(
            count.total() for name, count in events.phases.items() if self.with_stack or name != "python"
        )

    def _points(self, work: Work) -> Integers:
        return recorded(self.clock, np.concatenate(work.times(), axis=1))

    def _text(self, section: str, work: Work, bases: dict[str, int], points: Integers) -> str:
        key = (work.segment.name, work.axis, work.on_autograd, work.upward, work.own_stream)
        if key not in self._bound:
            directed = {
                counter: stride * (work.upward if counter in ("layer", "address", "sequence") else 1)
                for counter, stride in work.segment.strides.items()
            }
            self._bound[key] = work.segment.bound(lambda form: self._bind(form, work)), directed
        bound, strides = self._bound[key]
        part = bound.sections[section]
        bases["event"] = self.numbers.indexed
        self.numbers.indexed += work.blocks * part.indexed
        return render(part, points, bases, strides)

    def _bind(self, form: str, work: Work) -> str:
        """Put in the process, the threads, the GPU and the process group of the rank."""
        pid = PID + 97 * self.rank
        if work.on_autograd:
            form = form.replace(f'"tid": {PID}', f'"tid": {AUTOGRAD_TID}')
        form = re.sub(rf"\b{PID}\b", str(pid), form)
        form = re.sub(rf"\b{AUTOGRAD_TID}\b", str(pid + AUTOGRAD_TID - PID), form)
        for words in (
            '"pid": 0,',
            '"device": 0,',
            '"Device Id": 0,',
            '"GPU 0"',
            "_autograd_0)",
            ": 5000000\n",
        ):
            form = form.replace(words, re.sub(r"0\b(?=\D*$)", str(self._device), words))
        if not work.axis:
            return form
        if work.own_stream:
            form = re.sub(rf'"(tid|stream)": {work.segment.stream}\b', rf'"\1": {work.own_stream}', form)
        group = self.job.group_ranks(work.axis, self.rank)
        for recorded_text, text in (
            ('"Process Group Name": "0"', f'"Process Group Name": "{self._group_names[work.axis]}"'),
            ("default_pg", DESCRIPTIONS[work.axis]),
            ('Ranks": "[0, 1]"', f'Ranks": "{list(group)}"'),
            ('"Group size": 2', f'"Group size": {len(group)}'),
            ('"Rank": 0', f'"Rank": {group.index(self.rank)}'),
            ('rank start": 0', f'rank start": {group[0]}'),
            ('rank stride": 1', f'rank stride": {group[1] - group[0]}'),
        ):
            form = form.replace(recorded_text, text)
        return form


def _distributed_info(job: Job, rank: int) -> dict[str, Any]:
    sizes = {"tp": job.tensor, "dp": job.data if job.data_axis == "dp" else 1, "pp": job.stages}
    groups = [
        {
            "pg_name": job.group_name(axis, rank),
            "pg_desc": DESCRIPTIONS[axis],
            "backend_config": "cuda:nccl",
            "pg_size": len(job.group_ranks(axis, rank)),
            "ranks": list(job.group_ranks(axis, rank)),
        }
        for axis in ("world", *(axis for axis, size in sizes.items() if size > 1))
    ]
    return {
        "backend": "nccl",
        "rank": rank,
        "world_size": job.ranks,
        "pg_count": len(groups),
        "pg_config": groups,
        "nccl_version": "2.28.9",
    }
