"""A simulated job as Kineto files, one per rank, in the recorded text.

Times are those of the rank's own clock. Collectives carry the metadata torch records for NCCL: group, sequence number,
sizes. `write_job` also writes truth.json: layout, clocks, faults and the times of a balanced step.
"""

from __future__ import annotations

import copy
import hashlib
import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from rankscope.bench.synthetic.balance import balance
from rankscope.bench.synthetic.cluster import simulated_steps
from rankscope.bench.synthetic.host import RankRun, Work
from rankscope.bench.synthetic.job import OF_RANKS, Clock, Job
from rankscope.bench.synthetic.rank_grid import DESCRIPTIONS
from rankscope.bench.synthetic.recording import (
    AUTOGRAD_TID,
    PID,
    Integers,
    Segment,
    recording,
    render,
    segment,
)
from rankscope.bench.synthetic.trace_files import Progress, new_folder, write_pieces

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


def write_traces(job: Job, runs: list[RankRun], folder: Path) -> None:
    """Write one gzipped file a rank."""
    folder.mkdir(parents=True, exist_ok=True)
    for rank, run in enumerate(runs):
        name = f"{file_name(job, rank)}.gz"
        write_pieces(folder / name, RankTrace(job, rank).file(run, name))


def write_job(
    job: Job, folder: Path, progress: Progress | None = None, *, balanced: bool = True
) -> dict[str, Any]:
    """Simulate a job and write its files as it goes, and truth.json; returns the truth.

    A few steps of each rank are in memory at a time, whatever the number of steps. `balanced`: the truth has the
    balanced times too, which takes four more simulations.
    """
    new_folder(folder, "Synthetic traces are not mixed with existing files.")
    traces = [RankTrace(job, rank) for rank in range(job.ranks)]
    begins, ends = [], []
    for rank, run in simulated_steps(job):
        trace, name = traces[rank], file_name(job, rank)
        begins.append(run.steps[0][0])
        ends.append(run.steps[-1][1])
        pieces = [] if trace.steps else [trace.head()]
        pieces += trace.events(run)
        if trace.steps == job.steps:
            pieces.append(trace.tail(ends[-1], name))
        with (folder / name).open("a") as file:
            file.writelines(pieces)
        if progress:
            progress(sum(map(len, pieces)))
    truth = _truth(job, (max(ends) - min(begins)) / job.steps, [trace.count for trace in traces])
    if balanced:
        truth["balance"] = balance(job)
    (folder / TRUTH_FILE).write_text(json.dumps(truth, indent=1) + "\n")
    return truth


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

    def __init__(self, job: Job, rank: int, reserved_bytes: int) -> None:
        self.job = job
        self.names = {axis: job.group_name(axis, rank) for axis in DESCRIPTIONS}
        self.step = -1
        self.sequence: Counter[str] = Counter()
        self.running = {"external": 1, "correlation": 7001, "python": 1, "allocated": 0}
        self.fixed = {"reserved": reserved_bytes, "step_frame": 1}

    def copy(self) -> Numbers:
        same = copy.copy(self)
        same.sequence, same.running, same.fixed = self.sequence.copy(), {**self.running}, {**self.fixed}
        return same

    def of(self, work: Work) -> dict[str, int]:
        """The counters at the first repetition of the next work."""
        job, running = self.job, self.running
        if work.segment.name.endswith(".step"):
            self.step += 1
            self.fixed["step_frame"] = running["python"]
        running["allocated"] += work.nbytes
        node = (self.step * job.batches * job.layers + work.layer) * work.segment.strides["sequence"]
        layer = work.layer % job.layers
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
    """The text of one rank's file, in pieces: the head, any number of steps, the tail.

    Every section goes through all works again: more arithmetic, but memory does not grow with the text.
    """

    def __init__(
        self, job: Job, rank: int, *, with_stack: bool = False, reserved_bytes: int = 40 << 30
    ) -> None:
        self.job, self.rank, self.with_stack = job, rank, with_stack
        self.clock = job.clocks[rank]
        self.steps = self.count = 0
        self._numbers = Numbers(job, rank, reserved_bytes)
        self._indexed = 0
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

    def file(self, run: RankRun, name: str) -> Iterator[bytes]:
        """A whole file, in pieces."""
        yield self.head().encode()
        yield from (piece.encode() for piece in self.events(run))
        yield self.tail(run.steps[-1][1], name).encode()

    def events(self, run: RankRun) -> Iterator[str]:
        """The events of some steps, in pieces."""
        for section, on_autograd in _SECTIONS:
            if section == "python" and not self.with_stack:
                continue
            numbers = self._numbers.copy()
            for work in run.works:
                bases = numbers.of(work)
                if section in work.segment.sections and on_autograd in (None, work.on_autograd):
                    yield self._text(section, work, bases)
        self._numbers = numbers
        self.count += sum(work.blocks * work.segment.events(self.with_stack).total() for work in run.works)
        self.steps += len(run.steps)

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
        self.count += last.events(self.with_stack).total()
        text = self._text("tail", work, self._numbers.of(work)).removesuffix(",\n")
        return f'{text}\n  ],\n  "traceName": {json.dumps(name)}\n}}'

    def _text(self, section: str, work: Work, bases: dict[str, int]) -> str:
        key = (work.segment.name, work.axis, work.on_autograd, work.upward, work.own_stream)
        if key not in self._bound:
            directed = {
                counter: stride * (work.upward if counter in ("layer", "address", "sequence") else 1)
                for counter, stride in work.segment.strides.items()
            }
            self._bound[key] = work.segment.bound(lambda form: self._bind(form, work)), directed
        bound, strides = self._bound[key]
        part = bound.sections[section]
        points = recorded(self.clock, np.concatenate(work.times(), axis=1))
        bases["event"] = self._indexed
        self._indexed += work.blocks * part.indexed
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
            ('"Process Group Name": "0"', f'"Process Group Name": "{self._numbers.names[work.axis]}"'),
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
