"""Analyses: one file a question, each a pure function from a run to a Result.

A new one is one function here and one line below.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from rankscope.analysis.breakdown import breakdown
from rankscope.analysis.distribution import annotated, api, kernels, memcpy, steps
from rankscope.analysis.memory import memory
from rankscope.analysis.ops import ops
from rankscope.analysis.result import Result
from rankscope.analysis.scope import Scope
from rankscope.store.run import Run

__all__ = ["REPORTS", "Report"]


@dataclass(frozen=True)
class Report:
    """A question that can be asked by name."""

    name: str
    question: str
    analyse: Callable[[Run, Scope, str | None], Result]
    keys: tuple[str, ...] = ()
    """What --by may be."""


REPORTS = {
    report.name: report
    for report in (
        Report("breakdown", "Where did the time go: compute, communication, copies, idle?", breakdown),
        Report("kernels", "Which GPU kernels take the time?", kernels, ("rank",)),
        Report(
            "ops",
            "Which operators take the time, on host and device?",
            ops,
            ("rank", "shape", "module", "source"),
        ),
        Report("steps", "How long does each step take on the host?", steps),
        Report("api", "Which runtime and driver calls take the host's time?", api, ("rank",)),
        Report("memcpy", "Which copies run, and how fast?", memcpy, ("rank",)),
        Report("annotations", "How long do the ranges take that the program marked?", annotated, ("rank",)),
        Report("memory", "How much memory is used at the peak?", memory),
    )
}
