"""A report: an analysis with a name."""

from __future__ import annotations

from collections.abc import Callable

from rankscope.analysis.core.result import Result
from rankscope.analysis.core.scope import Scope
from rankscope.records import dataclass
from rankscope.timeline.run import Run

Analyse = Callable[[Run, Scope, str | None], Result]
"""An analysis of a run: its ranks and steps, and the value of --by."""


@dataclass(frozen=True)
class Report:
    """An analysis that can be requested by name, and the question it answers."""

    name: str
    question: str
    analyse: Analyse
    keys: tuple[str, ...] = ()
    """The values of --by."""
    finds: bool = False
    """Whether it can have findings; the summary (`stats` without -r) runs only these reports."""
