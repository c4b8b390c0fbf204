"""The severity of a finding, and the words for the ranks that it is about."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rankscope.analysis.core.result import SEVERITIES, Fact, Severity
from rankscope.analysis.core.scope import Scope, steps_in
from rankscope.analysis.core.step_times import windows
from rankscope.ranges import rank_words
from rankscope.timeline.run import Run

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


def that_matter(run: Run, scope: Scope, times: Mapping[int, float]) -> dict[int, float]:
    """Of times by rank, those that are so large a part of the rank's window that a limit is listed."""
    return {
        rank: time
        for rank, time in times.items()
        if time > 0 and time >= LIMIT_SHARE * windows(run, scope).of(rank).span
    }


def mean_on(run: Run, scope: Scope, quantity: str, times: Mapping[int, float]) -> Fact:
    """The mean of times by rank, which are those of all steps together: '6.10 ms, mean of all 4 ranks, per step'."""
    steps, ranks = steps_in(run, scope), tuple(sorted(times))
    whose = "mean of " * (len(ranks) > 1) + named_ranks(ranks, len(scope.ranks_in(run)))
    mean = sum(times.values()) / len(times) / max(steps, 1)
    return Fact(quantity, round(mean), "ns", whose + ", per step" * (steps > 0), ranks)


def named_ranks(ranks: Sequence[int], ranks_in_scope: int) -> str:
    """'rank 3', 'ranks 0-2', 'both ranks', 'all 4 ranks'."""
    if len(ranks) == 2 == ranks_in_scope:
        return "both ranks"
    return f"all {len(ranks)} ranks" if 2 < len(ranks) == ranks_in_scope else rank_words(tuple(ranks))
