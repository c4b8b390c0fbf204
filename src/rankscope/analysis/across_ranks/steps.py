"""The steps of every rank, and those in which all ranks take longer than usual: a checkpoint, an evaluation, a
compilation of all."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from rankscope.analysis.across_ranks.main_thread import longest_gap
from rankscope.analysis.across_ranks.time_split import PARTS, step_times, time_split
from rankscope.analysis.core.notes import left_out
from rankscope.analysis.core.result import Column, ColumnRows, Fact, Finding, Result
from rankscope.analysis.core.rollups import part_of
from rankscope.analysis.core.run_steps import in_order_of_start
from rankscope.analysis.core.scope import Scope, steps_in_scope
from rankscope.analysis.core.severity import graded
from rankscope.analysis.core.step_times import mean_step_ns, run_step
from rankscope.ranges import as_ranges
from rankscope.timeline.run import Run
from rankscope.units import format_rounded, shorten_middle

Floats = NDArray[np.float64]

_LEAST_STEPS = 3
_LEAST_SHARE = 0.3
"""Of the median step that every rank must need more. The healthy jobs of benchmarks/exam/ordinary_job.py stay below."""
_LEAST_SCORE = 5.0
"""In standard deviations of what all ranks need more or less in the other steps. Chosen, not measured."""
_MOST_SHARE = 0.34
"""More steps than this share are no exception. One of three may be."""
_SCALE = 1.4826
"""From a median of absolute deviations to a standard deviation."""
_NAME_WIDTH = 60


def steps(run: Run, scope: Scope, by: str | None = None) -> Result:
    """Training steps: their range on the host, and their time on host and GPU together."""
    table = in_order_of_start(steps_in_scope(run, scope))
    rows = ColumnRows(
        {
            "rank": table["rank"],
            "step": table["step"],
            "start_ns": table["start"],
            "dur_ns": table["stop"] - table["start"],
            "end_ns": table["end"],
            "time_ns": table["end"] - table["begin"],
        }
    )
    columns = (
        Column("rank"),
        Column("step"),
        Column("start_ns", "ns", "time since the start of the run"),
        Column("dur_ns", "ns", "duration on the host", title="On the host"),
        Column("end_ns", "ns", "end of its work on host and GPU, since the start of the run", minor=True),
        Column(
            "time_ns",
            "ns",
            "step time, host and GPU: from the end of the step before to its own end",
            title="Step time",
        ),
    )
    notes = left_out(run, scope)
    if not rows:
        notes.append(
            "no steps; call profiler.step() in the loop, or mark steps with record_function('step 1')"
        )
    slow = _slow_steps(run, scope)
    return Result("steps", "Steps", scope.window, columns, rows, (slow,) if slow else (), tuple(notes))


def _slow_steps(run: Run, scope: Scope) -> Finding | None:
    """The finding about such steps; None where there are none. A step in which one rank is late is none of them."""
    steps, ranks, times = _working_times(run, scope)
    typical = run_step(run, scope)
    if len(steps) < _LEAST_STEPS or not typical.ns:
        return None
    more = times - _medians(times)[:, :, None]
    common: Floats = more.sum(axis=0).min(axis=0)
    slow = exceptional(common, typical.ns) & ~np.isin(steps, typical.left_out)
    if not slow.any():
        return None
    part = int(more[:, :, slow].mean(axis=(1, 2)).argmax())
    cause, extra = _PARTS[part], float(common[slow].mean())
    cost = float(common[slow].sum()) / len(steps)
    numbers = np.array(steps)[slow].tolist()
    worst = int(np.where(slow, common, -np.inf).argmax())
    where = _gap(run, int(ranks[0]), steps[worst]) if cause == "host" else ""
    name = f"Step {numbers[0]} takes" if len(numbers) == 1 else f"Steps {as_ranges(numbers)} take"
    whole = f"{name} {format_rounded('ns', extra)} longer than the others on all ranks"
    severity = graded(cost, mean_step_ns(run, scope), 0.0) or "info"
    return Finding(
        "info" if len(numbers) == 1 else severity,  # once may be a hiccup of the machine
        f"{whole}{_period(numbers)}; most of it is {_WORDS[cause]}{where}",
        f"{len(numbers)} of {len(steps)} recorded steps; the time of collectives is not counted",
        hint="What runs in some steps only (saving, evaluation, compilation) can run less often, or beside the "
        "training. Look at these steps: rankscope view RUN",
        facts=(
            Fact("extra_ns", round(extra), "ns", "every rank, in each of these steps"),
            Fact("slow_steps", len(numbers), "count", "the window"),
            Fact("steps", len(steps), "count", "the window"),
            Fact("cause", cause, "", "all ranks"),
        ),
        cost_ns=round(cost),
        reachable=True,
    )


def exceptional(common: Floats, step_ns: float) -> NDArray[np.bool_]:
    """By step: whether what all ranks need more in it is far from what they need more or less in the others."""
    noise = _SCALE * float(_medians(np.abs(common - _medians(common))))
    slow: NDArray[np.bool_] = common > max(_LEAST_SHARE * step_ns, _LEAST_SCORE * noise)
    few: NDArray[np.bool_] = slow & (slow.sum() <= _MOST_SHARE * len(common))
    return few


def _medians(values: Floats) -> Floats:
    """Along the last axis. np.median imports numpy.ma, which takes longer than the whole report."""
    ordered, count = np.sort(values, axis=-1), values.shape[-1]
    middle: Floats = (ordered[..., (count - 1) // 2] + ordered[..., count // 2]) / 2
    return middle


_PARTS = tuple(part for part in PARTS if part not in ("waiting", "link"))
"""What a rank does on its own; communication takes longer for all where one of them does."""
_WORDS = {
    "compute": "compute",
    "copy": "copies",
    "dataloader": "waiting for data",
    "host": "time of the host without an op",
}


def _working_times(run: Run, scope: Scope) -> tuple[list[int], list[int], Floats]:
    """The steps that all ranks have, the ranks, and [part, rank, step] of what each does on its own."""
    table = step_times(run, scope)
    numbers = [at for at, step in enumerate(table.steps) if step is not None]
    parts = table.parts[[PARTS.index(part) for part in _PARTS]][:, :, numbers]
    has_step = ~np.isnan(parts[0])
    rows, columns = np.flatnonzero(has_step.any(axis=1)), np.array(numbers, dtype=np.int64)
    whole = has_step[rows].all(axis=0) if len(rows) else np.zeros(len(numbers), dtype=bool)
    steps = [step for at in columns[whole].tolist() if (step := table.steps[at]) is not None]
    return steps, [table.ranks[row] for row in rows.tolist()], parts[:, rows][:, :, whole]


def _gap(run: Run, rank: int, step: int) -> str:
    """Between which ops the main thread of a rank has its longest gap in this step."""
    spans = [
        (each.start_ns, each.end_ns)
        for each in time_split(run).periods
        if each.rank == rank and each.step == step
    ]
    gap = longest_gap(part_of(run, frozenset({rank})), rank, spans[0])
    if gap is None or not (gap.before and gap.after):
        return ""
    before, after = shorten_middle(gap.before, _NAME_WIDTH), shorten_middle(gap.after, _NAME_WIDTH)
    return f" between {before} and {after}" + (f" at {gap.line}" if gap.line else "")


def _period(steps: list[int]) -> str:
    """', every 5th step' where they are as far apart."""
    apart = {after - before for before, after in pairwise(steps)}
    if len(steps) < 3 or len(apart) > 1:
        return ""
    return f", every {apart.pop()} steps"
