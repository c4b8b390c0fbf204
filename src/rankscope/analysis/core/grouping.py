"""Rows in groups: divided by rank, their sums and medians."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

import numpy as np

from rankscope.store.arrays import NONE, Floats, Ints, packed


def joined(parts: Iterable[Any], name: str) -> Ints:
    """An array that some records have, of one after the other."""
    return np.concatenate([np.empty(0, dtype=np.int64), *(getattr(part, name) for part in parts)])


def split_by_rank(columns: dict[str, Any], ranks: Iterable[int]) -> dict[int, dict[str, Any]]:
    """The rows of each rank in their given order, without the column `rank`."""
    order = np.argsort(columns["rank"], kind="stable")
    ordered = {name: values[order] for name, values in columns.items()}
    rank = ordered.pop("rank")
    bounds = {number: slice(*np.searchsorted(rank, [number, number + 1])) for number in ranks}
    return {
        number: {name: values[rows] for name, values in ordered.items()} for number, rows in bounds.items()
    }


def summed(parts: Iterable[tuple[Any, Iterable[Any]]], largest: Collection[int] = ()) -> dict[Any, list[Any]]:
    """By key the sums of figures; of those at the places `largest` the maximum."""
    sums: dict[Any, list[Any]] = {}
    for key, figures in parts:
        known = sums.get(key)
        sums[key] = (
            [*figures]
            if known is None
            else [
                max(a, b) if at in largest else a + b
                for at, (a, b) in enumerate(zip(known, figures, strict=True))
            ]
        )
    return sums


def sums_by(group: Ints, value: Any, count: int = 0) -> Ints:
    """The sum of each group, of at least so many."""
    sums: Ints = np.bincount(group, weights=value, minlength=count).astype(np.int64)
    return sums


def group_medians(group: Ints, value: Ints) -> Floats:
    """The median of each group; groups are numbered from 0 and none is empty."""
    order = np.lexsort((value, group))
    sizes = np.bincount(group)
    first = np.cumsum(sizes) - sizes
    ordered = value[order]
    middle: Floats = (ordered[first + (sizes - 1) // 2] + ordered[first + sizes // 2]) / 2
    return middle


def last_before(group: Ints, time: Ints, of: Ints, at: Ints) -> Ints:
    """For each query, the entry of group `of` that is last at or before the time `at`, or NONE; of equal times the last
    one."""
    if len(time) == 0:
        return np.full(len(of), NONE)
    places = packed([np.append(group, of), np.append(time, at)])
    placed = places[: len(time)]
    order = np.argsort(placed, kind="stable")  # nearly in order already, as a rule
    number = np.searchsorted(placed, places[len(time) :], side="right", sorter=order) - 1
    last = order[np.maximum(number, 0)]
    return np.where((number >= 0) & (group[last] == of), last, NONE)


def middle_of_others(values: Floats) -> tuple[Floats, Floats]:
    """For each value the two middle ones of the others along the last axis, which are the same one of an odd number.

    NaN is no value; it is what a value without others gets.
    """
    order = np.argsort(values, axis=-1, kind="stable")
    ordered = np.take_along_axis(values, order, axis=-1)
    position = np.empty_like(order)
    np.put_along_axis(position, order, np.broadcast_to(np.arange(values.shape[-1]), order.shape), axis=-1)
    others = (~np.isnan(values)).sum(axis=-1, keepdims=True) - 1

    def other(number: Ints) -> Floats:
        """Of the others in order, the one of this number; the value itself is passed over."""
        at = np.minimum(np.maximum(number, 0) + (number >= position), values.shape[-1] - 1)
        has_others = (others > 0) & ~np.isnan(values)
        value: Floats = np.where(has_others, np.take_along_axis(ordered, at, axis=-1), np.nan)
        return value

    return other((others - 1) // 2), other(others // 2)
