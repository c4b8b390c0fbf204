"""Level of detail: for each pixel of a lane, the longest slice that starts in it and the number of slices that do.

A lane is a row of non-overlapping slices in order of start. Of the slices that start in one pixel at most one is
wider than the pixel, so drawing the longest shows everything that is visible. This is exact at every zoom level: a
pyramid of block maxima gives the longest slice of a range without reading the whole range.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rankscope.store.arrays import Ints as Ints

Indices = NDArray[np.int32]

BLOCK = 16
"""Entries of one level per entry of the next."""

_NOTHING = np.zeros(0, dtype=np.int64)


@dataclass(frozen=True)
class Buckets:
    """What to draw of some lanes in a window: one entry per lane and pixel in which a slice starts."""

    lane: Ints
    """Index into the requested lanes."""
    longest: Ints
    """Index of the longest slice that starts there."""
    count: Ints
    """Number of slices that start there, including the longest."""


def build_pyramid(duration: Ints) -> list[Indices]:
    """For each level, the index of the longest slice in each block of the level below."""
    levels = []
    best = np.arange(len(duration), dtype=np.int32)
    while len(best) > BLOCK:
        padded = np.concatenate([best, np.full(-len(best) % BLOCK, best[-1], dtype=np.int32)])
        blocks = padded.reshape(-1, BLOCK)
        best = blocks[np.arange(len(blocks)), duration[blocks].argmax(axis=1)]
        levels.append(best)
    return levels


def buckets(
    start: Ints,
    duration: Ints,
    levels: list[Indices],
    lanes: Sequence[tuple[int, int]],
    begin: int,
    step: int,
    width: int,
) -> Buckets:
    """The lanes [first, last) of a table of slices, from `begin` in `width` pixels of `step` ns each.

    A slice that begins before the window and extends into it is returned after all others, with a count of 1.
    """
    lows, highs, carried, carriers = [], [], [], []
    for number, (first, last) in enumerate(lanes):
        lane = start[first:last]
        low, high = (first + int(n) for n in np.searchsorted(lane, [begin, begin + step * width]))
        lower, upper = _ranges(start, low, high, begin, step, width)
        lows.append(lower)
        highs.append(upper)
        if low > first and start[low - 1] + duration[low - 1] > begin:
            carried.append(low - 1)
            carriers.append(number)
    sizes = [len(lower) for lower in lows]
    low_all, high_all = (np.concatenate(parts) if parts else _NOTHING for parts in (lows, highs))
    return Buckets(
        lane=np.concatenate([np.repeat(np.arange(len(lanes)), sizes), np.array(carriers, dtype=np.int64)]),
        longest=np.concatenate(
            [_longest(duration, levels, low_all, high_all), np.array(carried, dtype=np.int64)]
        ),
        count=np.concatenate([high_all - low_all, np.ones(len(carried), dtype=np.int64)]),
    )


def _ranges(start: Ints, low: int, high: int, begin: int, step: int, width: int) -> tuple[Ints, Ints]:
    """For each pixel with slices, the index of the first and one past the last."""
    if high - low <= width:  # fewer slices than pixels: compute the pixel of each slice
        pixel = (np.asarray(start[low:high]) - begin) // step
        fresh = np.flatnonzero(np.diff(pixel, prepend=-1))
        return low + fresh, low + np.append(fresh[1:], high - low) if len(fresh) else fresh
    edges = low + np.searchsorted(start[low:high], begin + step * np.arange(width + 1, dtype=np.int64))
    full = edges[1:] > edges[:-1]
    return edges[:-1][full], edges[1:][full]


def _longest(duration: Ints, levels: list[Indices], low: Ints, high: Ints) -> Ints:
    """Index of the longest slice of each range [low, high); the first of equals."""
    if len(low) == 0:
        return _NOTHING
    owners, candidates = [], []

    def consider(ranges: Ints, begin: Ints, end: Ints, level: int) -> None:
        sizes = np.maximum(end - begin, 0)
        offsets = np.arange(int(sizes.sum())) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        entries = np.repeat(begin, sizes) + offsets
        owners.append(np.repeat(ranges, sizes))
        candidates.append(entries if level == 0 else levels[level - 1][entries].astype(np.int64))

    mine, level = np.arange(len(low)), 0
    while len(mine):
        wide = (high - low > BLOCK) & (level < len(levels))
        consider(mine[~wide], low[~wide], high[~wide], level)
        mine, low, high = mine[wide], low[wide], high[wide]
        left = -(-low // BLOCK)
        right = np.maximum(left, high // BLOCK)  # equal where the range contains no whole block
        edge = np.minimum(left * BLOCK, high)
        consider(mine, low, edge, level)
        consider(mine, right * BLOCK, high, level)
        low, high, level = left, right, level + 1
    return _best(np.concatenate(owners), np.concatenate(candidates), duration)


def _best(owner: Ints, candidate: Ints, duration: Ints) -> Ints:
    order = np.argsort(owner, kind="stable")
    owner, candidate = owner[order], candidate[order]
    length = np.asarray(duration[candidate])
    first = np.flatnonzero(np.diff(owner, prepend=-1))
    sizes = np.diff(np.append(first, len(owner)))
    longest = length == np.repeat(np.maximum.reduceat(length, first), sizes)
    best: Ints = np.minimum.reduceat(np.where(longest, candidate, np.iinfo(np.int64).max), first)
    return best
