"""Whether a late rank is late because its GPU's clock is low: its kernels must be slower by about the same factor."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from rankscope.analysis.within_rank.event_tables import KernelSum
from rankscope.analysis.within_rank.gpu_state import LowClock

_LEAST_EXPLAINED, _MOST_EXPLAINED = 0.5, 1.5
"""A kernel bound by memory is slowed by less than the clock. Kernels slower by much more have another cause as well."""


def explains(low: LowClock, slower: float) -> bool:
    """Whether a low clock explains that something takes `slower` times as long."""
    explained = (slower - 1) / (low.others_mhz / low.mine_mhz - 1)
    return _LEAST_EXPLAINED <= explained <= _MOST_EXPLAINED


def slower_kernels(
    kernels: Sequence[KernelSum], others: Sequence[Sequence[KernelSum]]
) -> tuple[float, int] | None:
    """How much longer the kernels of a rank take than those of others, and their time. Of each name the mean duration
    is compared, so that more calls are no slower kernels; of all names the median, weighted by time, is taken."""
    theirs: dict[str, list[float]] = defaultdict(list)
    for sums in others:
        for kernel in sums:
            if kernel.kind == "COMPUTE" and kernel.total_ns > 0:
                theirs[kernel.name].append(kernel.total_ns / kernel.kernels)
    mine = [kernel for kernel in kernels if kernel.kind == "COMPUTE" and kernel.name in theirs]
    if not mine:
        return None
    usual = np.array([np.median(theirs[kernel.name]) for kernel in mine])
    weight = np.array([kernel.total_ns for kernel in mine], dtype=np.float64)
    ratio = weight / np.array([kernel.kernels for kernel in mine]) / usual
    order = np.argsort(ratio)
    half = np.searchsorted(np.cumsum(weight[order]), weight.sum() / 2)
    return float(ratio[order][half]), int(weight.sum())
