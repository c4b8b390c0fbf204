"""Which begin of a slice belongs to which end. Used for all events of a file at once: numpy, without a loop."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Mask = NDArray[np.bool_]


@dataclass(frozen=True)
class Pairs:
    """Indices of begin events and their ends, and of events without a partner."""

    begin: Ints
    end: Ints
    never_ended: Ints
    never_begun: Ints


def pair_nested(track: Ints, time: Ints, is_begin: Mask, tie: NDArray[Any] | None = None) -> Pairs:
    """Pair each end with the latest open begin on its track: events of phase B and E.

    `tie` decides what comes first at the same time; else the order of the events does.
    """
    order = np.lexsort((time, track) if tie is None else (tie, time, track))
    step = np.where(is_begin[order], 1, -1)
    open_after = np.cumsum(step)
    tracks = track[order]
    first = np.searchsorted(tracks, tracks, side="left")
    before_track = np.where(first > 0, open_after[np.maximum(first - 1, 0)], 0)
    depth = open_after - before_track + np.where(is_begin[order], 0, 1)
    return _pair_neighbours(order, is_begin, np.lexsort((depth, tracks)), tracks, depth)


def pair_by_key(key: Ints, time: Ints, is_begin: Mask) -> Pairs:
    """Pair begins and ends with the same key in order of time: async events, phase b and e."""
    order = np.lexsort((time, key))
    keys = key[order]
    return _pair_neighbours(
        order, is_begin, np.arange(len(order)), keys, np.zeros(len(order), dtype=np.int64)
    )


def _pair_neighbours(order: Ints, is_begin: Mask, grouped: Ints, key: Ints, depth: Ints) -> Pairs:
    """Within a group, a begin directly followed by an end is a pair."""
    index = order[grouped]
    begins = is_begin[index]
    same = (key[grouped][:-1] == key[grouped][1:]) & (depth[grouped][:-1] == depth[grouped][1:])
    paired = np.flatnonzero(begins[:-1] & ~begins[1:] & same)
    unpaired = np.ones(len(index), dtype=bool)
    unpaired[paired] = unpaired[paired + 1] = False
    return Pairs(index[paired], index[paired + 1], index[unpaired & begins], index[unpaired & ~begins])
