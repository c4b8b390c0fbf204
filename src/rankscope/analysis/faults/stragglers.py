"""Which rank the others wait for at collectives, how long, and in which part of its time it is late.

A table of arrivals: who costs time, and why, say the faults. The cause of a rank that they name is theirs.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from rankscope.analysis.across_ranks.blame import WAITING, Blame, blame
from rankscope.analysis.across_ranks.comparison_notes import comparison_notes
from rankscope.analysis.across_ranks.layout import layout_of
from rankscope.analysis.across_ranks.time_split import PARTS, OwnTimes, own_times
from rankscope.analysis.core.cache import once_per_run
from rankscope.analysis.core.collective_waits import waits
from rankscope.analysis.core.grouping import sums_by
from rankscope.analysis.core.intervals import Axis
from rankscope.analysis.core.result import Column, Result
from rankscope.analysis.core.scope import Scope, cut_ranks
from rankscope.analysis.faults.faults import faults_of
from rankscope.store.arrays import NONE, Ints, Mask, number_rows, unique_values
from rankscope.timeline.run import Run

COLUMNS = (
    Column("rank"),
    Column("last_count", "count", "collectives at which it arrived last", title="Last"),
    Column(
        "caused_wait_ns",
        "ns",
        "time that other ranks waited because of it, summed over them; each counts at most the time by which it was "
        "slower than its peers in that step",
        title="Caused wait",
    ),
    Column("own_wait_ns", "ns", "time that it waited for other ranks", title="Own wait"),
    Column(
        "compute_ns", "ns", "extra compute time before those collectives, over the median of the other ranks"
    ),
    Column("host_ns", "ns", "extra time in none of the other classes: the host is late"),
    Column("copy_ns", "ns", "extra time in copies", minor=True),
    Column("dataloader_ns", "ns", "extra time waiting for data", minor=True),
    Column("waiting_ns", "ns", "extra time waiting in other collectives", minor=True),
    Column("link_ns", "ns", "extra time in the transfers of other collectives", minor=True),
    Column("cause", "", "the largest of these; of a rank that the faults name, their cause", at_end=True),
)
_CAUSES = ("compute", "host", "copy", "dataloader", "waiting", "link")


def stragglers(run: Run, scope: Scope, by: str | None = None) -> Result:
    """One row for each rank, by the wait it caused."""
    used = _in_window(run, scope)
    rows = _rows(run, scope, used)
    if not run.has_traces:
        rows = [row | dict.fromkeys((*(f"{name}_ns" for name in PARTS), "cause")) for row in rows]
    notes = [*comparison_notes(run)]
    if not used.any():
        notes.append(
            "waiting times are not known: no all_reduce, all_gather, reduce_scatter, all_to_all or barrier in the "
            "window was matched across ranks"
        )
    elif own_times(run, Scope(steps=scope.steps)).steps == (None,):
        notes.append("no steps in the window: waits are of the whole window")
    return Result("stragglers", "Stragglers", scope.window, COLUMNS, rows, notes=tuple(notes))


@once_per_run
def causes_of_ranks(run: Run, scope: Scope) -> dict[int, str]:
    """By rank that a fault names, by itself or with its stage: the cause."""
    if cut_ranks(run) or not run.has_traces:
        return {}
    layout, causes = layout_of(run, Scope()), dict[int, str]()
    for fault in faults_of(run, replace(scope, ranks=None).in_run(run)).listed:
        for each in fault.subjects:
            if fault.axis == "rank":
                causes.setdefault(each.number, each.cause.kind)
            elif fault.axis == "stage":
                members = [rank for rank in run.ranks if layout.stage(rank) == each.number]
                causes = dict.fromkeys(members, str(each.cause.kind)) | causes
    return causes


class CausedWaits(NamedTuple):
    """Waiting by step, by the rank that caused it and by the rank that waited."""

    groups: Ints
    """Rows of (index of the step, causing rank, waiting rank)."""
    waited: Ints


@once_per_run
def caused_waits(run: Run, scope: Scope) -> CausedWaits:
    """Steps are numbered as in `own_times`, each with the waiting that is due to it; nothing where waits are not known.

    A rank that waits in two collectives at once waits for the later one. Without traces it is not known what a rank
    may be charged with.
    """
    all_waits, why, own = waits(run), blame(run), own_times(run, Scope(steps=scope.steps))
    entries, arrival = all_waits.rows, why.arrivals.of_entry
    at = np.flatnonzero((all_waits.wait > 0) & (arrival != NONE))
    at = at[_in_window(run, scope)[arrival[at]] & (why.rank[arrival[at]] != NONE)]
    step = np.zeros(len(at), dtype=np.int64)
    if run.has_traces and own.steps != (None,):
        numbers = np.array(own.steps, dtype=np.int64)
        at = at[np.isin(why.arrivals.step[arrival[at]], numbers)]
        step = np.searchsorted(numbers, why.arrivals.step[arrival[at]])
    start = entries.start[at]
    alone = _counted_once(entries.rank[at], start, start + all_waits.wait[at])
    blamed = (
        _through_chains(run, scope, why, own, arrival[at], step) if run.has_traces else why.rank[arrival[at]]
    )
    pairs, pair = number_rows([blamed, entries.rank[at]])
    table = np.zeros((len(pairs), max(len(own.steps), 1)), dtype=np.int64)
    np.add.at(table, (pair, step), alone)
    if run.has_traces and len(pairs):
        allowed = np.zeros((max(*own.ranks, int(pairs[:, 0].max())) + 1, len(own.steps)), dtype=np.int64)
        allowed[list(own.ranks)] = own.excess
        table = _charged(table, allowed[pairs[:, 0]])
    number, step = np.nonzero(table)
    return CausedWaits(np.column_stack([step, pairs[number]]), table[number, step])


def _charged(waited: Ints, allowed: Ints) -> Ints:
    """Both by pair of ranks and step. What a rank is late at the end of a step, others wait for in the next one: they
    waited because of that step."""
    charged = np.minimum(waited, allowed)
    charged[:, :-1] += np.minimum((waited - charged)[:, 1:], (allowed - charged)[:, :-1])
    return charged


def _counted_once(rank: Ints, start: Ints, end: Ints) -> Ints:
    """Of each wait what lies in none of the same rank that ends later."""
    if not len(rank):
        return rank
    numbers = unique_values(rank)
    axis, number = Axis.over(start, end, len(numbers)), np.searchsorted(numbers, rank)
    begin, stop = axis.place(start, number), axis.place(end, number)
    order = np.argsort(stop, kind="stable")
    later = np.append(np.minimum.accumulate(begin[order][::-1])[::-1][1:], stop[order[-1]])
    alone = np.empty_like(begin)
    alone[order] = np.maximum(np.minimum(stop[order], later) - begin[order], 0)
    return alone


def _through_chains(run: Run, scope: Scope, why: Blame, own: OwnTimes, arrival: Ints, step: Ints) -> Ints:
    """By wait: the rank to blame. A chain of waiting that ends nowhere, at a receive or at a slow transfer, goes on to
    the rank of the same pipeline or group that a fault names."""
    blamed: Ints = why.rank[arrival].copy()
    named = causes_of_ranks(run, scope)
    ends_nowhere = np.isin(why.cause[why.root[arrival]], [NONE, WAITING, PARTS.index("link")])
    layout = layout_of(run, Scope())
    for rank in named.keys() & {*own.ranks}:
        near = {other for axis in layout.axes for other in layout.group_of(rank, axis)}
        is_late = own.excess[own.ranks.index(rank)] > 0
        blamed[ends_nowhere & np.isin(blamed, sorted(near - named.keys())) & is_late[step]] = rank
    return blamed


def _in_window(run: Run, scope: Scope) -> Mask:
    """By arrival: its waits are known and it lies in the window."""
    all_waits, arrivals = waits(run), blame(run).arrivals
    used = scope.mask(arrivals.step)
    used[: len(all_waits.transfer)] &= all_waits.transfer != NONE
    return used


def _rows(run: Run, scope: Scope, used: Mask) -> list[dict[str, Any]]:
    all_waits, why = waits(run), blame(run)
    entries, arrivals = all_waits.rows, why.arrivals
    ranks, stated = unique_values(entries.rank), causes_of_ranks(run, scope)
    count = int(ranks.max(initial=-1)) + 1
    waited = np.flatnonzero((all_waits.wait > 0) & (arrivals.of_entry != NONE))
    waited = waited[used[arrivals.of_entry[waited]]]
    own_wait = sums_by(entries.rank[waited], all_waits.wait[waited], count)
    charged = caused_waits(run, scope)
    caused = sums_by(charged.groups[:, 1], charged.waited, count)
    last = np.flatnonzero(used & (arrivals.last != NONE))
    last_rank = entries.rank[arrivals.last[last]]
    lasts = np.bincount(last_rank, minlength=count)
    parts = {name: sums_by(last_rank, why.excess[i, last], count) for i, name in enumerate(PARTS)}
    rows = []
    for rank in ranks.tolist():
        if not scope.has_rank(rank):
            continue
        spent = {name: int(parts[name][rank]) for name in _CAUSES}
        cause = max(spent, key=spent.__getitem__)
        rows.append(
            {
                "rank": rank,
                "last_count": int(lasts[rank]),
                "caused_wait_ns": int(caused[rank]),
                "own_wait_ns": int(own_wait[rank]),
                **{f"{name}_ns": spent[name] for name in _CAUSES},
                "cause": stated.get(rank, cause if spent[cause] else None),
            }
        )
    return sorted(rows, key=lambda row: (-row["caused_wait_ns"], row["rank"]))


STEP_COLUMNS = (
    Column("step"),
    Column(
        "last_rank",
        help="the rank that caused most of the waiting in this step, chains of waits followed; null: nobody is late",
    ),
    Column("excess_ns", "ns", "how much longer than its peers it took in this step, without waiting"),
    Column(
        "cause",
        help="the part of its time with the largest excess; of a rank that the faults name, their cause",
    ),
    Column(
        "caused_wait_ns",
        "ns",
        "time that other ranks waited because of it, summed over them",
        title="Caused wait",
    ),
)


def stragglers_by_step(run: Run, scope: Scope) -> Result:
    """One row per step: does it happen in every step, and is it always the same rank?"""
    own = own_times(run, Scope(steps=scope.steps))
    steps = 0 if own.steps == (None,) else len(own.steps)
    rows = [_of_step(run, scope, own, number) for number in range(steps)]
    notes = [*comparison_notes(run)]
    if not rows:
        notes.append("no steps of two or more ranks in the window")
    last = Counter(row["last_rank"] for row in rows if row["caused_wait_ns"])
    if last:
        ranks = ", ".join(f"rank {rank} in {count}" for rank, count in last.most_common(8))
        notes.append(f"who caused most of the waiting, of {len(rows)} steps: {ranks}")
    title = "Stragglers by step"
    return Result("stragglers", title, scope.window, STEP_COLUMNS, rows, notes=tuple(notes))


def _of_step(run: Run, scope: Scope, own: OwnTimes, number: int) -> dict[str, Any]:
    """Without waits, the last rank is the one that took longest on its own."""
    caused = caused_waits(run, scope)
    mine = caused.groups[:, 0] == number
    total = sums_by(caused.groups[mine, 1], caused.waited[mine], max(own.ranks) + 1)
    wait = int(total.max()) if len(caused.groups) else None
    at = own.ranks.index(int(total.argmax())) if wait else int(own.excess[:, number].argmax())
    last, excess = own.ranks[at], round(float(own.excess[at, number]))
    return {
        "step": own.steps[number],
        "last_rank": last if excess else None,
        "excess_ns": excess,
        "cause": causes_of_ranks(run, scope).get(last, own.cause(at, number)) if excess else None,
        "caused_wait_ns": wait,
    }
