"""Telemetry of simulated jobs: healthy ones with the noise of real ones, and faults planted in them.

A step of a synchronous job takes as long as the own work of its slowest rank and the collective after it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rankscope.capture.telemetry_ring import FIELDS, FOLDER, NONE, PHASES, RingWriter, ring_path
from rankscope.records import dataclass
from rankscope.watch.alarms import (
    COMMUNICATION,
    COMPUTE,
    CONTENTION,
    DATA,
    DATA_LOADING,
    GARBAGE,
    HOST,
    MEMORY,
    OF_MEMORY,
    SLOW_NODE,
    SLOW_RANK,
    SLOWDOWN,
    SPIKE,
    Alarm,
)
from rankscope.watch.hang import Explain
from rankscope.watch.judge import SPIKE_NS
from rankscope.watch.state import JobWatcher, State, as_it_is
from rankscope.watch.step_table import Numbers, StepTable

BEGAN_UNIX_NS = 1_790_000_000_000_000_000
KIND_CAUSES = {
    SLOW_RANK: (COMPUTE, HOST, CONTENTION, DATA_LOADING, GARBAGE),
    SLOW_NODE: (COMPUTE, HOST, DATA_LOADING),
    SPIKE: (COMPUTE, HOST, DATA_LOADING, GARBAGE),
    SLOWDOWN: (COMPUTE, HOST, COMMUNICATION),
    DATA: (DATA_LOADING,),
    MEMORY: (OF_MEMORY,),
}
"""What can be planted."""


@dataclass(frozen=True)
class Job:
    """A simulated job."""

    ranks: int = 8
    per_node: int = 4
    steps: int = 200
    seed: int = 0
    step_ns: float = 300e6
    gpu: bool = False
    """Whether there are figures from CUDA events."""
    common_noise: float = 0.03
    """Of a step on all ranks: sequence lengths, shared storage."""
    jitter: float = 0.015
    """Of one rank in one step."""
    imbalance: float = 0.01
    """Of one rank in all steps."""
    hiccups: float = 0.002
    """How often the operating system takes a rank's time in a step."""
    checkpoint_every: int = 500
    first_step: int = 1

    def node_of(self, rank: int) -> str:
        return f"node{rank // self.per_node}"


@dataclass(frozen=True)
class Fault:
    """Something planted in a job."""

    kind: str
    cause: str
    ranks: tuple[int, ...]
    row: int
    """The index of the first step that has it."""
    size: float
    """Of the usual own work; of the memory in each step, for a leak."""


def telemetry(job: Job, fault: Fault | None = None) -> StepTable:
    """All steps of a job, with a fault."""
    random = np.random.default_rng(job.seed)
    shape = (job.steps, job.ranks)
    work = 0.8 * job.step_ns
    noise = np.zeros(job.steps)
    for row in range(1, job.steps):  # neighbouring steps resemble each other
        noise[row] = 0.3 * noise[row - 1] + random.normal(0, job.common_noise)
    own = work * np.exp(noise)[:, None] * (1 + random.normal(0, job.imbalance, job.ranks))
    own = own * (1 + random.normal(0, job.jitter, shape))
    hiccup = (random.random(shape) < job.hiccups) * random.exponential(0.2 * job.step_ns, shape)
    data = 0.02 * work * random.gamma(2.0, 0.5, shape)
    collecting = (random.random(shape) < 0.05) * 0.01 * work
    values = {
        "own_ns": own + hiccup + data + collecting,
        "data_ns": data,
        "gc_ns": collecting,
        "cpu_ns": 0.9 * own * (1 + random.normal(0, 0.02, shape)) + collecting,
        "run_delay_ns": hiccup,
        "forward_ns": 0.4 * own + hiccup + data + collecting,
        "memory_bytes": _memory(job, random),
    }
    saving = (np.arange(job.steps) + job.first_step) % job.checkpoint_every == 0
    # Some jobs save on rank 0 only, and others on all ranks.
    writers = slice(0, 1) if job.seed % 2 else slice(None)
    for field in ("own_ns", "forward_ns"):
        values[field][saving, writers] += 6 * job.step_ns
    transfer = 0.15 * job.step_ns * np.exp(random.normal(0, 0.05, job.steps))
    if fault is not None:
        transfer = _plant(values, transfer, job, fault, work)
    step = values["own_ns"].max(axis=1) + transfer
    values["step_ns"] = np.repeat(step[:, None], job.ranks, axis=1)
    values["wait_ns"] = values["step_ns"] - values["own_ns"]
    values["end_unix_ns"] = BEGAN_UNIX_NS + np.cumsum(values["step_ns"], axis=0)
    values["device_ns"] = values["own_ns"].copy() if job.gpu else np.full(shape, np.nan)
    if job.gpu:  # the host only launches kernels
        values["cpu_ns"] = values["cpu_ns"] - 0.6 * own
    numbers = np.arange(job.first_step, job.first_step + job.steps)
    return StepTable(numbers, np.arange(job.ranks), tuple(map(job.node_of, range(job.ranks))), values)


