"""What a question is about: which ranks and steps of a run, on which machine; and the steps that a run has."""

from __future__ import annotations

import re
from dataclasses import field, replace

import numpy as np
from numpy.typing import NDArray

from rankscope.analysis.core.cache import once_per_run
from rankscope.analysis.core.grouping import split_by_rank
from rankscope.analysis.core.machine import Machine
from rankscope.analysis.core.rollups import kept_per_rank
from rankscope.errors import UsageError
from rankscope.model import ITERATIONS
from rankscope.ranges import as_ranges, numbers_in, parse_ranges, rank_words
from rankscope.records import dataclass
from rankscope.store.arrays import Ints, Mask
from rankscope.timeline.run import Run


@dataclass(frozen=True)
class Scope:
    """Ranks and steps of a run, and the machine it ran on. None means all of them."""

    ranks: frozenset[int] | None = None
    steps: tuple[int, int] | None = None
    """First and last step, both included."""
    whole_file: bool = False
    """All that was recorded, also outside steps (--window file)."""

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
        """Whether it leaves out nothing of the window that a run has by default."""
        default = replace(self, steps=None, whole_file=False).in_run(run).steps
        if self.steps is None or default is None:
            return self.steps is default
        return self.steps[0] <= default[0] and default[1] <= self.steps[1]

    def mask(self, step: Ints, rank: Ints | None = None) -> Mask:
        """Which of some entries it means, by their step and rank."""
        used = np.ones(len(step), dtype=bool)
        if self.steps is not None:
            used &= (step >= self.steps[0]) & (step <= self.steps[1])
        if self.ranks is not None and rank is not None:
            used &= np.isin(rank, sorted(self.ranks))
        return used

    def has_rank(self, rank: int) -> bool:
        return self.ranks is None or rank in self.ranks

    def has_step(self, step: int | None) -> bool:
        """None: that of what lies in no step."""
        return self.steps is None or (step is not None and self.steps[0] <= step <= self.steps[1])

    def about_ranks(self) -> Scope:
        """Without what figures about single ranks do not depend on."""
        return replace(self, machine=Machine())

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
        return [rank for rank in run.ranks if self.has_rank(rank)]

    def only_ranks(self) -> Scope:
        return replace(self, steps=None, whole_file=True)

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


Columns = dict[str, NDArray[np.int64]]
NO_STEP = -1
"""In arrays, the step of what lies in none."""
_TIMES = ("start", "stop", "begin", "end")


@dataclass(frozen=True)
class RankSteps:
    """The steps of one rank in order of their end. Times are in ns from the start of its first file."""

    segment: Ints
    step: Ints
    start: Ints
    """On the host."""
    stop: Ints
    begin: Ints
    """Of the step time."""
    end: Ints
    sources: tuple[str, ...]
    """What the steps of its files were told by."""


@kept_per_rank("steps", RankSteps, any_window=True)
def rank_steps(run: Run, scope: Scope) -> dict[int, RankSteps]:
    """Of the ranks that have steps."""
    columns = run.arrays(
        "SELECT rank::BIGINT AS rank, segment::BIGINT AS segment, step::BIGINT AS step, start_ns AS start, "
        "start_ns + dur_ns AS stop, end_ns - time_ns AS begin, end_ns AS end, source "
        f"FROM steps WHERE {scope.where()} ORDER BY rank, end_ns, step"
    )
    records = {}
    for rank, rows in split_by_rank(columns, scope.ranks_in(run)).items():
        if len(rows["step"]):
            sources, origin = tuple(sorted(set(rows.pop("source").tolist()))), run.origin_ns(rank)
            rows |= {name: rows[name] - origin for name in _TIMES}
            records[rank] = RankSteps(**rows, sources=sources)
    return records


@once_per_run
def all_steps(run: Run) -> Columns:
    """Sorted by rank, end and step: rank, segment, step; start and stop on the host; begin and end of the step time."""
    columns = {name: [np.empty(0, dtype=np.int64)] for name in ("rank", "segment", "step", *_TIMES)}
    for rank, steps in rank_steps(run, Scope()).items():
        columns["rank"].append(np.full(len(steps.step), rank))
        columns["segment"].append(steps.segment)
        columns["step"].append(steps.step)
        for name in _TIMES:
            columns[name].append(getattr(steps, name) + run.origin_ns(rank))
    return {name: np.concatenate(parts) for name, parts in columns.items()}


def has_iterations(run: Run) -> bool:
    """Whether steps of the run are iterations that were inferred from its kernels."""
    return any(ITERATIONS in steps.sources for steps in rank_steps(run, Scope()).values())


def in_order_of_start(columns: Columns) -> Columns:
    """By rank and start on the host."""
    order = np.lexsort((columns["start"], columns["rank"]))
    return {name: values[order] for name, values in columns.items()}


def steps_in_scope(run: Run, scope: Scope) -> Columns:
    """The same, of the ranks and steps in scope."""
    columns = all_steps(run)
    wanted = scope.mask(columns["step"], columns["rank"])
    return columns if wanted.all() else {name: values[wanted] for name, values in columns.items()}


def steps_in(run: Run, scope: Scope) -> int:
    """The largest number of steps of any rank in scope; 0 without steps."""
    return int(np.bincount(steps_in_scope(run, scope)["rank"]).max(initial=0))


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
