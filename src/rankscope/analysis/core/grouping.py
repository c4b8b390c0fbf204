"""Rows in groups: divided by rank, and their medians."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from rankscope.store.arrays import Floats, Ints


def split_by_rank(columns: dict[str, Any], ranks: Iterable[int]) -> dict[int, dict[str, Any]]:
    """The rows of each rank in their given order, without the column `rank`."""
    order = np.argsort(columns["rank"], kind="stable")
    ordered = {name: values[order] for name, values in columns.items()}
    rank = ordered.pop("rank")
    bounds = {number: slice(*np.searchsorted(rank, [number, number + 1])) for number in ranks}
    return {
        number: {name: values[rows] for name, values in ordered.items()} for number, rows in bounds.items()
    }


def group_medians(group: Ints, value: Ints) -> Floats:
    """The median of each group; groups are numbered from 0 and none is empty."""
    order = np.lexsort((value, group))
    sizes = np.bincount(group)
    first = np.cumsum(sizes) - sizes
    ordered = value[order]
    middle: Floats = (ordered[first + (sizes - 1) // 2] + ordered[first + sizes // 2]) / 2
    return middle
