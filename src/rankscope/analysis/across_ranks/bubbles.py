"""Pipeline bubbles: how long each stage is idle while another one computes, and why.

A bubble is split by replays of the schedule that is in the trace, without any transfer: with the same time for all
stages (what the schedule has by design), with the median of each stage (unequal stages) and with the median of each
rank (a slow rank). The rest is transfer and jitter.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np

from rankscope.analysis.across_ranks.layout import Layout, layout_of
from rankscope.analysis.across_ranks.nodes import node_of
from rankscope.analysis.across_ranks.schedule import (
    MODELS,
    Passes,
    Schedule,
    layers_of,
    passes_of,
    schedule_of,
)
from rankscope.analysis.across_ranks.segments import (
    FORWARD,
    joined,
    rank_segments,
    runs_more_kernels,
    segments,
)
from rankscope.analysis.core.cache import once_per_run
from rankscope.analysis.core.collective_waits import waits
from rankscope.analysis.core.grouping import middle_of_others
from rankscope.analysis.core.intervals import (
    EMPTY,
    Axis,
    Intervals,
    Ints,
    covered,
    intersect,
    join,
    shifted,
    subtract,
    union,
)
from rankscope.analysis.core.notes import left_out, no_gpu
from rankscope.analysis.core.result import Column, Fact, Finding, Remedy, Result
from rankscope.analysis.core.scope import Scope
from rankscope.analysis.core.severity import graded
from rankscope.analysis.core.step_times import all_windows, mean_step_ns
from rankscope.ranges import rank_words
from rankscope.records import dataclass
from rankscope.store.arrays import Mask
from rankscope.timeline.run import Run
from rankscope.units import format_rounded

NO_STAGES = "no pipeline-parallel process group was recognised, so there are no stages to compare"
NO_PASSES = (
    "the parts of the bubbles are not known: forward and backward passes are not recorded on all stages "
    "(ProfilerActivity.CPU records autograd, which tells them apart)"
)
_PARTS = (*(f"{name}_ns" for name in MODELS), "rest_ns")
_LEAST = 0.01
"""A part of the bubble under this share of a step is not reported."""
_UNEQUAL = 1.05
"""A stage is unequal that needs so many times as long as the mean stage; so for a rank and the others of its stage."""
_WORK_MOVED = 0.1
"""What is moved where the layers of a stage cannot be counted."""


def bubbles(run: Run, scope: Scope, by: str | None = None) -> Result:
    """One row for each stage, the mean over its ranks and steps; with --by rank one row for each rank."""
    columns = _columns(by)
    layout = layout_of(run, Scope())
    notes = [*left_out(run, scope), *layout.notes]
    title = "Pipeline bubbles, per step"
    records = rank_segments(run, scope) if "pp" in layout.axes else {}
    if not records:
        notes.append(no_gpu(run) if "pp" in layout.axes else NO_STAGES)
        return Result("bubbles", title, scope.window, columns, [], notes=tuple(notes))
    if scope.steps is None:
        notes.append("no steps: the whole window counts as one step (call profiler.step() in the loop)")
    activity = Activity.of(run, scope, layout)
    measured = _Measured.of(activity)
    passes = passes_of(segments(run, scope), activity.exposed_waits)
    schedule = schedule_of(passes, layout) if passes else None
    models = schedule.bubbles() if schedule else {}
    if not models:
        notes.append(NO_PASSES)
    rows = _rows(measured, models, layout, by)
    findings: tuple[Finding, ...] = ()
    if schedule and models:
        calls = {rank: record.forward_calls for rank, record in records.items()}
        findings = tuple(_findings(run, rows, schedule, calls, mean_step_ns(run, scope)))
    return Result("bubbles", title, scope.window, columns, rows, findings, tuple(notes))


def _columns(by: str | None) -> tuple[Column, ...]:
    return (
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


@dataclass(frozen=True)
class Activity:
    """When the ranks do what, over all that was recorded of them: side by side on one axis."""

    ranks: Ints
    pipeline: Ints
    """By rank, the number of its pipeline."""
    windows: dict[str, Ints]
    """Of their time, in order: rank (its number among `ranks`), start, end."""
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
        columns = all_windows(run, scope)
        used, number = _among(ranks, columns["rank"])
        windows = {"rank": number, **{name: columns[name][used] for name in ("start", "end")}}
        rows, transfer = every.rows, every.entry_transfer
        used, number = _among(ranks, rows.rank)
        start, end, message = rows.start[used], rows.end[used], rows.point_to_point[used]
        ready = np.where(transfer > 0, rows.end - transfer, rows.start)[used]
        origins = np.array([run.origin_ns(rank) for rank in ranks.tolist()], dtype=np.int64)
        parts = [*records.values()]
        sets = []
        for name in ("compute", "other"):
            sides = [joined(parts, f"{name}_{side}") for side in ("start", "end")]
            of_rank = np.repeat(
                np.arange(len(ranks)), [len(getattr(part, f"{name}_start")) for part in parts]
            )
            sets.append((of_rank, *(side + origins[of_rank] for side in sides)))
        times = [*sets[0][1:], *sets[1][1:], start, end, windows["start"], windows["end"]]
        axis = Axis.over(np.concatenate(times), np.concatenate(times), len(ranks))
        compute, other = (
            Intervals(axis.place(low, of_rank), axis.place(high, of_rank)) for of_rank, low, high in sets
        )
        start, ready, end = (axis.place(time, number) for time in (start, ready, end))
        return cls(
            ranks,
            np.array(pipeline, dtype=np.int64),
            windows,
            axis,
            compute,
            join(compute, other),
            union(ready[message], end[message]),
            union(start, ready),
        )

    def window_edges(self) -> tuple[Ints, Ints]:
        """Of the windows, on the axis."""
        rank, start, end = (self.windows[name] for name in ("rank", "start", "end"))
        return self.axis.place(start, rank), self.axis.place(end, rank)

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


def _among(ranks: Ints, rank: Ints) -> tuple[Mask, Ints]:
    """Which of the entries are of these ranks, and the number of the rank of each of these."""
    used = np.isin(rank, ranks)
    return used, np.searchsorted(ranks, rank[used])


@dataclass(frozen=True)
class _Measured:
    """By window of a rank, in order of the ranks: its length, its busy time, and its bubble."""

    rank: Ints
    window: Ints
    busy: Ints
    bubble: Ints

    @classmethod
    def of(cls, activity: Activity) -> _Measured:
        start, end = activity.window_edges()
        return cls(
            activity.ranks[activity.windows["rank"]],
            activity.windows["end"] - activity.windows["start"],
            covered(activity.busy, start, end),
            covered(activity.bubbles, start, end),
        )


def _rows(
    measured: _Measured, models: Mapping[int, Mapping[str, float]], layout: Layout, by: str | None
) -> list[dict[str, Any]]:
    groups: dict[tuple[int, int], list[int]] = {}
    ranks, first = np.unique(measured.rank, return_index=True)
    bounds = np.append(first, len(measured.rank))
    for number, rank in enumerate(ranks.tolist()):
        groups.setdefault((layout.stage(rank), rank if by == "rank" else 0), []).append(number)
    sums = {
        name: np.add.reduceat(getattr(measured, name), first) if len(first) else first
        for name in ("window", "busy", "bubble")
    }
    rows = []
    for (stage, _), numbers in sorted(groups.items()):
        count = int(np.diff(bounds)[numbers].sum())
        mean = {name: float(of_ranks[numbers].sum()) / count for name, of_ranks in sums.items()}
        bubble = round(mean["bubble"])
        replayed = [models[rank] for rank in ranks[numbers].tolist() if rank in models]
        row: dict[str, Any] = {"stage": stage}
        row |= {"rank": int(ranks[numbers[0]])} if by == "rank" else {"ranks": len(numbers)}
        row |= {"bubble_ns": bubble, **_split(bubble, replayed)}
        row |= {f"{name}_ns": round(mean[name]) for name in ("window", "busy")}
        row["bubble_pct"] = 100 * bubble / mean["window"] if mean["window"] else None
        rows.append(row)
    return rows


def _split(bubble: int, replayed: list[Mapping[str, float]]) -> dict[str, int | None]:
    """The parts of a bubble: what each replay adds to the one before. They add up; none is negative."""
    if not replayed:
        return dict.fromkeys(_PARTS)
    parts: dict[str, int | None] = {}
    rest, before = bubble, 0.0
    for name in MODELS:
        idle = sum(model[name] for model in replayed) / len(replayed)
        part = min(max(round(idle - before), 0), rest)
        parts[f"{name}_ns"], before = part, idle
        rest -= part
    return parts | {"rest_ns": rest}


def _findings(
    run: Run, rows: list[dict[str, Any]], schedule: Schedule, calls: Mapping[int, Ints], step_ns: float
) -> Iterator[Finding]:
    """What the schedule costs by design, an unequal stage, a slow rank; each where it takes 1 % of a step."""
    mean = {name: sum(row[name] for row in rows) / len(rows) for name in ("bubble_ns", *_PARTS)}
    if mean["schedule_ns"] >= _LEAST * step_ns:
        yield _by_design(schedule, mean, step_ns)
    yield from _unequal_stage(run, schedule, calls, mean, step_ns)
    if (severity := graded(mean["rank_ns"], step_ns, _LEAST)) is not None:
        yield from _slow_rank(schedule.passes, mean, severity)


def _unequal_stage(
    run: Run, schedule: Schedule, calls: Mapping[int, Ints], mean: Mapping[str, float], step_ns: float
) -> Iterator[Finding]:
    """A stage that needs longer for a micro-batch: it has more layers, or its ranks are slow."""
    passes, stages = schedule.passes, schedule.passes.by_stage()
    worst, average = max(stages, key=lambda stage: stages[stage]), sum(stages.values()) / len(stages)
    more = stages[worst] - average
    if stages[worst] < _UNEQUAL * average or more * schedule.shape[1] < _LEAST * step_ns:
        return
    ranks = tuple(sorted(set(passes.rank[passes.stage == worst].tolist())))
    of_rank = passes.by_rank()
    if min(of_rank[rank] for rank in ranks) < _UNEQUAL * average:
        return  # some of its ranks are slow, not the stage
    is_slow = runs_more_kernels(run, worst) is False
    if is_slow and len(ranks) == 1:
        return  # the report `stragglers` judges a rank that is slow
    title = f"Stage {worst} needs {stages[worst] / average:.2f}x the time of the mean stage"
    evidence = (
        f"unequal stages add {format_rounded('ns', mean['stages_ns'])} to the bubble of a stage, "
        f"{format_rounded('ns', mean['bubble_ns'])} per step"
    )
    facts = (
        Fact("stages_ns", round(mean["stages_ns"]), "ns", "mean of the rows, per step"),
        Fact("stage", worst, "", "the slowest stage"),
        Fact("stage_pass_ns", round(stages[worst]), "ns", f"stage {worst}, per micro-batch"),
        Fact("mean_pass_ns", round(average), "ns", "mean over the stages, per micro-batch"),
    )
    if is_slow:
        node = node_of(run, ranks)
        yield Finding(
            "info",
            f"{title} for as many kernels: its ranks{f' on node {node}' if node else ''} are slow",
            evidence,
            ranks,
            hint=f"Compare {rank_words(ranks)} with the others: clocks, power, temperature, host.",
            facts=(Fact("cause", _slow_by(passes, worst), "", f"stage {worst}"), *facts),
            remedy=Remedy("rank at median", ranks),
            names=(node,) if node else (),
        )
        return
    yield Finding(
        "info",
        f"{title}: {format_rounded('ns', more)} more per micro-batch",
        evidence,
        ranks,
        hint=_layers_to_move(schedule, calls, worst),
        facts=facts,
        remedy=Remedy("balanced", what="stages"),
    )


def _slow_by(passes: Passes, stage: int) -> str:
    """What is longer on this stage than on the others: its compute, or the time between kernels."""
    mine = passes.stage == stage
    excess = [
        float(np.median(times[mine]) - np.median(times[~mine]))
        for times in (passes.compute_ns, passes.took_ns - passes.compute_ns)
    ]
    return "compute" if excess[0] >= excess[1] else "host"


def _by_design(schedule: Schedule, mean: Mapping[str, float], step_ns: float) -> Finding:
    stages, micro_batches, chunks = schedule.shape
    interleaved = f", {chunks} chunks a stage" if chunks > 1 else ""
    ideal = 100 * (stages - 1) / (chunks * micro_batches + stages - 1)
    share = 100 * mean["schedule_ns"] / step_ns
    return Finding(
        "info",
        f"The pipeline schedule leaves a stage idle for {share:.1f} % of a step by design",
        f"{format_rounded('ns', mean['schedule_ns'])} of bubbles of {format_rounded('ns', mean['bubble_ns'])}, mean "
        f"over the stages; {stages} stages, {micro_batches} micro-batches{interleaved}: with equal stages and no "
        f"transfer, {ideal:.1f} % of the time of the pipeline",
        hint="Use more micro-batches per step, or an interleaved schedule.",
        cost_ns=round(mean["schedule_ns"]),
        facts=(
            Fact("schedule_ns", round(mean["schedule_ns"]), "ns", "mean of the rows, per step"),
            Fact("bubble_ns", round(mean["bubble_ns"]), "ns", "mean of the rows, per step"),
            Fact("micro_batches", micro_batches, "count", "a step"),
        ),
    )


def _layers_to_move(schedule: Schedule, calls: Mapping[int, Ints], worst: int) -> str:
    passes = schedule.passes
    stages = passes.by_stage()
    least = min(stages, key=lambda stage: stages[stage])
    rank = int(passes.rank[passes.stage == worst][0])
    mine = (passes.rank == rank) & (passes.phase == FORWARD)
    layers = layers_of(calls[rank], int((passes.step[mine] == passes.step[mine][0]).sum()))
    saved = schedule.saved_by_moving(1 / layers if layers else _WORK_MOVED, worst, least)
    if saved <= 0:
        return (
            f"Compare the work of stage {worst} with that of the others; moving a layer would save nothing."
        )
    what = f"one of its {layers} layers" if layers else f"{100 * _WORK_MOVED:.0f} % of its work"
    return f"Move work from stage {worst} to stage {least}: {what} would save {format_rounded('ns', saved)} of a step."


def _slow_rank(passes: Passes, mean: Mapping[str, float], severity: Any) -> Iterator[Finding]:
    """The rank that exceeds the median of the others of its stage most."""
    times = passes.by_rank()
    stage_of = dict(zip(passes.rank.tolist(), passes.stage.tolist(), strict=True))
    ratios = {}
    for stage in set(stage_of.values()):
        ranks = [rank for rank in times if stage_of[rank] == stage]
        low, high = middle_of_others(np.array([times[rank] for rank in ranks]))
        for rank, others in zip(ranks, ((low + high) / 2).tolist(), strict=True):
            if len(ranks) > 1:
                ratios[rank] = (times[rank] / max(others, 1.0), times[rank] - others)
    worst = max(ratios, key=lambda rank: ratios[rank], default=None)
    if worst is None or ratios[worst][0] < _UNEQUAL:
        return
    ratio, more = ratios[worst]
    yield Finding(
        severity,
        f"Rank {worst} makes its pipeline wait: it needs {ratio:.2f}x the time of the other ranks of stage "
        f"{stage_of[worst]}",
        f"{format_rounded('ns', more)} more per micro-batch; slow ranks add {format_rounded('ns', mean['rank_ns'])} "
        f"to the bubble of a stage, {format_rounded('ns', mean['bubble_ns'])} per step",
        (worst,),
        hint="See why it is slow: rankscope stats RUN -r stragglers",
        facts=(
            Fact("rank_ns", round(mean["rank_ns"]), "ns", "mean of the rows, per step"),
            Fact("pass_ns", round(times[worst]), "ns", f"rank {worst}, per micro-batch", (worst,)),
        ),
        remedy=Remedy("rank at median", (worst,)),
    )
