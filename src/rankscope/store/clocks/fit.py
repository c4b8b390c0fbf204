"""Offset and drift of clocks from moments that all of them saw: robust least squares over the graph of groups.

Each moment (the common end of a collective) was written down by some of the clocks. Unknown are the moments
themselves and, for every clock but one of each connected part, by how much it is ahead and by how much it runs
fast. The moments drop out of the equations, so the system has two unknowns a rank however many moments there are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from rankscope.store.arrays import Floats, Ints, Mask

_SMALLEST_SPREAD_NS = 0.5
"""Time stamps are whole nanoseconds."""
_MOST_DRIFT_PPM = 100.0
"""What is believed of a clock before anything is measured: quartz drifts by 1 to 100 ppm."""
_ROUNDS = 12
_SETTLED_NS = 0.02
_LEAST_WEIGHT = 1e-3
"""Of an entry that looks wrong: enough to keep a clock that only has such from floating free."""
_TUKEY = 4.685
"""Where Tukey's weight reaches zero, in spreads: 95 % efficient for normal noise."""


@dataclass(frozen=True)
class Sightings:
    """Who saw which moment when; one entry a moment and clock."""

    moment: Ints
    """Numbers from 0."""
    clock: Ints
    """Numbers from 0."""
    time: Ints
    """In ns, by that clock."""
    sort: Ints
    """Moments of one sort are seen equally well: their spread is estimated together."""


@dataclass(frozen=True)
class Fit:
    """By clock; time = moment + offset + drift * (moment - center_ns)."""

    part: Ints
    """Clocks of one connected part are related to each other, and to no other clock."""
    offset: Floats
    """Ahead of the part's first clock at center_ns."""
    drift: Floats
    """Fast against it, in ns per ns."""
    offset_error: Floats
    """Standard error."""
    drift_error: Floats
    center_ns: int
    half_ns: float
    """Half the time from the first moment to the last."""
    residual: Floats
    """By entry: what the fit leaves unexplained, scaled to what one clock contributes."""


def fit(seen: Sightings, clocks: int) -> Fit:
    """Fit all clocks at once. Every moment must have been seen by two clocks or more."""
    part = _parts(seen, clocks)
    base = _first_times(seen)
    blocks = _blocks(seen, base)
    free = np.flatnonzero(part != np.arange(clocks))
    still = [np.zeros(len(block.moments)) for block in blocks]
    rough = _Solver(blocks, free, clocks, still, 1.0)
    state = _settle(rough, rough.start(), _least_absolute, rounds=4)
    moments = np.concatenate(
        [base[block.moments] + rough.moments(i, state) for i, block in enumerate(blocks)] or [np.zeros(0)]
    )
    center = float(np.median(moments)) if len(moments) else 0.0
    half = max(float(np.ptp(moments)) / 2 if len(moments) else 0.0, 1.0)
    ends = np.cumsum([len(block.moments) for block in blocks])[:-1]
    solver = _Solver(blocks, free, clocks, np.split((moments - center) / half, ends), half)
    state = _settle(solver, state, _least_absolute)
    state = _settle(solver, state, _tukey)
    error = solver.errors(state)
    residual = np.zeros(len(seen.time))
    for i, block in enumerate(blocks):
        residual[block.entry[block.here]] = solver.residual(i, state)[block.here]
    return Fit(
        part=part,
        offset=state.answer[:clocks],
        drift=state.answer[clocks:] / half,
        offset_error=error[:clocks],
        drift_error=error[clocks:] / half,
        center_ns=round(center),
        half_ns=half,
        residual=residual,
    )


@dataclass(frozen=True)
class _State:
    """Where the fit stands: offsets then drifts by clock, and the weight of every entry, table by table."""

    answer: Floats
    weights: list[Floats]


def _settle(solver: _Solver, state: _State, weigh: Weighing, rounds: int = _ROUNDS) -> _State:
    """Weigh, solve, weigh again, until the answer stands still."""
    for _ in range(rounds):
        weights = [
            np.where(block.here, weigh(np.abs(solver.residual(i, state)), block), 0.0)
            for i, block in enumerate(solver.blocks)
        ]
        answer = solver.solve(weights)
        moved = np.abs(answer - state.answer).max(initial=0)
        state = _State(answer, weights)
        if moved < _SETTLED_NS:
            break
    return state


def _spread(residual: Floats, block: _Block) -> float:
    """How far moments of this sort lie from the fit, as a standard deviation that outliers do not touch."""
    return max(1.4826 * float(np.median(residual[block.here])), _SMALLEST_SPREAD_NS)


def _least_absolute(residual: Floats, block: _Block) -> Floats:
    """Weights that make the solution one of least absolute deviations: many of the entries may be wrong."""
    spread = _spread(residual, block)
    weight: Floats = 1 / (spread * np.maximum(residual, spread / 10))
    return weight


def _tukey(residual: Floats, block: _Block) -> Floats:
    """Full weight, one over the variance, in the middle; next to none for what cannot be noise."""
    spread = _spread(residual, block)
    far = np.minimum(residual / (_TUKEY * spread), 1.0)
    weight: Floats = np.maximum((1 - far**2) ** 2, _LEAST_WEIGHT) / spread**2
    return weight


