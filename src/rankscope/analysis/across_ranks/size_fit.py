"""Time over size of one kind of collective: t = a + S / b, and which sizes are far slower than that line."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

LEAST_SIZES = 3
_FAR = 1.5
"""A size that takes more than this times what the line says is far from it."""


@dataclass(frozen=True)
class SizeFit:
    """a in ns, b in bytes per ns (GB/s)."""

    latency_ns: float
    bandwidth: float

    def time_ns(self, size: float) -> float:
        return self.latency_ns + size / self.bandwidth

    def is_far(self, size: float, time_ns: float) -> bool:
        return time_ns > _FAR * self.time_ns(size)


def fit_sizes(sizes: list[int], times_ns: list[float]) -> SizeFit | None:
    """The median of the slopes between all pairs, so that one slow size does not bend the line (Theil and Sen).

    Pairs count by their distance: two sizes that are almost equal say nothing about the slope. None
    with fewer than three sizes, or when larger ones do not take longer.
    """
    if len(sizes) < LEAST_SIZES:
        return None
    x, y = np.array(sizes, dtype=np.float64), np.array(times_ns, dtype=np.float64)
    first, second = np.triu_indices(len(x), 1)
    slopes, far = (y[second] - y[first]) / (x[second] - x[first]), np.abs(x[second] - x[first])
    order = np.argsort(slopes)
    weight = np.cumsum(far[order])
    slope = float(slopes[order][np.searchsorted(weight, weight[-1] / 2)])
    if slope <= 0:
        return None
    return SizeFit(max(float(np.median(y - slope * x)), 0.0), 1 / slope)
