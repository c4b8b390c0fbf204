"""Pipeline bubbles: how long each stage is idle while another one computes, and why.

A bubble is split by replays of the schedule that is in the trace, without any transfer: with the same time for all
stages (what the schedule has by design), with the median of each stage (unequal stages) and with the median of each
rank (a slow rank). The rest is transfer and jitter.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
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
from rankscope.analysis.across_ranks.segments import FORWARD, rank_segments, runs_more_kernels, segments
from rankscope.analysis.core.collective_waits import waits
from rankscope.analysis.core.grouping import split_by_rank
from rankscope.analysis.core.intervals import Intervals, Ints, covered, intersect, join, subtract, union
from rankscope.analysis.core.notes import left_out
from rankscope.analysis.core.result import Column, Fact, Finding, Remedy, Result
from rankscope.analysis.core.scope import Scope
from rankscope.analysis.core.severity import graded
from rankscope.analysis.core.step_times import mean_step_ns, median_of, windows
from rankscope.ranges import rank_words
from rankscope.records import dataclass
from rankscope.timeline.run import Run
from rankscope.units import format_rounded

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
        notes.append(
            "no GPU events in the window; ProfilerActivity.CUDA records them"
            if "pp" in layout.axes
            else "no pipeline-parallel process group was recognised, so there are no stages to compare"
        )
        return Result("bubbles", title, scope.window, columns, [], notes=tuple(notes))
    if scope.steps is None:
        notes.append("no steps: the whole window counts as one step (call profiler.step() in the loop)")
    activity = _activities(run, scope)
    measured = _measure(run, scope, layout, activity)
    exposed = {rank: subtract(each.waiting, each.compute) for rank, each in activity.items()}
    passes = passes_of(segments(run, scope), exposed)
    schedule = schedule_of(passes, layout) if passes else None
    models = schedule.bubbles() if schedule else {}
    if not models:
        notes.append(
            "the parts of the bubbles are not known: forward and backward passes are not recorded on all stages "
            "(ProfilerActivity.CPU records autograd, which tells them apart)"
        )
    rows = _rows(measured, models, {rank: layout.stage(rank) for rank in measured}, by)
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
class _Activity:
    """When a rank does what, over all that was recorded of it."""

    compute: Intervals
    busy: Intervals
    """Compute, copies, collectives other than send and recv."""
    messages: Intervals
    """The transfers of send and recv, without waiting."""
    waiting: Intervals
    """For another rank, in any collective, send or recv."""


def _activities(run: Run, scope: Scope) -> dict[int, _Activity]:
    every = waits(run)
    rows = every.rows
    wait = rows.duration - np.where(every.entry_transfer > 0, every.entry_transfer, rows.duration)
    columns = {"rank": rows.rank, "start": rows.start, "ready": rows.start + wait, "end": rows.end}
    records = rank_segments(run, scope)
    activity = {}
    by_rank = split_by_rank({**columns, "is_message": rows.point_to_point}, records)
    for rank, record in records.items():
        mine, origin = by_rank[rank], run.origin_ns(rank)
        compute = Intervals(record.compute_start + origin, record.compute_end + origin)
        other = Intervals(record.other_start + origin, record.other_end + origin)
        message = mine["is_message"]
        activity[rank] = _Activity(
            compute,
            join(compute, other),
            union(mine["ready"][message], mine["end"][message]),
            union(mine["start"], mine["ready"]),
        )
    return activity


def _measure(
    run: Run, scope: Scope, layout: Layout, activity: Mapping[int, _Activity]
) -> dict[int, dict[str, Ints]]:
    """By rank, for each step: its length, its busy time, and its bubble."""
    # When a rank is idle it does not compute: the compute of its pipeline is that of other stages.
    computing: dict[tuple[int, ...], Intervals] = {}
    measured = {}
    for rank, mine in activity.items():
        pipeline = layout.group_of(rank, "pp")
        if pipeline not in computing:
            computing[pipeline] = join(*(activity[peer].compute for peer in pipeline if peer in activity))
        steps = windows(run, rank, scope)
        idle = subtract(union(steps.start, steps.end), join(mine.busy, mine.messages))
        bubble = intersect(idle, computing[pipeline])
        if len(steps.start):
            measured[rank] = {
                "window": steps.end - steps.start,
                "busy": covered(mine.busy, steps.start, steps.end),
                "bubble": covered(bubble, steps.start, steps.end),
            }
    return measured


def _rows(
    measured: Mapping[int, Mapping[str, Ints]],
    models: Mapping[int, Mapping[str, float]],
    stage_of: Mapping[int, int],
    by: str | None,
) -> list[dict[str, Any]]:
    groups: dict[tuple[int, int], list[int]] = {}
    for rank in sorted(measured):
        groups.setdefault((stage_of[rank], rank if by == "rank" else 0), []).append(rank)
    rows = []
    for (stage, _), ranks in sorted(groups.items()):
        mean = {
            name: float(np.concatenate([measured[rank][name] for rank in ranks]).mean())
            for name in ("window", "busy", "bubble")
        }
        bubble = round(mean["bubble"])
        replayed = [models[rank] for rank in ranks if rank in models]
        row: dict[str, Any] = {"stage": stage}
        row |= {"rank": ranks[0]} if by == "rank" else {"ranks": len(ranks)}
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
        return f"Compare the work of stage {worst} with that of the others; moving a layer would save nothing."
    what = f"one of its {layers} layers" if layers else f"{100 * _WORK_MOVED:.0f} % of its work"
    return f"Move work from stage {worst} to stage {least}: {what} would save {format_rounded('ns', saved)} of a step."


def _slow_rank(passes: Passes, mean: Mapping[str, float], severity: Any) -> Iterator[Finding]:
    """The rank that exceeds the median of the others of its stage most."""
    times = passes.by_rank()
    stage_of = dict(zip(passes.rank.tolist(), passes.stage.tolist(), strict=True))
    ratios = {}
    for rank, time in times.items():
        others = [times[peer] for peer in times if peer != rank and stage_of[peer] == stage_of[rank]]
        if others:
            ratios[rank] = (time / max(median_of(others), 1.0), time - median_of(others))
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
