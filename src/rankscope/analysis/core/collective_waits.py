"""For each matched collective: the transfer time, how long each rank waited, and which rank arrived last.

`run.collectives` has the collectives of all ranks, and the number of the match that each belongs to. The waits are
computed from durations alone, so the clocks of the ranks need not agree.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from rankscope.analysis.core.cache import once_per_run
from rankscope.analysis.core.scope import Scope
from rankscope.collective_kinds import KINDS, POINT_TO_POINT
from rankscope.records import dataclass
from rankscope.store.arrays import NONE, Ints
from rankscope.timeline.collectives.entries import Collectives
from rankscope.timeline.run import Run


@dataclass(frozen=True)
class Waits:
    """Arrays by entry of `rows`, or by match. Waits are known for the kinds that all ranks leave together."""

    rows: Collectives
    wait: Ints
    """By entry: duration minus transfer; NONE without a match, or where the kind has no known waits."""
    transfer: Ints
    """By match: the shortest duration over its ranks; NONE where the kind has no known waits."""
    last: Ints
    """By match: the entry with the shortest duration; NONE when no rank is known to have waited."""
    ranks: Ints
    """By match: the number of its ranks in this run."""
    whole: NDArray[np.bool_]
    """By match: whether every rank of its group is in this run."""
    step: Ints
    """By match: its step (the smallest where ranks disagree), or NONE."""

    @property
    def entry_transfer(self) -> Ints:
        """By entry: the shortest duration of its match, also of a send and its receive; 0 where that is not known."""
        rows = self.rows
        timed = (rows.match != NONE) & ((self.wait != NONE) | np.isin(rows.kind, _PAIRED))
        timed[timed] = self.ranks[rows.match[timed]] > 1
        shortest = _least(rows.match[timed], rows.duration[timed], len(self.ranks))
        transfer = np.zeros(len(rows.rank), dtype=np.int64)
        transfer[timed] = shortest[rows.match[timed]]
        return transfer


def waits(run: Run, scope: Scope | None = None) -> Waits:
    """The waits of the steps in scope; always of all ranks, so that the last rank does not depend on the scope."""
    every = _all_waits(run)
    return every if scope is None or scope.steps is None else _within(every, *scope.steps)


@once_per_run
def _all_waits(run: Run) -> Waits:
    rows = run.collectives
    count = rows.count
    together = (rows.match != NONE) & rows.together
    at = rows.match[together]
    transfer = _least(at, rows.duration[together], count)
    wait = np.full(len(rows.rank), NONE)
    wait[together] = rows.duration[together] - transfer[at]
    ranks = np.bincount(rows.match[rows.match != NONE], minlength=count)
    size = np.array([group.size or NONE for group in rows.groups], dtype=np.int64)
    matched = np.flatnonzero(rows.match != NONE)
    expected = np.full(count, NONE)
    expected[rows.match[matched]] = size[rows.group[matched]]
    step = _least(
        rows.match[matched], np.where(rows.step[matched] == NONE, _NEVER, rows.step[matched]), count
    )
    return Waits(
        rows=rows,
        wait=wait,
        transfer=transfer,
        last=_last(rows, wait, count),
        ranks=ranks,
        whole=(expected == NONE) | (ranks >= expected),
        step=np.where(step == _NEVER, NONE, step),
    )


_PAIRED = [KINDS.index(kind) for kind in POINT_TO_POINT]
_NEVER = np.iinfo(np.int64).max


def _least(match: Ints, value: Ints, count: int) -> Ints:
    """The smallest value of each match; NONE where there is none."""
    least = np.full(count, _NEVER)
    np.minimum.at(least, match, value)
    seen = np.zeros(count, dtype=bool)
    seen[match] = True
    return np.where(seen, least, NONE)


def _last(rows: Collectives, wait: Ints, count: int) -> Ints:
    """The entry of each match that did not wait; NONE when all arrived at once."""
    last = np.full(count, NONE)
    first = np.flatnonzero(wait == 0)[::-1]  # of ranks that arrived together, the lowest
    last[rows.match[first]] = first
    waited = np.zeros(count, dtype=bool)
    waited[rows.match[wait > 0]] = True
    return np.where(waited, last, NONE)


def _within(every: Waits, first: int, final: int) -> Waits:
    """Select the matches of these steps."""
    inside = (every.step >= first) & (every.step <= final)
    match, number = every.rows.match.copy(), np.where(inside, np.cumsum(inside) - 1, NONE)
    match[match != NONE] = number[match[match != NONE]]
    used = match != NONE
    entry = np.cumsum(used) - 1
    last = every.last[inside]
    return Waits(
        rows=replace(every.rows.pick(used), match=match[used]),
        wait=every.wait[used],
        transfer=every.transfer[inside],
        last=np.where(last != NONE, entry[np.maximum(last, 0)], NONE),
        ranks=every.ranks[inside],
        whole=every.whole[inside],
        step=every.step[inside],
    )
