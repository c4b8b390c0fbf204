"""Step times: of each rank and of the run, and the windows of time that they cover.

The store computes the times of a step once, when a trace is read (store/step_times.py); docs/definitions.md, section
"Steps", has the definition.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from math import fsum

import numpy as np

from rankscope.analysis.core.cache import once_per_run
from rankscope.analysis.core.device_events import gpu_ranks
from rankscope.analysis.core.grouping import split_by_rank
from rankscope.analysis.core.intervals import EMPTY, Intervals, Ints, union
from rankscope.analysis.core.rollups import kept_per_rank
from rankscope.analysis.core.run_steps import NO_STEP, all_steps, in_order_of_start
from rankscope.analysis.core.scope import Scope, steps_in_scope
from rankscope.model import TIMELINE_FORMATS
from rankscope.records import dataclass
from rankscope.timeline.run import Run


@dataclass(frozen=True)
class Period:
    """One step of one rank; in a run without steps (step None), one cycle from the first event to the last."""

    rank: int
    step: int | None
    start_ns: int
    end_ns: int
    cycle: int = 0
    """The trace file of the rank that it is in: a window in which the profiler was active."""

    @property
    def dur_ns(self) -> int:
        return self.end_ns - self.start_ns


@once_per_run
def periods(run: Run, scope: Scope) -> tuple[Period, ...]:
    """By rank and step, in order of time; in a run without steps, by rank and cycle."""
    first, last = scope.steps or (None, None)
    steps = tuple(
        period
        for period in _steps(run)
        if (scope.ranks is None or period.rank in scope.ranks)
        and (first is None or last is None or first <= (period.step or 0) <= last)
    )
    if steps:
        return steps
    cycles = []
    for rank, window in _cycles_by_rank(run, scope).items():
        pairs = zip(window.start.tolist(), window.end.tolist(), strict=True)
        cycles += [Period(rank, None, start, end, cycle) for cycle, (start, end) in enumerate(pairs)]
    return tuple(cycles)


@once_per_run
def _steps(run: Run) -> tuple[Period, ...]:
    """The steps of all ranks: 1,024 ranks have thousands, and reports ask for several windows of them."""
    table = all_steps(run)
    columns = (table[name].tolist() for name in ("rank", "step", "begin", "end", "segment"))
    return tuple(Period(*row) for row in zip(*columns, strict=True))


def step_count(run: Run, scope: Scope) -> int:
    """The largest number of steps of any rank in scope, at least 1. Costs are divided by it."""
    counts = Counter(period.rank for period in periods(run, scope) if period.step is not None)
    return max(counts.values(), default=1)


SLOW_FIRST_STEP = 1.5
"""The first step of a cycle is left out of the typical step time when it takes more than this many times the median of
the others: torch compiles, caches fill, the profiler starts."""


@dataclass(frozen=True)
class TypicalStep:
    """The median over steps, and the slow first steps of cycles that were left out of it."""

    ns: int | None
    """None without steps."""
    left_out: tuple[int, ...] = ()


def rank_step_times(run: Run, scope: Scope) -> dict[int, TypicalStep]:
    """The typical step of each rank that has steps in scope."""
    by_rank: dict[int, list[Period]] = {}
    for period in periods(run, scope):
        if period.step is not None:
            by_rank.setdefault(period.rank, []).append(period)
    return {
        rank: _typical([(period.step, period.dur_ns) for period in steps], _first_of_cycles(steps))
        for rank, steps in by_rank.items()
    }


def run_step_times(run: Run, scope: Scope) -> dict[int, float]:
    """By step the mean of its time over the ranks that recorded it."""
    times: dict[int, list[int]] = {}
    for period in periods(run, scope):
        if period.step is not None:
            times.setdefault(period.step, []).append(period.dur_ns)
    return {step: fsum(every) / len(every) for step, every in sorted(times.items())}


def run_step(run: Run, scope: Scope) -> TypicalStep:
    """The step time of the run: the headline."""
    return _typical(list(run_step_times(run, scope).items()), _first_of_cycles(periods(run, scope)))


def mean_step_ns(run: Run, scope: Scope) -> float:
    """The mean time over all ranks and steps in scope; without steps, what was recorded of a rank, over the ranks."""
    steps = [period.dur_ns for period in periods(run, scope) if period.step is not None]
    if steps:
        return fsum(steps) / len(steps)
    cycles = periods(run, scope)
    return fsum(period.dur_ns for period in cycles) / max(len({period.rank for period in cycles}), 1)


def _first_of_cycles(steps: Iterable[Period]) -> set[int | None]:
    """`steps` are in order of time."""
    first: dict[tuple[int, int], int | None] = {}
    for period in steps:
        first.setdefault((period.rank, period.cycle), period.step)
    return {*first.values()}


def median_of(values: Sequence[float]) -> float:
    """As statistics.median and np.median, without the modules that these import."""
    ordered, half = sorted(values), len(values) // 2
    return ordered[half] if len(values) % 2 else (ordered[half - 1] + ordered[half]) / 2


def _typical(times: Sequence[tuple[int | None, float]], firsts: set[int | None]) -> TypicalStep:
    others = [time for step, time in times if step not in firsts]
    usual = median_of(others) if others else 0.0
    limit = SLOW_FIRST_STEP * usual if usual > 0 else float("inf")  # steps of a damaged file may take no time
    slow = [step for step, time in times if step is not None and step in firsts and time > limit]
    usual_times = [time for step, time in times if step not in slow]
    return TypicalStep(round(median_of(usual_times)) if usual_times else None, tuple(sorted(slow)))


@dataclass(frozen=True)
class StepWindows:
    """Windows of one rank's time, in order; one entry a step, or one a cycle where there are no steps."""

    step: Ints
    """NO_STEP for the window of a cycle."""
    start: Ints
    end: Ints

    @property
    def intervals(self) -> Intervals:
        return Intervals(self.start, self.end)

    @property
    def span(self) -> int:
        return int((self.end - self.start).sum())


