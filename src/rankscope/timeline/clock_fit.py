"""Offset and drift of clocks from common moments: robust least squares over all process groups.

Each moment (the common end of a collective) has timestamps from several clocks. Unknown are the true times of the
moments, and offset and drift of every clock except one reference per connected part. The true times are eliminated
from the equations, which leaves two unknowns per clock for any number of moments.

The equations of all clocks at once take time with the third power of their number. So many clocks are fitted within
clusters first, then between them: clocks that share most moments, such as the ranks of a node, form a cluster of at
most 16; its first clock then stands for all of them, and so on until few are left.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from rankscope.store.arrays import Floats, Ints, Mask, number_rows, unique_values

_SMALLEST_SPREAD_NS = 0.5
"""Timestamps are whole nanoseconds."""
_MOST_DRIFT_PPM = 100.0
"""Prior for the drift: quartz clocks drift by 1 to 100 ppm."""
_ROUNDS = 12
_CONVERGED_NS = 0.02
_LEAST_WEIGHT = 1e-3
"""Weight of an outlier. Not zero, so that a clock with outliers only still has a solution."""
_TUKEY = 4.685
"""Distance in spreads at which Tukey's weight reaches zero; 95 % efficient for normal noise."""
_PER_MEDIAN = 1.4826
"""The standard deviation of normal noise as a multiple of its median absolute value."""
LEAST_MOMENTS = 4
"""Offset and drift pass through two moments exactly, and a robust fit nearly through three: residuals of fewer moments
than this say nothing about the noise."""


@dataclass(frozen=True)
class Sightings:
    """The timestamps: one entry per moment and clock."""

    moment: Ints
    """Number of the moment, from 0."""
    clock: Ints
    """Number of the clock, from 0."""
    time: Ints
    """In ns, by that clock."""
    noise_class: Ints
    """Moments of one class have the same noise; their spread is estimated together."""


@dataclass(frozen=True)
class Fit:
    """For each clock: time = moment + offset + drift * (moment - center_ns)."""

    part: Ints
    """Lowest clock of the connected part. Clocks of different parts share no moment."""
    offset: Floats
    """Relative to the first clock of the part, at center_ns; positive is ahead."""
    drift: Floats
    """Relative to that clock, in ns per ns; positive is fast."""
    offset_error: Floats
    """Standard error."""
    drift_error: Floats
    center_ns: int
    half_ns: float
    """Half the time from the first moment to the last."""
    residual: Floats
    """For each entry the residual of the fit, scaled to the contribution of one clock."""
    tells: Mask
    """For each entry: whether its noise class has enough moments for the residual to be evidence of the noise."""
    spread: Floats
    """For each clock the largest spread of the noise classes in its part; nan where no class has enough moments. The
    errors are then meaningless."""


def fit(seen: Sightings, clocks: int) -> Fit:
    """Fit all clocks at once. Every moment needs timestamps of at least two clocks."""
    part = connected_parts(seen, clocks)
    base = _first_times(seen)
    tables = _tables(seen, base, part)
    free = np.flatnonzero(part != np.arange(clocks))
    still = [np.zeros(table.moments.shape) for table in tables]
    rough = _Solver(tables, free, clocks, still, 1.0)
    state = _iterate(rough, rough.start(), _least_absolute, rounds=4)
    times = [base[table.moments] + rough.moments(i, state) for i, table in enumerate(tables)]
    moments = np.concatenate([each.reshape(-1) for each in times] or [np.zeros(0)])
    center = float(np.median(moments)) if len(moments) else 0.0
    half = max(float(np.ptp(moments)) / 2 if len(moments) else 0.0, 1.0)
    solver = _Solver(tables, free, clocks, [(each - center) / half for each in times], half)
    state = _iterate(solver, state, _least_absolute)
    state = _iterate(solver, state, _tukey)
    error = solver.errors(state)
    residual, tells = np.zeros(len(seen.time)), np.zeros(len(seen.time), dtype=bool)
    for i, table in enumerate(tables):
        residual[table.entry[table.here]] = solver.residual(i, state)[table.here]
        tells[table.entry[table.here]] = table.tells
    pooled = _pooled(tables, _own_spreads(tables, solver.residuals(state)), clocks)
    return Fit(
        part=part,
        offset=state.answer[:clocks],
        drift=state.answer[clocks:] / half,
        offset_error=error[:clocks],
        drift_error=error[clocks:] / half,
        center_ns=round(center),
        half_ns=half,
        residual=residual,
        tells=tells,
        spread=np.where(pooled > 0, pooled, np.nan)[part],
    )


