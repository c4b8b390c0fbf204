"""The cases of the benchmark: which fault of which size is in which job follows from a seed.

Nothing but the fault tells it from a healthy job: layouts with experts, jobs that are limited by their hosts, recorded
allocations and nodes of four ranks occur with and without a fault.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from rankscope_bench.blame.planting import job_of
from rankscope_bench.synthetic.job import Job

LAYOUTS = (
    "dp4", "dp8", "tp4", "dp2tp2", "dp4tp2", "ep4", "ep8", "pp4-1f1b", "pp2dp4-1f1b", "pp4dp2-1f1b",
    "pp4dp2-interleaved", "pp2dp2tp2-1f1b", "dp16", "ep16", "dp4tp4", "pp4dp4-interleaved", "pp4dp4tp2-1f1b",
    "dp8tp8", "dp64", "pp8dp4tp2-1f1b", "dp16tp8", "dp256", "pp8dp8tp4-1f1b",
)  # fmt: skip
"""Pipelines send and receive in batches."""
_MOST_RANKS = {"small": 8, "full": 256}
EFFECTS = (1, 2, 3, 5, 7, 10, 15, 20, 30, 50, 100)
"""Percent that the fault makes a healthy step longer."""
_COUNTS = {
    "compute": (1, 14),
    "throttle": (1, 14),
    "host": (1, 12),
    "gc": (1, 10),
    "contention": (1, 10),
    "checkpoint": (1, 10),
    "copy": (1, 10),
    "dataloader": (1, 12),
    "link": (1, 12),
    "node": (1, 8),
    "node-host": (1, 4),
    "stages": (2, 12),
    "expert": (1, 6),
    "lengths": (1, 8),
    "experts": (1, 6),
    "leak": (1, 6),
    "hang": (1, 6),
    "healthy": (6, 40),
}
"""How many of a small and of a full set have which fault."""
_UNSIZED = ("healthy", "leak", "hang")
_STAGE_EFFECTS = (10, 20, 30)


@dataclass(frozen=True)
class Case:
    """A job and what is planted in it."""

    name: str
    kind: str
    layout: str
    share_pct: float
    """What the fault should cost, of the step with it; 0: it has no cost."""
    every: int
    """It is in every so many-th step; 0: as usual for its kind."""
    job: Job

    @property
    def chance(self) -> random.Random:
        """Selects the culprit."""
        return random.Random(f"{self.job.seed}/blame")


def cases(seed: int, size: str) -> list[Case]:
    """All cases of a set, in an order that does not tell the fault."""
    chance = random.Random(f"{seed}/{size}")
    jobs = [case for kind, counts in _COUNTS.items() for case in _of_kind(kind, counts, size, chance)]
    chance.shuffle(jobs)
    return [replace(case, name=f"case-{number:03d}") for number, case in enumerate(jobs, 1)]


def _of_kind(kind: str, counts: tuple[int, int], size: str, chance: random.Random) -> Iterator[Case]:
    effects = list(_STAGE_EFFECTS if kind == "stages" else EFFECTS)
    chance.shuffle(effects)
    jobs = {name: job_of(f"{name}-batched") for name in LAYOUTS}
    fitting = [name for name, job in jobs.items() if job.ranks <= _MOST_RANKS[size] and _fits(kind, job)]
    chance.shuffle(fitting)
    for number in range(counts[size == "full"]):
        # Each layout in turn, but a large one only now and then: they take most of the time.
        layout = fitting[number % len(fitting)]
        if jobs[layout].ranks > 32 and chance.random() < 0.8:
            layout = chance.choice([name for name in fitting if jobs[name].ranks <= 32])
        effect = 0.0 if kind in _UNSIZED else effects[number % len(effects)]
        share = effect if kind == "stages" else 100 * effect / (100 + effect)
        can_pause = kind in ("compute", "throttle", "host", "copy", "dataloader") and effect >= 10
        every = chance.choice((0, 0, 2, 3, 4)) if can_pause else 0
        yield Case("", kind, layout, share, every, _job(kind, jobs[layout], chance))


def _fits(kind: str, job: Job) -> bool:
    """Whether the fault can be told from others in this layout: a rank needs peers, a group siblings."""
    of_a_stage, experts, wide = job.data * job.tensor, job.expert_ns > 0, job.ranks >= 8
    if kind == "link":
        return not experts and job.data > 1 and (job.tensor > 1 or job.stages > 1)
    fits = {
        "healthy": True,
        "stages": job.stages > 1,
        "expert": experts,
        "experts": experts,
        "lengths": job.tensor == 1 and job.data > 1 and not experts,
        "hang": job.stages == 1,
        "node": wide and job.stages == 1 and not experts,
        "node-host": wide and job.stages == 1 and not experts,
    }
    return fits.get(kind, of_a_stage > 1)


def _job(kind: str, job: Job, chance: random.Random) -> Job:
    """The sizes of a job. They follow from its layout and from chance; only contention needs a job of its own."""
    job = replace(
        job,
        measured=True,
        node_clocks=True,
        offset_ns=1_000_000,
        seed=chance.randrange(1 << 30),
        steps=8 if job.ranks <= 16 else 6 if job.ranks <= 64 else 4,
        layers=job.chunks if job.stages > 1 else 3 if job.ranks <= 8 else 2,
        kernels=1 if job.stages > 1 else 3 if job.ranks <= 8 else 2,
        norm_ns=40_000 if job.stages > 1 else 0,
        records_memory=kind == "leak" or chance.random() < 0.25,
        ranks_per_node=4 if job.ranks == 8 and (kind.startswith("node") or chance.random() < 0.3) else 8,
    )
    if job.expert_ns:
        return replace(job, layers=2, kernels=1)
    host_bound = chance.random() < 0.1
    if kind != "contention" and not (host_bound and kind not in ("lengths", "stages")):
        return job
    small: dict[str, Any] = {"forward_ns": 48_000, "bucket_ns": 60_000, "sum_ns": 20_000, "send_ns": 20_000}
    return replace(job, **small, kernels=16 if job.stages == 1 else 8)
