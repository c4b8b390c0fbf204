"""The fit of many clocks: first within clusters of a few, such as the ranks of a node, then between the clusters.

The equations of all clocks at once take time with the third power of their number. Clocks that share most moments form
a cluster of at most 16; its first clock then stands for all of them, and so on until few are left.
"""

from __future__ import annotations

import numpy as np

from rankscope.store.arrays import Floats, Ints, Mask, number_rows, unique_values
from rankscope.timeline.clocks.fit import LEAST_MOMENTS, Fit, Sightings, connected_parts, fit, robust_spread

MOST_TOGETHER = 100
"""Runs with so many clocks are fitted at once: 200 unknowns."""
_MOST_IN_CLUSTER = 16


def fit_many(seen: Sightings, clocks: int, at_once: int = MOST_TOGETHER) -> Fit:
    """Fit any number of clocks, up to `at_once` together. Every moment needs timestamps of at least two clocks."""
    if clocks <= at_once:
        return fit(seen, clocks)
    cluster = _clusters(seen, clocks)
    count = int(cluster.max()) + 1
    if count == clocks:  # no two of them share a moment
        return fit(seen, clocks)
    inner = _within(seen, cluster, clocks)
    outer = fit_many(_of_clusters(seen, cluster, inner), count, at_once=_MOST_IN_CLUSTER)
    return _joined(seen, cluster, inner, outer)


def _clusters(seen: Sightings, clocks: int) -> Ints:
    """For each clock the number of its cluster, in the order of their first clocks.

    Noise classes with the most moments come first: their clocks are known best relative to each other.
    """
    pairs, _ = number_rows([seen.noise_class, seen.clock])
    classes, first = np.unique(pairs[:, 0], return_index=True)
    of_moments, _ = number_rows([seen.noise_class, seen.moment])
    moments = np.bincount(np.searchsorted(classes, of_moments[:, 0]), minlength=len(classes))
    members = np.split(pairs[:, 1], first[1:])
    head, size = list(range(clocks)), [1] * clocks

    def head_of(clock: int) -> int:
        while head[clock] != clock:
            head[clock] = head[head[clock]]
            clock = head[clock]
        return clock

    for number in np.argsort(-moments, kind="stable").tolist():
        heads = sorted({head_of(clock) for clock in members[number].tolist()})
        into = heads[0]
        for other in heads[1:]:
            if size[into] + size[other] <= _MOST_IN_CLUSTER:
                head[other] = into
                size[into] += size[other]
            else:
                into = other
    heads_of = np.array([head_of(clock) for clock in range(clocks)])
    # Clocks join an earlier head, so a head is the first clock of its cluster.
    return np.searchsorted(unique_values(heads_of), heads_of)


class _Inner:
    """The clocks of all clusters, each relative to the first of its cluster."""

    def __init__(self, clocks: int) -> None:
        self.offset, self.drift, self.center, self.offset_error, self.drift_error = np.zeros((5, clocks))

    def corrected(self, clock: Ints, time: Floats) -> Floats:
        """Times by these clocks, as the first clock of their cluster would show them."""
        drift, center = self.drift[clock], self.center[clock]
        corrected: Floats = (time - self.offset[clock] + drift * center) / (1 + drift)
        return corrected


def _within(seen: Sightings, cluster: Ints, clocks: int) -> _Inner:
    inner = _Inner(clocks)
    order = np.argsort(cluster[seen.clock], kind="stable")
    bounds = np.searchsorted(cluster[seen.clock][order], np.arange(int(cluster.max()) + 2))
    for number in range(len(bounds) - 1):
        rows = order[bounds[number] : bounds[number + 1]]
        members = np.flatnonzero(cluster == number)
        _, moment, times_seen = np.unique(seen.moment[rows], return_inverse=True, return_counts=True)
        rows = rows[times_seen[moment.reshape(-1)] > 1]
        if len(members) == 1 or not len(rows):
            continue
        part = Sightings(
            np.unique(seen.moment[rows], return_inverse=True)[1].reshape(-1),
            np.searchsorted(members, seen.clock[rows]),
            seen.time[rows],
            seen.noise_class[rows],
        )
        fitted = fit(part, len(members))
        inner.offset[members], inner.drift[members] = fitted.offset, fitted.drift
        inner.center[members] = fitted.center_ns
        inner.offset_error[members], inner.drift_error[members] = fitted.offset_error, fitted.drift_error
    return inner


