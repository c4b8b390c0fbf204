"""What findings cost, and what follows from it: their severity, their order, and which are only another view of one.

No two findings claim the same time: the cost of a finding is what its change saves in addition to the changes of the
findings that claimed before it. docs/definitions.md, "Findings", has the rules.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from rankscope.analysis.core.result import Change, Finding, Remedy
from rankscope.analysis.core.scope import Scope
from rankscope.analysis.core.severity import at_most, graded
from rankscope.analysis.critical_path.savings import Savings, savings_of, scenario_of
from rankscope.records import dataclass
from rankscope.timeline.run import Run
from rankscope.units import format_rounded

_REACHABLE: frozenset[Change] = frozenset({"rank at median", "links at median", "balanced"})
"""Changes to what other ranks, steps or stages of the same run do already. The others are limits."""
_CLAIMED = 0.98
"""A finding that keeps less than this share of what it would save alone says how much is left. Chosen, not measured."""
_LEAST_LEFT = 0.2
"""A finding that keeps less than this share is evidence of another one."""
_WAIT_SAVED = 0.75
"""A finding whose change saves less than this share of the wait that it states says what becomes of the rest."""
_PROBLEMS = ("warning", "critical")


@dataclass
class _Claim:
    """A finding, what its change saves alone, and what of it was claimed by findings before it."""

    finding: Finding
    remedy: Remedy
    alone_ns: float
    cost_ns: float = 0.0


class _Prices:
    """Replays with more and more changes."""

    def __init__(self, run: Run, savings: Savings) -> None:
        self.run, self.savings = run, savings
        self.claimed: list[Remedy] = []
        self._claimed_ns = 0.0
        self._stated_ns = 0.0
        """What findings cost that state it themselves."""
        self._saved: dict[frozenset[Remedy], float] = {}

    def saved_ns(self, *remedies: Remedy) -> float:
        """What these changes would save together."""
        together = frozenset(remedies)
        if together not in self._saved:
            changes = [scenario_of(self.run, remedy) for remedy in dict.fromkeys(remedies)]
            self._saved[together] = max(self.savings.saved_ns(changes), 0.0)
        return self._saved[together]

    def more_ns(self, claim: _Claim) -> float:
        """What the change would save in addition to what is claimed."""
        more = self.saved_ns(*self.claimed, claim.remedy) - self._claimed_ns
        return min(max(more, 0.0), claim.alone_ns, self._left_ns)

    def claim(self, claim: _Claim) -> None:
        """In the order of the claims, what a change saves is not counted again."""
        self.claimed.append(claim.remedy)
        self._claimed_ns = max(self.saved_ns(*self.claimed), self._claimed_ns)

    def limited(self, finding: Finding) -> Finding:
        """A finding that states its cost (the schedule's own bubble) costs no more than is left of a step."""
        if finding.cost_ns is None:
            return finding
        cost = min(finding.cost_ns, round(self._left_ns))
        self._stated_ns += cost
        severity = at_most(finding.severity, graded(cost, self.savings.step_ns, 0.0) or "info")
        return replace(finding, severity=severity, alone_ns=finding.cost_ns, cost_ns=cost)

    @property
    def _left_ns(self) -> float:
        """Of a step."""
        return max(self.savings.step_ns - self._claimed_ns - self._stated_ns, 0.0)

    def shared_ns(self, claim: _Claim, other: _Claim) -> float:
        """What both changes save, each of them alone."""
        return claim.alone_ns + other.alone_ns - self.saved_ns(claim.remedy, other.remedy)


def with_costs(run: Run, scope: Scope, findings: Sequence[Finding]) -> list[Finding]:
    """The findings with their costs, in the order in which they are listed; some become evidence of others."""
    savings = savings_of(run, scope) if any(finding.remedy for finding in findings) else None
    if savings is None:
        return sorted(findings, key=_order)
    prices = _Prices(run, savings)
    claims = [
        _Claim(replace(finding, reachable=finding.remedy.change in _REACHABLE), finding.remedy, alone)
        for finding in findings
        if finding.remedy is not None
        for alone in [prices.saved_ns(finding.remedy)]
    ]
    listed = []
    for reachable in (True, False):
        _claim(prices, [claim for claim in claims if claim.finding.reachable is reachable])
        others = [each for each in findings if each.remedy is None and each.reachable is reachable]
        listed += [prices.limited(finding) for finding in others]
    listed += [_stated(claim, also, savings.step_ns) for claim, also in _folded(prices, claims)]
    return sorted(listed, key=_order)


def _claim(prices: _Prices, claims: Sequence[_Claim]) -> None:
    """The one that saves most, then the one that saves most in addition to it, and so on.

    A change seldom saves more because of another one, so a value computed earlier is an upper limit: only the best
    candidate is computed again.
    """
    left = list(claims)
    for claim in left:
        claim.cost_ns = prices.more_ns(claim) if prices.claimed else claim.alone_ns
    fresh = {id(claim) for claim in left}
    while left:
        best = max(left, key=lambda claim: (claim.cost_ns, id(claim) in fresh))
        if id(best) not in fresh:
            best.cost_ns = prices.more_ns(best)
            fresh.add(id(best))
            continue
        left.remove(best)
        if best.cost_ns:
            prices.claim(best)
            fresh.clear()


def _folded(prices: _Prices, claims: Sequence[_Claim]) -> list[tuple[_Claim, list[Finding]]]:
    """The claims that are listed, each with the findings that are only another view of it."""
    listed = {
        id(claim): (claim, list[Finding]())
        for claim in claims
        if not claim.alone_ns or claim.cost_ns >= _LEAST_LEFT * claim.alone_ns
    }
    claimed = [claim for claim, _ in listed.values() if claim.cost_ns]
    for claim in claims:
        if id(claim) not in listed:
            nearest = claimed[0]
            if len(claimed) > 1:
                nearest = max(claimed, key=lambda other: prices.shared_ns(claim, other))
            listed[id(nearest)][1].append(claim.finding)
    return [*listed.values()]


def _stated(claim: _Claim, also: Sequence[Finding], step_ns: float) -> Finding:
    """The finding with its cost and severity; it says so where a part of its time is claimed by others."""
    finding, evidence = claim.finding, [claim.finding.evidence]
    if claim.cost_ns < _CLAIMED * claim.alone_ns:
        left = f"{format_rounded('ns', claim.cost_ns)} of it are left"
        alone = f"alone it would save {format_rounded('ns', claim.alone_ns)}"
        evidence.append(f"{alone}, {left} after what other findings claim")
    waited = finding.fact("wait_per_step_ns")
    if waited is not None and claim.alone_ns < _WAIT_SAVED * float(waited.value or 0):
        saved, wait = (format_rounded("ns", float(time)) for time in (claim.alone_ns, waited.value or 0))
        rest = (
            "without it the others would still wait, for the next rank and for communication that it hides"
            if finding.ranks
            else "the rest is no compute, or compute that all ranks have"
        )
        evidence.append(f"{saved} of the {wait} would be saved: {rest}")
    evidence += [f"part of the same time: {other.title} (-r {other.report})" for other in also]
    severity = graded(claim.cost_ns, step_ns, 0.0) or "info"
    return replace(
        finding,
        severity=at_most(
            at_most(severity, finding.most_severity), "critical" if finding.reachable else "warning"
        ),
        cost_ns=round(claim.cost_ns),
        alone_ns=round(claim.alone_ns),
        evidence="; ".join(filter(None, evidence)),
        names=(*finding.names, *(name for other in also for name in _names_in(other))),
    )


def _names_in(finding: Finding) -> list[str]:
    """What may be a name out of the trace in its title."""
    values = (value for fact in finding.facts for value in (fact.value, *fact.row.values()))
    return [*finding.names, *(value for value in values if isinstance(value, str))]


def _order(finding: Finding) -> tuple[int, int]:
    """Critical without a cost; problems that other ranks do not have; other problems; the rest likewise.

    Equal ones stay in the order of their reports.
    """
    if finding.cost_ns is None:
        group = 0 if finding.severity == "critical" else 3 if finding.severity in _PROBLEMS else 6
    else:
        group = (1 if finding.severity in _PROBLEMS else 4) + (not finding.reachable)
    return group, -(finding.cost_ns or 0)