@dataclass(frozen=True)
class _State:
    """Current solution (offsets of all clocks, then drifts) and weights of all entries, as in the tables."""

    answer: Floats
    weights: list[Floats]


def _iterate(solver: _Solver, state: _State, weigh: Weighing, rounds: int = _ROUNDS) -> _State:
    """Compute weights and solve, repeatedly, until the solution converges."""
    for _ in range(rounds):
        residuals = solver.residuals(state)
        spreads = _spreads(solver.tables, residuals, solver.clocks)
        weights = [
            np.where(table.here, weigh(residual, spread[:, None, None]), 0.0)
            for table, residual, spread in zip(solver.tables, residuals, spreads, strict=True)
        ]
        answer = solver.solve(weights)
        moved = np.abs(answer - state.answer).max(initial=0)
        state = _State(answer, weights)
        if moved < _CONVERGED_NS:
            break
    return state


def _spreads(tables: Sequence[_Tables], residuals: Sequence[Floats], clocks: int) -> list[Floats]:
    """The spread of each noise class; one with too few moments has the largest spread of its part."""
    spreads = _own_spreads(tables, residuals)
    pooled = np.maximum(_pooled(tables, spreads, clocks), _SMALLEST_SPREAD_NS)
    return [
        spread if table.tells else pooled[table.part] for table, spread in zip(tables, spreads, strict=True)
    ]


def _own_spreads(tables: Sequence[_Tables], residuals: Sequence[Floats]) -> list[Floats]:
    """Robust standard deviation of the residuals of each noise class; 0 where it has too few moments."""
    return [
        _robust_spreads(residual, table) if table.tells else np.zeros(len(table.part))
        for table, residual in zip(tables, residuals, strict=True)
    ]


def _pooled(tables: Sequence[_Tables], spreads: Sequence[Floats], clocks: int) -> Floats:
    """By the first clock of a part, the largest spread of its noise classes with enough moments; 0: there is none."""
    pooled = np.zeros(clocks)
    for table, spread in zip(tables, spreads, strict=True):
        np.maximum.at(pooled, table.part, spread)
    return pooled


