"""Random jobs with several culprits each, and what is said about them.

    python -m rankscope_bench.exam.random_jobs --jobs 300 --seed 1 --traces FOLDER [--workers 2]

The jobs are simulated: up to three culprits of any class, in every, every second or third step; nodes, links and stages
that are slow; imbalance that moves; healthy jobs. The truth of each fault is the difference between two simulations of
the same job. Traces stay in FOLDER, so that another run only asks.
"""

from __future__ import annotations

import json
import math
import multiprocessing
import random
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from rankscope_bench.arguments import parsed
from rankscope_bench.blame.case_set import CAUSES
from rankscope_bench.blame.planting import in_turns, job_of
from rankscope_bench.exam.fault_facts import Answer, Named, Subject, answer_of, findings_in
from rankscope_bench.synthetic.balance import balance
from rankscope_bench.synthetic.cluster import Fault, Job, simulate, step_ns
from rankscope_bench.synthetic.cluster_trace import write_traces

LEAST = 0.02
"""Of the step: culprits of a smaller margin are neither right nor wrong where they are named."""
JOINT_TOLERANCE, MARGIN_TOLERANCE, MARGIN_TOLERANCE_NS = 0.10, 0.10, 100_000
_KINDS = {
    "culprits": 60,
    "healthy": 14,
    "moving": 5,
    "turns": 4,
    "lengths": 3,
    "experts": 2,
    "stage": 5,
    "node": 5,
    "everyone": 2,
}
"""How many of a hundred jobs are of which kind."""
MOVING = ("moving", "turns", "lengths", "experts")
_PIPELINES = (
    "pp2dp2-1f1b-batched",
    "pp2dp4-1f1b-batched",
    "pp4dp2-1f1b-batched",
    "pp4dp2-interleaved-batched",
    "pp2dp4",
    "pp2dp2tp2-1f1b-batched",
)
_FLAT = ("dp4", "dp8", "dp4", "dp8", "tp4", "tp8", "dp2tp2", "dp4tp2", "fsdp4", "fsdp8", "ep4", "ep8", "dp16")
_LAYOUTS = {
    "culprits": (*_FLAT, *_PIPELINES),
    "healthy": (*_FLAT, *_PIPELINES, "pp4-1f1b-batched"),
    "moving": ("dp4", "dp8", "tp4", "dp4tp2", "fsdp4", "pp2dp4-1f1b-batched"),
    "turns": ("dp4", "tp4", "fsdp4", "dp2tp2"),
    "lengths": ("dp4", "dp8", "pp2dp4"),
    "experts": ("ep4", "ep8"),
    "stage": ("pp4-1f1b-batched", "pp4dp2-1f1b-batched", "pp2dp4-1f1b-batched", "pp2dp2tp2-1f1b-batched"),
    "node": ("dp8", "dp4tp2", "fsdp8", "dp16"),
    "everyone": ("dp4", "tp4", "fsdp4"),
}
_RANK_FAULTS = ("compute", "compute", "throttle", "host", "host", "gc", "dataloader", "copy")
_WITH_SIBLINGS = ("dp2tp2", "dp4tp2", "pp2dp4", "pp2dp4-1f1b-batched", "pp2dp2tp2-1f1b-batched")
"""Layouts in which a group has others to be compared with."""


@dataclass(frozen=True)
class Culprit:
    """A planted fault."""

    axis: str
    ranks: tuple[int, ...]
    """Who is late; of a link the rank at its end; the ranks of the stage."""
    cause: str
    every: int = 1
    margin_ns: float = 0.0
    """What it costs when all else on its axis is mended."""
    alone_ns: float = 0.0
    """What mending it alone brings."""
    stage: int = -1


@dataclass(frozen=True)
class Truth:
    """What is right to say about a job."""

    name: str
    kind: str
    layout: str
    steps: int
    step_ns: float
    joint_ns: float = 0.0
    culprits: tuple[Culprit, ...] = ()
    job: dict[str, Any] = field(default_factory=dict)

    def counts(self, culprit: Culprit) -> bool:
        return culprit.margin_ns >= LEAST * self.step_ns


# What is planted


