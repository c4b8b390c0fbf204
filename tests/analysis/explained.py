"""Shared by the tests of causes: the only subject of the only fault of a run, and why it is late."""

from __future__ import annotations

from rankscope.analysis.core.result import Why
from rankscope.analysis.core.scope import Scope
from rankscope.analysis.faults import faults_of
from rankscope.analysis.faults.explain import why
from rankscope.timeline.run import Run


def explained(run: Run) -> tuple[int, Why]:
    scope = Scope().in_run(run)
    (fault,) = faults_of(run, scope).listed
    (subject,) = fault.subjects
    return subject.number, why(run, scope, fault, subject)


def cause(answer: Why) -> object:
    return next(fact.value for fact in answer.facts if fact.quantity == "cause")
