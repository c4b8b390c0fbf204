"""What one trial of the fault tests found, and how many trials a part does in its long and its short form."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from random import Random


@dataclass(frozen=True)
class Outcome:
    """One trial: what was done to rankscope, and what went differently from the promise ("" when nothing did)."""

    kind: str
    """The row of the table in docs/reliability.md, such as "SIGTERM to the group"."""
    what: str
    """Enough to do this trial again: the seed, the moment, the byte."""
    difference: str = ""


@dataclass(frozen=True)
class Part:
    """A family of trials, as many as asked for; the kinds take turns, so a short form meets each of them early."""

    name: str
    trials: Callable[[int, Random], Iterator[Outcome]]
    """(how many, random numbers) -> their outcomes."""
    many: int
    few: int
