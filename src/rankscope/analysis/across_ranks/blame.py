"""For each collective, why its last rank was late, and which rank caused that.

For each collective and rank, the time from the end of the group's previous collective to the arrival is split by
what the rank did. The activity on which the last rank spent most beyond the median of the others is the cause. When
that is waiting inside another collective, the last rank of that collective is to blame, and so on back in time.
"""

from __future__ import annotations

import numpy as np

from rankscope.analysis.across_ranks.rank_activity import PARTS, covers, within
from rankscope.analysis.core.cache import once_per_run
from rankscope.analysis.core.collective_waits import Waits, waits
from rankscope.analysis.core.intervals import Ints
from rankscope.records import dataclass
from rankscope.store.arrays import NONE, unique_values
from rankscope.store.collectives.entries import Collectives
from rankscope.store.run import Run

WAITING = PARTS.index("waiting")


@dataclass(frozen=True)
class Blame:
    """Arrays by match, in the numbering of `waits(run)`."""

    excess: Ints
    """[part, match]: time of the last rank minus the median of the others, or 0 if that is negative."""
    cause: Ints
    """The part with the largest excess, as an index into PARTS; NONE without a last rank or without an excess."""
    root: Ints
    """The match at which the chain of waiting began; the match itself where its last rank did not wait."""
    rank: Ints
    """The rank to blame: the last rank of the root match; NONE where no rank was last."""
    hidden: Ints
    """By entry, not by match: how long the collective overlapped with compute on its own rank."""


@once_per_run
def blame(run: Run) -> Blame:
    """Computed for the whole run; callers select steps and ranks from it."""
    found = waits(run)
    rows = found.rows
    opened = window_starts(run, rows)
    split = np.zeros((len(PARTS), len(rows.rank)), dtype=np.int64)
    hidden = np.zeros(len(rows.rank), dtype=np.int64)
    for cover in covers(run, unique_values(rows.rank).tolist(), found.entry_transfer):
        mine = np.flatnonzero(rows.rank == cover.rank)
        parts = cover.split(opened[mine], rows.start[mine])
        for i, name in enumerate(PARTS):
            split[i, mine] = parts[name]
        hidden[mine] = within(cover.compute, rows.start[mine], rows.end[mine])
    excess = np.stack([_excess(part, found) for part in split])
    cause, follows = _causes(found, excess, opened)
    root = _roots(follows)
    last = found.last[root] if len(root) else root
    rank = np.where(found.last != NONE, rows.rank[np.maximum(last, 0)], NONE) if len(rows.rank) else last
    return Blame(excess, cause, root, rank, hidden)


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
    steps = run.rows("SELECT rank, step, min(start_ns) FROM steps GROUP BY ALL")
    began = {(int(rank), int(step)): int(start) for rank, step, start in steps}
    files: dict[tuple[int, int], int] = {}
    for i in np.flatnonzero(first).tolist():
        rank, step, file = int(rows.rank[i]), int(rows.step[i]), int(rows.segment[i])
        if (rank, step) not in began and not files:  # reads all slices, so only when needed
            found = run.rows("SELECT rank, segment, min(start_ns) FROM slices GROUP BY ALL")
            files = {(rank, file): start for rank, file, start in found}
        opened[i] = min(began.get((rank, step), files.get((rank, file), 0)), int(rows.start[i]))
    return opened


def _excess(part: Ints, found: Waits) -> Ints:
    """By match: the time of the last rank minus the median of the other ranks; never negative."""
    rows, count = found.rows, len(found.last)
    known = np.flatnonzero(found.wait != NONE)
    known = known[found.last[rows.match[known]] != known]
    order = known[np.lexsort((part[known], rows.match[known]))]
    sizes = np.bincount(rows.match[order], minlength=count)
    first = np.cumsum(sizes) - sizes
    value = np.append(part[order], 0)
    some = sizes > 0
    low = value[np.where(some, first + (sizes - 1) // 2, -1)]
    high = value[np.where(some, first + sizes // 2, -1)]
    excess = (
        part[np.maximum(found.last, 0)] - (low + high) // 2 if len(part) else np.zeros(count, dtype=np.int64)
    )
    return np.where((found.last != NONE) & some, np.maximum(excess, 0), 0)


def _causes(found: Waits, excess: Ints, opened: Ints) -> tuple[Ints, Ints]:
    """By match: the cause, and the earlier match in which the last rank waited (itself for any other cause)."""
    count = len(found.last)
    itself = np.arange(count)
    if count == 0:
        return itself, itself
    largest = excess.argmax(axis=0)
    waits_first = (largest == WAITING) & (excess[WAITING] > 0)
    behind = np.full(count, NONE)
    at = np.flatnonzero(waits_first)
    behind[at] = _longest_wait_inside(found, found.last[at], opened)
    cause = np.where((excess.max(axis=0) > 0) & (found.last != NONE), largest, NONE)
    return cause, np.where(behind != NONE, behind, itself)


def _longest_wait_inside(found: Waits, entries: Ints, opened: Ints) -> Ints:
    """For each entry, the match in which its rank waited longest between `opened` and the arrival."""
    rows = found.rows
    result = np.full(len(entries), NONE)
    for rank in unique_values(rows.rank[entries]):
        mine = np.flatnonzero((rows.rank == rank) & (found.wait > 0))
        mine = mine[np.argsort(rows.end[mine], kind="stable")]
        asked = np.flatnonzero(rows.rank[entries] == rank)
        low = np.searchsorted(rows.end[mine], opened[entries[asked]], side="right")
        high = np.searchsorted(rows.end[mine], rows.start[entries[asked]], side="right")
        best = range_argmax(found.wait[mine], low, high)
        has = best != NONE
        result[asked[has]] = rows.match[mine[best[has]]]
    return result


def range_argmax(value: Ints, low: Ints, high: Ints) -> Ints:
    """Index of the largest value in each range [low, high); NONE for an empty range."""
    result = np.full(len(low), NONE)
    size = high - low
    level, place = 0, np.arange(len(value))
    while (size >= 1 << level).any():
        span = 1 << level
        of_level = np.flatnonzero((size >= span) & (size < 2 * span))
        left, right = place[low[of_level]], place[high[of_level] - span]
        result[of_level] = np.where(value[left] >= value[right], left, right)
        if len(place) <= span:
            break
        left, right = place[:-span], place[span:]
        place = np.where(value[left] >= value[right], left, right)
        level += 1
    return result


def _roots(follows: Ints) -> Ints:
    """The end of each chain, by pointer doubling. Chains go back in time, so they have an end."""
    for _ in range(int(np.log2(len(follows) + 1)) + 2):
        further = follows[follows]
        if (further == follows).all():
            break
        follows = further
    return follows