def _of_clusters(seen: Sightings, cluster: Ints, inner: _Inner) -> Sightings:
    """The moments of several clusters, each seen once by a cluster: the median over its clocks."""
    rows, row_of = number_rows([seen.moment, cluster[seen.clock]])
    time = _medians(inner.corrected(seen.clock, seen.time.astype(np.float64)), row_of, len(rows))
    noise = np.zeros(len(rows), dtype=np.int64)
    noise[row_of] = seen.noise_class
    _, moment, times_seen = np.unique(rows[:, 0], return_inverse=True, return_counts=True)
    moment = moment.reshape(-1)
    several = times_seen[moment] > 1
    number = np.unique(moment[several], return_inverse=True)[1].reshape(-1)
    return Sightings(number, rows[several, 1], np.rint(time[several]).astype(np.int64), noise[several])


def _medians(values: Floats, group: Ints, groups: int) -> Floats:
    """The median of each group; every group has a value."""
    order = np.lexsort((values, group))
    ordered, count = values[order], np.bincount(group, minlength=groups)
    first = np.cumsum(count) - count
    medians: Floats = (ordered[first + (count - 1) // 2] + ordered[first + count // 2]) / 2
    return medians


def _joined(seen: Sightings, cluster: Ints, inner: _Inner, outer: Fit) -> Fit:
    """Clocks relative to the first of their part: through the first clock of their cluster."""
    part = connected_parts(seen, len(cluster))
    base, drift = outer.offset[cluster], outer.drift[cluster]
    apart = outer.center_ns + base - inner.center
    together = (1 + inner.drift) * (1 + drift) - 1
    offset = base + inner.offset + inner.drift * apart
    offset_error = np.sqrt(
        outer.offset_error[cluster] ** 2 + inner.offset_error**2 + (inner.drift_error * apart) ** 2
    )
    drift_error = np.hypot(outer.drift_error[cluster], inner.drift_error)
    residual = _residuals(seen, offset, together, outer.center_ns)
    tells, spread = _spreads(seen, part, residual)
    return Fit(
        part=part,
        offset=offset,
        drift=together,
        offset_error=offset_error,
        drift_error=drift_error,
        center_ns=outer.center_ns,
        half_ns=outer.half_ns,
        residual=residual,
        tells=tells[seen.noise_class],
        spread=spread,
    )


def _residuals(seen: Sightings, offset: Floats, drift: Floats, center_ns: int) -> Floats:
    """How far each corrected time is from the median of its moment, scaled to the contribution of one clock."""
    own_drift = drift[seen.clock]
    time = (seen.time - offset[seen.clock] + own_drift * center_ns) / (1 + own_drift)
    count = np.bincount(seen.moment)
    middle = _medians(time, seen.moment, len(count))
    residual: Floats = (time - middle[seen.moment]) * np.sqrt(count / np.maximum(count - 1, 1))[seen.moment]
    return residual


def _spreads(seen: Sightings, part: Ints, residual: Floats) -> tuple[Mask, Floats]:
    """By noise class whether it has enough moments to tell its spread; by clock the largest of its part, or nan."""
    of_moments, _ = number_rows([seen.noise_class, seen.moment])
    moments = np.bincount(of_moments[:, 0])
    tells = moments >= LEAST_MOMENTS
    largest = np.full(len(part), np.nan)
    order = np.argsort(seen.noise_class, kind="stable")
    bounds = np.searchsorted(seen.noise_class[order], np.arange(len(moments) + 1))
    for number in np.flatnonzero(tells).tolist():
        rows = order[bounds[number] : bounds[number + 1]]
        where = part[seen.clock[rows[0]]]
        spread = robust_spread(np.abs(residual[rows]), int(moments[number]))
        largest[where] = np.fmax(largest[where], spread)
    return tells, largest[part]
