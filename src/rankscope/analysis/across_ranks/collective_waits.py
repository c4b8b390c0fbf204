"""Who waited for whom: of each matched collective its transfer, each rank's wait, and who came last.

`run.collectives` has the collectives of all ranks and the number of the match each belongs to. This adds what
follows from durations alone, so no clock needs to agree with another.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from rankscope.analysis.core.cache import once_per_run
from rankscope.analysis.core.scope import Scope
from rankscope.store.arrays import NONE, Ints
from rankscope.store.collectives.entries import Collectives
from rankscope.store.run import Run


@dataclass(frozen=True)
class Waits:
    """Entries of `rows` belong to entries of `match`; waits are known for kinds that all ranks leave together."""

    rows: Collectives
    wait: Ints
    """By entry: its duration less the transfer; NONE where it has no match or its kind does not tell."""
    transfer: Ints
    """By match: the shortest duration over its ranks; NONE where the kind does not tell."""
    last: Ints
    """By match: the entry with the shortest duration; NONE when nobody waited, or the kind does not tell."""
    ranks: Ints
    """By match: how many ranks of it are here."""
    whole: NDArray[np.bool_]
    """By match: every rank of its group is here."""
    step: Ints
    """By match: its step (the smallest where ranks disagree), NONE for none."""


def waits(run: Run, scope: Scope | None = None) -> Waits:
    """The waits in scope. Ranks out of scope are left out after the matching: who was last among all stays last."""
    found = _all_waits(run)
    return found if scope is None else _within(found, scope)


@once_per_run
def _all_waits(run: Run) -> Waits:
    rows = run.collectives
    count = rows.count
    known = (rows.match != NONE) & rows.together
    at = rows.match[known]
    transfer = _least(at, rows.duration[known], count)
    wait = np.full(len(rows.rank), NONE)
    wait[known] = rows.duration[known] - transfer[at]
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


_NEVER = np.iinfo(np.int64).max


def _least(match: Ints, value: Ints, count: int) -> Ints:
    """The smallest value of each match; NONE where there is none."""
    least = np.full(count, _NEVER)
    np.minimum.at(least, match, value)
    seen = np.zeros(count, dtype=bool)
    seen[match] = True
    return np.where(seen, least, NONE)


def _last(rows: Collectives, wait: Ints, count: int) -> Ints:
    """The entry of each match that nobody could have waited less than; NONE when all came at once."""
    last = np.full(count, NONE)
    first = np.flatnonzero(wait == 0)[::-1]  # the lowest rank, where two came at the same time
    last[rows.match[first]] = first
    waited = np.zeros(count, dtype=bool)
    waited[rows.match[wait > 0]] = True
    return np.where(waited, last, NONE)


def _within(found: Waits, scope: Scope) -> Waits:
    """Only the matches of the steps in scope."""
    if scope.steps is None:
        return found
    first, final = scope.steps
    inside = (found.step >= first) & (found.step <= final)
    number = np.where(inside, np.cumsum(inside) - 1, NONE)
    match = found.rows.match.copy()
    matched = match != NONE
    match[matched] = number[match[matched]]
    keep = match != NONE
    place = np.cumsum(keep) - 1
    rows = replace(found.rows.pick(keep), match=match[keep])
    last = found.last[inside]
    return Waits(
        rows=rows,
        wait=found.wait[keep],
        transfer=found.transfer[inside],
        last=np.where(last != NONE, place[np.maximum(last, 0)], NONE),
        ranks=found.ranks[inside],
        whole=found.whole[inside],
        step=found.step[inside],
    )
