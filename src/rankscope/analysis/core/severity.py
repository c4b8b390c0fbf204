"""The severity of a finding, and one finding for several ranks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from rankscope.analysis.core.result import SEVERITIES, Fact, Finding, Severity
from rankscope.records import dataclass


def graded(part: float, whole: float, info: float, warning: float, critical: float) -> Severity | None:
    """By the share of the whole; None below the share `info`."""
    if whole <= 0 or part < info * whole:
        return None
    share = part / whole
    return "critical" if share >= critical else "warning" if share >= warning else "info"


@dataclass(frozen=True)
class OnRank:
    """A finding about one rank, and the share that decides which rank is the worst."""

    rank: int
    share: float
    finding: Finding


def of_the_worst(findings: Sequence[OnRank]) -> tuple[Finding, ...]:
    """The finding about the worst rank, with the ranks that reach the same severity."""
    if not findings:
        return ()
    worst = max(findings, key=lambda each: (SEVERITIES.index(each.finding.severity), each.share)).finding
    severity = worst.severity
    ranks = tuple(sorted({each.rank for each in findings if each.finding.severity == severity}))
    if len(ranks) < 2:
        return (worst,)
    alike = Fact("ranks_alike", len(ranks), "count", f"ranks that reach the severity {severity}", ranks)
    return (
        replace(
            worst,
            evidence=f"{worst.evidence}; it is the worst of {len(ranks)} ranks that reach this severity",
            ranks=ranks,
            facts=(*worst.facts, alike),
        ),
    )
