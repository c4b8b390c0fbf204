"""A report: an analysis with a name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

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
    """'idle'; a further table of this report is 'idle.gaps'."""
    question: str
    analyse: Analyse
    keys: tuple[str, ...] = ()
    """The values of --by."""
    finds: bool = False
    """Whether it can have findings; the summary (`stats` without -r) runs only these reports."""
    is_recorded: Callable[[Run], object] = lambda run: True
    """False of a run that has nothing of what it is about: for its findings the report is not even loaded."""
    needs: Literal["", "whole files", "all ranks"] = ""
    """Ranks whose file is cut are left out where the figures also follow from what is not in a file: idle times, step
    times, waits. A replay of all ranks cannot do without one."""
    worst_by: str = ""
    """Of a table with rows of each rank: the column whose sum tells which rank is worst, '-' before it if the lowest
    is."""
