"""What has changed in numbers of steps and ranks, and which ranks are outliers: arrays in, rows and columns out.

docs/definitions.md has the formulas.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rankscope.watch.step_table import TO_SIGMA, Numbers, low_median, middle, sigma

STEPS = 10
"""k: steps that a slow rank is judged by."""
_LATEST = (16, 40)
"""Steps by which a rank that has become slower is judged: smaller changes need more of them."""
LEAST_BEFORE = 20
"""Steps that a change is judged against."""
_LASTING = 30
"""Steps in which a rank that is slow from the start is slow."""
_LEAST_HISTORY = 50
"""Steps that a change of a rank is judged against: as many as show how long a host is busy now and then."""
_BURSTS = 1.5
"""Times the longest such time."""
SLOW_SHARE = 0.05
"""Of the step time: a rank that loses less is not slow."""
STANDARD_ERRORS = 10.0
"""More than independent noise needs, for which 6 are exceeded once in 10^9 tests: on busy hosts it lasts some steps."""
_OF_GROWTH = 7.0
"""Standard errors of a rank that has become slower: what lasts some steps only does not become an alarm."""
OF_A_MEDIAN = 1.2533
"""The standard error of a median is that of a mean times sqrt(pi / 2)."""
SPREADS = 3.5
"""An outlier among the ranks: so many standard deviations of their medians."""
_SHOWS_IN_WORK = 0.2
"""Of the growth of a part: what own work has grown by at least."""
_CHANGED = 0.25
"""Of an excess: if less of it is new, it is an old one."""
RECURRING_STEPS = 24
"""Steps in which work that comes every few steps is looked for."""
_PERIODS = (2, 3, 4, 5, 6)
_HITS = 4
"""Long steps at one distance that are no coincidence."""
_CHAIN = 12
"""Steps that they span at least: a host may be busy for a shorter time."""
_HIT_SHARE = 0.15
_HIT_SIGMAS = 6.0
"""What makes a step long: of the usual step, and of the noise."""
_MORE_OFTEN = 3.0
"""Times: a change of what a job does every few steps."""


def excesses_of(work_ns: Numbers) -> Numbers:
    """NaN where fewer than half of the steps are known."""
    medians = low_median(work_ns - low_median(work_ns, 1)[:, None])
    return np.where(np.isfinite(work_ns).sum(axis=0) > len(work_ns) / 2, medians, np.nan)


def limit_of(work_ns: Numbers, step_ns: float) -> float:
    error = OF_A_MEDIAN * _noise(work_ns) / float(np.sqrt(STEPS))
    return max(SLOW_SHARE * step_ns, STANDARD_ERRORS * error, SPREADS * _spread(excesses_of(work_ns)))


def _noise(work_ns: Numbers) -> float:
    """The standard deviation, from step to step, of what one rank takes longer than the others."""
    ranks = work_ns.shape[1]
    center = (low_median(work_ns, 1) - low_median(-work_ns, 1)) / 2  # the median, also of two
    off = work_ns - center[:, None]
    # A rank is part of the center, which therefore follows it.
    return sigma(off - low_median(off)) * float(ranks / (ranks - 1))


def _spread(excess: Numbers) -> float:
    """Between ranks or nodes, as a standard deviation. Of three or more, half being slow is no outlier."""
    off = np.sort(np.abs(excess - middle(excess)))
    off = off[np.isfinite(off)]
    return TO_SIGMA * float(off[len(off) // 2 if len(off) > 2 else 0]) if len(off) else float("nan")


class Recurring(NamedTuple):
    """Work that comes every few steps."""

    every: int
    begin: int
    """The row of the first one."""


class Evidence(NamedTuple):
    """By which figure a rank or node is slow."""

    field: str
    recurring: Recurring | None
    """None where it is slow in every step."""


def outliers(
    figures: Mapping[str, Numbers], step_ns: float, before: int, same_work: bool = True
) -> dict[int, Evidence]:
    """Columns that are slow all the time (if all have the same work) or have become slower, and those that work longer
    every few steps.

    The first figure is own work. The others are parts of it that vary less on a busy host: they count where own work
    has grown too.
    """
    (first, work_ns), *_ = figures.items()
    if work_ns.shape[1] < 2:
        return {}
    excess = excesses_of(work_ns[-STEPS:])
    slow = np.minimum(excess, excesses_of(work_ns[-_LASTING:])) > limit_of(work_ns[-STEPS:], step_ns)
    evidence = {
        column: Evidence(first, None)
        for column in np.flatnonzero(slow).tolist()
        if same_work
        and len(work_ns) >= _LASTING
        and excess[column] > _bursts(np.delete(work_ns, column, axis=1))
    }
    offsets = {field: values - low_median(values, 1)[:, None] for field, values in figures.items()}
    for steps in _LATEST:
        grown = _growth(offsets[first], steps, before)
        for field, off in offsets.items():
            growth = _growth(off, steps, before)
            with_work = (grown > _SHOWS_IN_WORK * growth) & (excess > 0)
            for column in np.flatnonzero(
                with_work & _is_outlier(growth, off, steps, step_ns, before)
            ).tolist():
                evidence.setdefault(column, Evidence(field, None))
    for field, off in offsets.items():
        for column, recurring in _recurring_columns(off, step_ns, before):
            evidence.setdefault(column, Evidence(field, recurring))
    return evidence


def _recurring_columns(off: Numbers, step_ns: float, before: int) -> Iterator[tuple[int, Recurring]]:
    split = rows_before(len(off), RECURRING_STEPS, before)
    if split is None or split < (before or _LEAST_HISTORY):
        return
    usual = low_median(off[:split])
    limit = max(_HIT_SHARE * step_ns, _HIT_SIGMAS * sigma(off[:split] - usual))
    hits = (off[-RECURRING_STEPS:] - usual > limit).sum(axis=0)
    # Where half of them have long steps, they take turns.
    if len(hits) > 2 and 2 * (hits >= _HITS // 2).sum() >= len(hits):
        return
    for column in np.flatnonzero(hits >= _HITS).tolist():
        if recurring := find_recurring(off[:, column], step_ns, before):
            yield column, recurring


def rows_before(rows: int, latest: int, before: int) -> int | None:
    """The rows that a change in the latest ones is judged against; None where there are too few."""
    return before or (rows - latest if rows - latest >= LEAST_BEFORE else None)


def _bursts(values: Numbers) -> float:
    """What a healthy rank may have more for k steps, by what others had: a host is busy for some time."""
    blocks = len(values) // STEPS
    if not blocks:
        return 0.0
    off = values - low_median(values, 1)[:, None]
    off = off - low_median(off)
    rows = off[len(off) - blocks * STEPS :].reshape(blocks, STEPS, -1)
    return _BURSTS * float(np.nanmax(low_median(rows, 1), initial=0.0))


def _growth(off: Numbers, steps: int, before: int) -> Numbers:
    """What each column has more than before, in the last steps and still in the last k; NaN where that is not known."""
    split = rows_before(len(off), steps, before)
    if split is None or len(off) - split < steps or split < (before or _LEAST_HISTORY):
        return np.full(off.shape[1], np.nan)
    return np.minimum(low_median(off[-steps:]), low_median(off[-STEPS:])) - low_median(off[:split])


def _is_outlier(growth: Numbers, off: Numbers, steps: int, step_ns: float, before: int) -> NDArray[np.bool_]:
    """Columns that have grown more than their noise and the others."""
    split = rows_before(len(off), steps, before)
    slow: NDArray[np.bool_] = growth > SLOW_SHARE * step_ns
    if split is None or not slow.any():
        return slow
    earlier, latest = off[:split], off[-steps:]
    noise = max(sigma(earlier - low_median(earlier)), sigma(latest - low_median(latest)))
    error = OF_A_MEDIAN * noise * len(growth) / (len(growth) - 1) * float(np.sqrt(1 / steps + 1 / split))
    slow &= growth > _OF_GROWTH * error
    # A rank that is compared is not part of the spread: of four, it would be half of what makes it an outlier.
    for column in np.flatnonzero(slow).tolist():
        bursts = _bursts(np.delete(earlier, column, axis=1))
        slow[column] = growth[column] > max(SPREADS * _spread(np.delete(growth, column)), bursts)
    return slow


def find_recurring(values: Numbers, step_ns: float, before: int) -> Recurring | None:
    """Whether there is more every few steps than there was."""
    rows = len(values)
    split = rows_before(rows, RECURRING_STEPS, before)
    if split is None:
        return None
    usual = middle(values[:split])
    more = np.nan_to_num(values - usual)
    long = more > max(_HIT_SHARE * step_ns, _HIT_SIGMAS * sigma(values[:split] - usual))
    hits = np.flatnonzero(long[split:]) + split
    latest = hits[hits >= rows - RECURRING_STEPS]
    often = len(latest) / RECURRING_STEPS
    if len(latest) < _HITS or long[:split].mean() > often / _MORE_OFTEN:
        return None
    if more[latest[0] :].mean() < SLOW_SHARE * step_ns:
        return None
    last = int(hits[-1])
    for every in _PERIODS:
        count = max(_HITS, _CHAIN // every + 1)
        chain = long[last - (count - 1) * every : last + 1]
        if rows - last <= every + 1 and chain[::every].all() and chain.sum() <= count + 1:
            return Recurring(every, int(hits[0]))
    return None


def began(values: Numbers, level: float) -> int:
    """The row from which `values` are at `level` and not at 0: where the sum of what they exceed half the level by is
    lowest."""
    half = abs(level) / 2
    steps = np.nan_to_num(np.clip(values * np.sign(level) - half, -half, half))
    sums = np.concatenate([[0.0], np.cumsum(steps)])
    return min(int(np.argmin(sums)), len(values) - 1)


def began_lately(values: Numbers, before: int) -> int:
    """The row from which they are at the level of the latest ones, and not at 0 or at that of the first ones."""
    level = middle(values[-STEPS:])
    split = rows_before(len(values), _LATEST[-1], before) or rows_before(len(values), STEPS, before)
    usual = middle(values[:split]) if split else 0.0
    if level - usual > _CHANGED * level:
        return began(values - usual, level - usual)
    return began(values, level)


def gained(values: Numbers, begin: int, average: Callable[[Numbers], float]) -> float:
    """Their average from a row on, beyond that of the rows before it, where there are enough."""
    return average(values[begin:]) - (average(values[:begin]) if begin >= LEAST_BEFORE else 0.0)


def mean_of(values: Numbers) -> float:
    finite = values[np.isfinite(values)]
    return float(finite.mean()) if len(finite) else float("nan")


def mean_without_peak(values: Numbers) -> float:
    """The mean, where the largest counts as the second largest: a single long step is no part of what comes every few
    steps."""
    ordered = np.sort(values[np.isfinite(values)])
    return mean_of(np.minimum(ordered, ordered[-2])) if len(ordered) > 1 else mean_of(ordered)
