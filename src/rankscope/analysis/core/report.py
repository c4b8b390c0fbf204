"""What can be asked by name: a report, and how it is asked."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from rankscope.analysis.core.result import Result
from rankscope.analysis.core.scope import Scope
from rankscope.store.run import Run


@dataclass(frozen=True)
class Report:
    """A question that can be asked by name."""

    name: str
    question: str
    analyse: Callable[[Run, Scope, str | None], Result]
    keys: tuple[str, ...] = ()
    """What --by may be."""
    finds: bool = False
    """Whether it can have findings: the summary (`stats` without -r) asks these reports and no others."""