def _memory(job: Job, random: np.random.Generator) -> Numbers:
    """Caches that fill in the first steps, then small changes up and down."""
    filling = 1 - 0.2 * np.exp(-np.arange(job.steps) / 3.0)
    return 8e9 * filling[:, None] * (1 + random.normal(0, 0.002, (job.steps, job.ranks)))


def _plant(values: dict[str, Numbers], transfer: Numbers, job: Job, fault: Fault, work: float) -> Numbers:
    where = (slice(fault.row, fault.row + 1 if fault.kind == SPIKE else None), list(fault.ranks))
    more = fault.size * work
    if fault.kind == MEMORY:
        age = np.maximum(np.arange(job.steps) - fault.row + 1, 0)[:, None]
        values["memory_bytes"][:, list(fault.ranks)] += fault.size * 8e9 * age
        return transfer
    if fault.cause == COMMUNICATION:
        slow = np.arange(job.steps) >= fault.row
        return transfer + slow * more
    fields = {
        COMPUTE: ("own_ns",) if job.gpu else ("own_ns", "cpu_ns", "forward_ns"),
        HOST: ("own_ns", "forward_ns"),
        CONTENTION: ("own_ns", "run_delay_ns", "forward_ns"),
        DATA_LOADING: ("own_ns", "data_ns", "forward_ns"),
        GARBAGE: ("own_ns", "gc_ns", "cpu_ns", "forward_ns"),
    }[fault.cause]
    for field in fields:
        values[field][where] += more
    return transfer


def random_fault(job: Job, kind: str, random: np.random.Generator, row: int) -> Fault:
    """A fault of this kind that a user would want to know of."""
    cause = str(random.choice(KIND_CAUSES[kind]))
    nodes = -(-job.ranks // job.per_node)
    node = int(random.integers(nodes)) * job.per_node
    everybody = tuple(range(job.ranks))
    ranks, low, high = {
        SLOW_RANK: ((int(random.integers(job.ranks)),), 0.15, 0.5),
        SLOW_NODE: (tuple(range(node, min(node + job.per_node, job.ranks))), 0.15, 0.5),
        SPIKE: ((int(random.integers(1, job.ranks)),), 2.5, 8.0),  # rank 0 may evaluate
        SLOWDOWN: (everybody, 0.2, 0.6),
        DATA: (everybody, 0.4, 1.0),
        MEMORY: ((int(random.integers(job.ranks)),), 0.0015, 0.01),
    }[kind]
    if kind == SPIKE:
        low = max(low, 1.2 * SPIKE_NS / (0.8 * job.step_ns))
    return Fault(kind, cause, ranks, row, float(random.uniform(low, max(low, high))))


def records(table: StepTable, rank: int) -> NDArray[np.int64]:
    """One rank's records, without their numbers."""
    rows = np.full((len(table.steps), len(FIELDS) - 1), NONE, dtype=np.int64)
    rows[:, 0] = table.steps
    for field, values in table.values.items():
        column = values[:, rank]
        rows[:, FIELDS.index(field) - 1] = np.where(np.isnan(column), NONE, np.nan_to_num(column))
    return rows


def write_rings(
    run: Path,
    job: Job,
    table: StepTable,
    *,
    phases: Sequence[str] = (),
    ended_unix_ns: int | None = None,
    alive_unix_ns: int | None = None,
    capacity: int = 256,
    failures: Mapping[int, Mapping[str, Any]] | None = None,
) -> None:
    """Ring files as the job itself would have written them up to its last step, whose end can be given."""
    (run / FOLDER).mkdir(parents=True, exist_ok=True)
    end = int(table["end_unix_ns"][-1, 0])
    moved = ended_unix_ns - end if ended_unix_ns is not None else 0
    end += moved
    for rank in range(job.ranks):
        about = {
            "rank": rank,
            "local_rank": rank % job.per_node,
            "world_size": job.ranks,
            "node": rank // job.per_node,
            "host": job.node_of(rank),
            "pid": 1000 + rank,
            "role": "",
            "started_unix_ns": BEGAN_UNIX_NS,
            "hang_after_s": 600,
            "failure": (failures or {}).get(rank),
        }
        writer = RingWriter(ring_path(run, rank), about, capacity)
        phase = PHASES.index(phases[rank] if phases else "training")
        numbers = records(table, rank)
        numbers[:, FIELDS.index("end_unix_ns") - 1] += moved
        rows = numbers.tolist()
        for begin in range(0, len(rows), capacity):
            writer.write(rows[begin : begin + capacity], alive_unix_ns or end, phase, end)


def read_state(run: Path, explain: Explain = as_it_is) -> tuple[State, list[Alarm]]:
    """The state of a run, and its alarms."""
    return JobWatcher(run, explain=explain).look()
