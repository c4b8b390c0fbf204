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
from rankscope.analysis.across_ranks.schedule import (
    MODELS,
    Schedule,
    passes_of,
    schedule_of,
)
from rankscope.analysis.across_ranks.segments import (
    joined,
    rank_segments,
    segments,
)
from rankscope.analysis.core.cache import once_per_run
from rankscope.analysis.core.collective_waits import waits
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
from rankscope.analysis.core.result import Column, Fact, Finding, Result
from rankscope.analysis.core.scope import Scope
from rankscope.analysis.core.severity import LIMIT_SHARE
from rankscope.analysis.core.step_times import all_windows, mean_step_ns
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
        findings = tuple(_by_design(schedule, rows, mean_step_ns(run, scope)))
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


def _by_design(schedule: Schedule, rows: list[dict[str, Any]], step_ns: float) -> Iterator[Finding]:
    """What the schedule costs with equal stages and messages that take no time."""
    of_schedule, bubble = (
        sum(row[name] for row in rows) / len(rows) for name in ("schedule_ns", "bubble_ns")
    )
    if of_schedule < LIMIT_SHARE * step_ns:
        return
    stages, micro_batches, chunks = schedule.shape
    interleaved = f", {chunks} chunks a stage" if chunks > 1 else ""
    ideal = 100 * (stages - 1) / (chunks * micro_batches + stages - 1)
    part, whole = (format_rounded("ns", time) for time in (of_schedule, bubble))
    yield Finding(
        "limit",
        "The schedule's own bubble",
        f"{part} of bubbles of {whole}, mean over the stages; {stages} stages, {micro_batches} "
        f"micro-batches{interleaved}: with equal stages and no transfer, a stage is idle for {ideal:.1f} % of the time "
        "of the pipeline",
        hint="Use more micro-batches per step, or an interleaved schedule.",
        cost_ns=round(of_schedule),
        facts=(
            Fact("schedule_ns", round(of_schedule), "ns", "mean of the rows, per step"),
            Fact("bubble_ns", round(bubble), "ns", "mean of the rows, per step"),
            Fact("micro_batches", micro_batches, "count", "a step"),
        ),
    )
