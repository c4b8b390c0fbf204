"""Pipeline bubbles: how long each stage is idle while another one computes, and why.

A bubble is split by replays of the schedule that is in the trace, without any transfer: with the same time for all
stages (what the schedule has by design), with the median of each stage (unequal stages) and with the median of each
rank (a slow rank). The rest is transfer and jitter.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from rankscope.analysis.across_ranks.layout import Layout, layout_of
from rankscope.analysis.across_ranks.segments import (
    FORWARD,
    Segments,
    rank_segments,
    segments,
    tells_phases,
)
from rankscope.analysis.core.cache import once_per_run
from rankscope.analysis.core.collective_waits import waits
from rankscope.analysis.core.grouping import group_medians
from rankscope.analysis.core.intervals import (
    EMPTY,
    Axis,
    Intervals,
    Ints,
    covered,
    intersect,
    join,
    one_after_another,
    shifted,
    subtract,
    union,
)
from rankscope.analysis.core.notes import no_gpu
from rankscope.analysis.core.result import Column, Fact, Finding, Result
from rankscope.analysis.core.scope import Scope
from rankscope.analysis.core.severity import LIMIT_SHARE
from rankscope.analysis.core.step_times import Windows, mean_step_ns, windows
from rankscope.records import dataclass
from rankscope.store.arrays import NONE, Floats, number_rows
from rankscope.timeline.run import Run

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
        return dict(enumerate(np.bincount(keys[:, 0], self.model_ns["rank"][first]).tolist()))


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
    def shape(self) -> tuple[int, int, int]:
        """Stages, micro-batches, and chunks of a rank, in the order of most steps."""
        usual = max(self.orders, key=lambda order: self.orders[order].total())
        every = [each for stage in usual for each in stage]
        return (
            len(usual),
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


NO_STAGES = "no pipeline-parallel process group was recognised, so there are no stages to compare"
NO_PASSES = (
    "the parts of the bubbles are not known: forward and backward passes are not recorded on all stages "
    "(ProfilerActivity.CPU records autograd, which tells them apart)"
)
_PARTS = (*(f"{name}_ns" for name in MODELS), "rest_ns")


def bubbles(run: Run, scope: Scope, by: str | None = None) -> Result:
    """One row for each stage, the mean over its ranks and steps; with --by rank one row for each rank."""
    columns = (
        Column("stage"),
        *((Column("rank"),) if by == "rank" else ()),
        Column("bubble_ns", "ns", "idle and waiting in send and recv while another stage computes"),
        Column("schedule_ns", "ns", "part of the bubble that the schedule has by design, with equal stages"),
        Column("stages_ns", "ns", "part that unequal stages add"),
        Column("rank_ns", "ns", "part that ranks add which are slower than others of their stage"),
        Column("rest_ns", "ns", "what is left: transfer and jitter"),
        Column("bubble_pct", "percent", "share of the bubble in the step"),
        *((Column("ranks", "count"),) if by != "rank" else ()),
        Column("window_ns", "ns", "length of a step"),
        Column("busy_ns", "ns", "time in compute, copies and collectives other than send and recv"),
    )
    layout = layout_of(run, Scope())
    notes = [*layout.notes]
    title = "Pipeline bubbles, per step"
    records = rank_segments(run, scope) if "pp" in layout.axes else {}
    if not records:
        notes.append(no_gpu(run) if "pp" in layout.axes else NO_STAGES)
        return Result("bubbles", title, scope.window, columns, [], notes=tuple(notes))
    if scope.steps is None:
        notes.append("no steps: the whole window counts as one step (call profiler.step() in the loop)")
    activity = Activity.of(run, scope, layout)
    passes = passes_of(segments(run, scope), activity.exposed_waits)
    schedule = schedule_of(passes, layout) if passes else None
    models = schedule.bubbles() if schedule else {}
    if not models:
        notes.append(NO_PASSES)
    rows = _rows(activity, models, layout, by)
    findings: tuple[Finding, ...] = ()
    if schedule and models:
        findings = tuple(_by_design(schedule, rows, mean_step_ns(run, scope)))
    return Result("bubbles", title, scope.window, columns, rows, findings, tuple(notes))


@dataclass(frozen=True)
class Activity:
    """When the ranks do what, over all that was recorded of them: side by side on one axis."""

    ranks: Ints
    pipeline: Ints
    """By rank, the number of its pipeline."""
    windows: Windows
    """Of their time."""
    axis: Axis
    compute: Intervals
    busy: Intervals
    """Compute, copies, collectives other than send and recv."""
    messages: Intervals
    """The transfers of send and recv, without waiting."""
    waiting: Intervals
    """For another rank, in any collective, send or recv."""

    @classmethod
    def of(cls, run: Run, scope: Scope, layout: Layout) -> Activity:
        every, records = waits(run), rank_segments(run, scope)
        ranks = np.array([*records], dtype=np.int64)
        pipelines: dict[tuple[int, ...], int] = {}
        pipeline = [pipelines.setdefault(layout.group_of(rank, "pp"), len(pipelines)) for rank in records]
        spans = windows(run, scope)
        spans = spans.pick(np.isin(spans.rank, ranks))
        rows, transfer = every.rows, every.entry_transfer
        used = np.isin(rows.rank, ranks)
        number = np.searchsorted(ranks, rows.rank[used])
        start, end, message = rows.start[used], rows.end[used], rows.point_to_point[used]
        ready = np.where(transfer > 0, rows.end - transfer, rows.start)[used]
        parts, origins = [*records.values()], [run.origin_ns(rank) for rank in records]
        sets = [
            one_after_another([getattr(part, name) for part in parts], origins)
            for name in ("compute", "other")
        ]
        times = np.concatenate([*sets[0][1:], *sets[1][1:], start, end, *spans.intervals])
        axis = Axis.over(times, times, len(ranks))
        compute, other = (
            Intervals(axis.place(low, of_rank), axis.place(high, of_rank)) for of_rank, low, high in sets
        )
        start, ready, end = (axis.place(time, number) for time in (start, ready, end))
        return cls(
            ranks,
            np.array(pipeline, dtype=np.int64),
            spans,
            axis,
            compute,
            join(compute, other),
            union(ready[message], end[message]),
            union(start, ready),
        )

    def window_edges(self) -> tuple[Ints, Ints]:
        """Of the windows, on the axis."""
        number = np.searchsorted(self.ranks, self.windows.rank)
        return self.axis.place(self.windows.start, number), self.axis.place(self.windows.end, number)

    def exposed_waits(self, rank: Ints, start: Ints, end: Ints) -> Ints:
        """How long a rank waits for another and does not compute, in each interval."""
        number = np.searchsorted(self.ranks, rank)
        exposed = subtract(self.waiting, self.compute)
        return covered(exposed, self.axis.place(start, number), self.axis.place(end, number))

    @cached_property
    def bubbles(self) -> Intervals:
        """When a rank is idle or waits in send and recv, and another stage of its pipeline computes."""
        idle = subtract(union(*self.window_edges()), join(self.busy, self.messages))
        # When a rank is idle it does not compute: the compute of its pipeline is that of other stages. It is put
        # together on the stretch of the first rank of the pipeline.
        first = np.unique(self.pipeline, return_index=True)[1][self.pipeline]
        moved = (first - np.arange(len(first))) * self.axis.width
        rank = self.compute.start // self.axis.width
        computing = self._by_rank(union(self.compute.start + moved[rank], self.compute.end + moved[rank]))
        parts = [EMPTY]
        for mine, leader, by in zip(self._by_rank(idle), first.tolist(), moved.tolist(), strict=True):
            parts.append(shifted(intersect(shifted(mine, by), computing[leader]), -by))
        return Intervals(*(np.concatenate(sides) for sides in zip(*parts, strict=True)))

    def _by_rank(self, times: Intervals) -> list[Intervals]:
        """The part of each rank, where it is on the axis."""
        bounds = np.searchsorted(times.start, np.arange(len(self.ranks) + 1) * self.axis.width).tolist()
        return [Intervals(times.start[low:high], times.end[low:high]) for low, high in pairwise(bounds)]

    def by_rank(self, times: Intervals) -> dict[int, Intervals]:
        """Times on the axis as times of the run."""
        later = self.axis.origin - np.arange(len(self.ranks)) * self.axis.width
        return {
            rank: shifted(part, by)
            for rank, part, by in zip(self.ranks.tolist(), self._by_rank(times), later.tolist(), strict=True)
        }


@once_per_run
def bubble_times(run: Run) -> dict[int, Intervals]:
    """By rank of a pipeline, its bubbles in all that was recorded; empty in a run without stages."""
    layout = layout_of(run, Scope())
    if "pp" not in layout.axes:
        return {}
    activity = Activity.of(run, Scope(), layout)
    return activity.by_rank(activity.bubbles)


def _rows(
    activity: Activity, models: Mapping[int, Mapping[str, float]], layout: Layout, by: str | None
) -> list[dict[str, Any]]:
    start, end = activity.window_edges()
    columns = {
        "window": activity.windows.ns,
        "busy": covered(activity.busy, start, end),
        "bubble": covered(activity.bubbles, start, end),
    }
    number, ranks = np.searchsorted(activity.ranks, activity.windows.rank), activity.ranks.tolist()
    sums = {name: np.bincount(number, values, len(ranks)) for name, values in columns.items()}
    windows = np.bincount(number, minlength=len(ranks))
    groups: dict[tuple[int, int], list[int]] = {}
    for at in np.flatnonzero(windows).tolist():
        groups.setdefault((layout.stage(ranks[at]), ranks[at] if by == "rank" else 0), []).append(at)
    rows = []
    for (stage, _), members in sorted(groups.items()):
        mean = {name: float(total[members].sum()) / windows[members].sum() for name, total in sums.items()}
        bubble = rest = round(mean["bubble"])
        parts: dict[str, int | None] = dict.fromkeys(_PARTS)
        replayed, before = [models[ranks[at]] for at in members if ranks[at] in models], 0.0
        # What each replay adds to the one before. The parts add up; none is negative.
        for name in MODELS if replayed else ():
            idle = sum(model[name] for model in replayed) / len(replayed)
            part = min(max(round(idle - before), 0), rest)
            parts[f"{name}_ns"], before, rest = part, idle, rest - part
            parts["rest_ns"] = rest
        row: dict[str, Any] = {"stage": stage}
        row |= {"rank": ranks[members[0]]} if by == "rank" else {"ranks": len(members)}
        row |= {"bubble_ns": bubble, **parts}
        row |= {f"{name}_ns": round(mean[name]) for name in ("window", "busy")}
        row["bubble_pct"] = 100 * bubble / mean["window"] if mean["window"] else None
        rows.append(row)
    return rows


def _by_design(schedule: Schedule, rows: list[dict[str, Any]], step_ns: float) -> Iterator[Finding]:
    """What the schedule costs with equal stages and messages that take no time."""
    of_schedule, bubble = (
        sum(row[name] for row in rows) / len(rows) for name in ("schedule_ns", "bubble_ns")
    )
    if of_schedule < LIMIT_SHARE * step_ns:
        return
    stages, micro_batches, chunks = schedule.shape
    ideal = 100 * (stages - 1) / (chunks * micro_batches + stages - 1)
    yield Finding(
        "limit",
        "The schedule's own bubble",
        advice="Use more micro-batches per step, or an interleaved schedule.",
        cost_ns=round(of_schedule),
        facts=(
            Fact("schedule_ns", round(of_schedule), "ns", "mean of the rows, per step"),
            Fact("bubble_ns", round(bubble), "ns", "mean of the rows, per step"),
            Fact("idle_share", ideal, "percent"),
            Fact("stages", stages, "count", f"{micro_batches} micro-batches"),
            *([Fact("chunks", chunks, "count")] if chunks > 1 else []),
        ),
    )
