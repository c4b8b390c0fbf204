"""Whether a late rank is late because its GPU's clock is low: its kernels must be slower by about the same factor."""

from __future__ import annotations

from collections import defaultdict

import numpy as np

from rankscope.analysis.core.scope import Scope
from rankscope.analysis.within_rank.event_tables import kernel_sums
from rankscope.analysis.within_rank.gpu_state import LowClock, gpu_states, low_clock
from rankscope.records import dataclass
from rankscope.timeline.run import Run

_LEAST_EXPLAINED, _MOST_EXPLAINED = 0.5, 1.5
"""A kernel bound by memory is slowed by less than the clock. Kernels slower by much more have another cause as well."""
_LEAST_SHARE = 0.5
"""Of the rank's extra time, the part that its slower kernels must make up."""


@dataclass(frozen=True)
class SlowClock:
    """A low clock, and how much longer the rank's kernels take."""

    low: LowClock
    slower: float
    """The time of its kernels as a multiple of that on the other ranks; of half of its time it is more."""


def slow_clock(
    run: Run, window: Scope, rank: int, together: tuple[int, ...], extra_ns: float, steps: int
) -> SlowClock | None:
    """The low clock of a rank whose compute takes `extra_ns` per step longer, if that explains it.

    `together` are the ranks that are late for the same reason; the others are compared with.
    """
    low = low_clock(gpu_states(run, window), rank, together)
    if low is None:
        return None
    slowdown = _slower(run, window, rank, [other for other, _ in low.others])
    if slowdown is None:
        return None
    slower, compute_ns = slowdown
    expected = low.others_mhz / low.mine_mhz - 1
    explained = (slower - 1) / expected
    saved_ns = compute_ns / steps * (1 - 1 / slower) if slower > 1 else 0.0
    if not _LEAST_EXPLAINED <= explained <= _MOST_EXPLAINED or saved_ns < _LEAST_SHARE * extra_ns:
        return None
    return SlowClock(low, slower)


def _slower(run: Run, window: Scope, rank: int, others: list[int]) -> tuple[float, int] | None:
    """How much longer a rank's kernels take, and their time. Of each name the mean duration is compared, so that more
    calls are no slower kernels; of all names the median, weighted by time, is taken."""
    sums = kernel_sums(run, window)
    if sums is None:
        return None
    theirs: dict[str, list[float]] = defaultdict(list)
    for other in others:
        for kernel in sums.get(other, ()):
            if kernel.kind == "COMPUTE" and kernel.total_ns > 0:
                theirs[kernel.name].append(kernel.total_ns / kernel.kernels)
    mine = [kernel for kernel in sums.get(rank, ()) if kernel.kind == "COMPUTE" and kernel.name in theirs]
    if not mine:
        return None
    usual = np.array([np.median(theirs[kernel.name]) for kernel in mine])
    weight = np.array([kernel.total_ns for kernel in mine], dtype=np.float64)
    ratio = weight / np.array([kernel.kernels for kernel in mine]) / usual
    order = np.argsort(ratio)
    half = np.searchsorted(np.cumsum(weight[order]), weight.sum() / 2)
    return float(ratio[order][half]), int(weight.sum())
