"""Step times: of each rank and of the run, and the windows of time that they cover.

The store computes the times of a step once, when a trace is read (store/step_times.py); docs/definitions.md, section
"Steps", has the definition.
"""

from __future__ import annotations

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
    found = tuple(
        period
        for period in _steps(run)
        if (scope.ranks is None or period.rank in scope.ranks)
        and (first is None or last is None or first <= (period.step or 0) <= last)
    )
    return found or _whole(run, scope)


@once_per_run
def _steps(run: Run) -> tuple[Period, ...]:
    """The steps of all ranks: 1,024 ranks have thousands, and reports ask for several windows of them."""
    found = all_steps(run)
    columns = (found[name].tolist() for name in ("rank", "step", "begin", "end", "segment"))
    return tuple(Period(*row) for row in zip(*columns, strict=True))


def _whole(run: Run, scope: Scope) -> tuple[Period, ...]:
    """One for each cycle of a rank."""
    found = []
    for rank, own in _cycles_by_rank(run, scope).items():
        pairs = zip(own.start.tolist(), own.end.tolist(), strict=True)
        found += [Period(rank, None, start, end, cycle) for cycle, (start, end) in enumerate(pairs)]
    return tuple(found)


def step_count(run: Run, scope: Scope) -> int:
    """The largest number of steps of any rank in scope, at least 1. Costs are divided by it."""
    counts: dict[int, int] = {}
    for period in periods(run, scope):
        counts[period.rank] = counts.get(period.rank, 0) + (period.step is not None)
    return max(counts.values(), default=0) or 1


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
    times: dict[int, list[Period]] = {}
    for period in periods(run, scope):
        if period.step is not None:
            times.setdefault(period.rank, []).append(period)
    return {
        rank: _typical([(p.step, p.dur_ns) for p in own], _first_of_cycles(own))
        for rank, own in times.items()
    }


def run_step_times(run: Run, scope: Scope) -> dict[int, float]:
    """By step the mean of its time over the ranks that recorded it."""
    times: dict[int, list[int]] = {}
    for period in periods(run, scope):
        if period.step is not None:
            times.setdefault(period.step, []).append(period.dur_ns)
    return {step: fsum(own) / len(own) for step, own in sorted(times.items())}


def run_step(run: Run, scope: Scope) -> TypicalStep:
    """The step time of the run: the headline."""
    firsts = _first_of_cycles(period for period in periods(run, scope) if period.step is not None)
    return _typical(list(run_step_times(run, scope).items()), firsts)


def mean_step_ns(run: Run, scope: Scope) -> float:
    """The mean time over all ranks and steps in scope; without steps, what was recorded of a rank, over the ranks."""
    steps = [period.dur_ns for period in periods(run, scope) if period.step is not None]
    if steps:
        return fsum(steps) / len(steps)
    recorded: dict[int, int] = {}
    for period in periods(run, scope):
        recorded[period.rank] = recorded.get(period.rank, 0) + period.dur_ns
    return fsum(recorded.values()) / len(recorded) if recorded else 0.0


def _first_of_cycles(found: Iterable[Period]) -> set[int]:
    first: dict[tuple[int, int], Period] = {}
    for period in found:
        known = first.setdefault((period.rank, period.cycle), period)
        if period.end_ns < known.end_ns:
            first[period.rank, period.cycle] = period
    return {period.step for period in first.values() if period.step is not None}


def median_of(values: Sequence[float]) -> float:
    """As statistics.median and np.median, without the modules that these import."""
    ordered, half = sorted(values), len(values) // 2
    return ordered[half] if len(values) % 2 else (ordered[half - 1] + ordered[half]) / 2


def _typical(times: Sequence[tuple[int | None, float]], firsts: set[int]) -> TypicalStep:
    others = [time for step, time in times if step not in firsts]
    usual = median_of(others) if others else 0.0
    limit = SLOW_FIRST_STEP * usual if usual > 0 else float("inf")  # steps of a damaged file may take no time
    slow = [step for step, time in times if step is not None and step in firsts and time > limit]
    kept = [time for step, time in times if step not in slow]
    return TypicalStep(round(median_of(kept)) if kept else None, tuple(sorted(slow)))


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
        found = split_by_rank(steps_in_scope(run, scope), run.ranks)
        return {rank: StepWindows(own["step"], own["begin"], own["end"]) for rank, own in found.items()}
    return _cycles_by_rank(run, scope)


@dataclass(frozen=True)
class RankCycles:
    """The recordings of one rank without steps, in order; in ns from the start of its first file."""

    start: Ints
    end: Ints


@kept_per_rank("cycles", RankCycles, version=1)
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
    cycles = _rank_cycles(run, scope)
    found = {}
    for rank in run.ranks:
        own, origin = cycles.get(rank, RankCycles(*EMPTY)), run.origin_ns(rank)
        step = np.full(len(own.start), NO_STEP)
        found[rank] = StepWindows(
            **_disjoint({"step": step, "start": own.start + origin, "end": own.end + origin})
        )
    return found


def _disjoint(cycles: dict[str, Ints]) -> dict[str, Ints]:
    """Cycles that overlap (the files of two tools) share their time: the second begins where the first ends."""
    reach = np.maximum.accumulate(cycles["end"])
    start = cycles["start"].copy()
    start[1:] = np.maximum(start[1:], reach[:-1])
    return {"step": cycles["step"], "start": np.minimum(start, reach), "end": reach}


@once_per_run
def recordings(run: Run) -> dict[int, Intervals]:
    """By rank, when it was recorded: from the first to the last event of each of its trace files."""
    length = {(entry.rank, entry.segment): int(entry.manifest["end_ns"]) for entry in run.segments}
    found: dict[int, list[tuple[int, int]]] = {rank: [] for rank in run.ranks}
    for rank, segment, begin in run.rows(
        f"SELECT rank, segment, shift_ns FROM segments WHERE used AND format IN {TIMELINE_FORMATS}"
    ):
        found[rank].append((begin, begin + length[rank, segment]))
    return {
        rank: union(*(np.array(side, dtype=np.int64) for side in zip(*own, strict=True))) if own else EMPTY
        for rank, own in found.items()
    }


def windows(run: Run, rank: int, scope: Scope) -> StepWindows:
    """The time of a rank that figures cover: its steps, from the end of the one before to its own end.

    Without steps in scope, each cycle from the first start to the last end of its GPU events (without GPU, of its
    ops). The windows do not overlap; time between two cycles was not recorded and is in none.
    """
    return _windows_by_rank(run, scope)[rank]


@once_per_run
def _windows_of_ranks(run: Run) -> dict[int, StepWindows]:
    found = split_by_rank(in_order_of_start(all_steps(run)), run.ranks)
    return {rank: StepWindows(own["step"], own["start"], own["stop"]) for rank, own in found.items()}


def host_windows(run: Run, rank: int, scope: Scope) -> StepWindows:
    """The steps of a rank as ranges of the host; read once for all ranks."""
    mine = _windows_of_ranks(run)[rank]
    if scope.steps is None:
        return mine
    inside = (mine.step >= scope.steps[0]) & (mine.step <= scope.steps[1])
    return StepWindows(mine.step[inside], mine.start[inside], mine.end[inside])
