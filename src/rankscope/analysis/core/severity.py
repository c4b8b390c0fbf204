"""The severity of a finding, and the words for the ranks that it is about."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rankscope.analysis.core.result import SEVERITIES, Severity
from rankscope.ranges import rank_words
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
