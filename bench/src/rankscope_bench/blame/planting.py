"""Plants a fault of a wanted size in a simulated job, and says what it costs.

The job is run with and without the fault, which is scaled until the difference is the wanted share of the step. That
difference is the truth. Of uneven work, the truth is the difference to the balanced job (bench/synthetic/balance.py).
"""

from __future__ import annotations

import random
import re
from dataclasses import dataclass, field, replace
from typing import Any

from rankscope_bench.blame.case_set import MOVING
from rankscope_bench.synthetic.balance import balance, balanced_durations
from rankscope_bench.synthetic.cluster import Fault, Job, RankRun, simulate, step_ns
from rankscope_bench.synthetic.job import StepFaults

OF_THE_PROGRAM = ("overlap", "fusion", "leak", "hang")
"""Faults that make no rank late."""
EXPERTS: dict[str, Any] = {"expert_ns": 600_000, "data_wait_ns": 100_000}
_PIPELINE_WORDS: dict[str, dict[str, Any]] = {
    "1f1b": {"schedule": "1f1b", "micro_batches": 8},
    "interleaved": {"schedule": "interleaved", "chunks": 2, "micro_batches": 8},
    "batched": {"p2p": "batched"},
}
_SIMULATED_AS = {"node": "throttle", "node-host": "host", "expert": "experts"}


@dataclass(frozen=True)
class Planted:
    """A job with its fault, after simulation."""

    job: Job
    runs: list[RankRun]
    culprits: tuple[int, ...]
    """Empty: nobody is to blame."""
    cost_ns: float
    """What the fault adds to a step."""
    step_ns: float
    balance: dict[str, float] = field(default_factory=dict)
    """Of uneven work: the times of a balanced step."""

    @property
    def effect_pct(self) -> float:
        """Of the step with the fault."""
        return 100 * self.cost_ns / self.step_ns if self.step_ns else 0.0


def job_of(layout: str) -> Job:
    """A job by the name of its layout: its degrees (dp8tp4, ep8), then words about a pipeline (pp4dp2-1f1b-batched)."""
    grid, *words = layout.split("-")
    degrees = {axis: int(size) for axis, size in re.findall(r"([a-z]+)(\d+)", grid)}
    data = degrees.get("ep") or degrees.get("dp", 1)
    job = Job(data=data, stages=degrees.get("pp", 1), tensor=degrees.get("tp", 1))
    if "ep" in degrees:
        job = replace(job, **EXPERTS)
    if job.stages == 1:
        return job
    for word in words:
        job = replace(job, **_PIPELINE_WORDS[word])
    return job


def plant(
    job: Job, kind: str, effect_pct: float, chance: random.Random, *, every: int = 0, annotated: float = 0.5
) -> Planted:
    """Simulate a job with a fault that costs `effect_pct` of its step; "healthy" plants none.

    `annotated`: how likely a pause of the host is inside an annotation that names it.
    """
    if kind == "healthy":
        runs = simulate(job)
        return Planted(job, runs, (), 0.0, step_ns(runs))
    if kind == "stages":
        return _plant_stages(job, effect_pct, chance)
    healthy_ns = step_ns(simulate(job))
    if kind in OF_THE_PROGRAM:
        return _plant_in_program(job, kind, healthy_ns, chance)
    attempts = []
    for _ in range(3):  # a bubble of the pipeline can hide what one rank does, not what another does
        ranks = _culprits(job, kind, chance)
        fault = Fault(
            _SIMULATED_AS.get(kind, kind), ranks, 0, annotated=chance.random() < annotated, every=every
        )
        attempts.append(_scaled(job, kind, effect_pct / 100, fault, healthy_ns))
        if kind in MOVING or attempts[-1].effect_pct > 0.8 * effect_pct:
            break
    return max(attempts, key=lambda attempt: attempt.effect_pct)


def in_turns(job: Job) -> Job:
    """With a seed with which nobody has moving work in half of the steps: that rank would be late."""
    moving = replace(job, faults=(Fault("moving", tuple(range(job.ranks)), 1_000),))
    turns = [
        sum(StepFaults(moving, rank, step).extra_kernel > 0 for step in range(job.steps))
        for rank in range(job.ranks)
    ]
    return job if max(turns) <= max(2, (job.steps - 1) // 2) else in_turns(replace(job, seed=job.seed + 1))


def _scaled(job: Job, kind: str, share: float, fault: Fault, healthy_ns: float) -> Planted:
    """The job with this fault, as large as makes the wanted share of the step."""
    wanted = ns = share / (1 - share) * healthy_ns
    for _ in range(6):
        faulty = replace(job, faults=(replace(fault, ns=round(ns)),))
        runs = simulate(faulty)
        cost = step_ns(runs) - healthy_ns
        if abs(cost - wanted) < 0.1 * wanted:
            break
        ns = ns + 1.2 * (wanted - cost) if cost < wanted else ns * wanted / cost
    if kind not in MOVING:
        return Planted(faulty, runs, fault.ranks, cost, step_ns(runs))
    balanced = balance(faulty)
    if kind != "moving":  # what is extra on another rank from step to step is mended, not shared
        cost = balanced["t_ns"] - balanced[f"{MOVING[kind]}_ns"]
    return Planted(faulty, runs, (), cost, step_ns(runs), balanced)


def _plant_stages(job: Job, effect_pct: float, chance: random.Random) -> Planted:
    """One stage has more layers than the others."""
    layers, more = {10: (3, 1), 20: (2, 1), 30: (2, 2)}[round(effect_pct)]
    stage = chance.randrange(job.stages)
    ranks = tuple(rank for rank in range(job.ranks) if job.place(rank)[0] == stage)
    job = replace(job, layers=layers)
    fault = Fault("stages", ranks, more * 3 * job.forward_ns * job.batches)
    faulty = replace(job, faults=(fault,))
    runs = simulate(faulty)
    # Early stages begin a run before late ones: the mean over ranks would count the steps of the latter as shorter.
    cost = step_ns(runs) - step_ns(simulate(faulty, balanced_durations(faulty, "stages")))
    return Planted(faulty, runs, ranks, cost, step_ns(runs), balance(faulty))


def _culprits(job: Job, kind: str, chance: random.Random) -> tuple[int, ...]:
    if kind in MOVING:
        return tuple(range(job.ranks))
    at_the_start = kind not in ("compute", "throttle", "link", "contention")
    rank = chance.randrange(job.data * job.tensor if at_the_start else job.ranks)  # there, of the first stage
    if not kind.startswith("node"):
        return (rank,)
    node = rank // job.ranks_per_node
    return tuple(range(node * job.ranks_per_node, (node + 1) * job.ranks_per_node))


def _plant_in_program(job: Job, kind: str, healthy_ns: float, chance: random.Random) -> Planted:
    rank = chance.randrange(job.ranks)
    if kind == "hang":
        return Planted(job, [], (rank,), 0.0, healthy_ns)
    faults = {
        "overlap": Fault("overlap", (), 0),
        "fusion": Fault("fusion", (), round(1.5 * healthy_ns)),
        "leak": Fault("leak", (rank,), 64 << 20),
    }
    faulty = replace(job, faults=(faults[kind],))
    if kind == "overlap":
        faulty = replace(faulty, bucket_ns=900_000)
        healthy_ns = step_ns(simulate(faulty.healthy()))
    runs = simulate(faulty)
    culprits = (rank,) if kind == "leak" else ()
    return Planted(faulty, runs, culprits, step_ns(runs) - healthy_ns, step_ns(runs))
