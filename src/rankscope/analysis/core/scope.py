"""What a question is about: which ranks and steps of a run, on which machine."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import field, replace

import numpy as np

from rankscope.analysis.core.machine import Machine
from rankscope.analysis.core.rollups import set_default_scope
from rankscope.analysis.core.run_steps import Columns, all_steps
from rankscope.analysis.core.selection import Selection
from rankscope.errors import UsageError
from rankscope.ranges import as_ranges, numbers_in, parse_ranges, rank_words
from rankscope.records import dataclass
from rankscope.timeline.run import Run


@dataclass(frozen=True)
class Scope(Selection):
    """Ranks and steps of a run, and the machine it ran on."""

    machine: Machine = field(default_factory=Machine, hash=False)
    """Compared, so that kept answers depend on it; not hashed, since it contains a dictionary."""

    def in_run(self, run: Run) -> Scope:
        """With the steps that it means in this run: by default all of them; None where the run has no steps.

        Every report starts with this (questions.py), so that all figures are for the same window.
        """
        if self.steps is not None or self.whole_file:
            return self
        steps = all_steps(run)["step"]
        return replace(self, steps=(int(steps.min()), int(steps.max()))) if len(steps) else self

    def has_all_steps(self, run: Run) -> bool:
        default = replace(self, steps=None, whole_file=False).in_run(run).steps
        if self.steps is None or default is None:
            return self.steps is default
        return self.steps[0] <= default[0] and default[1] <= self.steps[1]

    def about_ranks(self) -> Scope:
        return replace(self, machine=Machine())

    def check(self, run: Run) -> None:
        """Raise UsageError where the run has none of the ranks or steps."""
        if self.ranks is not None and not self.ranks & set(run.ranks):
            raise UsageError(
                f"this run has no {rank_words(self.ranks)}",
                why=f"It has {rank_words(run.ranks)}.",
                hint=f"Choose among these: --ranks {run.ranks[0]}",
            )
        if self.steps is not None:
            numbers = step_numbers(run, Scope())
            if not any(self.steps[0] <= step <= self.steps[1] for step in numbers):
                has = f"It has the steps {as_ranges(numbers)}." if numbers else "It has no steps."
                raise UsageError(
                    f"this run has no {self.window}", why=has, hint="Choose among these: --steps A:B"
                )


set_default_scope(Scope())


def steps_in_scope(run: Run, scope: Scope) -> Columns:
    """The same, of the ranks and steps in scope."""
    columns = all_steps(run)
    wanted = np.ones(len(columns["rank"]), dtype=bool)
    if scope.ranks is not None:
        wanted &= np.isin(columns["rank"], sorted(scope.ranks))
    if scope.steps is not None:
        wanted &= (columns["step"] >= scope.steps[0]) & (columns["step"] <= scope.steps[1])
    return columns if wanted.all() else {name: values[wanted] for name, values in columns.items()}


def step_numbers(run: Run, scope: Scope) -> list[int]:
    """The steps in scope that any rank has, in order."""
    return sorted(set(steps_in_scope(run, scope)["step"].tolist()))


def cut_ranks(run: Run) -> frozenset[int]:
    """The ranks with a file that ends early. Its events are not in the order of time: any step may lack some."""
    return frozenset(entry.rank for entry in run.timelines if entry.manifest["reading"]["damage"])


def in_whole_files(run: Run, scope: Scope) -> Scope:
    """The scope without these ranks."""
    cut = cut_ranks(run)
    return replace(scope, ranks=frozenset(scope.ranks_in(run)) - cut) if cut else scope


def parse_ranks(text: str) -> frozenset[int] | None:
    """'0,8-15' or 'all'."""
    if text == "all":
        return None
    try:
        return frozenset(numbers_in(parse_ranges(text)))
    except ValueError as error:
        raise UsageError(
            f"'{text}' does not name ranks", why=str(error), hint="Write them like 0,8-15 or all."
        ) from None


def ranks_at_median(given: Iterable[object]) -> tuple[str, ...]:
    """'40-47=median' rank by rank, as whatif takes it; 2 is '2=median'."""
    texts: list[str] = []
    for text in map(str, given):
        ranks, equals, change = text.partition("=")
        listed = parse_ranks(ranks) or ("all",)
        texts += [f"{rank}={change if equals else 'median'}" for rank in sorted(listed)]
    return tuple(texts)


def parse_steps(text: str) -> tuple[int, int]:
    """'A:B', both included, or one number."""
    match = re.fullmatch(r"\s*(\d+)(?:\s*:\s*(\d+))?\s*", text)
    if not match:
        raise UsageError(f"'{text}' does not name steps", hint="Write them like 3:5 (steps 3, 4 and 5) or 3.")
    first, last = int(match[1]), int(match[2] or match[1])
    if last < first:
        raise UsageError(
            f"--steps {text} ends before it begins",
            why=f"{last} is less than {first}.",
            hint=f"Did you mean {last}:{first}?",
        )
    return first, last
