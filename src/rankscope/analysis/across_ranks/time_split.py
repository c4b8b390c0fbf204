"""What each rank did in each step and before each collective: compute, wait in a collective, copy, load data, or none.

The classes are those of core/rank_activity.py, with the time in a collective from the table `collectives`. `busy` keeps
of a rank's activity what this needs: exact intervals inside its collectives, of which other ranks decide how much is
waiting, and lengths between them.

The sets of some ranks are laid side by side on one axis, disjoint and sorted. The part of a set inside an interval is
then the difference of two cumulative sums, for all intervals of these ranks at once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from rankscope.analysis.across_ranks.layout import layout_of
from rankscope.analysis.core.cache import once_per_run
from rankscope.analysis.core.collective_waits import waits
from rankscope.analysis.core.grouping import middle_of_others, split_by_rank
from rankscope.analysis.core.host_spans import dataloader_spans
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
from rankscope.analysis.core.rank_activity import rank_activity
from rankscope.analysis.core.rollups import kept_per_rank
from rankscope.analysis.core.scope import NO_STEP, Scope, all_steps, steps_in_scope
from rankscope.analysis.core.step_times import Windows, periods, windows
from rankscope.records import dataclass
from rankscope.store.arrays import NONE, Floats, starts_group, unique_values
from rankscope.timeline.collectives.entries import Collectives
from rankscope.timeline.run import Run

_RANKS_AT_ONCE = 64
"""Bounds the memory: the sets of this many ranks are laid side by side."""

PARTS = ("compute", "waiting", "link", "copy", "dataloader", "host")
"""The classes of a rank's time. Each moment belongs to the first that applies; link is the transfer of a collective,
waiting the rest of it, host what is left."""


@dataclass(frozen=True)
class TimeSplit:
    """How the time of all ranks splits into PARTS."""

    periods: Windows
    """All steps of all ranks; of a run without steps, all cycles."""
    of_periods: Ints
    """[part, period]"""
    opened: Ints
    """By entry of `run.collectives`: when the time before its arrival begins."""
    of_entries: Ints
    """[part, entry], of the time from `opened` to the arrival."""
    hidden: Ints
    """By entry: how long the collective overlapped with compute on its own rank."""


def step_times(run: Run, scope: Scope) -> tuple[tuple[int, ...], tuple[int | None, ...], Floats]:
    """How the time of each rank splits in each step in scope: the ranks, the steps ((None,) in a run without steps: the
    window counts as one), and the times [part, rank, step]; NaN where a rank lacks the step."""
    times = time_split(run)
    window = np.flatnonzero(scope.mask(times.periods.step.clip(0)))
    periods = times.periods.pick(window)
    every_rank, who = np.unique(periods.rank, return_inverse=True)
    every_step, at = np.unique(periods.step, return_inverse=True)
    parts = np.full((len(PARTS), len(every_rank), len(every_step)), np.nan)
    parts[:, who, at] = 0.0
    for number, part in enumerate(times.of_periods[:, window]):
        np.add.at(parts[number], (who, at), part)  # without steps, several cycles are one window
    known = tuple(None if step == NO_STEP else step for step in every_step.tolist())
    return tuple(every_rank.tolist()), known, parts


@once_per_run
def time_split(run: Run) -> TimeSplit:
    """Computed for the whole run; callers select steps and ranks from it."""
    collectives = waits(run)
    rows = collectives.rows  # by rank
    # The time of a collective that is not waiting is the end of it.
    moves = rows.end - collectives.entry_transfer
    steps = periods(run, Scope())
    who, begin, end = steps.rank, steps.start, steps.end
    opened = window_starts(run, rows)
    of_periods = np.zeros((len(PARTS), len(steps)), dtype=np.int64)
    of_entries = np.zeros((len(PARTS), len(opened)), dtype=np.int64)
    hidden = np.zeros(len(opened), dtype=np.int64)
    sets = busy(run, Scope())
    everyone = sorted({*who.tolist(), *rows.rank.tolist()})
    for first in range(0, len(everyone), _RANKS_AT_ONCE):
        ranks = np.array(everyone[first : first + _RANKS_AT_ONCE], dtype=np.int64)
        mine = slice(*np.searchsorted(rows.rank, [ranks[0], ranks[-1] + 1]))
        theirs = np.flatnonzero((who >= ranks[0]) & (who <= ranks[-1]))
        axis = Axis.over(
            np.concatenate([opened[mine], rows.start[mine], begin[theirs]]),
            np.concatenate([rows.end[mine], end[theirs]]),
            len(ranks),
        )
        entry, period = np.searchsorted(ranks, rows.rank[mine]), np.searchsorted(ranks, who[theirs])
        start, stop = axis.place(rows.start[mine], entry), axis.place(rows.end[mine], entry)
        names = ("compute", "comm", "copy", "data")
        compute, comm, copy, data = (_placed(run, axis, ranks, sets, name) for name in names)
        moving = axis.place(moves[mine], entry)
        waiting = subtract(join(union(start, moving), subtract(comm, union(start, stop))), compute)
        link = subtract(union(moving, stop), join(compute, waiting))
        copy = subtract(copy, join(waiting, link))
        data = subtract(data, join(waiting, link, copy))
        cover = (compute, waiting, link, copy, data)
        of_periods[:, theirs] = _split(
            cover, axis.place(begin[theirs], period), axis.place(end[theirs], period)
        )
        of_entries[:, mine] = _split(cover, axis.place(opened[mine], entry), start)
        hidden[mine] = covered(compute, start, stop)
    return TimeSplit(steps, of_periods, opened, of_entries, hidden)


@dataclass(frozen=True)
class Busy:
    """Sets of one rank; none includes those before it. Times count from run.origin_ns(rank)."""

    compute: Intervals
    comm: Intervals
    """In kernels that only `--comm-pattern` calls communication: they are not matched, so it counts as waiting."""
    copy: Intervals
    data: Intervals
    """The training loop waits for a batch."""


@kept_per_rank("busy", Busy, any_window=True)
def busy(run: Run, scope: Scope) -> dict[int, Busy]:
    """Between the bounds of steps and collectives only lengths matter, except inside collectives."""
    ranks = scope.ranks_in(run)
    rows = run.arrays(
        "SELECT rank::BIGINT AS rank, start_ns AS start, start_ns + dur_ns AS end "
        f"FROM collectives WHERE {scope.where()}"
    )
    collectives, steps = split_by_rank(rows, ranks), split_by_rank(steps_in_scope(run, scope), ranks)
    return {rank: _busy(run, rank, collectives[rank], steps[rank]) for rank in ranks}


def _busy(run: Run, rank: int, collectives: dict[str, Ints], steps: dict[str, Ints]) -> Busy:
    activity, comm = rank_activity(run, rank), EMPTY
    if len(run.comm_patterns) > 1:
        comm = subtract(activity.exposed_communication, union(**collectives))
    copy = subtract(activity.copy, join(activity.compute, comm))
    loading = subtract(dataloader_spans(run, rank), join(activity.compute, comm, copy))
    bounds = [steps[name] for name in ("start", "stop", "begin", "end")]
    if len(bounds[0]) == 0:
        bounds = [*windows(run, Scope()).of(rank).intervals]
    times = unique_values(np.concatenate([*bounds, *collectives.values()]))
    sets = _reduced((activity.compute, comm, copy, loading), times, union(**collectives))
    return Busy(*(shifted(every, -run.origin_ns(rank)) for every in sets))


def _reduced(sets: Sequence[Intervals], bounds: Ints, inside: Intervals) -> Sequence[Intervals]:
    """The sets with one interval between two bounds, behind that of the set before; inside collectives as they are."""
    apart = covered(inside, bounds[:-1], bounds[1:]) == 0
    low, high = bounds[:-1][apart], bounds[1:][apart]
    at, reduced = low, []
    for every in sets:
        behind = at + covered(every, low, high)
        reduced.append(join(intersect(every, inside), union(at, behind)))
        at = behind
    return reduced


def _placed(run: Run, axis: Axis, ranks: Ints, sets: dict[int, Busy], name: str) -> Intervals:
    """One set of these ranks, on the axis."""
    known = [rank for rank in ranks.tolist() if rank in sets]
    times = one_after_another(
        [getattr(sets[rank], name) for rank in known], [run.origin_ns(rank) for rank in known]
    )
    of_rank = np.searchsorted(ranks, known)[times[0]]
    return union(*(axis.place(side, of_rank) for side in times[1:]))


def _split(cover: Sequence[Intervals], start: Ints, end: Ints) -> Ints:
    """[part, interval]: the intervals from start to end, split; one that ends before it starts is empty.

    `cover` has the sets of PARTS without the last, which are disjoint.
    """
    end = np.maximum(start, end)
    parts = [covered(times, start, end) for times in cover]
    return np.stack([*parts, end - start - sum(parts)])


def window_starts(run: Run, rows: Collectives) -> Ints:
    """By entry: the end of the group's previous collective on that rank; for the first one of a cycle, the start of its
    step.
    """
    order = np.lexsort((rows.start, rows.group, rows.segment, rows.rank))
    before = np.full(len(order), NONE)
    same = ~starts_group([key[order] for key in (rows.rank, rows.segment, rows.group)])[1:]
    before[order[1:][same]] = order[:-1][same]
    opened = np.minimum(rows.end[np.maximum(before, 0)], rows.start) if len(order) else rows.start
    first = before == NONE
    if not first.any():
        return opened
    steps = all_steps(run)
    latest = np.argsort(-steps["start"], kind="stable")  # so that of several files the first start is kept
    columns = (steps[name][latest].tolist() for name in ("rank", "step", "start"))
    began = {(rank, step): start for rank, step, start in zip(*columns, strict=True)}
    files: dict[tuple[int, int], int] = {}
    for i in np.flatnonzero(first).tolist():
        rank, step, file = int(rows.rank[i]), int(rows.step[i]), int(rows.segment[i])
        if (rank, step) not in began and not files:  # reads all slices, so only when needed
            starts = run.rows("SELECT rank, segment, min(start_ns) FROM slices GROUP BY ALL")
            files = {(rank, file): start for rank, file, start in starts}
        opened[i] = min(began.get((rank, step), files.get((rank, file), 0)), int(rows.start[i]))
    return opened


OWN = tuple(name for name in PARTS if name != "waiting")


class OwnTimes(NamedTuple):
    """Of the steps that two ranks or more have."""

    ranks: tuple[int, ...]
    steps: tuple[int | None, ...]
    """(None,) in a run without steps: the window counts as one."""
    of_parts: Floats
    """[part, rank, step]: time beyond the median of the peers, by OWN; 0 where a rank or all its peers lack the
    step."""
    excess: Floats
    """[rank, step]: of all parts together."""

    def cause(self, rank: int, step: int) -> str | None:
        """The part with the largest excess, by the indices of rank and step."""
        parts = self.of_parts[:, rank, step]
        return OWN[int(parts.argmax())] if parts.max() > 0 else None


@once_per_run
def own_times(run: Run, scope: Scope) -> OwnTimes:
    """Of all ranks, in the steps in scope. A rank without peers is compared with all others."""
    ranks, every_step, split = step_times(run, scope)
    common = np.flatnonzero((~np.isnan(split[0])).sum(axis=0) > 1)
    own = split[[PARTS.index(name) for name in OWN]][:, :, common]
    times = own.swapaxes(1, 2)
    usual = np.full_like(times, np.nan)
    layout = layout_of(run, Scope())
    roles = [layout.work(rank) for rank in ranks]
    for role, count in Counter(roles).items():
        mine = [number for number, other in enumerate(roles) if other == role]
        low, high = middle_of_others(times if count == 1 else times[..., mine])
        middle = (low + high) / 2
        usual[..., mine] = middle[..., mine] if count == 1 else middle
    of_parts = np.maximum(np.nan_to_num(times - usual), 0).swapaxes(1, 2)
    return OwnTimes(ranks, tuple(every_step[at] for at in common.tolist()), of_parts, of_parts.sum(axis=0))
