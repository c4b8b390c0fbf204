"""Compare two runs measure by measure: the size of each difference, and whether it is more than noise."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, compress, count
from math import comb
from typing import Any, NamedTuple

import numpy as np

from rankscope.analysis.core.result import left_out_note
from rankscope.analysis.core.step_times import SLOW_FIRST_STEP
from rankscope.analysis.diff.samples import REPORTS, SPAN, STEP, Measure, Samples, for_equal_work, unit_of
from rankscope.ranges import as_ranges
from rankscope.store.arrays import Floats, Ints

EXACT_UP_TO = 20_000
"""Up to this number of splits all are tried; of more, a fixed random choice."""
RANDOM_SPLITS = 10_000
_SPLITS_AT_ONCE = 512
_SEED = 20_240_607
# Samples that differ by less than this share of their size count as equal: float sums round differently.
_ROUNDING = 1e-9


def smallest_p(base: int, new: int) -> float:
    """The smallest p-value that the test can give with this number of samples on each side."""
    if base < 1 or new < 1:
        return 1.0
    splits = comb(base + new, base)
    # With sets of equal size the mirror image of a split is as extreme as the split itself.
    return (2 if base == new else 1) / splits if splits <= EXACT_UP_TO else 1 / (RANDOM_SPLITS + 1)


def adjusted_p(base: Floats, new: Floats) -> Floats:
    """One p-value for each row. Rows are measures, columns are samples; both sides have the same rows."""
    count, total = base.shape[1], base.shape[1] + new.shape[1]
    values = np.concatenate([base, new], axis=1)
    if 0 in values.shape or count in (0, total):
        return np.ones(len(values))
    # Only differences matter; subtracting the mean keeps the sums of squares accurate.
    values = values - values.mean(axis=1, keepdims=True)
    floor = (_ROUNDING * np.maximum(np.abs(base).max(axis=1), np.abs(new).max(axis=1))) ** 2 + 1e-300
    real = _differences(values, np.arange(count)[None, :], floor)[0]
    at_least = np.zeros(len(values))
    splits = 0
    for chunk in _splits(total, count):
        largest = _differences(values, chunk, floor).max(axis=1)
        # A split and its mirror image round differently in the last digit.
        at_least += (largest[:, None] >= real * (1 - 1e-9)).sum(axis=0)
        splits += len(chunk)
    if comb(total, count) > EXACT_UP_TO:  # the real split counts as one of those tried
        at_least, splits = at_least + 1, splits + 1
    return np.minimum(at_least / splits, 1.0)


def _splits(total: int, count: int) -> list[Ints]:
    """The samples in the first set of each split, in chunks."""
    if comb(total, count) <= EXACT_UP_TO:
        every = np.array(list(combinations(range(total), count)), dtype=np.int64)
    else:
        source = np.random.Generator(np.random.PCG64(_SEED))
        every = np.argsort(source.random((RANDOM_SPLITS, total)), axis=1)[:, :count]
    return [every[first : first + _SPLITS_AT_ONCE] for first in range(0, len(every), _SPLITS_AT_ONCE)]


def _differences(values: Floats, splits: Ints, floor: Floats) -> Floats:
    """|t| of every split and row: the difference of the means over its standard error."""
    total, count = values.shape[1], splits.shape[1]
    rest = total - count
    chosen = np.zeros((len(splits), total))
    np.put_along_axis(chosen, splits, 1.0, axis=1)
    first = chosen @ values.T
    second = values.sum(axis=1) - first
    means = first / count - second / rest
    within = (values**2).sum(axis=1) - first**2 / count - second**2 / rest
    variance = np.maximum(within, 0.0) / max(total - 2, 1) + floor
    statistics: Floats = np.abs(means) / np.sqrt(variance * (1 / count + 1 / rest))
    return statistics


ALPHA = 0.01
"""The largest p-value of a significant difference; docs/adr/0051 has the test."""
MIN_CHANGE_PCT = 1.0
"""The smallest change that is reported: two captures of one program differ by as much (docs/adr/0051)."""
MIN_SHARE = 0.001
"""Rows below this share of a step in both runs are left out. Chosen, not measured."""
# With too few steps for the test, a change must exceed both of these; see `_clear`. Chosen, not measured.
FEW_CHANGE_PCT, FEW_SPREADS = 10.0, 3.0
LIKELY_P = 0.05
"""A large change of the step time is likely with this p-value, or with the smallest that so few steps allow."""


class Rules(NamedTuple):
    """The options of a comparison."""

    reports: tuple[str, ...] = REPORTS
    min_change_pct: float = MIN_CHANGE_PCT


@dataclass(frozen=True)
class Comparison:
    """The rows of a comparison, and the samples behind them."""

    base: Samples
    new: Samples
    rows: list[dict[str, Any]]
    notes: tuple[str, ...]
    few: bool
    """Whether there are too few steps for the test."""
    headline: Measure
    """The step time, or the span of runs without steps."""
    likely: bool
    """Whether the headline changed by much, with some evidence but not enough to be sure; its verdict is then same."""
    min_change_pct: float
    """Smaller changes are ignored."""

    @property
    def headline_row(self) -> dict[str, Any] | None:
        return next((row for row in self.rows if (row["report"], row["key"]) == self.headline), None)


def compare(base: Samples, new: Samples, rules: Rules) -> Comparison:
    """Compare the collected samples."""
    notes = list(_comparability_notes(base, new))
    if {base.has_shapes, new.has_shapes} == {True, False}:
        base, new = base.without_shapes(), new.without_shapes()
    if not (base.has_steps and new.has_steps):
        new = for_equal_work(base, new)
    base, new = _without_slow_first(base, "base", notes), _without_slow_first(new, "new", notes)
    measures = _measures(base, new, rules, notes)
    headline = STEP if base.has_steps and new.has_steps else SPAN
    both = [measure for measure in measures if measure in base.values and measure in new.values]
    few = smallest_p(len(base.steps), len(new.steps)) > ALPHA
    p_values: dict[Measure, float | None] = {}
    # The step time is tested alone: among hundreds of other rows, its change would need to be much larger.
    for tested in ([m for m in both if m == headline], [m for m in both if m != headline]):
        if tested and len(base.steps) + len(new.steps) >= 3:
            values = (np.array([side.values[measure] for measure in tested]) for side in (base, new))
            p_values |= dict(zip(tested, adjusted_p(*values).tolist(), strict=True))
    least = steps_to_be_sure()
    if not (base.has_steps and new.has_steps):
        notes.append(
            f"one window of each run is no sample: only changes over {FEW_CHANGE_PCT:g} % are called"
        )
    elif few:
        notes.append(
            f"{len(base.steps)} against {len(new.steps)} steps are too few for the test (p is at least "
            f"{smallest_p(len(base.steps), len(new.steps)):.2g}). A change counts only over {FEW_CHANGE_PCT:g} % and "
            f"over {FEW_SPREADS:g} times the spread between steps. Record {least} steps of each run, and one "
            f"more in case the first is slow (rankscope profile --active {least + 1})"
        )
    rows = [_row(measure, base, new, p_values.get(measure), rules, few) for measure in measures]
    rows.sort(
        key=lambda row: (
            (row["report"], row["key"]) != headline,
            _URGENCY[row["verdict"]],
            REPORTS.index(row["report"]),
            -abs(int(row["new"] or 0) - int(row["base"] or 0)),
            row["key"],
        )
    )
    if not rows:
        notes.append("nothing to compare in the window")
    # Whether the headline is not called, though its change is large and as certain as so few steps allow.
    row = rows[0] if rows and (rows[0]["report"], rows[0]["key"]) == headline else {}
    change, p_value = row.get("change_pct"), row.get("p_value")
    likely = bool(
        row.get("verdict") == "same"
        and change is not None
        and p_value is not None
        and abs(change) >= max(FEW_CHANGE_PCT, rules.min_change_pct)
        and p_value <= max(LIKELY_P, smallest_p(len(base.steps), len(new.steps))) + _P_ROUNDING
    )
    if likely:
        why = "the steps are too few" if few else "the steps vary too much"
        notes.insert(0, f"the step time likely changed, by {change:+.1f} %: {why} to be sure")
    return Comparison(base, new, rows, tuple(notes), few, headline, likely, rules.min_change_pct)


def steps_to_be_sure() -> int:
    """The smallest number of steps of each run with which the test can call a change."""
    return next(steps for steps in count(2) if smallest_p(steps, steps) <= ALPHA)


_P_ROUNDING = 1e-4
"""p-values in rows have four digits."""
_URGENCY = {"slower": 0, "faster": 1, "new": 2, "gone": 2, "same": 3}


def _row(
    measure: Measure, base: Samples, new: Samples, p_value: float | None, rules: Rules, few: bool
) -> dict[str, Any]:
    before, after = base.values.get(measure), new.values.get(measure)
    old, now = base.typical(measure), new.typical(measure)
    change = None
    if old is None or now is None or before is None or after is None:
        verdict = "gone" if now is None else "new"
    else:
        change = 100 * (now - old) / old if old else None
        real = _clear(before, after) if few else p_value is not None and p_value <= ALPHA
        large = change is None or abs(change) >= rules.min_change_pct
        verdict = ("slower" if now > old else "faster") if real and large and now != old else "same"
    return {
        "report": measure.report,
        "key": measure.key,
        "base": None if old is None else round(old),
        "new": None if now is None else round(now),
        "change_pct": change,
        "p_value": None if p_value is None else round(p_value, 4),
        "verdict": verdict,
    }


def _clear(before: Sequence[float], after: Sequence[float]) -> bool:
    """The values of the two runs do not overlap, and the gap is larger than the spread within either run explains."""
    low, high = sorted((before, after), key=lambda values: sum(values) / len(values))
    gap = min(high) - max(low)
    spread = max(max(values) - min(values) for values in (low, high))
    middle = sum(before) / len(before)
    change = abs(sum(after) / len(after) - middle)
    return gap > FEW_SPREADS * spread and change * 100 > FEW_CHANGE_PCT * middle


def _measures(base: Samples, new: Samples, rules: Rules, notes: list[str]) -> list[Measure]:
    """The measures that are large enough in either run."""
    least = MIN_SHARE * max(base.step_ns, new.step_ns)
    every = [
        measure for measure in dict.fromkeys((*base.values, *new.values)) if measure.report in rules.reports
    ]
    large = [
        measure
        for measure in every
        if unit_of(measure.report) == "bytes" or max(base.mean(measure), new.mean(measure)) > least
    ]
    small = len(every) - len(large)
    if small:
        notes.append(
            left_out_note(
                f"{small:,} small row{'s' * (small > 1)}, under {100 * MIN_SHARE:g} % of a step in both runs"
            )
        )
    return large


def _without_slow_first(samples: Samples, name: str, notes: list[str]) -> Samples:
    """Leave out slow first steps of a recording in every row: their length would hide every difference."""
    usable = [step not in samples.slow_first for step in samples.steps]
    if all(usable):
        return samples
    notes.append(
        f"{name}: step {as_ranges(sorted(samples.slow_first))} is left out. It is the first of a recording, and "
        f"takes more than {SLOW_FIRST_STEP:g} times the median of the others"
    )
    values = {measure: list(compress(of_steps, usable)) for measure, of_steps in samples.values.items()}
    return replace(samples, steps=list(compress(samples.steps, usable)), values=values)


def _comparability_notes(base: Samples, new: Samples) -> Iterable[str]:
    if base.ranks != new.ranks:
        yield (
            f"base has {base.ranks} rank{'s' * (base.ranks != 1)}, new has {new.ranks}: "
            "figures are means per rank"
        )
    for name, samples in (("base", base), ("new", new)):
        if not samples.has_steps:
            yield (
                f"{name} has no steps: times for equal work are compared, by the calls of each kernel. Call "
                "profiler.step() in the loop, or capture with rankscope profile, which counts optimizer steps"
            )
        if not samples.on_device:
            yield f"{name} has no GPU events: ops are compared by host time"
    if {base.has_shapes, new.has_shapes} == {True, False}:
        name = "new" if base.has_shapes else "base"
        yield f"{name} was recorded without shapes: ops are compared by name (--record-shapes records them)"
