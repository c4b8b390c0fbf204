"""Limits claim time, and are ordered and folded by what a replay says."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankscope.analysis import limits
from rankscope.analysis.core.result import Finding, Remedy
from rankscope.analysis.core.scope import Scope
from rankscope.analysis.limits import limits_of

STEP = 100
Covers = tuple[bool, frozenset[int]]
"""Whether a limit is of certain calls, and the nanoseconds of the step that its change saves."""


def priced(
    monkeypatch: pytest.MonkeyPatch, covers: Sequence[Covers], mended: float = 0.0, **more: Any
) -> tuple[Finding, ...]:
    """A replay in which each change saves its own set of nanoseconds; what several save together is their union."""
    findings, sets = [Finding("warning", "a fault", report="faults"), *more.get("also", ())], {}
    for number, (is_part, saved) in enumerate(covers):
        remedy = Remedy("syncs gone", names=(str(number),) if is_part else (), factor=number)
        sets[remedy] = saved
        findings.append(Finding("limit", f"L{number}", remedy=remedy, report=f"r{number}"))

    class Savings:
        step_ns, most_ns = float(STEP), STEP - mended

        def saved_ns(self, changes: Sequence[Remedy]) -> float:
            return float(
                min(len(frozenset[int]().union(*(sets[change] for change in changes))), self.most_ns)
            )

    monkeypatch.setattr(limits, "savings_after_faults", lambda run, scope: Savings())
    monkeypatch.setattr(limits, "scenario_of", lambda run, remedy: remedy)
    monkeypatch.setattr(limits, "cut_ranks", lambda run: ())
    monkeypatch.setattr(limits, "mean_step_ns", lambda run, scope: float(STEP))
    monkeypatch.setattr(limits, "steps_in", lambda run, scope: 1)
    run: Any = SimpleNamespace()
    return limits_of(run, Scope(), findings)


def by_brute_force(covers: Sequence[Covers]) -> dict[str, int]:
    """The claims by definition: every candidate is computed in every round."""
    claimed: frozenset[int] = frozenset()
    claims: dict[str, int] = {}
    left = {f"L{number}": each for number, each in enumerate(covers) if len(each[1]) >= 2}
    while left:
        more = {title: len(saved - claimed) for title, (_, saved) in left.items()}
        most = max(more.values())
        if most < 2:
            break
        as_large = [title for title in left if more[title] >= 0.9 * most]
        title = max(as_large, key=lambda title: (left[title][0], more[title]))
        claims[title] = more[title]
        claimed |= left.pop(title)[1]
    return claims


@given(st.lists(st.tuples(st.booleans(), st.frozensets(st.integers(0, STEP - 1), max_size=40)), max_size=6))
def test_claims_are_those_of_the_definition(covers: list[Covers]) -> None:
    with pytest.MonkeyPatch.context() as monkeypatch:
        listed = priced(monkeypatch, covers)
    expected = by_brute_force(covers)
    assert {limit.title: limit.cost_ns for limit in listed} == expected
    assert [limit.cost_ns for limit in listed] == sorted(expected.values(), reverse=True)
    assert sum(expected.values()) <= STEP
    evidence = " ".join(limit.evidence for limit in listed)
    claimed = frozenset[int]().union(*(covers[int(title[1:])][1] for title in expected))
    for number, (_, saved) in enumerate(covers):
        is_view = len(saved) >= 2 and f"L{number}" not in expected and len(saved - claimed) < 0.2 * len(saved)
        assert (f"a part of the same time: L{number}, -r r{number}" in evidence) == is_view
    for limit in listed:
        assert limit.alone_ns == len(covers[int(limit.title[1:])][1]) and limit.kind == "limit"
        assert limit.cost_pct == pytest.approx(limit.cost_ns)


def test_what_is_left_is_stated(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = priced(monkeypatch, [(True, frozenset(range(5, 15))), (True, frozenset(range(10, 30)))])
    assert (first.title, first.cost_ns, second.cost_ns, second.alone_ns) == ("L1", 20, 5, 10)
    assert second.lines == ["alone it would save: 10 ns"]


def test_what_the_faults_cost_is_no_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a step of 100, of which mending the faults saves 70; the schedule's own bubble takes what is left."""
    bubble = Finding("limit", "Bubble", cost_ns=50, report="bubbles")
    listed = priced(monkeypatch, [(False, frozenset(range(20)))], mended=70, also=[bubble])
    assert [(limit.title, limit.cost_ns) for limit in listed] == [("L0", 20), ("Bubble", 10)]
    assert listed[1].alone_ns == 50


def test_without_a_replay_only_stated_costs_are_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    stated = Finding("limit", "stated", cost_ns=1, remedy=Remedy("kernels faster", names=("k",)))
    other = Finding("limit", "other", remedy=Remedy("data ready"))
    monkeypatch.setattr(limits, "savings_after_faults", lambda run, scope: None)
    monkeypatch.setattr(limits, "cut_ranks", lambda run: ())
    for step_ns, titles in ((0.0, ["stated"]), (1000.0, [])):
        monkeypatch.setattr(limits, "mean_step_ns", lambda run, scope, step_ns=step_ns: step_ns)
        monkeypatch.setattr(limits, "steps_in", lambda run, scope: 0)
        run: Any = SimpleNamespace()
        assert [limit.title for limit in limits_of(run, Scope(), [stated, other])] == titles
