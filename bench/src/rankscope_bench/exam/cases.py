"""The cases of the exam: simulated jobs with a fault each, of a known cost, and healthy jobs.

A case is described by its name alone ("throttle-10%-dp4tp2-1"): layout, seed, culprit and noise follow from it. The
package bench/blame plants its fault.

A third of the cases are held out: their names decide, and their seeds were not looked at while rules were tuned.
"""

from __future__ import annotations

import random
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rankscope_bench.blame import planting
from rankscope_bench.blame.case_set import CAUSES
from rankscope_bench.blame.hang_dumps import write_dumps
from rankscope_bench.blame.planting import Planted
from rankscope_bench.synthetic.balance import balance
from rankscope_bench.synthetic.cluster import Job
from rankscope_bench.synthetic.cluster_trace import write_traces

REPORTS = {
    "overlap": ("overlap", "collectives"),
    "fusion": ("idle.short_kernels", "idle", "critical"),
    "leak": ("memory",),
    "hang": ("hang.flight_recorder",),
}
"""Faults that are no straggler: the reports whose finding must come first."""
EFFECTS = (1, 2, 3, 5, 7, 10, 15, 20, 30)
"""Percent of the step."""

_SMALL = ("dp4", "dp8", "tp4", "dp2tp2", "dp4tp2", "pp4", "pp2dp2", "pp2dp4", "pp2dp2tp2")
PIPELINES = (
    "pp4-1f1b",
    "pp4-1f1b-batched",
    "pp4dp2-1f1b",
    "pp4dp2-1f1b-batched",
    "pp4dp2-interleaved",
    "pp4dp2-interleaved-batched",
    "pp2dp2tp2-1f1b-batched",
    "pp8-1f1b-batched",
    "pp8dp2-1f1b-batched",
    "pp4dp4-1f1b-batched",
    "pp4dp4-interleaved-batched",
    "pp4dp4tp2-1f1b-batched",
    "pp8dp4tp2-1f1b-batched",
)
LAYOUTS = (*_SMALL, "dp16", "pp2dp4tp2", "pp2dp8tp2", "dp8tp4", "dp64", "dp8tp8", *PIPELINES)
_WITH_PEERS = tuple(name for name in PIPELINES if planting.job_of(name).data > 1)[:7]
_WITH_SIBLINGS = ("dp2tp2", "dp4tp2", "pp2dp2tp2", "pp2dp4")
"""Layouts in which a group has a sibling to compare its transfers with."""

_FOUR_KINDS_OF_NOISE: tuple[dict[str, Any], ...] = (
    {"noise_pct": 1.0},
    {"noise_pct": 2.0},
    {"noise_pct": 2.0, "spread_pct": 0.2},
    {"noise_pct": 3.0, "spread_pct": 0.2, "hiccup_chance": 0.03},
)


_LARGE = """
throttle 5 dp16
host 10 dp16
node 7 dp16
compute 5 pp2dp4tp2
dataloader 10 pp2dp8tp2
compute 10 dp8tp4
link 10 dp8tp4
host 7 dp64
throttle 10 dp8tp8
"""
_OF_PIPELINES = """
checkpoint 10 pp4dp2-1f1b
checkpoint 20 pp4dp2-interleaved-batched
node 10 pp4dp4-1f1b-batched
throttle 10 pp4dp4-interleaved-batched
throttle 10 pp8dp2-1f1b-batched
compute 10 pp4dp4tp2-1f1b-batched
host 10 pp8dp4tp2-1f1b-batched
"""
"""Fault, percent of the step, layout."""


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


def all_cases(seed: int = 0) -> list[Case]:
    """With another seed: the same faults with other noise, culprits and sizes."""
    cases = [
        *_stragglers(),
        *_listed(_LARGE),
        *_others(),
        *_healthy(),
        *_pipelines(),
        *_uneven(),
        *_periodic(),
    ]
    if not seed:
        return cases
    return [replace(case, seed=random.Random(f"{case.name} {seed}").randrange(1 << 30)) for case in cases]


def _case(kind: str, effect: float, layout: str, number: int = 0, every: int = 0) -> Case:
    size, period = f"{effect:g}%-" if effect else "", f"every{every}-" if every else ""
    case = Case(f"{kind}-{period}{size}{layout}-{number}", kind, effect, layout, 0, every)
    source = f"{case.name} held out" if case.held_out else case.name
    return replace(case, seed=random.Random(source).randrange(1 << 30))


def _listed(table: str) -> Iterator[Case]:
    for kind, effect, layout in map(str.split, table.strip().splitlines()):
        yield _case(kind, int(effect), layout)


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
    yield from _listed(_OF_PIPELINES)


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
    planted = planting.plant(job, case.kind, case.effect_pct, random.Random(case.seed), every=case.every)
    if case.kind == "healthy" and case.layout in PIPELINES and job.ranks <= 16:
        return replace(planted, balance=balance(job))
    return planted


def write(case: Case, planted: Planted, folder: Path) -> None:
    """Its traces; of a job that hangs, the dumps of its flight recorders."""
    if case.kind == "hang":
        write_dumps(planted.job, planted.culprits[0], folder, leaves_dump=case.seed % 2 == 0)
    else:
        write_traces(planted.job, planted.runs, folder)


def _job(case: Case) -> Job:
    noise = _FOUR_KINDS_OF_NOISE[case.seed % 4]
    job = replace(planting.job_of(case.layout), **noise, steps=6, seed=case.seed, offset_ns=1_000_000)
    if job.ranks > 8:
        job = replace(job, steps=4, layers=2)
    if case.layout in PIPELINES:
        job = replace(job, steps=4 if job.ranks <= 16 else 3, layers=job.chunks, kernels=1, norm_ns=40_000)
    if case.kind in ("lengths", "experts", "expert"):
        job = replace(job, steps=6, layers=2 if job.stages == 1 else job.chunks, kernels=1)
    if case.kind in ("experts", "expert"):
        job = replace(job, **planting.EXPERTS)
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
        job = replace(job, ranks_per_node=max(job.ranks // 4, 2), node_clocks=True)
    return planting.in_turns(job) if case.kind == "moving" else job
