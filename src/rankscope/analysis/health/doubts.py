"""Reasons to doubt the figures of a run, short enough for the first line of the summary."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from rankscope.analysis.core.cache import once_per_run
from rankscope.analysis.core.gpu_counts import gpu_counts, kernels_end_in
from rankscope.analysis.core.notes import ranks_by_session
from rankscope.analysis.core.result import Doubt
from rankscope.analysis.core.run_steps import in_order_of_start
from rankscope.analysis.core.scope import Scope, in_whole_files, steps_in_scope
from rankscope.analysis.core.step_times import SLOW_FIRST_STEP, median_of, run_step, run_step_times
from rankscope.analysis.health.contents import MOSTLY_UNDERSTOOD_PCT, understood
from rankscope.capture.run_folder import rank_manifests
from rankscope.ranges import as_ranges, rank_words
from rankscope.readers.base import usable_world
from rankscope.timeline.run import Run
from rankscope.units import format_rounded

COMPLETE_STEP = 0.7
"""A step with a smaller share of the usual number of GPU events is incomplete. Chosen, not measured."""


def doubts(run: Run, scope: Scope) -> tuple[Doubt, ...]:
    """The doubts about the ranks and steps in scope, the gravest first."""
    return _doubts(run, scope.in_run(run))


@once_per_run
def _doubts(run: Run, scope: Scope) -> tuple[Doubt, ...]:
    sources = (
        _mixed,
        _not_understood,
        _empty,
        _lost_kernels,
        _missing,
        _cut,
        _ended,
        _apart,
        _clocks,
        _warm_up,
    )
    return tuple(doubt for source in sources for doubt in source(run, scope))


def _mixed(run: Run, scope: Scope) -> Iterator[Doubt]:
    if len(run.runs) > 1:
        yield Doubt(
            f"files of {len(run.runs)} runs",
            "runs are shown one after another and are not compared; figures of all ranks mix them. "
            f"The first: {run.runs[0]}",
        )


def _not_understood(run: Run, scope: Scope) -> Iterator[Doubt]:
    events = understood(run, scope)
    if events.pct < MOSTLY_UNDERSTOOD_PCT:
        yield Doubt(
            f"{events.pct:.0f} % of the events understood",
            f"{events.categories} have no known meaning and are in no class",
        )


def _empty(run: Run, scope: Scope) -> Iterator[Doubt]:
    """Reports of a profiler that ran and recorded nothing."""
    empty = {
        entry.rank: str(why)
        for entry in run.used
        if (why := entry.manifest["header"].get("whyEmpty"))
        and (scope.ranks is None or entry.rank in scope.ranks)
    }
    if empty:
        yield Doubt(f"no events of {rank_words([*empty])}", empty[min(empty)])


def _lost_kernels(run: Run, scope: Scope) -> Iterator[Doubt]:
    lost = kernels_end_in(run, in_whole_files(run, scope))
    if lost:
        step = lost[min(lost)]
        advice = (
            ". An nsys that is older than the driver's CUDA does so; a newer one records them, and --steps A:B may "
            "where each process has a GPU of its own"
        ) * any(entry.format == "nsys" for entry in run.used if entry.rank in lost)
        yield Doubt(
            f"no kernels of {rank_words([*lost])}" + ("" if step is None else f" after step {step}"),
            "the profiler stopped recording kernels while the job went on: what the time was spent on is not known"
            + advice,
        )


def world_size(run: Run) -> int:
    """The number of ranks of the job, from the traces or the manifests beside them; 0 if not known."""
    sizes = {entry.world_size for entry in run.timelines} - {0}
    if not sizes:
        folders: set[Path] = {entry.source.parent for entry in run.timelines}
        manifests = (manifest for folder in folders for manifest in rank_manifests(folder))
        sizes = {size for manifest in manifests if (size := usable_world(manifest.get("world_size")))}
    return max(sizes, default=0)


def _missing(run: Run, scope: Scope) -> Iterator[Doubt]:
    if len(run.runs) != 1:  # several runs have several world sizes
        return
    recorded = {entry.rank for entry in run.timelines}
    world = world_size(run)
    missing = sorted(set(range(world)) - recorded)
    if missing:
        yield Doubt(
            f"{len(recorded)} of {world} ranks",
            f"no trace of {rank_words(missing)}: what the others wait for is not known "
            "(rankscope profile --ranks all)",
        )


def _cut(run: Run, scope: Scope) -> Iterator[Doubt]:
    """Files that end early, and last steps with fewer GPU events than usual."""
    damaged = {
        entry.rank: entry.manifest["reading"]["damage"]
        for entry in run.timelines
        if entry.manifest["reading"]["damage"] and (scope.ranks is None or entry.rank in scope.ranks)
    }
    if damaged:
        rank, why = min(damaged.items())
        yield Doubt(
            f"recording cut on {rank_words([*damaged])}",
            f"{why} (rank {rank}): any step may lack events, so figures that depend on what is missing are left out",
        )
    if len(run.runs) > 1:  # what is usual differs between runs
        return
    short = {rank: step for rank, step in incomplete_last_steps(run, scope) if rank not in damaged}
    if short:
        steps = sorted(set(short.values()))
        yield Doubt(
            f"last step incomplete on {rank_words([*short])}",
            f"step {as_ranges(steps)} has less than {100 * COMPLETE_STEP:.0f} % of the usual number of GPU events: "
            "the recording ended before it did; leave it out with --steps",
        )


def _ended(run: Run, scope: Scope) -> Iterator[Doubt]:
    """Windows that the end of the script has cut: the capture says when and why."""
    if len(run.runs) != 1:
        return
    steps = in_order_of_start(steps_in_scope(run, scope))
    last_step = dict(zip(*(steps[name].tolist() for name in ("rank", "step")), strict=True))
    ended: dict[int, tuple[int, str]] = {}
    for entry in run.timelines:
        field = entry.captured.get("ended")
        if isinstance(field, dict) and isinstance(field.get("unix_ns"), int) and entry.rank in last_step:
            ended[entry.rank] = max(ended.get(entry.rank, (0, "")), (field["unix_ns"], str(field.get("why"))))
    if not ended:
        return
    first, final = min(ended, key=lambda rank: ended[rank]), max(ended, key=lambda rank: ended[rank])
    who = f"rank {first} ended after step {last_step[first]}"
    if final != first:
        apart = format_rounded("ns", ended[final][0] - ended[first][0])
        who = f"rank {first} ended first, after step {last_step[first]}; the last one, rank {final}, {apart} later"
        who += f", after step {last_step[final]}" if last_step[final] != last_step[first] else ""
    yield Doubt(
        f"recording cut: {ended[first][1]}",
        f"the step that it ended in is left out; {who}. Record fewer steps (--active), or earlier ones",
    )


def incomplete_last_steps(run: Run, scope: Scope) -> list[tuple[int, int]]:
    """(rank, step) of the last steps of files that have fewer GPU events than usual, and than any other step."""
    events = Counter[tuple[int, int, int | None]]()
    for count in gpu_counts(run, scope):
        events[count.rank, count.segment, count.step] += count.events
    steps = in_order_of_start(steps_in_scope(run, scope))
    rows = list(zip(*(steps[name].tolist() for name in ("rank", "segment", "step")), strict=True))
    last = {(rank, segment): step for rank, segment, step in rows}
    of_rank: dict[int, list[int]] = {}
    for row in rows:
        of_rank.setdefault(row[0], []).append(events[row])
    return [
        (rank, step)
        for (rank, segment), step in sorted(last.items())
        if len(of_rank[rank]) > 2
        and events[rank, segment, step]
        < min(COMPLETE_STEP * median_of(of_rank[rank]), sorted(of_rank[rank])[1])
    ]


def _apart(run: Run, scope: Scope) -> Iterator[Doubt]:
    """Ranks of one run that were not recorded at the same time."""
    if len(run.runs) != 1:
        return
    parts = ranks_by_session(run)
    distinct = [ranks for number, ranks in enumerate(parts) if ranks not in parts[:number]]
    if len(distinct) > 1:
        yield Doubt(
            "ranks not recorded at the same time",
            f"{' and '.join(rank_words(ranks) for ranks in distinct)} were recorded more than a minute apart: "
            "they are not compared",
        )


def _clocks(run: Run, scope: Scope) -> Iterator[Doubt]:
    if run.clock_mode == "raw" or len({entry.rank for entry in run.timelines}) < 2:
        return
    measured = run.clocks.ranks
    main = next(clock.rank for clock in measured if clock.method == "reference")
    alone = [c.rank for c in measured if c.method == "wall clock" or (c.reference != main and c.rank != main)]
    if alone:
        yield Doubt(
            f"clocks of {rank_words(alone)} not aligned",
            f"they share no collective with rank {main}; their times are compared by wall clock (-r clocks)",
        )


def _warm_up(run: Run, scope: Scope) -> Iterator[Doubt]:
    scope = in_whole_files(run, scope)
    typical = run_step(run, scope)
    if typical.ns is None or not typical.left_out:
        return
    took = run_step_times(run, scope)
    slow = ", ".join(f"step {step} ({format_rounded('ns', took[step])})" for step in typical.left_out)
    worst = max(typical.left_out, key=lambda step: took[step])
    yield Doubt(
        f"warm-up inside: step {worst} took {took[worst] / typical.ns:.1f}x the median",
        f"{slow} is left out of the step time: the first of a recording, more than {SLOW_FIRST_STEP:g} times the "
        "median of the others; it is in all other figures, unless --steps leaves it out",
    )
