"""The severity of a finding, and one finding for several ranks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from rankscope.analysis.core.result import SEVERITIES, Fact, Finding, Severity
from rankscope.ranges import rank_words
from rankscope.records import dataclass
from rankscope.units import format_rounded

WARNING_SHARE, CRITICAL_SHARE = 0.05, 0.20
"""Of the mean step that a finding costs (docs/definitions.md, "Findings")."""
LIMIT_SHARE = 0.02
"""The same: from here a limit is listed."""


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


Title = Callable[[str, str], str]
"""Makes a title from whose it is ('rank 3', 'all 4 ranks') and what stands before its figures ('', 'up to ')."""


@dataclass(frozen=True)
class OnRank:
    """A finding about one rank, and the share that decides which rank is the worst."""

    rank: int
    share: float
    finding: Finding
    title: Title


def of_the_worst(findings: Sequence[OnRank], ranks_in_scope: int) -> tuple[Finding, ...]:
    """The finding about the worst rank, with all ranks that have it: what all ranks have is not said of one."""
    if not findings:
        return ()
    worst = max(findings, key=lambda each: each.share)
    ranks = tuple(sorted({each.rank for each in findings}))
    if len(ranks) < 2:
        return (worst.finding,)
    alike = Fact("ranks_alike", len(ranks), "count", "ranks with this finding", ranks)
    return (
        replace(
            worst.finding,
            title=worst.title(named_ranks(ranks, ranks_in_scope), "up to "),
            evidence=f"{worst.finding.evidence}; it is the worst of {len(ranks)} ranks with this finding",
            ranks=ranks,
            facts=(*worst.finding.facts, alike),
        ),
    )


def mean_on(times: Mapping[int, float], ranks_in_scope: int, steps: int) -> str:
    """Of times by rank, those of all steps together: 'on average 6.10 ms a step on all 4 ranks'."""
    mean = format_rounded("ns", sum(times.values()) / len(times) / max(steps, 1))
    on_average, per_step = "on average " * (len(times) > 1), " a step" * (steps > 0)
    return f"{on_average}{mean}{per_step} on {named_ranks(sorted(times), ranks_in_scope)}"


def named_ranks(ranks: Sequence[int], ranks_in_scope: int) -> str:
    """'rank 3', 'ranks 0-2', 'both ranks', 'all 4 ranks'."""
    if len(ranks) == 2 == ranks_in_scope:
        return "both ranks"
    return f"all {len(ranks)} ranks" if 2 < len(ranks) == ranks_in_scope else rank_words(tuple(ranks))
