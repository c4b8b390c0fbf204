"""A permutation test for many rows at once: is a difference between two sets of samples more than noise?

If nothing had changed, every split of the samples into two sets would be equally likely. The p-value of a row is the
share of splits in which the largest difference over all rows is at least as large as the real difference of that row
(the max-T method of Westfall and Young). It is adjusted for the number of rows, whatever their correlation.
"""

from __future__ import annotations

from itertools import combinations
from math import comb

import numpy as np

from rankscope.store.arrays import Floats, Ints

EXACT_UP_TO = 20_000
"""Up to this number of splits all are tried; of more, a fixed random choice."""
RANDOM_SPLITS = 10_000
_SPLITS_AT_ONCE = 512
_SEED = 20_240_607
# Samples that differ by less than this share of their size count as equal: float sums round differently.
_ROUNDING = 1e-9


def smallest_p(base: int, new: int) -> float:
    """The smallest p-value that the test can give with this number of samples on each side."""
    if base < 1 or new < 1:
        return 1.0
    splits = comb(base + new, base)
    # With sets of equal size the mirror image of a split is as extreme as the split itself.
    return (2 if base == new else 1) / splits if splits <= EXACT_UP_TO else 1 / (RANDOM_SPLITS + 1)


def adjusted_p(base: Floats, new: Floats) -> Floats:
    """One p-value for each row. Rows are measures, columns are samples; both sides have the same rows."""
    count, total = base.shape[1], base.shape[1] + new.shape[1]
    values = np.concatenate([base, new], axis=1)
    if 0 in values.shape or count in (0, total):
        return np.ones(len(values))
    # Only differences matter; subtracting the mean keeps the sums of squares accurate.
    values = values - values.mean(axis=1, keepdims=True)
    floor = (_ROUNDING * np.maximum(np.abs(base).max(axis=1), np.abs(new).max(axis=1))) ** 2 + 1e-300
    real = _differences(values, np.arange(count)[None, :], floor)[0]
    at_least = np.zeros(len(values))
    splits = 0
    for chunk in _splits(total, count):
        largest = _differences(values, chunk, floor).max(axis=1)
        # A split and its mirror image round differently in the last digit.
        at_least += (largest[:, None] >= real * (1 - 1e-9)).sum(axis=0)
        splits += len(chunk)
    if comb(total, count) > EXACT_UP_TO:  # the real split counts as one of those tried
        at_least, splits = at_least + 1, splits + 1
    return np.minimum(at_least / splits, 1.0)


def _splits(total: int, count: int) -> list[Ints]:
    """The samples in the first set of each split, in chunks."""
    if comb(total, count) <= EXACT_UP_TO:
        every = np.array(list(combinations(range(total), count)), dtype=np.int64)
    else:
        source = np.random.Generator(np.random.PCG64(_SEED))
        every = np.argsort(source.random((RANDOM_SPLITS, total)), axis=1)[:, :count]
    return [every[first : first + _SPLITS_AT_ONCE] for first in range(0, len(every), _SPLITS_AT_ONCE)]


def _differences(values: Floats, splits: Ints, floor: Floats) -> Floats:
    """|t| of every split and row: the difference of the means over its standard error."""
    total, count = values.shape[1], splits.shape[1]
    rest = total - count
    chosen = np.zeros((len(splits), total))
    np.put_along_axis(chosen, splits, 1.0, axis=1)
    first = chosen @ values.T
    second = values.sum(axis=1) - first
    means = first / count - second / rest
    within = (values**2).sum(axis=1) - first**2 / count - second**2 / rest
    variance = np.maximum(within, 0.0) / max(total - 2, 1) + floor
    statistics: Floats = np.abs(means) / np.sqrt(variance * (1 / count + 1 / rest))
    return statistics
