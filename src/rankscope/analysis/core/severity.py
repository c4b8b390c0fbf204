"""The severity of a finding, and one finding for several ranks that have the same problem."""

from __future__ import annotations

from dataclasses import replace

from rankscope.analysis.core.result import SEVERITIES, Finding, Severity


def graded(part: float, whole: float, info: float, warning: float, critical: float) -> Severity | None:
    """By the share of the whole; None where it is less than `info`."""
    if whole <= 0 or part < info * whole:
        return None
    share = part / whole
    return "critical" if share >= critical else "warning" if share >= warning else "info"


def of_the_worst(findings: list[Finding]) -> tuple[Finding, ...]:
    """One finding for all ranks with the same problem: the costliest, with the other ranks listed."""
    if not findings:
        return ()
    first = max(findings, key=lambda finding: (SEVERITIES.index(finding.severity), finding.cost_ns))
    ranks = tuple(sorted({rank for finding in findings for rank in finding.ranks}))
    if len(ranks) < 2:
        return (first,)
    return (replace(first, evidence=f"{first.evidence}; {len(ranks)} ranks are like this", ranks=ranks),)
