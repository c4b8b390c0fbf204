"""Rows of all ranks divided by rank, and joined again."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from rankscope.timeline.run import Run


def split_by_rank(columns: dict[str, Any], ranks: Iterable[int]) -> dict[int, dict[str, Any]]:
    """The rows of each rank in their given order, without the column `rank`."""
    order = np.argsort(columns["rank"], kind="stable")
    ordered = {name: values[order] for name, values in columns.items()}
    rank = ordered.pop("rank")
    bounds = {one: slice(*np.searchsorted(rank, [one, one + 1])) for one in ranks}
    return {one: {name: values[own] for name, values in ordered.items()} for one, own in bounds.items()}


def joined_by_rank(
    run: Run, records: Mapping[int, Any], numbers: Sequence[str], times: Sequence[str]
) -> dict[str, Any]:
    """Arrays of records of ranks as columns of all ranks, with a column `rank`; times count from the run's start."""
    none = np.empty(0, dtype=np.int64)

    def column(name: str) -> Any:
        return np.concatenate([none, *(getattr(record, name) for record in records.values())])

    first = (*numbers, *times)[0]
    sizes = [len(getattr(record, first)) for record in records.values()]
    origin = np.repeat(np.array([run.origin_ns(rank) for rank in records], dtype=np.int64), sizes)
    columns = {"rank": np.repeat(np.array(list(records), dtype=np.int64), sizes)}
    columns |= {name: column(name) for name in numbers}
    return columns | {name: column(name) + origin for name in times}
