"""What findings cost: the time that whatif says would be saved if their causes were gone.

No two findings claim the same time: the cost of a finding is what its change saves in addition to the changes of the
findings that claimed before it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from rankscope.analysis.core.result import Change, Fact, Finding, Remedy, Row
from rankscope.analysis.core.scope import Scope
from rankscope.analysis.core.step_times import step_count
from rankscope.analysis.critical_path.savings import replay_for_costs, scenario_of
from rankscope.analysis.critical_path.scenarios import Scenario
from rankscope.analysis.within_rank.breakdown import breakdown
from rankscope.timeline.run import Run
from rankscope.units import format_rounded

_PART_OF: dict[Change, str] = {
    "communication hidden": "exposed_comm_ns",
    "links at median": "exposed_comm_ns",
    "host gaps gone": "idle_ns",
    "data ready": "idle_ns",
    "syncs gone": "idle_ns",
    "kernels faster": "compute_ns",
}
"""The class of the breakdown that a change makes shorter; its saving is limited to that class."""
_CLAIMED = 0.98
"""A finding that keeps less than this share of what it would save alone says how much is left. Chosen, not measured."""


class _Prices:
    """Replays with more and more changes."""

    def __init__(self, run: Run, scope: Scope) -> None:
        self.run = run
        self.replayed = replay_for_costs(run, scope)
        self.limits = _limits(breakdown(run, scope, None).rows, step_count(run, scope))
        self.claimed: list[Scenario] = []
        self.total = 0.0
        self._alone: dict[Remedy, float] = {}

    def alone_ns(self, remedy: Remedy) -> float:
        """What the change would save without any other."""
        if remedy not in self._alone:
            saved = self._saved_ns([scenario_of(self.run, remedy)])
            self._alone[remedy] = self._limited(remedy, saved) if saved is not None else 0.0
        return self._alone[remedy]

    def more_ns(self, remedy: Remedy) -> float | None:
        """What the change would save in addition; None where it cannot be replayed."""
        if not self.claimed:
            return self.alone_ns(remedy) if self.replayed else None
        saved = self._saved_ns([*self.claimed, scenario_of(self.run, remedy)])
        return None if saved is None else min(self._limited(remedy, saved - self.total), self._left_ns)

    @property
    def _left_ns(self) -> float:
        """What is left of a step after what is claimed."""
        assert self.replayed is not None
        return self.replayed.step_ns - self.total

    def _saved_ns(self, changes: list[Scenario]) -> float | None:
        return None if self.replayed is None else self.replayed.saved_ns(changes)

    def _limited(self, remedy: Remedy, saved: float) -> float:
        assert self.replayed is not None
        limit = self.limits.get(_PART_OF.get(remedy.change, ""), self.replayed.step_ns)
        return max(0.0, min(saved, limit))

    def claim(self, remedy: Remedy, saved: float) -> None:
        self.claimed.append(scenario_of(self.run, remedy))
        self.total += saved


def _limits(rows: Sequence[Row], steps: int) -> dict[str, float]:
    """Per step, the largest time of each class on any rank."""
    whole = [row for row in rows if row["step"] is None]
    return {
        name: max((row[name] for row in whole), default=0) / steps for name in sorted(set(_PART_OF.values()))
    }


def with_costs(
    run: Run, scope: Scope, findings: Sequence[Finding], precedence: Callable[[Finding], int]
) -> list[Finding]:
    """In order of precedence, then of cost; each cost without what others claim.

    Findings that name the ranks to change claim first, wherever they stand: they are the most specific.
    """
    priced = [finding for finding in findings if finding.remedy is None]
    with_remedy = [(finding, finding.remedy) for finding in findings if finding.remedy is not None]
    if with_remedy:
        prices = _Prices(run, scope)
        priced += _by_saving(prices, [(finding, remedy) for finding, remedy in with_remedy if remedy.ranks])
        others = [(finding, remedy) for finding, remedy in with_remedy if not remedy.ranks]
        for level in sorted({precedence(finding) for finding, _ in others}):
            priced += _by_saving(prices, [each for each in others if precedence(each[0]) == level])
    return sorted(
        priced,
        key=lambda finding: (
            precedence(finding),
            finding.cost_ns is None,
            -(finding.cost_ns or 0),
            finding.title,
        ),
    )


def _by_saving(prices: _Prices, findings: Sequence[tuple[Finding, Remedy]]) -> list[Finding]:
    """The one that saves most, then the one that saves most in addition to it, and so on.

    A change seldom saves more because of another one, so a value computed earlier is an upper limit: only the best
    candidate is computed again.
    """
    savings = [prices.more_ns(remedy) for _, remedy in findings]
    left = list(range(len(findings)))
    fresh = set(left)
    ordered = []
    while left:
        best = max(left, key=lambda at: (savings[at] or 0.0, at in fresh))
        finding, remedy = findings[best]
        if best not in fresh:
            savings[best] = prices.more_ns(remedy)
            fresh.add(best)
            continue
        left.remove(best)
        saved = savings[best]
        ordered.append(_stated(finding, saved, prices.alone_ns(remedy)))
        if saved:
            prices.claim(remedy, saved)
            fresh.clear()
    return ordered


def _stated(finding: Finding, saved: float | None, alone: float) -> Finding:
    """The finding with its cost; it says so where a part of it is claimed by others."""
    if saved is None:
        return finding
    facts = (*finding.facts, Fact("saved_alone_ns", round(alone), "ns", "the run, per step", report="whatif"))
    evidence = finding.evidence
    if alone and saved < _CLAIMED * alone:
        left = f"{format_rounded('ns', saved)} of it are left" if round(saved) else "nothing of it is left"
        evidence += (
            f"; alone it would save {format_rounded('ns', alone)}, {left} after what other findings claim"
        )
    return replace(finding, cost_ns=round(saved), facts=facts, evidence=evidence)
