"""Compare two runs measure by measure: the size of each difference, and whether it is more than noise."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any, NamedTuple

import numpy as np

from rankscope.analysis.diff.permutation import adjusted_p, smallest_p
from rankscope.analysis.diff.samples import REPORTS, Measure, Samples, unit_of

ALPHA = 0.01
"""The largest p-value of a significant difference."""
MIN_CHANGE_PCT = 1.0
"""The smallest change that is reported: two captures of one program differ by as much."""
MIN_SHARE = 0.001
"""Rows below this share of a step in both runs are left out."""
# With too few steps for the test, a change must exceed both of these; see `_clear`.
FEW_CHANGE_PCT, FEW_SPREADS = 10.0, 3.0
WARM_UP = 1.5
"""A first step longer than this times the median of the others is warm-up."""


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


def compare(base: Samples, new: Samples, rules: Rules) -> Comparison:
    """Compare the collected samples."""
    notes = list(_comparability_notes(base, new))
    base, new = _without_warm_up(base, "base", notes), _without_warm_up(new, "new", notes)
    measures = _measures(base, new, rules, notes)
    both = [measure for measure in measures if measure in base.values and measure in new.values]
    few = smallest_p(len(base.steps), len(new.steps)) > ALPHA
    p_values = dict(zip(both, _p_values(base, new, both), strict=True))
    if few:
        notes.append(_few_note(base, new))
    rows = [_row(measure, base, new, p_values.get(measure), rules, few) for measure in measures]
    order = {report: place for place, report in enumerate(REPORTS)}
    rows.sort(key=lambda row: (_URGENCY[row["verdict"]], order[row["report"]], -_size(row), row["key"]))
    if not rows:
        notes.append("nothing to compare in the window")
    return Comparison(base, new, rows, tuple(notes), few)


_URGENCY = {"slower": 0, "faster": 1, "new": 2, "gone": 2, "same": 3}


def _size(row: dict[str, Any]) -> int:
    return abs(int(row["new"] or 0) - int(row["base"] or 0))


def _p_values(base: Samples, new: Samples, measures: Sequence[Measure]) -> list[float | None]:
    if len(base.steps) + len(new.steps) < 3 or not measures:
        return [None] * len(measures)
    first = np.array([base.values[measure] for measure in measures])
    second = np.array([new.values[measure] for measure in measures])
    p_values: list[float | None] = adjusted_p(first, second).tolist()
    return p_values


def _row(
    measure: Measure, base: Samples, new: Samples, p_value: float | None, rules: Rules, few: bool
) -> dict[str, Any]:
    before, after = base.values.get(measure), new.values.get(measure)
    old, now = (None if values is None else sum(values) / len(values) for values in (before, after))
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
    if len(large) < len(every):
        notes.append(
            f"left out: {len(every) - len(large):,} small rows, under {100 * MIN_SHARE:g} % of a step in both runs"
        )
    return large


def _without_warm_up(samples: Samples, name: str, notes: list[str]) -> Samples:
    """Leave out a first step that is warm-up: its length would hide every difference."""
    lengths = samples.values.get(samples.step_measure)
    if not lengths or len(lengths) < 4 or lengths[0] <= WARM_UP * median(lengths[1:]):
        return samples
    times = lengths[0] / median(lengths[1:])
    notes.append(
        f"{name}: step {samples.steps[0]} is left out as warm-up: it takes {times:.1f}x the median of the others"
    )
    values = {measure: one[1:] for measure, one in samples.values.items()}
    return replace(samples, steps=samples.steps[1:], values=values)


def _comparability_notes(base: Samples, new: Samples) -> Iterable[str]:
    if base.ranks != new.ranks:
        yield (
            f"base has {base.ranks} rank{'s' * (base.ranks != 1)}, new has {new.ranks}: "
            "figures are means per rank"
        )
    for name, samples in (("base", base), ("new", new)):
        if not samples.has_steps:
            yield (
                f"{name} has no steps: totals of its whole window are compared (call profiler.step() in the loop, or "
                "capture with rankscope profile, which counts optimizer steps)"
            )
        if "no GPU events" in samples.notes:
            yield f"{name} has no GPU events: ops are compared by host time"


def _few_note(base: Samples, new: Samples) -> str:
    best = smallest_p(len(base.steps), len(new.steps))
    return (
        f"{len(base.steps)} against {len(new.steps)} steps are too few for the test (p is at least {best:.2g}): only "
        f"changes over {FEW_CHANGE_PCT:g} % and {FEW_SPREADS:g} times the spread between steps are reported; capture "
        "6 or more steps of each run (rankscope profile --active 6)"
    )
