"""The severity of a finding, and one finding for several ranks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from rankscope.analysis.core.result import SEVERITIES, Fact, Finding, Severity
from rankscope.records import dataclass

WARNING_SHARE, CRITICAL_SHARE = 0.05, 0.20
"""Of the mean step that a finding costs (docs/definitions.md, "Findings")."""


def graded(
    part: float, whole: float, info: float, warning: float = WARNING_SHARE, critical: float = CRITICAL_SHARE
) -> Severity | None:
    """By the share of the whole; None below the share `info`.

    A report rates what it found so. Where the finding has a remedy, what that saves decides instead (`costs`).
    """
    if whole <= 0 or part < info * whole:
        return None
    share = part / whole
    return "critical" if share >= critical else "warning" if share >= warning else "info"


def at_most(severity: Severity, most: Severity) -> Severity:
    return min(severity, most, key=SEVERITIES.index)


@dataclass(frozen=True)
class OnRank:
    """A finding about one rank, and the share that decides which rank is the worst."""

    rank: int
    share: float
    finding: Finding


def of_the_worst(findings: Sequence[OnRank]) -> tuple[Finding, ...]:
    """The finding about the worst rank, with all ranks that have it."""
    if not findings:
        return ()
    worst = max(findings, key=lambda each: each.share).finding
    ranks = tuple(sorted({each.rank for each in findings}))
    if len(ranks) < 2:
        return (worst,)
    alike = Fact("ranks_alike", len(ranks), "count", "ranks with this finding", ranks)
    evidence = f"{worst.evidence}; it is the worst of {len(ranks)} ranks with this finding"
    return (replace(worst, evidence=evidence, ranks=ranks, facts=(*worst.facts, alike)),)
