"""The cases of the exam: simulated jobs with a fault each, of a known cost, and healthy jobs.

A case is described by its name alone ("throttle-10%-dp4tp2-1"): layout, seed, culprit and noise follow from it. The
size of a fault is found by simulation: the job is run with and without it, and the fault is scaled until the difference
is the wanted share of the step. That difference is the truth. Of uneven work, the truth is the difference to the
balanced job (bench/synthetic/balance.py).

A third of the cases are held out: their names decide, and their seeds were not looked at while rules were tuned.
"""

from __future__ import annotations

import random
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from rankscope.bench.synthetic.balance import balance
from rankscope.bench.synthetic.cluster import Fault, Job, RankRun, simulate, step_ns

CAUSES = {
    "compute": "compute",
    "throttle": "compute",
    "host": "host",
    "gc": "host",
    "contention": "host",
    "checkpoint": "host",
    "copy": "copy",
    "dataloader": "dataloader",
    "link": "link",
    "node": "compute",
    "node-host": "host",
    "expert": "compute",
    "stages": "stages",
}
"""Cause class of each fault that has a culprit."""
REPORTS = {
    "overlap": ("overlap", "collectives"),
    "fusion": ("short_kernels", "idle", "critical"),
    "leak": ("memory",),
    "hang": ("flight_recorder",),
}
"""Faults that are no straggler: the reports whose finding must come first."""
MOVING = {"moving": "ranks", "lengths": "ranks", "experts": "ranks"}
"""Imbalance without a culprit, and what has to be balanced."""
EFFECTS = (1, 2, 3, 5, 7, 10, 15, 20, 30)
"""Percent of the step."""

LAYOUTS: dict[str, dict[str, Any]] = {
    "dp4": {"data": 4},
    "dp8": {"data": 8},
    "tp4": {"data": 1, "tensor": 4},
    "dp2tp2": {"data": 2, "tensor": 2},
    "dp4tp2": {"data": 4, "tensor": 2},
    "pp4": {"data": 1, "stages": 4},
    "pp2dp2": {"data": 2, "stages": 2},
    "pp2dp4": {"data": 4, "stages": 2},
    "pp2dp2tp2": {"data": 2, "stages": 2, "tensor": 2},
    "dp16": {"data": 16},
    "pp2dp4tp2": {"data": 4, "stages": 2, "tensor": 2},
    "pp2dp8tp2": {"data": 8, "stages": 2, "tensor": 2},
    "dp8tp4": {"data": 8, "tensor": 4},
    "dp64": {"data": 64},
    "dp8tp8": {"data": 8, "tensor": 8},
}
_SMALL = tuple(LAYOUTS)[:9]
_1F1B = {"schedule": "1f1b", "micro_batches": 8}
_INTERLEAVED = {"schedule": "interleaved", "chunks": 2, "micro_batches": 8}
_BATCHED = {"p2p": "batched"}
PIPELINES: dict[str, dict[str, Any]] = {
    "pp4-1f1b": {"data": 1, "stages": 4, **_1F1B},
    "pp4-1f1b-batched": {"data": 1, "stages": 4, **_1F1B, **_BATCHED},
    "pp4dp2-1f1b": {"data": 2, "stages": 4, **_1F1B},
    "pp4dp2-1f1b-batched": {"data": 2, "stages": 4, **_1F1B, **_BATCHED},
    "pp4dp2-interleaved": {"data": 2, "stages": 4, **_INTERLEAVED},
    "pp4dp2-interleaved-batched": {"data": 2, "stages": 4, **_INTERLEAVED, **_BATCHED},
    "pp2dp2tp2-1f1b-batched": {"data": 2, "stages": 2, "tensor": 2, **_1F1B, **_BATCHED},
    "pp8-1f1b-batched": {"data": 1, "stages": 8, **_1F1B, **_BATCHED},
    "pp8dp2-1f1b-batched": {"data": 2, "stages": 8, **_1F1B, **_BATCHED},
    "pp4dp4-1f1b-batched": {"data": 4, "stages": 4, **_1F1B, **_BATCHED},
    "pp4dp4-interleaved-batched": {"data": 4, "stages": 4, **_INTERLEAVED, **_BATCHED},
    "pp4dp4tp2-1f1b-batched": {"data": 4, "stages": 4, "tensor": 2, **_1F1B, **_BATCHED},
    "pp8dp4tp2-1f1b-batched": {"data": 4, "stages": 8, "tensor": 2, **_1F1B, **_BATCHED},
}
LAYOUTS |= PIPELINES
_WITH_PEERS = tuple(name for name, sizes in PIPELINES.items() if sizes["data"] > 1)[:7]
_WITH_SIBLINGS = ("dp2tp2", "dp4tp2", "pp2dp2tp2", "pp2dp4")
"""Layouts in which a group has a sibling to compare its transfers with."""

