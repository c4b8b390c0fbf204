"""What the faults of the base were predicted to cost, and what came once they are fixed."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from rankscope.analysis.core.result import PROBLEMS, Fact, Finding, argv
from rankscope.analysis.core.scope import Scope
from rankscope.analysis.diff.compare import Comparison
from rankscope.analysis.diff.moved import WORDS, Moved
from rankscope.analysis.faults.axes import AXES
from rankscope.analysis.faults.faults import Fault, Subject, faults_of
from rankscope.analysis.faults.words import findings_of
from rankscope.records import dataclass
from rankscope.timeline.run import Run
from rankscope.units import format_rounded

_STILL_THERE = 0.7
"""Of its cost: a fault that costs as much in the new run is not fixed. Chosen, not measured."""
_AS_PREDICTED = 0.05
"""Of what was predicted: a difference that needs no reason."""
_SPREADS = 2.0
"""Standard errors of the change: a smaller difference is noise."""
_MOST_NAMED = 2
_Key = tuple[str, str, str]


@dataclass(frozen=True)
class _Fixed:
    """A fault of the base that the new run does not have, or has less of."""

    fault: Fault
    finding: Finding
    left_ns: float
    """What it costs in the new run."""
    measured_ns: float
    """What its own work saves."""

    @property
    def predicted_ns(self) -> float:
        return self.fault.cost_ns - self.left_ns

    @property
    def words(self) -> str:
        """'rank 2 (data loading)'."""
        causes = dict.fromkeys(WORDS[each.cause.kind] for each in _subjects(self.fault))
        return f"{self.finding.subject} ({', '.join(causes)})" if causes else self.finding.subject

    @property
    def facts(self) -> tuple[Fact, ...]:
        cost, predicted, measured, left = (
            format_rounded("ns", ns)
            for ns in (self.fault.cost_ns, self.predicted_ns, self.measured_ns, self.left_ns)
        )
        text = f"predicted {predicted}, measured {measured}"
        if self.left_ns:
            text = f"predicted {predicted} of {cost}, measured {measured}; {left} are left"
        figures = {name: round(getattr(self, name)) for name in ("predicted_ns", "measured_ns", "left_ns")}
        whom, ranks = self.words, self.finding.ranks
        return (
            Fact("promise", text, "", whom, ranks),
            *(Fact(name, ns, "ns", whom, ranks) for name, ns in figures.items()),
        )


def promise(base: Run, new: Run, scope: Scope, comparison: Comparison, moved: Moved) -> Finding | None:
    """What fixing the base's faults was predicted to save, and what it saved; None where none of them is fixed."""
    before, after = (
        list(zip(faults_of(run, of_run).listed, findings_of(run, of_run), strict=True))
        for run, of_run in ((run, scope.in_run(run)) for run in (base, new))
    )
    left_ns = [sum(other.cost_ns for other, _ in after if _keys(other) & _keys(fault)) for fault, _ in before]
    fewer = [
        (fault, finding, left)
        for (fault, finding), left in zip(before, left_ns, strict=True)
        if finding.severity in PROBLEMS and left <= _STILL_THERE * fault.cost_ns
    ]
    measured_ns = _measured_ns(moved, [fault for fault, *_ in fewer])
    fixed = [_Fixed(*each, ns) for each, ns in zip(fewer, measured_ns, strict=True)]
    # What the new run does not have may be hidden there: then its work takes as long as before.
    fixed = [each for each in fixed if each.measured_ns >= (1 - _STILL_THERE) * each.predicted_ns]
    row = comparison.headline_row
    if not fixed or not row:
        return None
    known = {key for fault, _ in before for key in _keys(fault)}
    came = [finding for fault, finding in after if finding.severity in PROBLEMS and not _keys(fault) & known]
    predicted_pct = -100 * sum(each.predicted_ns for each in fixed) / row["base"]
    reason = _difference(comparison, moved, fixed, came)
    title = (
        f"Predicted {predicted_pct:+.1f} %, measured {row['change_pct']:+.1f} % with {_what_is_fixed(fixed)}"
    )
    if row["new"] > row["base"]:
        title += f", and a new fault: {came[0].subject}" if came else ", but a step takes longer"
    return Finding(
        "info",
        title,
        advice="Make a picture of it to post",
        command=argv("rankscope report BASE NEW --chart change -o change.svg"),
        facts=(
            *(fact for each in fixed for fact in each.facts),
            *([Fact("difference", reason)] if reason else []),
            Fact("predicted_pct", predicted_pct, "percent", "new against base"),
            Fact("measured_pct", row["change_pct"], "percent", "new against base"),
        ),
        names=(
            *(name for finding in (*(each.finding for each in fixed), *came) for name in finding.names),
            *moved.names,
        ),
    )


