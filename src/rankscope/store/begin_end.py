"""Begin and end events (phases B/E and b/e) become slices."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rankscope.store.nesting import Ints


@dataclass(frozen=True)
class Pairs:
    """Indices of events that belong together, and of those left alone."""

    begin: Ints
    end: Ints
    never_ended: Ints
    never_begun: Ints


def pair_nested(track: Ints, time: Ints, is_begin: NDArray[np.bool_]) -> Pairs:
    """Pair each end with the latest open begin of its track, as B/E events mean it."""
    order = np.lexsort((time, track))
    step = np.where(is_begin[order], 1, -1)
    open_after = np.cumsum(step)
    tracks = track[order]
    first = np.searchsorted(tracks, tracks, side="left")
    before_track = np.where(first > 0, open_after[np.maximum(first - 1, 0)], 0)
    depth = open_after - before_track + np.where(is_begin[order], 0, 1)
    return _pair_neighbours(order, is_begin, np.lexsort((depth, tracks)), tracks, depth)


def pair_by_key(key: Ints, time: Ints, is_begin: NDArray[np.bool_]) -> Pairs:
    """Pair begins and ends that share a key (async events: category and id), in order of time."""
    order = np.lexsort((time, key))
    keys = key[order]
    return _pair_neighbours(
        order, is_begin, np.arange(len(order)), keys, np.zeros(len(order), dtype=np.int64)
    )


def _pair_neighbours(
    order: Ints, is_begin: NDArray[np.bool_], grouped: Ints, key: Ints, depth: Ints
) -> Pairs:
    """Within a group a begin followed at once by an end is a pair."""
    index = order[grouped]
    begins = is_begin[index]
    same = (key[grouped][:-1] == key[grouped][1:]) & (depth[grouped][:-1] == depth[grouped][1:])
    paired = np.flatnonzero(begins[:-1] & ~begins[1:] & same)
    alone = np.ones(len(index), dtype=bool)
    alone[paired] = alone[paired + 1] = False
    return Pairs(index[paired], index[paired + 1], index[alone & begins], index[alone & ~begins])
