"""The schedule of a pipeline: the passes of micro-batches through its stages, and a replay of their order.

A replay takes the order of the passes on each rank from the trace and the time of a pass from a model; a message takes
no time. It gives the bubbles that follow from these times alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import cached_property
from typing import NamedTuple

import numpy as np

from rankscope.analysis.across_ranks.layout import Layout
from rankscope.analysis.across_ranks.segments import FORWARD, Segments, tells_phases
from rankscope.analysis.core.grouping import group_medians
from rankscope.analysis.core.intervals import Ints
from rankscope.records import dataclass
from rankscope.store.arrays import NONE, Floats, number_rows, unique_values

Pass = tuple[int, int, int]
"""Phase, chunk and micro-batch."""
Order = tuple[tuple[Pass, ...], ...]
"""By stage, its passes in order."""
Times = Callable[[int, int, int], Floats]
"""The time of a pass by stage, phase and chunk; an entry for each pipeline."""
MODELS = ("schedule", "stages", "rank")
"""A replay with the same time for all stages, with that of each stage, and with that of each rank."""


@dataclass(frozen=True)
class Passes:
    """One entry for each pass of a micro-batch through a stage, on each rank; by rank, step and start."""

    rank: Ints
    stage: Ints
    step: Ints
    chunk: Ints
    micro_batch: Ints
    phase: Ints
    start: Ints
    end: Ints
    took_ns: Ints
    """From its first kernel to the end of its last, without waiting for other ranks."""

    @cached_property
    def model_ns(self) -> dict[str, Floats]:
        """By model, the time of each pass: a median over passes of the same phase."""
        groups = {
            "schedule": [self.phase],
            "stages": [self.stage, self.phase, self.chunk],
            "rank": [self.rank, self.phase, self.chunk],
        }
        times = {}
        for name, keys in groups.items():
            _, number = number_rows(keys)
            times[name] = group_medians(number, self.took_ns)[number]
        return times

    def by_rank(self) -> dict[int, float]:
        """What a rank needs for a micro-batch."""
        keys, first = np.unique(
            np.stack([self.rank, self.phase, self.chunk], axis=1), axis=0, return_index=True
        )
        return _sums(keys[:, 0], self.model_ns["rank"][first])


def _sums(key: Ints, value: Floats) -> dict[int, float]:
    order = np.argsort(key, kind="stable")
    each = unique_values(key)
    parts = np.split(value[order], np.searchsorted(key[order], each[1:]))
    return {number: float(part.sum()) for number, part in zip(each.tolist(), parts, strict=False)}


def passes_of(parts: Segments, waits: Callable[[Ints, Ints, Ints], Ints]) -> Passes | None:
    """None where there are none, or where the trace does not tell forward from backward on all stages.

    `waits`: how long ranks do not compute and wait for another one, from a time to another.
    """
    parts = parts.pick(parts.micro_batch != NONE)
    if not len(parts.rank) or not tells_phases(parts.stage, parts.step, parts.micro_batch, parts.phase):
        return None
    places, number = number_rows([parts.rank, parts.step, parts.phase, parts.chunk, parts.micro_batch])
    start = np.full(len(places), np.iinfo(np.int64).max)
    end, stage = np.full(len(places), np.iinfo(np.int64).min), np.zeros(len(places), dtype=np.int64)
    np.minimum.at(start, number, parts.start)
    np.maximum.at(end, number, parts.end)
    stage[number] = parts.stage
    rank, step, phase, chunk, micro_batch = places.T
    took = end - start - waits(rank, start, end)
    order = np.lexsort((start, step, rank))
    columns = (rank, stage, step, chunk, micro_batch, phase, start, end, took)
    return Passes(*(column[order] for column in columns))


@dataclass(frozen=True)
class Schedule:
    """The pipelines of a run that have all stages, and the order in which they run."""

    passes: Passes
    orders: dict[Order, Counter[tuple[int, ...]]]
    """By order, the pipelines (the rank of each stage) and in how many steps they run so."""

    @property
    def usual(self) -> Order:
        """The order of most steps."""
        return max(self.orders, key=lambda order: self.orders[order].total())

    @property
    def shape(self) -> tuple[int, int, int]:
        """Stages, micro-batches, and chunks of a rank."""
        every = [each for stage in self.usual for each in stage]
        return (
            len(self.usual),
            1 + max(micro_batch for *_, micro_batch in every),
            1 + max(chunk for _, chunk, _ in every),
        )

    def bubbles(self) -> dict[int, dict[str, float]]:
        """By rank and model: how long it is idle in a step while its pipeline runs; the mean over steps."""
        sums: dict[int, Counter[str]] = {}
        steps = Counter[int]()
        for order, pipelines in self.orders.items():
            ranks = list(pipelines)
            for name in MODELS:
                replayed = replay(order, self.times(name, ranks))
                if replayed is None:
                    return {}
                for stage, busy in enumerate(replayed.busy):
                    for pipeline, idle in zip(ranks, (replayed.length - busy).tolist(), strict=True):
                        sums.setdefault(pipeline[stage], Counter())[name] += idle * pipelines[pipeline]
            for pipeline in ranks:
                steps.update(dict.fromkeys(pipeline, pipelines[pipeline]))
        return {rank: {name: idle[name] / steps[rank] for name in MODELS} for rank, idle in sums.items()}

    def times(self, name: str, pipelines: list[tuple[int, ...]]) -> Times:
        """Of the passes of these pipelines by a model."""
        passes = self.passes
        keys, first = np.unique(
            np.stack([passes.rank, passes.phase, passes.chunk], axis=1), axis=0, return_index=True
        )
        of = dict(zip(map(tuple, keys.tolist()), passes.model_ns[name][first].tolist(), strict=True))
        return lambda stage, phase, chunk: np.array([of[ranks[stage], phase, chunk] for ranks in pipelines])


def schedule_of(passes: Passes, layout: Layout) -> Schedule:
    sequences: dict[tuple[int, int], list[Pass]] = {}
    columns = (passes.rank, passes.step, passes.phase, passes.chunk, passes.micro_batch)
    for rank, step, *each in zip(*(column.tolist() for column in columns), strict=True):
        sequences.setdefault((rank, step), []).append((each[0], each[1], each[2]))
    orders: dict[Order, Counter[tuple[int, ...]]] = {}
    stages = layout.sizes.get("pp", 1)
    pipelines = {
        rank: tuple(sorted(layout.group_of(rank, "pp"), key=layout.stage))
        for rank in dict.fromkeys(rank for rank, _ in sequences)
        if layout.stage(rank) == min(map(layout.stage, layout.group_of(rank, "pp")))
    }
    for rank, step in sequences:
        pipeline = pipelines.get(rank, ())
        if (
            pipeline
            and rank == pipeline[0]
            and len(pipeline) == stages
            and all((r, step) in sequences for r in pipeline)
        ):
            order = tuple(tuple(sequences[each, step]) for each in pipeline)
            orders.setdefault(order, Counter())[pipeline] += 1
    return Schedule(passes, orders)


class Replay(NamedTuple):
    """Passes in some order; an entry for each pipeline in all arrays."""

    length: Floats
    busy: list[Floats]
    """How long each stage computes."""
    ends: list[list[Floats]]
    """By stage, when each of its passes ends."""


def replay(order: Order, times: Times) -> Replay | None:
    """The passes in this order; None where they wait in a cycle.

    A stage runs its passes one after the other. A forward pass follows that of the stage before, a backward pass that
    of the stage after.
    """
    stages = len(order)
    last = stages * (1 + max(chunk for stage in order for _, chunk, _ in stage)) - 1
    # A pass by phase, virtual stage and micro-batch.
    every = {
        (phase, chunk * stages + at, batch) for at, stage in enumerate(order) for phase, chunk, batch in stage
    }
    ended: dict[tuple[int, int, int], Floats] = {}
    nothing = np.zeros_like(times(0, order[0][0][0], order[0][0][1]))
    free, busy = [nothing] * stages, [nothing] * stages
    ends: list[list[Floats]] = [[] for _ in order]
    moved = True
    while moved:
        moved = False
        for stage, passes in enumerate(order):
            while len(ends[stage]) < len(passes):
                phase, chunk, batch = passes[len(ends[stage])]
                virtual = chunk * stages + stage
                before = (phase, virtual - 1 if phase == FORWARD else virtual + 1, batch)
                needed = before in every and 0 <= before[1] <= last
                if needed and before not in ended:
                    break
                took = times(stage, phase, chunk)
                begin = np.maximum(free[stage], ended[before]) if needed else free[stage]
                free[stage] = ended[phase, virtual, batch] = begin + took
                busy[stage] = busy[stage] + took
                ends[stage].append(free[stage])
                moved = True
    if any(len(run) < len(passes) for run, passes in zip(ends, order, strict=True)):
        return None
    return Replay(np.max(free, axis=0), busy, ends)