def _parts(seen: Sightings, clocks: int) -> Ints:
    """The lowest clock each one is connected with by moments they both saw."""
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
class _Block:
    """Moments of one sort as a dense table, a row a moment and a column a clock."""

    clocks: Ints
    moments: Ints
    entry: Ints
    """Place among the sightings; -1 where the clock did not see it."""
    here: Mask
    late: Floats
    """ns after the first time stamp of the moment; 0 where there is none."""
    scale: Floats
    """By moment: makes up for the degree of freedom that the moment itself takes."""


def _blocks(seen: Sightings, base: Ints) -> list[_Block]:
    """One table for each sort of moments, so that the tables have few holes."""
    order = np.argsort(seen.sort, kind="stable")
    bounds = np.flatnonzero(np.diff(seen.sort[order])) + 1
    return [_block(seen, base, entries) for entries in np.split(order, bounds) if len(entries)]


def _block(seen: Sightings, base: Ints, entries: Ints) -> _Block:
    clocks, column = np.unique(seen.clock[entries], return_inverse=True)
    moments, row = np.unique(seen.moment[entries], return_inverse=True)
    table = np.full((len(moments), len(clocks)), -1)
    table[row.reshape(-1), column.reshape(-1)] = entries
    here = table >= 0
    late = np.where(here, seen.time[table] - base[moments][:, None], 0).astype(np.float64)
    sizes = here.sum(axis=1, keepdims=True)
    return _Block(clocks, moments, table, here, late, np.sqrt(sizes / np.maximum(sizes - 1, 1)))


class _Solver:
    """The equations of the tables, with their moments at given (scaled) times; weights change every round."""

    def __init__(
        self, blocks: Sequence[_Block], free: Ints, clocks: int, when: Sequence[Floats], half_ns: float
    ) -> None:
        self.blocks, self.clocks = blocks, clocks
        self.when = [times[:, None] for times in when]
        with_drift = any(times.any() for times in when)
        self.unknown = np.concatenate([free, free + clocks]) if with_drift else free
        self.belief = (_MOST_DRIFT_PPM * 1e-6 * half_ns) ** -2

    def start(self) -> _State:
        """Plain least squares."""
        weights = [block.here.astype(np.float64) for block in self.blocks]
        return _State(self.solve(weights), weights)

    def moments(self, i: int, state: _State) -> Floats:
        """When each moment was, after its first time stamp."""
        return self._common(i, state)[1][:, 0]

    def residual(self, i: int, state: _State) -> Floats:
        """What the fit leaves unexplained, scaled to what one clock contributes."""
        rest, common = self._common(i, state)
        result: Floats = (rest - common) * self.blocks[i].scale
        return result

    def _common(self, i: int, state: _State) -> tuple[Floats, Floats]:
        block, weight = self.blocks[i], state.weights[i]
        drift = state.answer[block.clocks + self.clocks]
        rest = block.late - (state.answer[block.clocks] + drift * self.when[i])
        common = (weight * rest).sum(axis=1, keepdims=True) / weight.sum(axis=1, keepdims=True)
        return rest, common

    def solve(self, weights: Sequence[Floats]) -> Floats:
        matrix, right = self._system(weights)
        answer = np.zeros(2 * self.clocks)
        if len(self.unknown):
            scale = _balance(matrix)
            square = matrix * scale * scale[:, None]
            answer[self.unknown] = scale * np.linalg.lstsq(square, right * scale, rcond=1e-14)[0]
        return answer

    def errors(self, state: _State) -> Floats:
        """Standard errors; weights are one over variance."""
        matrix, _ = self._system(state.weights)
        errors = np.zeros(2 * self.clocks)
        if len(self.unknown):
            scale = _balance(matrix)
            inverse = np.linalg.pinv(matrix * scale * scale[:, None], rcond=1e-14)
            errors[self.unknown] = scale * np.sqrt(np.maximum(np.diag(inverse), 0))
        return errors

    def _system(self, weights: Sequence[Floats]) -> tuple[Floats, Floats]:
        """Normal equations of the unknowns, after the moments have been taken out."""
        count = 2 * self.clocks
        matrix, right = np.zeros((count, count)), np.zeros(count)
        for block, w, when in zip(self.blocks, weights, self.when, strict=True):
            share = w / w.sum(axis=1, keepdims=True)
            a, b = block.clocks, block.clocks + self.clocks
            matrix[np.ix_(a, a)] += np.diag(w.sum(axis=0)) - w.T @ share
            rest = w * (block.late - (share * block.late).sum(axis=1, keepdims=True))
            right[a] += rest.sum(axis=0)
            later = share * when
            matrix[np.ix_(a, b)] += np.diag((w * when).sum(axis=0)) - w.T @ later
            matrix[np.ix_(b, b)] += np.diag((w * when**2).sum(axis=0)) - (w * when).T @ later
            right[b] += (rest * when).sum(axis=0)
        matrix[self.clocks :, : self.clocks] = matrix[: self.clocks, self.clocks :].T
        drifts = np.arange(self.clocks, count)
        matrix[drifts, drifts] += self.belief
        return matrix[np.ix_(self.unknown, self.unknown)], right[self.unknown]


def _balance(matrix: Floats) -> Floats:
    """Scales that make the diagonal 1: well and badly measured clocks differ in weight by many orders."""
    scale: Floats = 1 / np.sqrt(np.maximum(np.diag(matrix), np.finfo(float).tiny))
    return scale


Weighing = Callable[[Floats, _Block], Floats]
"""Sizes of residuals to weights."""
