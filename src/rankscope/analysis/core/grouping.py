"""Rows of all ranks divided by rank."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np


def split_by_rank(columns: dict[str, Any], ranks: Iterable[int]) -> dict[int, dict[str, Any]]:
    """The rows of each rank in their given order, without the column `rank`."""
    order = np.argsort(columns["rank"], kind="stable")
    ordered = {name: values[order] for name, values in columns.items()}
    rank = ordered.pop("rank")
    bounds = {number: slice(*np.searchsorted(rank, [number, number + 1])) for number in ranks}
    return {
        number: {name: values[rows] for name, values in ordered.items()} for number, rows in bounds.items()
    }
