"""Some ranks and steps of a run, as they are written: `scope.Scope` knows what they mean in a run."""

from __future__ import annotations

from dataclasses import replace
from typing import TypeVar

from rankscope.records import dataclass
from rankscope.timeline.run import Run

S = TypeVar("S", bound="Selection")


@dataclass(frozen=True)
class Selection:
    """Ranks and steps; None means all of them."""

    ranks: frozenset[int] | None = None
    steps: tuple[int, int] | None = None
    """First and last step, both included."""
    whole_file: bool = False
    """All that was recorded, also outside steps (--window file)."""

    def in_run(self: S, run: Run) -> S:
        """With the steps that it means in this run."""
        return self

    def has_all_steps(self, run: Run) -> bool:
        """Whether it leaves out nothing of the window that a run has by default."""
        return self.steps is None

    def about_ranks(self: S) -> S:
        """Without what figures about single ranks do not depend on."""
        return self

    @property
    def window(self) -> str:
        """In the words of every output."""
        if self.steps is None:
            return "whole file"
        first, last = self.steps
        return f"steps {first}:{last}" if first != last else f"step {first}"

    def where(self, alias: str = "") -> str:
        """A SQL condition on columns rank and step."""
        dot = f"{alias}." if alias else ""
        conditions = []
        if self.ranks is not None:
            conditions.append(f"{dot}rank IN ({', '.join(map(str, sorted(self.ranks))) or 'NULL'})")
        if self.steps is not None:
            conditions.append(f"{dot}step BETWEEN {self.steps[0]} AND {self.steps[1]}")
        return " AND ".join(conditions) or "true"

    def ranks_in(self, run: Run) -> list[int]:
        """The ranks of a run that it means."""
        return [rank for rank in run.ranks if self.ranks is None or rank in self.ranks]

    def only_ranks(self: S) -> S:
        return replace(self, steps=None, whole_file=True)