@once_per_run
def _windows_by_rank(run: Run, scope: Scope) -> dict[int, StepWindows]:
    if scope.steps is not None:
        steps = split_by_rank(steps_in_scope(run, scope), run.ranks)
        return {rank: StepWindows(rows["step"], rows["begin"], rows["end"]) for rank, rows in steps.items()}
    return _cycles_by_rank(run, scope)


@dataclass(frozen=True)
class RankCycles:
    """The recordings of one rank without steps, in order; in ns from the start of its first file."""

    start: Ints
    end: Ints


@kept_per_rank("cycles", RankCycles)
def _rank_cycles(run: Run, scope: Scope) -> dict[int, RankCycles]:
    """Each cycle from the first start to the last end of its GPU events; of a rank without GPU, of its ops."""
    sql = f"""SELECT rank::BIGINT AS rank, min(start_ns) AS start, max(start_ns + greatest(dur_ns, 0)) AS end
              FROM {{}} AND {scope.where()} GROUP BY rank, segment ORDER BY rank, start"""
    ranks = scope.ranks_in(run)
    cycles = split_by_rank(run.arrays(sql.format("gpu WHERE true")), ranks)
    if without := [rank for rank in ranks if rank not in gpu_ranks(run)]:
        cycles |= split_by_rank(run.arrays(sql.format("slices WHERE category = 'cpu_op'")), without)
    return {
        rank: RankCycles(times["start"] - run.origin_ns(rank), times["end"] - run.origin_ns(rank))
        for rank, times in cycles.items()
    }


def _cycles_by_rank(run: Run, scope: Scope) -> dict[int, StepWindows]:
    """Of all ranks; those that are not in scope have none."""
    cycles, windows = _rank_cycles(run, scope), {}
    for rank in run.ranks:
        times, origin = cycles.get(rank, RankCycles(*EMPTY)), run.origin_ns(rank)
        # Cycles that overlap (the files of two tools) share their time: the second begins where the first ends.
        start, reach = times.start.copy(), np.maximum.accumulate(times.end)
        start[1:] = np.maximum(start[1:], reach[:-1])
        step = np.full(len(start), NO_STEP)
        windows[rank] = StepWindows(step, np.minimum(start, reach) + origin, reach + origin)
    return windows


@once_per_run
def recordings(run: Run) -> dict[int, Intervals]:
    """By rank, when it was recorded: from the first to the last event of each of its trace files."""
    length = {(entry.rank, entry.segment): int(entry.manifest["end_ns"]) for entry in run.segments}
    times: dict[int, list[tuple[int, int]]] = {rank: [] for rank in run.ranks}
    for rank, segment, begin in run.rows(
        f"SELECT rank, segment, shift_ns FROM segments WHERE used AND format IN {TIMELINE_FORMATS}"
    ):
        times[rank].append((begin, begin + length[rank, segment]))
    return {
        rank: union(*(np.array(side, dtype=np.int64) for side in zip(*files, strict=True)))
        if files
        else EMPTY
        for rank, files in times.items()
    }


def windows(run: Run, rank: int, scope: Scope) -> StepWindows:
    """The time of a rank that figures cover: its steps, from the end of the one before to its own end.

    Without steps in scope, each cycle from the first start to the last end of its GPU events (without GPU, of its
    ops). The windows do not overlap; time between two cycles was not recorded and is in none.
    """
    return _windows_by_rank(run, scope)[rank]


def all_windows(run: Run, scope: Scope) -> dict[str, Ints]:
    """The same of all ranks in scope, one after the other: rank, start, end."""
    if scope.steps is not None:
        steps = steps_in_scope(run, scope)
        return {"rank": steps["rank"], "start": steps["begin"], "end": steps["end"]}
    cycles = _cycles_by_rank(run, scope)
    sizes = [len(window.start) for window in cycles.values()]
    return {
        "rank": np.repeat(np.array([*cycles], dtype=np.int64), sizes),
        "start": np.concatenate([EMPTY.start, *(window.start for window in cycles.values())]),
        "end": np.concatenate([EMPTY.end, *(window.end for window in cycles.values())]),
    }


@once_per_run
def _windows_of_ranks(run: Run) -> dict[int, StepWindows]:
    steps = split_by_rank(in_order_of_start(all_steps(run)), run.ranks)
    return {rank: StepWindows(rows["step"], rows["start"], rows["stop"]) for rank, rows in steps.items()}


def host_windows(run: Run, rank: int, scope: Scope) -> StepWindows:
    """The steps of a rank as ranges of the host; read once for all ranks."""
    mine = _windows_of_ranks(run)[rank]
    if scope.steps is None:
        return mine
    inside = (mine.step >= scope.steps[0]) & (mine.step <= scope.steps[1])
    return StepWindows(mine.step[inside], mine.start[inside], mine.end[inside])
