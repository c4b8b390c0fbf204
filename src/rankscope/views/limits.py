"""Limits beside what is wrong: two lists, and what a limit saves at most."""

from __future__ import annotations

from collections.abc import Iterable

from rankscope.analysis.core.result import Finding
from rankscope.units import format_ns


def apart(findings: Iterable[Finding]) -> tuple[list[Finding], list[Finding]]:
    """Faults and health, and the limits, each in the given order."""
    listed = list(findings)
    problems = [finding for finding in listed if finding.kind != "limit"]
    return problems, [finding for finding in listed if finding.kind == "limit"]


def share_of(limit: Finding) -> str:
    """'29 %', of the mean step; empty where it is not known."""
    share = limit.fact("cost_pct")
    return f"{share.value:.0f} %" if share and isinstance(share.value, (int, float)) else ""


def titled(finding: Finding) -> str:
    """The title; that of a limit has no figures: 'Data loading: up to 8.0 ms (29 %)'."""
    if finding.kind != "limit" or not finding.cost_ns:
        return finding.title
    share = share_of(finding)
    return f"{finding.title}: up to {format_ns(finding.cost_ns, 1)}" + (f" ({share})" if share else "")
