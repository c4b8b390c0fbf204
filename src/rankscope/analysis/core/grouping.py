"""Grouping of arrays: distinct combinations of several numbers, and rows by rank."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from rankscope.analysis.core.intervals import Ints

_ROOM = 1 << 62


def distinct(columns: Ints) -> tuple[Ints, Ints]:
    """The same as np.unique(columns, axis=1, return_inverse=True); a row per key, a column per event.

    The keys of an event are packed into one integer, which sorts fifteen times as fast as columns.
    """
    count = columns.shape[1]
    if count == 0:
        return columns, np.zeros(0, dtype=np.int64)
    packed = np.zeros(count, dtype=np.int64)
    width = 1
    for column in columns:
        low, high = int(column.min()), int(column.max())
        size = high - low + 1
        if size > _ROOM:  # the range needs all 64 bits: use ranks of the values instead
            column = np.unique(column, return_inverse=True)[1].reshape(-1)
            low, size = 0, int(column.max()) + 1
        if width > _ROOM // size:
            packed = np.unique(packed, return_inverse=True)[1].reshape(-1)
            width = int(packed.max()) + 1
            if width > _ROOM // size:
                column = np.unique(column, return_inverse=True)[1].reshape(-1)
                low, size = 0, int(column.max()) + 1
        packed = packed * size + (column - low)
        width *= size
    _, first, group = np.unique(packed, return_index=True, return_inverse=True)
    return columns[:, first], group.reshape(-1)


def split_by_rank(columns: dict[str, Any], ranks: Iterable[int]) -> dict[int, dict[str, Any]]:
    """The rows of each rank in their given order, without the column `rank`."""
    order = np.argsort(columns["rank"], kind="stable")
    ordered = {name: values[order] for name, values in columns.items()}
    rank = ordered.pop("rank")
    bounds = {one: slice(*np.searchsorted(rank, [one, one + 1])) for one in ranks}
    return {one: {name: values[own] for name, values in ordered.items()} for one, own in bounds.items()}