def planted(number: int, seed: int) -> tuple[str, str, Job]:
    """Kind, layout and job of a number."""
    chance = random.Random(f"{seed}/{number}")
    kind = chance.choices([*_KINDS], [*_KINDS.values()])[0]
    layout = chance.choice(_LAYOUTS[kind])
    job = _sized(kind, layout, chance)
    healthy_ns = step_ns(simulate(job))
    return kind, layout, replace(job, faults=tuple(_faults(kind, layout, job, healthy_ns, chance)))


def _sized(kind: str, layout: str, chance: random.Random) -> Job:
    job = job_of(layout.replace("fsdp", "dp"))
    layers = chance.randint(2, 3) if job.stages == 1 else job.chunks if kind != "stage" else 2
    job = replace(
        job,
        steps=chance.randint(5, 8) if job.stages == 1 else chance.choice((4, 6)),
        layers=layers,
        kernels=chance.randint(2, 4) if job.stages == 1 else 1,
        forward_ns=chance.randrange(400_000, 1_000_000),
        bucket_ns=chance.randrange(200_000, 500_000),
        norm_ns=chance.choice((0, 40_000)) if job.stages == 1 else 40_000,
        noise_pct=chance.uniform(0.5, 3),
        offset_ns=1_000_000,
        seed=chance.randrange(1 << 30),
        ranks_per_node={"node": max(job.ranks // 4, 2)}.get(kind, 8),
    )
    if job.stages > 1:
        job = replace(job, micro_batches=4)
    if layout.startswith("fsdp"):
        job = replace(
            job, model="gpt", sharded=True, layers=2, micro_batches=1, bus_gb_s=300.0, latency_ns=12_000
        )
        job = replace(job, steps=min(job.steps, 6))
    if job.expert_ns or kind == "lengths":
        job = replace(job, layers=2 if job.stages == 1 else job.chunks, kernels=1)
    if kind == "turns":
        job = replace(job, steps=8)
    is_plain = job.stages == 1 and not (job.sharded or job.expert_ns)
    if kind == "culprits" and is_plain and chance.random() < 0.15:
        small: dict[str, Any] = {"forward_ns": 48_000, "bucket_ns": 60_000, "sum_ns": 20_000}
        return replace(job, **small, kernels=12)  # the host is the limit
    return in_turns(job) if kind == "moving" else job


def _faults(kind: str, layout: str, job: Job, healthy_ns: float, chance: random.Random) -> Iterator[Fault]:
    everybody = tuple(range(job.ranks))

    def size(low: float = 0.05, high: float = 0.5) -> float:
        share = math.exp(chance.uniform(math.log(low), math.log(high)))
        return share / (1 - share) * healthy_ns

    def of_rank(rank: int, name: str, every: int = 0) -> Fault:
        annotated = name == "host" and job.model == "plain" and chance.random() < 0.3
        fault = Fault(name, (rank,), round(size()), annotated=annotated, every=every)
        cost = _step_ns(job, [fault]) - healthy_ns
        grows = 0 < cost < 0.6 * fault.ns  # part of it is hidden
        return replace(fault, ns=round(fault.ns * min(fault.ns / cost, 4))) if grows else fault

    if kind == "culprits":
        yield from _culprits(layout, job, of_rank, chance)
    elif kind == "everyone":
        names = ["compute", "compute", "host", "dataloader"]
        chance.shuffle(names)
        yield from (of_rank(rank, name) for rank, name in enumerate(names))
    elif kind == "turns":
        name, ns = chance.choice(("compute", "host", "dataloader", "copy")), 8 * size(0.08, 0.3)
        # Of 8 steps, one of every fifth, sixth, seventh and eighth is one step each.
        for rank, every in zip(chance.sample(everybody, 4), (5, 6, 7, 8), strict=True):
            yield Fault(name, (rank,), round(ns / every), every=every)
    elif kind in ("moving", "lengths", "experts"):
        yield Fault(kind, everybody, round(size(0.08, 0.3)))
    elif kind == "node":
        first = chance.randrange(job.ranks // job.ranks_per_node) * job.ranks_per_node
        node = tuple(range(first, first + job.ranks_per_node))
        yield Fault("throttle", node, round(size(0.05, 0.3)))
        if chance.random() < 0.4:
            other = chance.choice([rank for rank in everybody if rank not in node])
            yield of_rank(other, chance.choice(("host", "dataloader", "compute")))
    elif kind == "stage":
        if job.data * job.tensor > 2 and chance.random() < 0.3:
            yield of_rank(chance.randrange(job.ranks), chance.choice(("compute", "throttle")))
        stage = chance.randrange(job.stages)
        ranks = tuple(rank for rank in everybody if job.place(rank)[0] == stage)
        # The last: without it, the numbers of the others stay.
        yield Fault("stages", ranks, 3 * job.forward_ns * job.batches)


def _culprits(
    layout: str, job: Job, of_rank: Callable[[int, str, int], Fault], chance: random.Random
) -> Iterator[Fault]:
    """One to three, on different ranks; of each class less than half of the ranks that do the same work."""
    host_bound = job.kernels == 12
    names = [*_RANK_FAULTS, *["link"] * 3 * (layout in _WITH_SIBLINGS), *["contention"] * 3 * host_bound]
    used: dict[tuple[str, int], int] = {}
    most, taken = (job.data * job.tensor) // 2, set[int]()
    for _ in range(chance.choice((1, 1, 2, 2, 3))):
        name, every = chance.choice(names), chance.choice((0, 0, 2, 3))
        at_the_start = name not in ("compute", "throttle", "link", "contention")
        free = [
            rank for rank in range(job.data * job.tensor if at_the_start else job.ranks) if rank not in taken
        ]
        if not free or (name == "gc" and job.steps < 6):
            continue
        rank = chance.choice(free)
        key = CAUSES[name], job.place(rank)[0]
        limit = 1 if name == "link" else most
        if used.get(key, 0) < limit and not (name == "link" and any(cause == "link" for cause, _ in used)):
            used[key] = used.get(key, 0) + 1
            taken.add(rank)
            yield of_rank(rank, name, every if job.steps >= 6 and name != "gc" else 0)


# The truth


def _step_ns(job: Job, faults: Sequence[Fault]) -> float:
    return step_ns(simulate(replace(job, faults=tuple(faults))))


def _without(faults: Sequence[Fault], mended: Sequence[int]) -> list[Fault]:
    """A fault without size leaves all random numbers as they are; more layers have no size to take away."""
    return [
        replace(fault, ns=0) if number in mended else fault
        for number, fault in enumerate(faults)
        if number not in mended or fault.kind != "stages"
    ]


def truth_of(name: str, kind: str, layout: str, job: Job) -> Truth:
    faults, total_ns = job.faults, _step_ns(job, job.faults)
    empty = Truth(name, kind, layout, job.steps, total_ns, job=asdict(job))
    if kind in ("lengths", "experts"):
        balanced = balance(job)
        return replace(empty, joint_ns=balanced["t_ns"] - balanced["ranks_ns"])
    axes = [{"link": "link", "stages": "stage"}.get(fault.kind, "rank") for fault in faults]
    joint_ns = total_ns - _step_ns(job, _without(faults, range(len(faults)))) if faults else 0.0
    culprits = []
    for number, fault in enumerate(faults):
        alike = [other for other, axis in enumerate(axes) if axis == axes[number]]
        base_ns = _step_ns(job, _without(faults, alike))
        stage, every = -1, fault.every or (2 if fault.kind == "gc" else 1)
        if fault.kind == "stages":  # layers are moved, which saves less than their removal
            stage, of_stage = job.place(fault.ranks[0])[0], [fault]
            moved = balance(replace(job, faults=(fault,)))
            margin_ns = alone_ns = moved["ranks_ns"] - moved["stages_ns"]
            joint_ns -= _step_ns(job, of_stage) - _step_ns(job, []) - margin_ns
        else:
            others = [other for other in alike if other != number]
            margin_ns = _step_ns(job, _without(faults, others)) - base_ns
            alone_ns = total_ns - _step_ns(job, _without(faults, [number]))
        cause = CAUSES.get(fault.kind, "compute")
        culprits.append(Culprit(axes[number], fault.ranks, cause, every, margin_ns, alone_ns, stage))
    return replace(empty, joint_ns=joint_ns, culprits=() if kind in MOVING else tuple(culprits))


def made(number: int, seed: int, folder: Path) -> tuple[Truth, Path]:
    """The truth and the traces of a job; made where they are not there."""
    name = f"job-{seed}-{number:04d}"
    stored, traces = folder / f"{name}.json", folder / name
    if not stored.exists():
        kind, layout, job = planted(number, seed)
        truth = truth_of(name, kind, layout, job)
        write_traces(job, simulate(job), traces)
        stored.write_text(json.dumps(asdict(truth)))
    values = json.loads(stored.read_text())
    culprits = tuple(
        Culprit(**culprit | {"ranks": tuple(culprit["ranks"])}) for culprit in values["culprits"]
    )
    return Truth(**values | {"culprits": culprits}), traces


# The answers


def ask_findings(traces: Path) -> Answer:
    return answer_of(findings_in(traces))


# The score


@dataclass(frozen=True)
class Mark:
    """What is right about one answer."""

    truth: Truth
    right: Mapping[str, list[bool]] = field(default_factory=dict)
    """By what is asked, whether each answer is right; of a healthy job, whether it names somebody."""
    wrongly: int = 0
    """Named subjects that are none."""
    wrongly_moving: bool = False
    what: str = ""
    seconds: float = 0.0
    error: bool = False


def marked(truth: Truth, answer: Answer) -> Mark:
    right: dict[str, list[bool]] = defaultdict(list)
    wrong = [
        f"wrongly {each.axis} {subject}"
        for each in answer.named
        for subject in each.subjects
        if not _is_true(truth, each.axis, subject)
    ]
    wrongly, moving = len(wrong), truth.kind in MOVING
    counted = [culprit for culprit in truth.culprits if truth.counts(culprit)]
    for culprit in counted:
        naming = _naming(culprit, answer)
        right["stages" if culprit.axis == "stage" else "found"].append(bool(naming))
        if not naming:
            wrong.append(f"not found {_words(truth, culprit)}")
        elif culprit.axis != "stage":
            right["causes"].append(any(each.cause == culprit.cause for each in naming))
            if not right["causes"][-1]:
                wrong.append(f"cause of {_words(truth, culprit)}: {naming[0].cause}")
            margin_ns = naming[0].margin_ns
            if culprit.axis == "rank" and len(naming[0].subjects) == 1 and margin_ns is not None:
                right["margins"].append(_close(margin_ns, culprit.margin_ns, MARGIN_TOLERANCE_NS))
    joint_is_right = _close(answer.joint_ns, truth.joint_ns, LEAST * truth.step_ns)
    if moving:
        right |= {"moving": [answer.moves and not wrongly], "moving_cost": [joint_is_right]}
    elif truth.kind == "healthy":
        right["healthy"] = [bool(answer.named) or answer.moves]
    elif counted:
        right["joint"] = [joint_is_right]
    if answer.moves != moving:
        wrong.append("moves" if answer.moves else "does not move")
    if not joint_is_right and (counted or moving):
        wrong.append(f"joint {answer.joint_ns / 1e6:.2f} for {truth.joint_ns / 1e6:.2f} ms")
    wrongly_moving = answer.moves and not moving and truth.kind != "healthy"
    return Mark(truth, right, wrongly, wrongly_moving, "; ".join(wrong))


def _close(value: float, right: float, least: float) -> bool:
    return abs(value - right) <= max(JOINT_TOLERANCE * right, least)


def _naming(culprit: Culprit, answer: Answer) -> list[Named]:
    """The findings that name a culprit: all its ranks, its stage, or groups of its link."""
    own = [each for each in answer.named if each.axis == culprit.axis]
    if culprit.axis == "link":
        return [each for each in own if any(set(culprit.ranks) <= _set(group) for group in each.subjects)]
    if culprit.axis == "stage":
        return [each for each in own if culprit.stage in each.subjects]
    involved = [each for each in own if set(culprit.ranks) & set(each.subjects)]
    ranks = {subject for each in involved for subject in each.subjects}
    return involved if set(culprit.ranks) <= ranks else []


def _set(subject: Subject) -> set[int]:
    return set(subject) if isinstance(subject, tuple) else {subject}


def _is_true(truth: Truth, axis: str, subject: Subject) -> bool:
    """Whether a named subject is one that is planted."""
    own = [each for each in truth.culprits if each.axis == axis]
    if axis == "step" and isinstance(subject, int):  # slow are those in which a culprit is late
        number = subject - (2 if truth.job["model"] == "gpt" else 0)
        return any(number % each.every == each.every - 1 for each in truth.culprits if each.every > 1)
    if axis == "link":
        return any(set(each.ranks) <= _set(subject) for each in own)
    return any(subject == each.stage if axis == "stage" else subject in each.ranks for each in own)


def _words(truth: Truth, culprit: Culprit) -> str:
    every = f" every {culprit.every}" if culprit.every > 1 else ""
    return f"{culprit.cause} of {culprit.axis} {culprit.ranks}{every} ({100 * culprit.margin_ns / truth.step_ns:.1f} %)"


def figures(marks: Sequence[Mark]) -> tuple[tuple[str, str], ...]:
    """What was right, and how often."""

    def pair(name: str) -> str:
        answers = [each for mark in marks for each in mark.right.get(name, ())]
        right, of = sum(answers), len(answers)
        return f"{right} of {of}" + (f" ({right / of:.3f})" if of else "")

    wrongly = sum(mark.wrongly for mark in marks)
    return (
        ("culprits named, from 2 % of the step", pair("found")),
        ("their cause", pair("causes")),
        ("their margin within 10 % or 0.1 ms", pair("margins")),
        (
            "wrongly named subjects",
            f"{wrongly} in {len(marks)} jobs ({100 * wrongly / max(len(marks), 1):.1f} in 100)",
        ),
        ("joint cost within 10 % or 2 % of the step", pair("joint")),
        ("moving: said, nobody named", pair("moving")),
        ("moving: cost", pair("moving_cost")),
        ("said to move, and does not", str(sum(mark.wrongly_moving for mark in marks))),
        ("stages named", pair("stages")),
        ("healthy, and something is named", pair("healthy")),
        ("errors", str(sum(mark.error for mark in marks))),
        ("CPU seconds a job", f"{sum(mark.seconds for mark in marks) / max(len(marks), 1):.2f}"),
    )


def table(marks: Sequence[Mark]) -> str:
    return "\n".join(f"{name:44}{value}" for name, value in figures(marks))


def judged(seed: int, folder: Path, number: int) -> Mark:
    truth, traces = made(number, seed, folder)
    started = time.process_time()
    try:
        mark = marked(truth, ask_findings(traces))
    except Exception as error:  # noqa: BLE001 - one job that fails must not end the others
        wanted = sum(map(truth.counts, truth.culprits))
        what = f"{type(error).__name__}: {error}"
        mark = Mark(
            truth, {"found": [False] * wanted, "joint": [False] * (wanted > 0)}, what=what, error=True
        )
    return replace(mark, seconds=time.process_time() - started)


def marks_of(jobs: int, seed: int, folder: Path, workers: int = 1) -> Iterator[Mark]:
    """What is right about each of so many jobs, one after the other."""
    folder.mkdir(parents=True, exist_ok=True)
    with multiprocessing.get_context("spawn").Pool(workers) as pool:
        yield from pool.imap(partial(judged, seed, folder), range(jobs))


_OPTIONS = """\
--jobs N  how many (default 300)
--seed N  of the jobs (default 1)
--traces FOLDER  is made, and used again
--workers N  processes (default 1)
--only N,N  numbers of jobs, such as 3,17; prints all that is said
--json FILE  write what is right about each job
"""


def main(argv: Sequence[str] | None = None) -> int:
    args = parsed(
        __doc__,
        _OPTIONS,
        argv,
        jobs=300,
        seed=1,
        workers=1,
        traces={"type": Path, "required": True},
        only="",
        json=Path,
    )
    if args.only:
        for number in map(int, args.only.split(",")):
            truth, traces = made(number, args.seed, args.traces)
            answer = ask_findings(traces)
            print(replace(truth, job={}), answer, marked(truth, answer).what, sep="\n  ")
        return 0
    marks = []
    for mark in marks_of(args.jobs, args.seed, args.traces, args.workers):
        marks.append(mark)
        if mark.what:
            print(f"{mark.truth.name} {mark.truth.kind} {mark.truth.layout}: {mark.what}", flush=True)
    print(table(marks))
    if args.json:
        args.json.write_text(json.dumps([asdict(mark) for mark in marks], indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
