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
    bounds = {one: slice(*np.searchsorted(rank, [one, one + 1])) for one in ranks}
    return {one: {name: values[own] for name, values in ordered.items()} for one, own in bounds.items()}
