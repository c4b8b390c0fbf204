"""Is a difference more than noise? A permutation test over samples, for many rows at once.

If nothing had changed, any way of dealing the samples into two heaps would be as good as the real one. How
often does a random deal show a difference as large as the real one, in any row at all? That share is the
p-value (Westfall and Young's max-T): it already allows for the number of rows, however they hang together.
"""

from __future__ import annotations

from itertools import combinations
from math import comb

import numpy as np

from rankscope.store.arrays import Floats, Ints

EXACT_UP_TO = 20_000
"""Deals that are all tried; of more, a fixed random choice."""
RANDOM_DEALS = 10_000
_DEALS_AT_ONCE = 512
_SEED = 20_240_607
# Below this share of a row's level its samples are called equal: float sums of integers differ by less.
_ROUNDING = 1e-9


def smallest_p(base: int, new: int) -> float:
    """What the test can reach at best with so many samples on each side."""
    if base < 1 or new < 1:
        return 1.0
    deals = comb(base + new, base)
    # With equal heaps the mirror image of a deal is as extreme as the deal itself.
    return (2 if base == new else 1) / deals if deals <= EXACT_UP_TO else 1 / (RANDOM_DEALS + 1)


def adjusted_p(base: Floats, new: Floats) -> Floats:
    """One p-value a row. Rows are measures, columns samples; both sides have the same rows."""
    count, total = base.shape[1], base.shape[1] + new.shape[1]
    values = np.concatenate([base, new], axis=1)
    if 0 in values.shape or count in (0, total):
        return np.ones(len(values))
    # Only differences matter; taking the level off keeps sums of squares exact.
    values = values - values.mean(axis=1, keepdims=True)
    floor = (_ROUNDING * np.maximum(np.abs(base).max(axis=1), np.abs(new).max(axis=1))) ** 2 + 1e-300
    real = _differences(values, np.arange(count)[None, :], floor)[0]
    at_least = np.zeros(len(values))
    deals = 0
    for chunk in _deals(total, count):
        largest = _differences(values, chunk, floor).max(axis=1)
        # A deal and its mirror image round differently in the last digit.
        at_least += (largest[:, None] >= real * (1 - 1e-9)).sum(axis=0)
        deals += len(chunk)
    if comb(total, count) > EXACT_UP_TO:  # the real deal counts as one of those tried
        at_least, deals = at_least + 1, deals + 1
    return np.minimum(at_least / deals, 1.0)


def _deals(total: int, count: int) -> list[Ints]:
    """Which samples go to the first heap, deal by deal, in chunks."""
    if comb(total, count) <= EXACT_UP_TO:
        every = np.array(list(combinations(range(total), count)), dtype=np.int64)
    else:
        source = np.random.Generator(np.random.PCG64(_SEED))
        every = np.argsort(source.random((RANDOM_DEALS, total)), axis=1)[:, :count]
    return [every[first : first + _DEALS_AT_ONCE] for first in range(0, len(every), _DEALS_AT_ONCE)]


def _differences(values: Floats, deals: Ints, floor: Floats) -> Floats:
    """|t| of every deal and row: difference of the means over what the spread inside the heaps explains."""
    total, count = values.shape[1], deals.shape[1]
    rest = total - count
    chosen = np.zeros((len(deals), total))
    np.put_along_axis(chosen, deals, 1.0, axis=1)
    first = chosen @ values.T
    second = values.sum(axis=1) - first
    means = first / count - second / rest
    within = (values**2).sum(axis=1) - first**2 / count - second**2 / rest
    variance = np.maximum(within, 0.0) / max(total - 2, 1) + floor
    statistics: Floats = np.abs(means) / np.sqrt(variance * (1 / count + 1 / rest))
    return statistics
