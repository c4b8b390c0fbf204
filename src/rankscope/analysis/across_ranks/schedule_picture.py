"""The schedule of a pipeline in one step, to be drawn: passes, transfers and bubbles of each stage, and the ideal ones.

The ideal schedule has the same order of passes, equal stages, and messages that take no time: the replay that gives the
part of the bubbles that a schedule has by design (`bubbles`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from rankscope.analysis.across_ranks.bubbles import (
    NO_PASSES,
    NO_STAGES,
    Activity,
    Pass,
    Passes,
    passes_of,
    replay,
    schedule_of,
)
from rankscope.analysis.across_ranks.layout import Layout, layout_of
from rankscope.analysis.across_ranks.segments import PHASES, rank_segments, segments
from rankscope.analysis.core.intervals import Intervals, intersect, subtract, union
from rankscope.analysis.core.notes import no_gpu
from rankscope.analysis.core.result import Column, Result, Row
from rankscope.analysis.core.scope import Scope, steps_in_scope
from rankscope.store.arrays import unique_values
from rankscope.timeline.run import Run

RECORDED, IDEAL = "recorded", "ideal"
_COLUMNS = (
    Column("schedule", "", "recorded, or ideal: the same order with equal stages and no transfer"),
    Column("stage"),
    Column("rank"),
    Column(
        "kind",
        "",
        "forward, backward, transfer, wait, other, bubble; compute where passes are not told apart",
    ),
    Column("micro_batch", "count", "of a pass, from 1"),
    Column("chunk", "count", "of a pass: which part of the stage, from 1"),
    Column("start_ns", "ns", "from the start of the step"),
    Column("dur_ns", "ns"),
)


def schedule_picture(run: Run, scope: Scope, about: int | None = None) -> Result:
    """A step of median length on the pipeline of the rank `about`, else on the slowest pipeline."""
    layout = layout_of(run, Scope())
    title = "Pipeline schedule"
    if "pp" not in layout.axes or not rank_segments(run, scope):
        why = no_gpu(run) if "pp" in layout.axes else NO_STAGES
        return Result("schedule_picture", title, scope.window, _COLUMNS, [], notes=(why,))
    activity = Activity.of(run, scope, layout)
    every = passes_of(segments(run, scope), activity.exposed_waits)
    ranks = _pipeline(layout, activity, every, about)
    step, windows = _step(run, scope, activity, ranks)
    passes: list[list[tuple[Pass, int, int]]] = [[] for _ in ranks]
    if every is not None:
        mine = np.isin(every.rank, ranks) & (every.step == (every.step if step is None else step))
        names = ("rank", "phase", "chunk", "micro_batch", "start", "end")
        for rank, *each, start, end in zip(
            *(getattr(every, name)[mine].tolist() for name in names), strict=True
        ):
            passes[ranks.index(rank)].append(((each[0], each[1], each[2]), start, end))
    times = [*windows.start.tolist(), *(start for of_rank in passes for _, start, _ in of_rank)]
    begin = min(times)
    rows = [*_recorded(activity, layout, ranks, passes, windows, begin)]
    if every is not None and all(passes):
        rows += _ideal(every, layout, ranks, passes)
    facts = {
        "step": step,
        "begin_ns": begin,
        "end_ns": int(windows.end.max()),
        "is_slowest": every is not None and about is None,
        "pipelines": len(unique_values(activity.pipeline)),
        "window_ns": dict(zip(ranks, (windows.end - windows.start).tolist(), strict=True)),
    }
    notes = () if every is not None else (NO_PASSES,)
    return Result("schedule_picture", title, scope.window, _COLUMNS, rows, notes=notes, facts=facts)


def _pipeline(layout: Layout, activity: Activity, passes: Passes | None, about: int | None) -> list[int]:
    """The ranks of a pipeline, by stage: of those with most stages in the files the slowest."""
    pipelines: dict[int, list[int]] = {}
    for rank, number in zip(activity.ranks.tolist(), activity.pipeline.tolist(), strict=True):
        pipelines.setdefault(number, []).append(rank)
    took = passes.by_rank() if passes else {}
    chosen = max(
        pipelines.values(),
        key=lambda ranks: (about in ranks, len(ranks), sum(took.get(rank, 0.0) for rank in ranks)),
    )
    return sorted(chosen, key=layout.stage)


def _step(run: Run, scope: Scope, activity: Activity, ranks: list[int]) -> tuple[int | None, Intervals]:
    """The step of median length on the first of these ranks, and when each of them has it; all that was recorded where
    there are no steps."""
    step, rank = None, activity.windows.rank
    begin, end = activity.windows.intervals
    steps = steps_in_scope(run, scope)
    of_first = np.flatnonzero(steps["rank"] == ranks[0])
    if scope.steps is not None and len(of_first):
        order = of_first[np.argsort((steps["end"] - steps["begin"])[of_first], kind="stable")]
        step = int(steps["step"][order[(len(order) - 1) // 2]])
        rank, begin, end = (steps[name][steps["step"] == step] for name in ("rank", "begin", "end"))
    windows = [
        (begin[rank == each].min(initial=begin.max()), end[rank == each].max(initial=0)) for each in ranks
    ]
    return step, Intervals(*np.array(windows, dtype=np.int64).T)


def _recorded(
    activity: Activity,
    layout: Layout,
    ranks: list[int],
    passes: list[list[tuple[Pass, int, int]]],
    windows: Intervals,
    origin: int,
) -> Iterator[Row]:
    sets = {
        name: activity.by_rank(times)
        for name, times in (
            ("compute", activity.compute),
            ("wait", intersect(activity.busy, activity.waiting)),
            ("other", subtract(activity.busy, activity.waiting)),
            ("exposed", subtract(activity.waiting, activity.busy)),
            ("transfer", activity.messages),
            ("bubble", activity.bubbles),
        )
    }
    for number, (rank, of_rank) in enumerate(zip(ranks, passes, strict=True)):
        window = Intervals(windows.start[number : number + 1], windows.end[number : number + 1])
        whose = {"schedule": RECORDED, "stage": layout.stage(rank), "rank": rank}
        times = {name: intersect(of_ranks[rank], window) for name, of_ranks in sets.items()}
        compute, exposed = times.pop("compute"), times.pop("exposed")
        # A pass that waits for a message has several parts.
        for each, start, end in of_rank:
            parts = subtract(Intervals(np.array([start]), np.array([end])), exposed)
            for low, high in zip(parts.start.tolist(), parts.end.tolist(), strict=True):
                yield _pass(whose, each, low - origin, high - low)
        if of_rank:
            compute = subtract(union(*np.array([span for _, *span in of_rank]).T), exposed)
        else:
            yield from _parts(whose | {"kind": "compute"}, compute, origin)
        for name in ("wait", "other", "transfer"):
            times[name] = subtract(times[name], compute)
        for name, parts in times.items():
            yield from _parts(whose | {"kind": name}, parts, origin)


def _ideal(
    every: Passes, layout: Layout, ranks: list[int], passes: list[list[tuple[Pass, int, int]]]
) -> Iterator[Row]:
    """Nothing where the stages of a part of the pipeline were recorded: they would wait for nobody."""
    order = tuple(tuple(each for each, *_ in of_rank) for of_rank in passes)
    times = schedule_of(every, layout).times("schedule", [tuple(ranks)])
    replayed = replay(order, times) if len(ranks) == layout.sizes["pp"] else None
    if replayed is None:
        return
    for number, (rank, of_stage) in enumerate(zip(ranks, replayed.ends, strict=True)):
        whose = {"schedule": IDEAL, "stage": layout.stage(rank), "rank": rank}
        spans = []
        for (phase, chunk, batch), end in zip(order[number], of_stage, strict=True):
            took = float(times(number, phase, chunk)[0])
            yield _pass(whose, (phase, chunk, batch), round(end[0] - took), round(took))
            spans.append((round(end[0] - took), round(end[0])))
        whole = Intervals(np.array([0]), np.array([round(replayed.length[0])]))
        idle = subtract(whole, union(*np.array(spans).T))
        yield from _parts(whose | {"kind": "bubble"}, idle, 0)


def _pass(whose: dict[str, Any], each: Pass, start: int, took: int) -> Row:
    phase, chunk, batch = each
    kind = {"kind": PHASES[phase], "micro_batch": batch + 1, "chunk": chunk + 1}
    return whose | kind | {"start_ns": start, "dur_ns": took}


def _parts(whose: dict[str, Any], times: Intervals, origin: int) -> Iterator[Row]:
    nothing = {"micro_batch": None, "chunk": None}
    for start, end in zip(times.start.tolist(), times.end.tolist(), strict=True):
        yield whose | nothing | {"start_ns": start - origin, "dur_ns": end - start}