def _robust_spreads(residual: Floats, table: _Tables) -> Floats:
    """`robust_spread` of each noise class; at once where no clock lacks a moment."""
    moments = table.moments.shape[1]
    if not table.here.all():
        each = zip(residual, table.here, strict=True)
        return np.array([robust_spread(values[here], moments) for values, here in each])
    values = residual.reshape(len(residual), -1)
    middle = [(values.shape[1] - 1) // 2, values.shape[1] // 2]
    medians = np.partition(values, middle, axis=1)[:, middle].mean(axis=1)
    spreads: Floats = np.maximum(_PER_MEDIAN * few_moments(moments) * medians, _SMALLEST_SPREAD_NS)
    return spreads


def robust_spread(residual: Floats, moments: int) -> float:
    """Standard deviation of absolute residuals of some moments, by their median."""
    return max(_PER_MEDIAN * few_moments(moments) * float(np.median(residual)), _SMALLEST_SPREAD_NS)


def few_moments(count: int) -> float:
    """By how much the median residual of a few moments is too small: the fit passes near three of them.

    With it, 2 standard errors and the median residual cover at least 9 of 10 offsets from 4 moments on (tests).
    """
    return count / (count - 3)


def _least_absolute(residual: Floats, spread: Floats) -> Floats:
    """Weights for least absolute deviations, which tolerate many outliers."""
    weight: Floats = 1 / (spread * np.maximum(residual, spread / 10))
    return weight


def _tukey(residual: Floats, spread: Floats) -> Floats:
    """Tukey's weights: 1 / variance for small residuals, nearly none for outliers."""
    far = np.minimum(residual / (_TUKEY * spread), 1.0)
    weight: Floats = np.maximum((1 - far**2) ** 2, _LEAST_WEIGHT) / spread**2
    return weight


def connected_parts(seen: Sightings, clocks: int) -> Ints:
    """For each clock the lowest clock that it is connected with through common moments."""
    part = np.arange(clocks)
    count = int(seen.moment.max(initial=-1)) + 1
    while True:
        lowest = np.full(count, clocks)
        np.minimum.at(lowest, seen.moment, part[seen.clock])
        new = part.copy()
        np.minimum.at(new, seen.clock, lowest[seen.moment])
        new = new[new]
        if (new == part).all():
            return part
        part = new


def _first_times(seen: Sightings) -> Ints:
    first = np.full(int(seen.moment.max(initial=-1)) + 1, np.iinfo(np.int64).max)
    np.minimum.at(first, seen.moment, seen.time)
    return first


@dataclass(frozen=True)
class _Tables:
    """Moments of noise classes with equally many moments and clocks, as dense tables one behind the other.

    A table has one row per moment and one column per clock. Groups of a large run are alike, so there are few stacks.
    """

    clocks: Ints
    """Of each table, as the next."""
    moments: Ints
    entry: Ints
    """Index of the timestamp; -1 where the clock has none."""
    here: Mask
    late: Floats
    """ns after the first timestamp of the moment; 0 where the clock has none."""
    scale: Floats
    """For each moment: corrects for the degree of freedom that the moment itself uses."""
    part: Ints
    """Of each table."""

    @property
    def tells(self) -> bool:
        """Whether there are enough moments to estimate their spread."""
        return bool(self.moments.shape[1] >= LEAST_MOMENTS)


def _tables(seen: Sightings, base: Ints, part: Ints) -> list[_Tables]:
    """One table per noise class, so that the tables have few gaps."""
    order = np.argsort(seen.noise_class, kind="stable")
    bounds = np.flatnonzero(np.diff(seen.noise_class[order])) + 1
    alike: dict[tuple[int, ...], list[tuple[Ints, Ints, Ints]]] = {}
    for entries in np.split(order, bounds):
        if len(entries):
            clocks, column = np.unique(seen.clock[entries], return_inverse=True)
            moments, row = np.unique(seen.moment[entries], return_inverse=True)
            table = np.full((len(moments), len(clocks)), -1)
            table[row.reshape(-1), column.reshape(-1)] = entries
            alike.setdefault(table.shape, []).append((clocks, moments, table))
    stacks = (map(np.stack, zip(*tables, strict=True)) for tables in alike.values())
    return [_stacked(seen, base, part, *stack) for stack in stacks]


def _stacked(seen: Sightings, base: Ints, part: Ints, clocks: Ints, moments: Ints, entry: Ints) -> _Tables:
    here = entry >= 0
    late = np.where(here, seen.time[entry] - base[moments][:, :, None], 0).astype(np.float64)
    sizes = here.sum(axis=2, keepdims=True)
    scale = np.sqrt(sizes / np.maximum(sizes - 1, 1))
    return _Tables(clocks, moments, entry, here, late, scale, part[clocks[:, 0]])


class _Solver:
    """Normal equations of the tables, with their moments at given scaled times."""

    def __init__(
        self, tables: Sequence[_Tables], free: Ints, clocks: int, when: Sequence[Floats], half_ns: float
    ) -> None:
        self.tables, self.clocks = tables, clocks
        self.when = [times[:, :, None] for times in when]
        with_drift = any(times.any() for times in when)
        self.unknown = np.concatenate([free, free + clocks]) if with_drift else free
        self.drift_prior = (_MOST_DRIFT_PPM * 1e-6 * half_ns) ** -2

    def start(self) -> _State:
        """Plain least squares."""
        weights = [table.here.astype(np.float64) for table in self.tables]
        return _State(self.solve(weights), weights)

    def moments(self, i: int, state: _State) -> Floats:
        """The time of each moment, relative to its first timestamp."""
        return self._common(i, state)[1][:, :, 0]

    def residual(self, i: int, state: _State) -> Floats:
        """Residuals, scaled to the contribution of one clock."""
        rest, common = self._common(i, state)
        result: Floats = (rest - common) * self.tables[i].scale
        return result

    def residuals(self, state: _State) -> list[Floats]:
        """The absolute residuals, as in the tables."""
        return [np.abs(self.residual(i, state)) for i in range(len(self.tables))]

    def _common(self, i: int, state: _State) -> tuple[Floats, Floats]:
        table, weight = self.tables[i], state.weights[i]
        clocks = table.clocks[:, None]
        rest = table.late - (state.answer[clocks] + state.answer[clocks + self.clocks] * self.when[i])
        common = (weight * rest).sum(axis=2, keepdims=True) / weight.sum(axis=2, keepdims=True)
        return rest, common

    def solve(self, weights: Sequence[Floats]) -> Floats:
        answer = np.zeros(2 * self.clocks)
        if len(self.unknown):
            matrix, right = self._system(weights)
            scale = _balance(matrix)
            square = matrix * scale * scale[:, None]
            answer[self.unknown] = scale * np.linalg.lstsq(square, right * scale, rcond=1e-14)[0]
        return answer

    def errors(self, state: _State) -> Floats:
        """Standard errors, with weights of 1 / variance."""
        errors = np.zeros(2 * self.clocks)
        if len(self.unknown):
            matrix, _ = self._system(state.weights)
            scale = _balance(matrix)
            square = matrix * scale * scale[:, None]
            inverse = np.linalg.pinv(square, rcond=1e-14)
            errors[self.unknown] = scale * np.sqrt(np.maximum(np.diag(inverse), 0))
        return errors

    def _system(self, weights: Sequence[Floats]) -> tuple[Floats, Floats]:
        """Matrix and right side of the normal equations, with the moments eliminated."""
        count = 2 * self.clocks
        matrix, right = np.zeros((count, count)), np.zeros(count)
        for table, w, when in zip(self.tables, weights, self.when, strict=True):
            share = w / w.sum(axis=2, keepdims=True)
            a, b = table.clocks, table.clocks + self.clocks
            rest = w * (table.late - (share * table.late).sum(axis=2, keepdims=True))
            later = share * when
            _add(matrix, a, a, w, w, share)
            _add(matrix, a, b, w * when, w, later)
            _add(matrix, b, b, w * when**2, w * when, later)
            np.add.at(right, a, rest.sum(axis=1))
            np.add.at(right, b, (rest * when).sum(axis=1))
        matrix[self.clocks :, : self.clocks] = matrix[: self.clocks, self.clocks :].T
        drifts = np.arange(self.clocks, count)
        matrix[drifts, drifts] += self.drift_prior
        return matrix[np.ix_(self.unknown, self.unknown)], right[self.unknown]


def _add(matrix: Floats, rows: Ints, columns: Ints, diagonal: Floats, left: Floats, right: Floats) -> None:
    """Add, for each table, a diagonal less a product: sums over its moments."""
    np.add.at(matrix, (rows, columns), diagonal.sum(axis=1))
    np.subtract.at(matrix, (rows[:, :, None], columns[:, None, :]), np.matmul(left.transpose(0, 2, 1), right))


def _balance(matrix: Floats) -> Floats:
    """Scales that make the diagonal 1, since the weights of clocks differ by orders of magnitude."""
    scale: Floats = 1 / np.sqrt(np.maximum(np.diag(matrix), np.finfo(float).tiny))
    return scale


Weighing = Callable[[Floats, Floats], Floats]
"""A function from absolute residuals and their spread to weights."""


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
    tells, spread = _spreads_of_parts(seen, part, residual)
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


def _spreads_of_parts(seen: Sightings, part: Ints, residual: Floats) -> tuple[Mask, Floats]:
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
