"""Analyses: one file a question, each a pure function from a run to a Result.

core holds what all of them share; within_rank, across_ranks, critical_path, efficiency, memory and health answer
questions about one run, diff compares two, compat reproduces the figures of other tools. `questions` lists the reports
that answer one question each; REPORTS adds the two that combine them. An analysis reads a Run and returns a
Result; it never draws, prints or writes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rankscope.analysis.reports import REPORTS

__all__ = ["REPORTS"]


def __getattr__(name: str) -> Any:
    """The reports are imported when they are asked for: a kept answer needs none."""
    if name == "REPORTS":
        from rankscope.analysis.reports import REPORTS

        return REPORTS
    raise AttributeError(f"module 'rankscope.analysis' has no attribute '{name}'")