_FOUR_KINDS_OF_NOISE: tuple[dict[str, Any], ...] = (
    {"noise_pct": 1.0},
    {"noise_pct": 2.0},
    {"noise_pct": 2.0, "spread_pct": 0.2},
    {"noise_pct": 3.0, "spread_pct": 0.2, "hiccup_chance": 0.03},
)


@dataclass(frozen=True)
class Case:
    """What to simulate, and what the answer is."""

    name: str
    kind: str
    """A key of CAUSES, REPORTS or MOVING, or "healthy"."""
    effect_pct: float
    """Wanted; 0 where the fault costs no time."""
    layout: str
    seed: int
    every: int = 0
    """The fault is in every so many-th step."""

    @property
    def held_out(self) -> bool:
        return zlib.crc32(self.name.encode()) % 3 == 0


@dataclass(frozen=True)
class Planted:
    """A case after simulation."""

    job: Job
    runs: list[RankRun]
    culprits: tuple[int, ...]
    """Empty: nobody is to blame."""
    cost_ns: float
    """What the fault adds to a step."""
    step_ns: float
    balance: dict[str, float] = field(default_factory=dict)
    """Of uneven work, and of healthy pipelines: the times of a balanced step."""

    @property
    def effect_pct(self) -> float:
        return 100 * self.cost_ns / self.step_ns if self.step_ns else 0.0


def all_cases(seed: int = 0) -> list[Case]:
    """With another seed: the same faults with other noise, culprits and sizes."""
    cases = [*_stragglers(), *_large(), *_others(), *_healthy(), *_pipelines(), *_uneven(), *_periodic()]
    if not seed:
        return cases
    return [replace(case, seed=random.Random(f"{case.name} {seed}").randrange(1 << 30)) for case in cases]


def _case(kind: str, effect: float, layout: str, number: int = 0, every: int = 0) -> Case:
    size, period = f"{effect:g}%-" if effect else "", f"every{every}-" if every else ""
    case = Case(f"{kind}-{period}{size}{layout}-{number}", kind, effect, layout, 0, every)
    source = f"{case.name} held out" if case.held_out else case.name
    return replace(case, seed=random.Random(source).randrange(1 << 30))


def _stragglers() -> Iterator[Case]:
    """Every fault at every effect in two layouts, in turn."""
    turn = 0
    for kind in CAUSES:
        if kind.startswith("node") or kind in ("expert", "stages"):
            continue
        layouts = _WITH_SIBLINGS if kind == "link" else _SMALL
        for effect in EFFECTS:
            for number in range(2):
                yield _case(kind, effect, layouts[turn % len(layouts)], number)
                turn += 1
        turn += 1  # so that a kind does not meet an effect in the same layout as the kind before
    for effect in (5, 10, 20):
        yield _case("node", effect, "dp8")
        yield _case("node-host", effect, "dp4tp2")


def _large() -> Iterator[Case]:
    yield _case("throttle", 5, "dp16")
    yield _case("host", 10, "dp16")
    yield _case("node", 7, "dp16")
    yield _case("compute", 5, "pp2dp4tp2")
    yield _case("dataloader", 10, "pp2dp8tp2")
    yield _case("compute", 10, "dp8tp4")
    yield _case("link", 10, "dp8tp4")
    yield _case("host", 7, "dp64")
    yield _case("throttle", 10, "dp8tp8")


def _others() -> Iterator[Case]:
    for effect in (5, 10, 20):
        for layout in ("dp4", "dp8", "dp2tp2", "pp2dp4"):
            yield _case("moving", effect, layout)
    for layout in ("dp4", "dp8"):
        for number in range(2):
            yield _case("overlap", 0, layout, number)
            yield _case("fusion", 0, layout, number)
            yield _case("leak", 0, layout, number)
    for layout in ("dp4", "dp8", "dp2tp2", "dp4tp2", "pp2dp2tp2", "dp16"):
        yield _case("hang", 0, layout)


