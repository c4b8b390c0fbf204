"""The truth about imbalance: a job is simulated again with balanced durations.

A segment is the compute of a rank between two transfers that it launches, within one pass. "ranks": each segment takes
the mean over the ranks of the same stage. "stages": also, the work of a micro-batch and phase takes the mean over the
stages. "all": also, it takes the mean over micro-batches and steps, and transfers take their median. The slowdown is T
over T balanced by "all".
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Mapping
from statistics import fmean, median
from typing import NamedTuple

from rankscope.bench.synthetic.cluster import simulated_steps
from rankscope.bench.synthetic.host import COMPUTE, Durations, Work
from rankscope.bench.synthetic.job import Job
from rankscope.bench.synthetic.pipeline import Pass, blocks, messages

Segment = tuple[int, int, int, Pass | None]
"""Stage, step, transfers launched in it before, and pass."""


class Portion(NamedTuple):
    """The work of a stage on a micro-batch in a phase of a step; other work has the number of its segment."""

    stage: int
    step: int
    phase: str
    batch: int


def balance(job: Job) -> dict[str, float]:
    """Mean times of a step, over steps and ranks: as it is, and balanced.

    Of a pipeline also the bubble that its schedule has by design.
    """
    recorded = _Recorded(job)
    truth = {"t_ns": recorded.step_ns}
    for way in ("ranks", "stages", "all"):
        truth[f"{way}_ns"] = _Recorded(job, recorded.balanced(way)).step_ns
    truth["slowdown"] = truth["t_ns"] / truth["all_ns"]
    if job.stages > 1:
        truth["schedule_bubble_ns"] = schedule_bubble_ns(
            job, *map(recorded.median_ns, ("forward", "backward"))
        )
    return truth


class _Recorded:
    """What the segments of a simulated job took."""

    def __init__(self, job: Job, durations: Durations | None = None) -> None:
        self._width = job.data * job.tensor
        self._taken: dict[Segment, list[int]] = defaultdict(lambda: [0] * self._width)
        """By rank of the stage."""
        self._portion: dict[Segment, Portion] = {}
        self._transfers: dict[tuple[str, str], list[int]] = defaultdict(list)
        steps: list[list[tuple[int, int]]] = [[] for _ in range(job.ranks)]
        for rank, run in simulated_steps(job, durations):
            if durations is None:
                for work in run.works:
                    self._add(rank, len(steps[rank]), work)
            steps[rank] += run.steps
        self.step_ns = fmean(listed[-1][1] - listed[0][0] for listed in steps) / job.steps

    def _add(self, rank: int, step: int, work: Work) -> None:
        if work.key:
            self._transfers[work.segment.name, work.axis].append(work.ns or 0)
        elif work.stream == COMPUTE:
            stage, of_stage = divmod(rank, self._width)
            _, start, end = work.times()
            segment = (stage, step, work.cut, work.part)
            self._taken[segment][of_stage] += int((end - start).sum())
            phase, batch = (work.part.phase, work.part.batch) if work.part else ("other", work.cut)
            self._portion[segment] = Portion(stage, step, phase, batch)

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

    def median_ns(self, phase: str) -> float:
        """Of the portions of a phase."""
        totals = self._totals({segment: fmean(taken) for segment, taken in self._taken.items()})
        return median(ns for portion, ns in totals.items() if portion.phase == phase)


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
