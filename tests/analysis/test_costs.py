"""Findings claim time, are rated, ordered and folded by what a replay says."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankscope.analysis.core.result import SEVERITIES, Finding, Remedy, Severity
from rankscope.analysis.core.scope import Scope
from rankscope.analysis.critical_path import costs
from rankscope.analysis.critical_path.costs import with_costs

STEP = 100
Covers = tuple[bool, frozenset[int]]
"""Whether a finding is reachable, and the nanoseconds of the step that its change saves."""


def priced(monkeypatch: pytest.MonkeyPatch, covers: Sequence[Covers], **more: Any) -> list[Finding]:
    """A replay in which each change saves its own set of nanoseconds; what several save together is their union."""
    findings, sets = [], {}
    for number, (reachable, saved) in enumerate(covers):
        remedy = Remedy("rank at median" if reachable else "syncs gone", names=(str(number),))
        sets[remedy] = saved
        findings.append(Finding("info", str(number), "e", remedy=remedy, report=f"r{number}", **more))

    class Savings:
        step_ns = float(STEP)

        def saved_ns(self, changes: Sequence[Remedy]) -> float:
            return float(len(frozenset[int]().union(*(sets[change] for change in changes))))

    monkeypatch.setattr(costs, "savings_of", lambda run, scope: Savings())
    monkeypatch.setattr(costs, "scenario_of", lambda run, remedy: remedy)
    run: Any = SimpleNamespace()
    return with_costs(run, Scope(), findings)


def by_brute_force(covers: Sequence[Covers]) -> dict[str, int]:
    """The claims by definition: every candidate is computed in every round."""
    claimed: frozenset[int] = frozenset()
    claims = {}
    for reachable in (True, False):
        left = {str(number): saved for number, (kind, saved) in enumerate(covers) if kind is reachable}
        while left:
            most = max(len(saved - claimed) for saved in left.values())
            title = next(title for title, saved in left.items() if len(saved - claimed) == most)
            claims[title] = most
            claimed |= left.pop(title)
    return claims


@given(st.lists(st.tuples(st.booleans(), st.frozensets(st.integers(0, STEP - 1), max_size=40)), max_size=6))
def test_claims_are_those_of_the_definition(covers: list[Covers]) -> None:
    with pytest.MonkeyPatch.context() as monkeypatch:
        listed = priced(monkeypatch, covers)
    expected = by_brute_force(covers)
    for finding in listed:
        alone = len(covers[int(finding.title)][1])
        assert finding.alone_ns == alone and finding.cost_ns is not None and 5 * finding.cost_ns >= alone
        assert finding.reachable == covers[int(finding.title)][0]
        cap: Severity = "critical" if finding.reachable else "warning"
        share = finding.cost_ns / STEP
        rated: Severity = "critical" if share >= 0.2 else "warning" if share >= 0.05 else "info"
        assert finding.severity == min(rated, cap, key=SEVERITIES.index)
    assert sum(finding.cost_ns or 0 for finding in listed) <= sum(expected.values()) <= STEP
    evidence = " ".join(finding.evidence for finding in listed)
    titles = {finding.title for finding in listed}
    for number in range(len(covers)):
        assert (f"{number} (-r r{number})" in evidence) != (str(number) in titles), (
            "listed, or evidence of another"
        )


def test_a_view_of_the_same_time_is_evidence(monkeypatch: pytest.MonkeyPatch) -> None:
    late, waiting, copies = frozenset(range(30)), frozenset(range(2, 33)), frozenset(range(50, 56))
    first, second = priced(monkeypatch, [(False, waiting), (True, late), (False, copies)])
    assert (first.title, first.severity, first.cost_ns, first.alone_ns) == ("1", "critical", 30, 30)
    assert first.evidence == "e; part of the same time: 0 (-r r0)"
    assert (second.title, second.severity, second.cost_ns, second.reachable) == ("2", "warning", 6, False)


def test_what_is_left_is_stated(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = priced(monkeypatch, [(True, frozenset(range(10))), (False, frozenset(range(5, 25)))])
    assert (second.cost_ns, second.alone_ns) == (15, 20) and first.cost_ns == 10
    assert (
        "alone it would save 20 ns, 15 ns of it are left after what other findings claim" in second.evidence
    )


def test_a_finding_may_limit_its_severity(monkeypatch: pytest.MonkeyPatch) -> None:
    (once,) = priced(monkeypatch, [(True, frozenset(range(60)))], most_severity="warning")
    assert (once.severity, once.cost_ns) == ("warning", 60)


def test_the_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """Critical without a cost, reachable problems, other problems, those without a cost, then the same for info."""
    covers = [(False, frozenset(range(40))), (True, frozenset(range(40, 46))), (True, frozenset({50}))]
    listed = priced(monkeypatch, covers)
    more = [Finding(severity, severity, "") for severity in ("critical", "warning", "info")]
    run: Any = SimpleNamespace()
    ordered = sorted([*more, *listed], key=costs._order)
    assert [one.title for one in ordered] == ["critical", "1", "0", "warning", "2", "info"]
    assert with_costs(run, Scope(), more[::-1]) == more
