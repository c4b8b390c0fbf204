"""Step times: of each rank and of the run, and the windows of time that they cover.

The store computes the times of a step once, when a trace is read (timeline/step_times.py); docs/definitions.md, section
"Steps", has the definition.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

import numpy as np

from rankscope.analysis.core.cache import once_per_run
from rankscope.analysis.core.device_events import gpu_ranks
from rankscope.analysis.core.grouping import split_by_rank
from rankscope.analysis.core.intervals import EMPTY, Intervals, Ints, union
from rankscope.analysis.core.rollups import kept_per_rank
from rankscope.analysis.core.scope import (
    NO_STEP,
    Scope,
    all_steps,
    has_iterations,
    in_order_of_start,
    steps_in_scope,
)
from rankscope.model import TIMELINE_FORMATS
from rankscope.records import dataclass
from rankscope.store.arrays import Mask, number_rows, unique_values
from rankscope.timeline.run import Run


@dataclass(frozen=True)
class Windows:
    """Windows of time, by rank and in order of time: steps, or cycles, from the first event of a file to its last."""

    rank: Ints
    step: Ints
    """NO_STEP for the window of a cycle."""
    cycle: Ints
    """The trace file of the rank that it is in: a window in which the profiler was active."""
    start: Ints
    end: Ints

    def __len__(self) -> int:
        return len(self.rank)

    @property
    def ns(self) -> Ints:
        return self.end - self.start

    @property
    def span(self) -> int:
        return int(self.ns.sum())

    @property
    def intervals(self) -> Intervals:
        return Intervals(self.start, self.end)

    @property
    def has_steps(self) -> bool:
        return bool((self.step != NO_STEP).any())

    def pick(self, used: Mask | Ints | slice) -> Windows:
        return Windows(self.rank[used], self.step[used], self.cycle[used], self.start[used], self.end[used])

    def of(self, rank: int) -> Windows:
        """Those of one rank."""
        return self.pick(slice(*np.searchsorted(self.rank, [rank, rank + 1])))


@once_per_run
def windows(run: Run, scope: Scope) -> Windows:
    """The time that figures cover: the steps in scope, each from the end of the one before to its own end.

    Without steps in scope, each cycle from the first start to the last end of its GPU events (without GPU, of its
    ops). The windows do not overlap; time between two cycles was not recorded and is in none.
    """
    if scope.steps is None:
        return _cycles(run, scope)
    steps = steps_in_scope(run, scope)
    return Windows(*(steps[name] for name in ("rank", "step", "segment", "begin", "end")))


@once_per_run
def periods(run: Run, scope: Scope) -> Windows:
    """The steps in scope, all of them where it names none; in a run without steps its cycles. So it is with inferred
    iterations where the whole file is asked for."""
    if scope.whole_file and has_iterations(run):
        return _cycles(run, scope)
    steps = windows(run, scope if scope.steps else replace(scope, steps=(0, np.iinfo(np.int64).max)))
    return steps if len(steps) else _cycles(run, scope)


@kept_per_rank("cycles", Intervals)
def _rank_cycles(run: Run, scope: Scope) -> dict[int, Intervals]:
    """The recordings of ranks without steps, in order; in ns from the start of a rank's first file.

    Each cycle from the first start to the last end of its GPU events; of a rank without GPU, of its ops.
    """
    sql = f"""SELECT rank::BIGINT AS rank, min(start_ns) AS start, max(start_ns + greatest(dur_ns, 0)) AS end
              FROM {{}} AND {scope.where()} GROUP BY rank, segment ORDER BY rank, start"""
    ranks = scope.ranks_in(run)
    cycles = split_by_rank(run.arrays(sql.format("gpu WHERE true")), ranks)
    if without := [rank for rank in ranks if rank not in gpu_ranks(run)]:
        cycles |= split_by_rank(run.arrays(sql.format("slices WHERE category = 'cpu_op'")), without)
    return {
        rank: Intervals(times["start"] - run.origin_ns(rank), times["end"] - run.origin_ns(rank))
        for rank, times in cycles.items()
    }


def _cycles(run: Run, scope: Scope) -> Windows:
    columns = [np.empty((5, 0), dtype=np.int64)]
    for rank, times in sorted(_rank_cycles(run, scope).items()):
        # Cycles that overlap (the files of two tools) share their time: the second begins where the first ends.
        start, reach = times.start.copy(), np.maximum.accumulate(times.end)
        start[1:] = np.maximum(start[1:], reach[:-1])
        rows = np.empty((5, len(start)), dtype=np.int64)
        rows[:2] = [[rank], [NO_STEP]]
        rows[2:] = (
            np.arange(len(start)),
            np.minimum(start, reach) + run.origin_ns(rank),
            reach + run.origin_ns(rank),
        )
        columns.append(rows)
    return Windows(*np.concatenate(columns, axis=1))


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
        rank: union(*np.array(files, dtype=np.int64).T) if files else EMPTY for rank, files in times.items()
    }


@once_per_run
def _host_ranges(run: Run) -> Windows:
    steps = in_order_of_start(all_steps(run))
    return Windows(*(steps[name] for name in ("rank", "step", "segment", "start", "stop")))


def host_windows(run: Run, rank: int, scope: Scope) -> Windows:
    """The steps of a rank as ranges of the host; read once for all ranks."""
    mine = _host_ranges(run).of(rank)
    return mine.pick(scope.mask(mine.step))


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
    steps = periods(run, scope)
    if not steps.has_steps:
        return {}
    by_rank = {rank: steps.of(rank) for rank in unique_values(steps.rank).tolist()}
    return {
        rank: _typical(mine, [*zip(mine.step.tolist(), mine.ns.tolist(), strict=True)])
        for rank, mine in by_rank.items()
    }


def run_step_times(run: Run, scope: Scope) -> dict[int, float]:
    """By step the mean of its time over the ranks that recorded it."""
    windows = periods(run, scope)
    if not windows.has_steps:
        return {}
    steps, number = np.unique(windows.step, return_inverse=True)
    means = np.bincount(number, windows.ns) / np.bincount(number)
    return dict(zip(steps.tolist(), means.tolist(), strict=True))


def run_step(run: Run, scope: Scope) -> TypicalStep:
    """The step time of the run: the headline."""
    return _typical(periods(run, scope), run_step_times(run, scope).items())


def mean_step_ns(run: Run, scope: Scope) -> float:
    """The mean time over all ranks and steps in scope; without steps, what was recorded of a rank, over the ranks."""
    times = periods(run, scope)
    return times.span / max(len(times) if times.has_steps else len(set(times.rank.tolist())), 1)


def median_of(values: Sequence[float]) -> float:
    """As statistics.median and np.median, without the modules that these import."""
    ordered, half = sorted(values), len(values) // 2
    return ordered[half] if len(values) % 2 else (ordered[half - 1] + ordered[half]) / 2


def _typical(windows: Windows, times: Collection[tuple[int, float]]) -> TypicalStep:
    """`times`: by step."""
    _, cycle = number_rows([windows.rank, windows.cycle])
    firsts = {*windows.step[np.unique(cycle, return_index=True)[1]].tolist()}
    others = [time for step, time in times if step not in firsts]
    usual = median_of(others) if others else 0.0
    limit = SLOW_FIRST_STEP * usual if usual > 0 else float("inf")  # steps of a damaged file may take no time
    slow = [step for step, time in times if step in firsts and time > limit]
    usual_times = [time for step, time in times if step not in slow]
    return TypicalStep(round(median_of(usual_times)) if usual_times else None, tuple(sorted(slow)))
