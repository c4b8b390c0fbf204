"""What each rank did in each step and before each collective: compute, wait in a collective, copy, load data, or none.

`busy` keeps of the events of a rank what this needs: exact intervals inside its collectives, of which other ranks
decide how much is waiting, and lengths between them.

The sets of some ranks are laid side by side on one axis, disjoint and sorted. The part of a set inside an interval is
then the difference of two cumulative sums, for all intervals of these ranks at once.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from rankscope.analysis.core.cache import once_per_run
from rankscope.analysis.core.collective_waits import waits
from rankscope.analysis.core.event_sets import COMPUTE, COPY, device_activity, host_work
from rankscope.analysis.core.gpu_counts import has_gpu
from rankscope.analysis.core.host_spans import dataloader_spans
from rankscope.analysis.core.intervals import (
    Axis,
    Intervals,
    Ints,
    covered_before,
    intersect,
    join,
    subtract,
    union,
)
from rankscope.analysis.core.rollups import kept_per_rank
from rankscope.analysis.core.run_steps import all_steps
from rankscope.analysis.core.scope import Scope, steps_in_scope
from rankscope.analysis.core.step_times import Period, periods
from rankscope.records import dataclass
from rankscope.store.arrays import NONE, unique_values
from rankscope.timeline.collectives.entries import Collectives
from rankscope.timeline.run import Run

_RANKS_AT_ONCE = 64
"""Bounds the memory: events are loaded for this many ranks at a time."""

PARTS = ("compute", "waiting", "link", "copy", "dataloader", "host")
"""The classes of a rank's time. Each moment belongs to the first that applies; link is the transfer of a collective,
waiting the rest of it, host what is left."""


@dataclass(frozen=True)
class TimeSplit:
    """How the time of all ranks splits into PARTS."""

    periods: tuple[Period, ...]
    """All steps of all ranks; of a run without steps, all cycles."""
    of_periods: Ints
    """[part, period]"""
    opened: Ints
    """By entry of `run.collectives`: when the time before its arrival begins."""
    of_entries: Ints
    """[part, entry], of the time from `opened` to the arrival."""
    hidden: Ints
    """By entry: how long the collective overlapped with compute on its own rank."""


@once_per_run
def time_split(run: Run) -> TimeSplit:
    """Computed for the whole run; callers select steps and ranks from it."""
    found = waits(run)
    rows = found.rows  # by rank
    # The time of a collective that is not waiting is the end of it.
    moves = rows.end - found.entry_transfer
    steps = periods(run, Scope())
    who = np.array([period.rank for period in steps], dtype=np.int64)
    begin = np.array([period.start_ns for period in steps], dtype=np.int64)
    end = np.array([period.end_ns for period in steps], dtype=np.int64)
    opened = window_starts(run, rows)
    of_periods = np.zeros((len(PARTS), len(steps)), dtype=np.int64)
    of_entries = np.zeros((len(PARTS), len(opened)), dtype=np.int64)
    hidden = np.zeros(len(opened), dtype=np.int64)
    sets = busy(run, Scope())
    everyone = sorted({*who.tolist(), *rows.rank.tolist()})
    for first in range(0, len(everyone), _RANKS_AT_ONCE):
        ranks = np.array(everyone[first : first + _RANKS_AT_ONCE], dtype=np.int64)
        mine = slice(*np.searchsorted(rows.rank, [ranks[0], ranks[-1] + 1]))
        own = np.flatnonzero((who >= ranks[0]) & (who <= ranks[-1]))
        axis = Axis.over(
            np.concatenate([opened[mine], rows.start[mine], begin[own]]),
            np.concatenate([rows.end[mine], end[own]]),
            len(ranks),
        )
        entry, period = np.searchsorted(ranks, rows.rank[mine]), np.searchsorted(ranks, who[own])
        start, stop = axis.place(rows.start[mine], entry), axis.place(rows.end[mine], entry)
        compute, copy, data = (_placed(run, axis, ranks, sets, name) for name in _SETS)
        cover = _cover(compute, copy, data, start, axis.place(moves[mine], entry), stop)
        of_periods[:, own] = cover.split(axis.place(begin[own], period), axis.place(end[own], period))
        of_entries[:, mine] = cover.split(axis.place(opened[mine], entry), start)
        hidden[mine] = _within(cover.compute, start, stop)
    return TimeSplit(steps, of_periods, opened, of_entries, hidden)


@dataclass(frozen=True)
class Busy:
    """Sets of one rank; the second does not include the first, the third none of them. Times count from
    run.origin_ns(rank)."""

    compute_start: Ints
    compute_end: Ints
    copy_start: Ints
    copy_end: Ints
    data_start: Ints
    """The training loop waits for a batch."""
    data_end: Ints


_SETS = ("compute", "copy", "data")


@kept_per_rank("busy", Busy, any_window=True)
def busy(run: Run, scope: Scope) -> dict[int, Busy]:
    """Between the bounds of steps and collectives only lengths matter, except inside collectives."""
    found: dict[int, Busy] = {}
    ranks = scope.ranks_in(run)
    for first in range(0, len(ranks), _RANKS_AT_ONCE):
        found |= _busy(run, np.array(ranks[first : first + _RANKS_AT_ONCE], dtype=np.int64))
    return found


def _busy(run: Run, ranks: Ints) -> dict[int, Busy]:
    scope = Scope(frozenset(ranks.tolist()))
    # Without GPU events, host ops count as compute.
    work = device_activity(run, scope) if has_gpu(run, Scope()) else host_work(run, scope)
    data = [dataloader_spans(run, rank) for rank in ranks.tolist()]
    waits_of = np.repeat(np.arange(len(ranks)), [len(own.start) for own in data])
    of_data = Intervals(
        np.concatenate([own.start for own in data]), np.concatenate([own.end for own in data])
    )
    bounds = _bounds(run, scope)
    axis = Axis.over(
        np.concatenate([work.start, of_data.start, bounds["start"]]),
        np.concatenate([work.end, of_data.end, bounds["end"]]),
        len(ranks),
    )
    place = np.searchsorted(ranks, work.rank)
    start, end = axis.place(work.start, place), axis.place(work.end, place)
    kinds = [work.kind == kind for kind in (COMPUTE, COPY)]
    compute, copy = (union(start[mine], end[mine]) for mine in kinds)
    copy = subtract(copy, compute)
    waiting = union(axis.place(of_data.start, waits_of), axis.place(of_data.end, waits_of))
    waiting = subtract(waiting, join(compute, copy))
    who = np.searchsorted(ranks, bounds["rank"])
    low, high = axis.place(bounds["start"], who), axis.place(bounds["end"], who)
    inside = union(low[bounds["collective"]], high[bounds["collective"]])
    reduced = _reduced((compute, copy, waiting), unique_values(np.concatenate([low, high])), inside, axis)
    return {rank: _of_rank(run, axis, rank, number, reduced) for number, rank in enumerate(ranks.tolist())}


def _bounds(run: Run, scope: Scope) -> dict[str, Any]:
    """Start and end of the collectives, steps and cycles of these ranks."""
    found: dict[str, Any] = run.arrays(
        "SELECT rank::BIGINT AS rank, start_ns AS start, start_ns + dur_ns AS end, true AS collective "
        f"FROM collectives WHERE {scope.where()}"
    )
    steps, own = steps_in_scope(run, scope), periods(run, scope)
    more = {
        "rank": [*steps["rank"], *(period.rank for period in own)],
        "start": [*steps["start"], *(period.start_ns for period in own)],
        "end": [*steps["stop"], *(period.end_ns for period in own)],
        "collective": [False] * (len(steps["rank"]) + len(own)),
    }
    return {name: np.concatenate([found[name], more[name]]).astype(found[name].dtype) for name in more}


def _reduced(
    sets: tuple[Intervals, Intervals, Intervals], bounds: Ints, inside: Intervals, axis: Axis
) -> list[Intervals]:
    """The sets with one interval between two bounds, behind that of the set before; inside collectives as they are."""
    low, high = bounds[:-1], bounds[1:]
    apart = (low // axis.width == high // axis.width) & (_within(inside, low, high) == 0)
    low, high = low[apart], high[apart]
    at, reduced = low, []
    for one in sets:
        behind = at + _within(one, low, high)
        reduced.append(join(intersect(one, inside), union(at, behind)))
        at = behind
    return reduced


def _of_rank(run: Run, axis: Axis, rank: int, number: int, sets: list[Intervals]) -> Busy:
    """The part of one rank, from its place on the axis to its own time."""
    begin = number * axis.width
    shift = axis.origin - begin - run.origin_ns(rank)
    columns = []
    for one in sets:
        mine = slice(*np.searchsorted(one.start, [begin, begin + axis.width]))
        columns += [one.start[mine] + shift, one.end[mine] + shift]
    return Busy(*columns)


def _placed(run: Run, axis: Axis, ranks: Ints, sets: dict[int, Busy], name: str) -> Intervals:
    """One set of these ranks, on the axis."""
    known = [(number, rank) for number, rank in enumerate(ranks.tolist()) if rank in sets]
    columns = []
    for side in ("start", "end"):
        own = [getattr(sets[rank], f"{name}_{side}") + run.origin_ns(rank) for _, rank in known]
        place = np.repeat([number for number, _ in known], [len(values) for values in own])
        columns.append(axis.place(np.concatenate(own), place) if own else np.empty(0, dtype=np.int64))
    return union(*columns)


@dataclass(frozen=True)
class _Cover:
    """The disjoint sets of some ranks, on one axis."""

    compute: Intervals
    waiting: Intervals
    link: Intervals
    copy: Intervals
    dataloader: Intervals

    def split(self, start: Ints, end: Ints) -> Ints:
        """[part, interval]: the intervals from start to end, split; one that ends before it starts is empty."""
        end = np.maximum(start, end)
        parts = [_within(getattr(self, name), start, end) for name in PARTS[:-1]]
        return np.stack([*parts, end - start - sum(parts)])


def _cover(
    compute: Intervals, copy: Intervals, data: Intervals, start: Ints, moves: Ints, end: Ints
) -> _Cover:
    """The sets of some ranks. `start` and `end` are those of their collectives; their transfers begin at `moves`."""
    waiting = subtract(union(start, moves), compute)
    link = subtract(union(moves, end), join(compute, waiting))
    copy = subtract(copy, join(compute, waiting, link))
    data = subtract(data, join(compute, waiting, link, copy))
    return _Cover(compute, waiting, link, copy, data)


def _within(a: Intervals, start: Ints, end: Ints) -> Ints:
    """The part of a set inside each interval, in ns."""
    return covered_before(a, end) - covered_before(a, start)


def window_starts(run: Run, rows: Collectives) -> Ints:
    """By entry: the end of the group's previous collective on that rank; for the first one of a cycle, the start of its
    step.
    """
    order = np.lexsort((rows.start, rows.group, rows.segment, rows.rank))
    before = np.full(len(order), NONE)
    same = np.ones(max(len(order) - 1, 0), dtype=bool)
    for key in (rows.rank, rows.segment, rows.group):
        same &= np.diff(key[order]) == 0
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
            found = run.rows("SELECT rank, segment, min(start_ns) FROM slices GROUP BY ALL")
            files = {(rank, file): start for rank, file, start in found}
        opened[i] = min(began.get((rank, step), files.get((rank, file), 0)), int(rows.start[i]))
    return opened
