"""For each late arrival at a collective, a send or a receive: why that rank was late, and which rank caused it.

For each collective and rank, the time from the end of the group's previous collective to the arrival is split by
what the rank did. The activity on which the last rank spent most beyond the median of the others is the cause. When
that is waiting inside another collective, the last rank of that collective is to blame, and so on back in time.
"""

from __future__ import annotations

import numpy as np

from rankscope.analysis.across_ranks.time_split import PARTS, time_split
from rankscope.analysis.core.cache import once_per_run
from rankscope.analysis.core.collective_waits import Waits, waits
from rankscope.analysis.core.intervals import Ints
from rankscope.records import dataclass
from rankscope.store.arrays import NONE, number_rows
from rankscope.timeline.run import Run

WAITING = PARTS.index("waiting")


@dataclass(frozen=True)
class Arrivals:
    """The matches in the numbering of `waits(run)`; then the kernels that sends and receives without a match, which
    have several messages, waited for."""

    of_entry: Ints
    """By entry: the arrival that it took part in, or waited for; NONE where its wait is not known."""
    last: Ints
    """By arrival: the entry that arrived last; NONE when no rank is known to have waited."""
    step: Ints
    """By arrival: its step, or NONE."""


@dataclass(frozen=True)
class Blame:
    """Arrays by arrival."""

    arrivals: Arrivals
    excess: Ints
    """[part, arrival]: time of the last rank minus the median of the others, or 0 if that is negative."""
    cause: Ints
    """The part with the largest excess, as an index into PARTS; NONE without a last rank or without an excess."""
    root: Ints
    """The arrival at which the chain of waiting began; itself where its last rank did not wait."""
    rank: Ints
    """The rank to blame: the last rank of the root; NONE where no rank was last."""
    hidden: Ints
    """By entry, not by arrival: how long the collective overlapped with compute on its own rank."""


@once_per_run
def blame(run: Run) -> Blame:
    """Computed for the whole run; callers select steps and ranks from it."""
    all_waits, split = waits(run), time_split(run)
    rows, opened, arrivals = all_waits.rows, split.opened, _arrivals(all_waits)
    excess = np.stack([_excess(part, arrivals) for part in split.of_entries])
    cause, root = _causes(all_waits, arrivals, excess, opened)
    # The end of each chain, by pointer doubling. Chains go back in time, so they have an end.
    for _ in range(int(np.log2(len(root) + 1)) + 2):
        if (root[root] == root).all():
            break
        root = root[root]
    last = arrivals.last[root] if len(root) else root
    rank = np.where(arrivals.last != NONE, rows.rank[np.maximum(last, 0)], NONE) if len(rows.rank) else last
    return Blame(arrivals, excess, cause, root, rank, split.hidden)


def _arrivals(all_waits: Waits) -> Arrivals:
    rows, matches = all_waits.rows, len(all_waits.last)
    of_entry = np.where(all_waits.wait != NONE, rows.match, NONE)
    several = np.flatnonzero((rows.match == NONE) & (all_waits.waited_for != NONE))
    late, number = number_rows([all_waits.waited_for[several]])
    of_entry[several] = matches + number
    last = np.concatenate([all_waits.last, late[:, 0]])
    return Arrivals(of_entry, last, np.concatenate([all_waits.step, rows.step[late[:, 0]]]))


def _excess(part: Ints, arrivals: Arrivals) -> Ints:
    """By arrival: the time of the last rank minus the median of the other ranks; never negative."""
    last, count = arrivals.last, len(arrivals.last)
    others = np.flatnonzero(arrivals.of_entry != NONE)
    others = others[last[arrivals.of_entry[others]] != others]
    order = others[np.lexsort((part[others], arrivals.of_entry[others]))]
    sizes = np.bincount(arrivals.of_entry[order], minlength=count)
    first = np.cumsum(sizes) - sizes
    value = np.append(part[order], 0)
    some = sizes > 0
    low = value[np.where(some, first + (sizes - 1) // 2, -1)]
    high = value[np.where(some, first + sizes // 2, -1)]
    excess = part[np.maximum(last, 0)] - (low + high) // 2 if len(part) else np.zeros(count, dtype=np.int64)
    return np.where((last != NONE) & some, np.maximum(excess, 0), 0)


def _causes(all_waits: Waits, arrivals: Arrivals, excess: Ints, opened: Ints) -> tuple[Ints, Ints]:
    """By arrival: the cause, and the earlier arrival for which the last rank waited (itself for any other cause)."""
    count = len(arrivals.last)
    itself = np.arange(count)
    if count == 0:
        return itself, itself
    largest = excess.argmax(axis=0)
    waits_first = (largest == WAITING) & (excess[WAITING] > 0)
    behind = np.full(count, NONE)
    at = np.flatnonzero(waits_first)
    behind[at] = _longest_wait_inside(all_waits, arrivals, arrivals.last[at], opened)
    cause = np.where((excess.max(axis=0) > 0) & (arrivals.last != NONE), largest, NONE)
    return cause, np.where(behind != NONE, behind, itself)


def _longest_wait_inside(all_waits: Waits, arrivals: Arrivals, entries: Ints, opened: Ints) -> Ints:
    """For each entry, the arrival for which its rank waited longest between `opened` and its own arrival."""
    rows = all_waits.rows
    result = np.full(len(entries), NONE)
    waited = np.flatnonzero(all_waits.wait > 0)
    if len(waited) == 0 or len(entries) == 0:
        return result
    origin = int(opened.min())
    width = int(rows.end.max()) - origin + 2
    ended = rows.rank[waited] * width + (rows.end[waited] - origin)  # one axis for all ranks
    order = np.argsort(ended, kind="stable")
    waited, ended = waited[order], ended[order]
    begins = rows.rank[entries] * width - origin
    low = np.searchsorted(ended, begins + opened[entries], side="right")
    high = np.searchsorted(ended, begins + rows.start[entries], side="right")
    best = range_argmax(all_waits.wait[waited], low, high)
    has = best != NONE
    result[has] = arrivals.of_entry[waited[best[has]]]
    return result


def range_argmax(value: Ints, low: Ints, high: Ints) -> Ints:
    """Index of the largest value in each range [low, high); NONE for an empty range."""
    result = np.full(len(low), NONE)
    size = high - low
    level, largest = 0, np.arange(len(value))
    while (size >= 1 << level).any():
        span = 1 << level
        of_level = np.flatnonzero((size >= span) & (size < 2 * span))
        left, right = largest[low[of_level]], largest[high[of_level] - span]
        result[of_level] = np.where(value[left] >= value[right], left, right)
        if len(largest) <= span:
            break
        left, right = largest[:-span], largest[span:]
        largest = np.where(value[left] >= value[right], left, right)
        level += 1
    return result
