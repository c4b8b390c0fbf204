"""What could be saved at most: the limits of a run, once its faults are mended.

No two limits claim the same time: the cost of one is what its change saves in addition to the changes of those that
claimed before it. docs/definitions.md, "Limits", has the rules.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from rankscope.analysis.core.result import Fact, Finding, Remedy
from rankscope.analysis.core.scope import Scope, cut_ranks, steps_in
from rankscope.analysis.core.severity import LIMIT_SHARE
from rankscope.analysis.core.step_times import mean_step_ns
from rankscope.analysis.critical_path.savings import Savings, savings_after_faults, scenario_of
from rankscope.records import dataclass
from rankscope.timeline.run import Run

_AS_LARGE = 0.9
"""Of the largest: of limits that save as much, one of certain calls, kernels or ops is claimed before what it is a part
of. The same as of faults."""
_LEAST_LEFT = 0.2
"""A limit that keeps less than this share is evidence of another one."""


@dataclass
class _Claim:
    """A limit, what its change saves alone, what of it others have not claimed, and the limits that are only another
    view of it."""

    finding: Finding
    remedy: Remedy
    alone_ns: float
    cost_ns: float
    views: list[Finding]

    @property
    def is_part(self) -> bool:
        """It is of certain calls, kernels or ops."""
        return bool(self.remedy.names) or self.remedy.most_ns is not None


class _Prices:
    """Replays with more and more changes."""

    def __init__(self, run: Run, savings: Savings) -> None:
        self.run, self.savings = run, savings
        self.claimed: list[_Claim] = []
        self.claimed_ns = 0.0
        self._saved: dict[frozenset[Remedy], float] = {}

    def saved_ns(self, claims: Iterable[_Claim]) -> float:
        """What these changes would save together."""
        remedies = dict.fromkeys(claim.remedy for claim in claims)
        together = frozenset(remedies)
        if together not in self._saved:
            changes = [scenario_of(self.run, remedy) for remedy in remedies]
            self._saved[together] = max(self.savings.saved_ns(changes), 0.0)
        return self._saved[together]

    def candidate(self, finding: Finding, remedy: Remedy) -> _Claim:
        claim = _Claim(finding, remedy, 0.0, 0.0, [])
        claim.alone_ns = claim.cost_ns = self.saved_ns([claim])
        return claim

    def more_ns(self, claim: _Claim) -> float:
        """What the change would save in addition to what is claimed."""
        more = self.saved_ns([*self.claimed, claim]) - self.claimed_ns
        return min(max(more, 0.0), claim.alone_ns, max(self.savings.most_ns - self.claimed_ns, 0.0))

    def claim(self, claims: Sequence[_Claim], least_ns: float) -> None:
        """The one that saves most, then the one that saves most in addition to it, and so on.

        A change seldom saves more because of another one, so a value computed earlier is an upper limit: only those
        that may be the best are computed again.
        """
        left, fresh = list(claims), set(map(id, claims))
        while left:
            most_ns = max(claim.cost_ns for claim in left)
            if most_ns < least_ns:
                break
            best = [claim for claim in left if claim.cost_ns >= _AS_LARGE * most_ns]
            if stale := [claim for claim in best if id(claim) not in fresh]:
                for claim in stale:
                    claim.cost_ns = self.more_ns(claim)
                fresh.update(map(id, stale))
                continue
            chosen = max(best, key=lambda claim: (claim.is_part, claim.cost_ns))
            left.remove(chosen)
            self.claimed.append(chosen)
            self.claimed_ns += chosen.cost_ns
            fresh.clear()
        for claim in left if self.claimed else ():
            if self.more_ns(claim) < _LEAST_LEFT * claim.alone_ns:
                self._nearest(claim).views.append(claim.finding)

    def _nearest(self, claim: _Claim) -> _Claim:
        """With which it shares most."""

        def shared_ns(other: _Claim) -> float:
            return claim.alone_ns + other.alone_ns - self.saved_ns([claim, other])

        return self.claimed[0] if len(self.claimed) == 1 else max(self.claimed, key=shared_ns)


def limits_of(run: Run, scope: Scope, findings: Sequence[Finding]) -> tuple[Finding, ...]:
    """Those of the findings that are limits and cost enough, the largest first; some become evidence of others.

    Where nothing can be replayed, only those that state their cost.
    """
    limits = [finding for finding in findings if finding.kind == "limit"]
    is_priced = any(limit.remedy for limit in limits) and not cut_ranks(run)
    savings = savings_after_faults(run, scope) if is_priced else None
    step_ns = mean_step_ns(run, scope)
    least_ns = LIMIT_SHARE * step_ns
    left_ns, listed = step_ns or float("inf"), list[Finding]()
    if savings is not None:
        prices = _Prices(run, savings)
        candidates = [prices.candidate(limit, limit.remedy) for limit in limits if limit.remedy]
        prices.claim([claim for claim in candidates if claim.alone_ns >= max(least_ns, 1)], least_ns)
        left_ns = savings.most_ns - prices.claimed_ns
        listed += (_priced(claim, scope.window) for claim in prices.claimed)
    for limit in limits:
        if limit.cost_ns is not None and (savings is None or limit.remedy is None):
            cost_ns = round(min(limit.cost_ns, max(left_ns, 0.0)))
            left_ns -= cost_ns
            listed.append(replace(limit, cost_ns=cost_ns, alone_ns=limit.cost_ns))
    every = [limit for limit in listed if (limit.cost_ns or 0) >= least_ns]
    every.sort(key=lambda limit: -(limit.cost_ns or 0))
    if not steps_in(run, scope):
        return tuple(every)
    return tuple(replace(limit, cost_pct=100 * (limit.cost_ns or 0) / step_ns) for limit in every)


def _priced(claim: _Claim, window: str) -> Finding:
    views = (
        Fact("same_time", view.title, "", f"-r {view.report}", report=view.report, window=window)
        for view in claim.views
    )
    return replace(
        claim.finding,
        cost_ns=round(claim.cost_ns),
        alone_ns=round(claim.alone_ns),
        facts=(*claim.finding.facts, *views),
        names=(*claim.finding.names, *(name for view in claim.views for name in view.names)),
    )
