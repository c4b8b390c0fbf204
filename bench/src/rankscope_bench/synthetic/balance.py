"""The truth about imbalance: a job is simulated again with balanced durations.

A segment is the compute of a rank between two transfers that it launches, within one pass. "ranks": each segment takes
the mean over the ranks of the same stage. "stages": also, the work of a micro-batch and phase takes the mean over the
stages. "all": also, it takes the mean over micro-batches and steps, and transfers take their median. The slowdown is T
over T balanced by "all".
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterator, Mapping
from functools import partial
from statistics import fmean, median
from typing import NamedTuple

from rankscope_bench.synthetic.cluster import simulated_steps
from rankscope_bench.synthetic.forks import Fork
from rankscope_bench.synthetic.host import COMPUTE, Durations, RankRun
from rankscope_bench.synthetic.job import Job
from rankscope_bench.synthetic.pipeline import Pass, blocks, messages

Segment = tuple[int, int, int, Pass | None]
"""Stage, step, transfers launched in it before, and pass."""


class Portion(NamedTuple):
    """The work of a stage on a micro-batch in a phase of a step; other work has the number of its segment."""

    stage: int
    step: int
    phase: str
    batch: int


def balance(job: Job) -> dict[str, float]:
    """What Taken.balance says of a job."""
    return _taken(job).balance()


def balanced_durations(job: Job, way: str) -> Durations:
    return _taken(job).balanced(way)


def _taken(job: Job) -> Taken:
    taken = Taken(job)
    for rank, run in simulated_steps(job):
        taken.add(rank, run)
    return taken


class Taken:
    """What the segments of a simulated job took."""

    def __init__(self, job: Job) -> None:
        self._job, self._width = job, job.data * job.tensor
        self._taken: dict[Segment, list[int]] = defaultdict(lambda: [0] * self._width)
        """By rank of the stage."""
        self._portion: dict[Segment, Portion] = {}
        self._transfers: dict[tuple[str, str], list[int]] = defaultdict(list)
        self._steps: list[list[tuple[int, int]]] = [[] for _ in range(job.ranks)]

    def add(self, rank: int, run: RankRun) -> None:
        """The next step of a rank."""
        step = len(self._steps[rank])
        self._steps[rank] += run.steps
        for work in run.works:
            if work.key:
                self._transfers[work.segment.name, work.axis].append(work.ns or 0)
            elif work.stream == COMPUTE:
                stage, of_stage = divmod(rank, self._width)
                segment = (stage, step, work.cut, work.part)
                self._taken[segment][of_stage] += int(work.gpu_took().sum())
                phase, batch = (work.part.phase, work.part.batch) if work.part else ("other", work.cut)
                self._portion[segment] = Portion(stage, step, phase, batch)

    def balance(self, processes: int = 1, meanwhile: Callable[[], None] = lambda: None) -> dict[str, float]:
        """Mean times of a step, over steps and ranks: as it is, and balanced.

        Of a pipeline also the bubble that its schedule has by design.
        """
        job = self._job
        simulations = [partial(self._balanced_step, way) for way in ("ranks", "stages", "all")]
        if job.stages == 1:
            del simulations[1]  # one stage is as long as the mean
        if processes > 1:
            forks = [Fork(simulation) for simulation in simulations]
            times = [ns for fork in forks for ns in fork.results(wait=True, meanwhile=meanwhile)]
        else:
            times = [ns for simulation in simulations for ns in simulation()]
        truth = {
            "t_ns": _step_ns(self._steps),
            "ranks_ns": times[0],
            "stages_ns": times[-2],
            "all_ns": times[-1],
        }
        truth["slowdown"] = truth["t_ns"] / truth["all_ns"]
        if job.stages > 1:
            truth["schedule_bubble_ns"] = schedule_bubble_ns(
                job, *map(self._median_ns, ("forward", "backward"))
            )
        return truth

    def _balanced_step(self, way: str) -> Iterator[float]:
        steps: list[list[tuple[int, int]]] = [[] for _ in range(self._job.ranks)]
        for rank, run in simulated_steps(self._job, self.balanced(way)):
            steps[rank] += run.steps
        yield _step_ns(steps)

    def balanced(self, way: str) -> Durations:
        """What each segment takes then, over what it took."""
        target: Mapping[Segment, float] = {segment: fmean(taken) for segment, taken in self._taken.items()}
        if way != "ranks":
            target = self._evened(target, _same_micro_batch)
        if way == "all":
            target = self._evened(target, _same_phase)
        scales = {
            (segment[0] * self._width + number, *segment[1:]): target[segment] / ns
            for segment, taken in self._taken.items()
            for number, ns in enumerate(taken)
            if ns
        }
        medians = {kind: round(median(taken)) for kind, taken in self._transfers.items()}
        return Durations(scales, medians if way == "all" else {})

    def _totals(self, target: Mapping[Segment, float]) -> dict[Portion, float]:
        totals: dict[Portion, float] = defaultdict(float)
        for segment, ns in target.items():
            totals[self._portion[segment]] += ns
        return totals

    def _evened(
        self, target: Mapping[Segment, float], same: Callable[[Portion], Hashable]
    ) -> dict[Segment, float]:
        """Each portion takes the mean of those that are the same."""
        totals = self._totals(target)
        groups: dict[Hashable, list[float]] = defaultdict(list)
        for portion, ns in totals.items():
            groups[same(portion)].append(ns)
        factor = {portion: fmean(groups[same(portion)]) / ns for portion, ns in totals.items()}
        return {segment: ns * factor[self._portion[segment]] for segment, ns in target.items()}

    def _median_ns(self, phase: str) -> float:
        """Of the portions of a phase."""
        totals = self._totals({segment: fmean(taken) for segment, taken in self._taken.items()})
        return median(ns for portion, ns in totals.items() if portion.phase == phase)


def _step_ns(steps: list[list[tuple[int, int]]]) -> float:
    """The mean, over ranks and steps."""
    return fmean(listed[-1][1] - listed[0][0] for listed in steps) / len(steps[0])


def _same_micro_batch(portion: Portion) -> Hashable:
    return portion if portion.phase == "other" else portion[1:]


def _same_phase(portion: Portion) -> Hashable:
    stage, _, phase, batch = portion
    return (phase, stage, batch) if phase == "other" else phase


def schedule_bubble_ns(job: Job, forward_ns: float, backward_ns: float) -> float:
    """How long a stage is idle in a step whose passes all take this long and whose messages take no time."""
    took = {"forward": forward_ns / job.chunks, "backward": backward_ns / job.chunks}
    orders = [blocks(job, stage) for stage in range(job.stages)]
    now = [0.0] * job.stages
    sent: dict[tuple[int, str], float] = {}
    """When a message to a stage is there."""
    while any(orders):
        for stage, order in enumerate(orders):
            while order:
                needs = [(stage, message.label) for message in messages(job, stage, "recv", order[0])]
                if any(need not in sent for need in needs):
                    break
                block = order.pop(0)
                now[stage] = max([now[stage], *(sent[need] for need in needs)])
                now[stage] += sum(took[single.phase] for single in block.passes)
                for message in messages(job, stage, "send", block):
                    sent[message.stage, message.label] = now[stage]
    return max(now) - job.batches * (forward_ns + backward_ns)