def _keys(fault: Fault) -> set[_Key]:
    """What tells a fault in another run: axis, subject and cause. The number of a late step means nothing there."""
    has_subject = fault.subjects and fault.axis != "step"
    keys: set[_Key] = {
        (fault.axis, each.label if has_subject else "", each.cause.kind) for each in _subjects(fault)
    }
    return keys or {(fault.axis, "", "")}


def _subjects(fault: Fault) -> tuple[Subject, ...]:
    """Of one that moves from rank to rank, an example."""
    return fault.subjects or ((fault.example,) if fault.example else ())


def _measured_ns(moved: Moved, faults: Sequence[Fault]) -> list[float]:
    """What each of these saved in addition to those before it: a replay of the base in which its subjects take what
    they take in the new run."""
    longer = moved.in_base
    chosen, saved_ns = np.zeros(len(longer.cut), dtype=bool), [0.0]
    for fault in faults:
        axis = AXES[fault.axis](longer.replays)
        chosen |= longer.here.of(axis, [each.subject for each in fault.subjects] or axis.subjects)
        saved_ns.append(longer.saved_ns(np.where(chosen, longer.cut, 0)))
    return [more - less for less, more in pairwise(saved_ns)]


def _what_is_fixed(fixed: Sequence[_Fixed]) -> str:
    """'rank 2 (data loading) fixed'."""
    whole = [each.words for each in fixed if not each.left_ns]
    part = [each.words for each in fixed if each.left_ns]
    return ", ".join(
        f"{' and '.join(words) if len(words) <= _MOST_NAMED else f'{len(words)} faults'} {how}"
        for words, how in ((whole, "fixed"), (part, "partly fixed"))
        if words
    )


def _difference(
    comparison: Comparison, moved: Moved, fixed: Sequence[_Fixed], came: Sequence[Finding]
) -> str:
    """Why the change is not what was predicted, in a sentence; empty where it nearly is."""
    predicted_ns, own_ns = (
        sum(ns) for ns in zip(*((f.predicted_ns, f.measured_ns) for f in fixed), strict=True)
    )
    saved_ns = -moved.change_ns
    gap_ns = saved_ns - predicted_ns
    gap = format_rounded("ns", abs(gap_ns))
    if abs(gap_ns) <= _AS_PREDICTED * predicted_ns:
        return ""
    if abs(gap_ns) <= (noise_ns := _noise_ns(comparison)):
        return f"the difference of {gap} is within the noise of the steps ({format_rounded('ns', noise_ns)})"
    if gap_ns < 0 and came:
        return f"a new fault costs time: {came[0].subject}, {format_rounded('ns', came[0].cost_ns or 0)} per step"
    fixed_ranks = {rank for each in fixed if each.fault.axis == "rank" for rank in each.finding.ranks}
    others = {
        part: -(part.moved_ns if part in moved.parts else part.alone_ns)
        for part in (*moved.parts, *moved.hidden)
        if not (part.ranks and fixed_ranks.issuperset(part.ranks))
    }
    unexplained_ns = saved_ns - own_ns - sum(others.values())
    less = "less" if gap_ns > 0 else "more"
    reasons = {
        "the fixed work itself": own_ns - predicted_ns,
        "waiting and gaps that no changed work explains": unexplained_ns,
        **{part.subject: ns for part, ns in others.items()},
    }
    where = max(reasons, key=lambda where: reasons[where] * gap_ns)
    return f"{format_rounded('ns', abs(reasons[where]))} {less} than predicted is spent in {where}"


def _noise_ns(comparison: Comparison) -> float:
    """By how much the change of the step time may differ by chance."""
    samples = [side.values[comparison.headline] for side in (comparison.base, comparison.new)]
    if min(map(len, samples)) < 2:
        return 0.0
    return float(_SPREADS * np.sqrt(sum(np.var(values, ddof=1) / len(values) for values in samples)))