def _healthy() -> Iterator[Case]:
    for number in range(7):
        for layout in _SMALL:
            yield _case("healthy", 0, layout, number)
    for layout in ("dp16", "pp2dp8tp2", "dp8tp8"):
        yield _case("healthy", 0, layout)
    for layout in PIPELINES:
        yield _case("healthy", 0, layout)
    yield _case("healthy", 0, "pp4dp2-1f1b-batched", 1)


def _pipelines() -> Iterator[Case]:
    """Every fault in several pipelines, in turn."""
    kinds = ("compute", "throttle", "host", "gc", "contention", "copy", "dataloader", "link")
    for turn in range(48):
        kind, layout = kinds[turn % len(kinds)], _WITH_PEERS[turn % len(_WITH_PEERS)]
        yield _case(kind, (5, 10, 20)[turn // len(kinds) % 3], layout, turn // len(_WITH_PEERS))
    yield _case("checkpoint", 10, "pp4dp2-1f1b")
    yield _case("checkpoint", 20, "pp4dp2-interleaved-batched")
    yield _case("node", 10, "pp4dp4-1f1b-batched")
    yield _case("throttle", 10, "pp4dp4-interleaved-batched")
    yield _case("throttle", 10, "pp8dp2-1f1b-batched")
    yield _case("compute", 10, "pp4dp4tp2-1f1b-batched")
    yield _case("host", 10, "pp8dp4tp2-1f1b-batched")


def _uneven() -> Iterator[Case]:
    layouts = (*(name for name in PIPELINES if "dp4tp2" not in name), "pp2dp4", "pp2dp2", "pp2dp2tp2", "pp4")
    for number, layout in enumerate((*layouts, *layouts[:2])):
        yield _case("stages", (10, 20, 30)[number % 3], layout, number // len(layouts))
    for effect in (10, 20):
        for layout in ("dp4", "dp8", "pp2dp4", "pp4dp2-1f1b-batched", "pp4dp4-1f1b-batched"):
            yield _case("lengths", effect, layout)
    for layout in ("dp16", "pp4dp2-interleaved-batched", "pp4dp2-1f1b", "pp8dp2-1f1b-batched"):
        yield _case("lengths", 15, layout)
    for effect in (10, 20):
        for layout in ("dp4", "dp8", "pp2dp4"):
            yield _case("experts", effect, layout)
        for layout in ("dp4", "dp8"):
            yield _case("expert", effect, layout)


def _periodic() -> Iterator[Case]:
    layouts = ("dp4", "dp8", "dp2tp2", "pp4dp2-1f1b-batched")
    for turn, kind in enumerate(("compute", "throttle", "host", "copy", "dataloader") * 3):
        yield _case(kind, (10, 15, 20)[turn % 3], layouts[turn % 4], every=2 + turn % 3)
    yield _case("compute", 20, "pp4dp4-1f1b-batched", every=4)
    yield _case("host", 20, "dp16", every=3)


def plant(case: Case) -> Planted:
    """Simulate a case, with its fault scaled to the wanted effect."""
    job = _job(case)
    chance = random.Random(case.seed)
    if case.kind == "healthy":
        runs = simulate(job)
        balanced = balance(job) if case.layout in PIPELINES and job.ranks <= 16 else {}
        return Planted(job, runs, (), 0.0, step_ns(runs), balanced)
    if case.kind == "stages":
        return _plant_stages(case, job, chance)
    healthy_ns = step_ns(simulate(job))
    if case.kind in REPORTS:
        return _plant_report(case, job, healthy_ns, chance)
    kind = {"node": "throttle", "node-host": "host", "expert": "experts"}.get(case.kind, case.kind)
    planted = []
    for _ in range(3):  # a bubble of the pipeline can hide what one rank does, not what another does
        ranks = _culprits(case, job, chance)
        fault = Fault(kind, ranks, 0, annotated=chance.random() < 0.5, every=case.every)
        planted.append(_scaled(case, job, fault, healthy_ns))
        if planted[-1].effect_pct > 0.8 * case.effect_pct:
            break
    return max(planted, key=lambda one: one.effect_pct)


def _scaled(case: Case, job: Job, fault: Fault, healthy_ns: float) -> Planted:
    """The job with this fault, as large as makes the wanted share of the step."""
    share = case.effect_pct / 100
    wanted = ns = share / (1 - share) * healthy_ns
    for _ in range(6):
        faulty = replace(job, faults=(replace(fault, ns=round(ns)),))
        runs = simulate(faulty)
        cost = step_ns(runs) - healthy_ns
        if abs(cost - wanted) < 0.1 * wanted:
            break
        ns = ns + 1.2 * (wanted - cost) if cost < wanted else ns * wanted / cost
    if case.kind not in MOVING:
        return Planted(faulty, runs, fault.ranks, cost, step_ns(runs))
    balanced = balance(faulty)
    cost = balanced["t_ns"] - balanced[f"{MOVING[case.kind]}_ns"]
    return Planted(faulty, runs, (), cost, step_ns(runs), balanced)


def _plant_stages(case: Case, job: Job, chance: random.Random) -> Planted:
    """One stage has more layers than the others."""
    layers, more = {10: (3, 1), 20: (2, 1), 30: (2, 2)}[round(case.effect_pct)]
    stage = chance.randrange(job.stages)
    ranks = tuple(rank for rank in range(job.ranks) if job.place(rank)[0] == stage)
    job = replace(job, layers=layers)
    fault = Fault("stages", ranks, more * 3 * job.forward_ns * job.batches)
    faulty = replace(job, faults=(fault,))
    balanced = balance(faulty)
    cost = balanced["t_ns"] - balanced["stages_ns"]
    return Planted(faulty, simulate(faulty), ranks, cost, balanced["t_ns"], balanced)


def _job(case: Case) -> Job:
    sizes = LAYOUTS[case.layout]
    noise = _FOUR_KINDS_OF_NOISE[case.seed % 4]
    job = Job(**sizes, **noise, steps=6, seed=case.seed, offset_ns=1_000_000)
    if job.ranks > 8:
        job = replace(job, steps=4, layers=2)
    if case.layout in PIPELINES:
        job = replace(job, steps=4 if job.ranks <= 16 else 3, layers=job.chunks, kernels=1, norm_ns=40_000)
    if case.kind in ("lengths", "experts", "expert"):
        job = replace(job, steps=6, layers=2 if job.stages == 1 else job.chunks, kernels=1)
    if case.kind in ("experts", "expert"):
        job = replace(job, expert_ns=600_000, data_wait_ns=100_000)
    if case.every or (case.kind in ("checkpoint", "gc") and case.layout in PIPELINES):
        job = replace(job, steps=8, layers=job.chunks if job.stages > 1 else 2)
    if case.kind in ("checkpoint", "moving", "gc") and case.layout not in PIPELINES:
        job = replace(job, steps=8, layers=2, forward_ns=1_200_000)
    if case.kind == "contention":  # it costs time where the host is the limit
        job = replace(
            job, kernels=16, forward_ns=48_000, layers=2, bucket_ns=60_000, sum_ns=20_000, send_ns=20_000
        )
        if case.layout in PIPELINES:
            job = replace(job, kernels=8, micro_batches=4, steps=3)
    if case.kind == "fusion":
        job = replace(job, forward_ns=100_000, bucket_ns=100_000)
    if case.kind.startswith("node"):
        job = replace(job, ranks_per_node=max(job.ranks // 4, 2))
    return job


def _culprits(case: Case, job: Job, chance: random.Random) -> tuple[int, ...]:
    if case.kind in MOVING:
        return tuple(range(job.ranks))
    at_the_start = case.kind not in ("compute", "throttle", "link", "contention")
    rank = chance.randrange(job.data * job.tensor if at_the_start else job.ranks)  # there, of the first stage
    if not case.kind.startswith("node"):
        return (rank,)
    node = rank // job.ranks_per_node
    return tuple(range(node * job.ranks_per_node, (node + 1) * job.ranks_per_node))


def _plant_report(case: Case, job: Job, healthy_ns: float, chance: random.Random) -> Planted:
    rank = chance.randrange(job.ranks)
    if case.kind == "hang":
        return Planted(job, [], (rank,), 0.0, healthy_ns)
    faults = {
        "overlap": Fault("overlap", (), 0),
        "fusion": Fault("fusion", (), round(1.5 * healthy_ns)),
        "leak": Fault("leak", (rank,), 64 << 20),
    }
    faulty = replace(job, faults=(faults[case.kind],))
    if case.kind == "overlap":
        faulty = replace(faulty, bucket_ns=900_000)
        healthy_ns = step_ns(simulate(faulty.healthy()))
    runs = simulate(faulty)
    return Planted(faulty, runs, (), step_ns(runs) - healthy_ns, step_ns(runs))
