"""The faults of a run: who is named on each axis, what it costs and why; no two claim the same time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from rankscope.analysis.core.cache import once_per_run
from rankscope.analysis.core.scope import Scope
from rankscope.analysis.faults.axes import AXES, Axis, AxisName, Replays, replays_of
from rankscope.analysis.faults.causes import Cause, cause_of
from rankscope.analysis.faults.naming import Named as Outcome
from rankscope.analysis.faults.naming import named
from rankscope.analysis.faults.targets import Targets, evened_targets
from rankscope.records import dataclass
from rankscope.timeline.run import Run

_AS_LARGE = 0.9
"""Of the largest: faults that save as much are claimed by the number of their subjects."""
_LEAST_LEFT = 0.2
"""Of what it would save alone: a fault with less left is another view of one before it."""
_LEAST = 0.02
"""Of a mean step."""
MOVED = ("stage", "position")
"""Axes on which work is moved from one subject to the others: it costs what all of them at the mean would save."""


@dataclass(frozen=True)
class Subject:
    """Who is named, and why."""

    number: int
    """A rank; a stage; the index of a step or of a process group."""
    margin_ns: float
    """What it costs once all else on its axis is mended."""
    cause: Cause
    late_steps: tuple[int, ...]
    """Indices of steps."""


@dataclass(frozen=True)
class Fault:
    """Subjects of one axis that cost time together; none of them where it moves from step to step."""

    axis: AxisName
    subjects: tuple[Subject, ...]
    moves: bool
    turns: tuple[int, ...]
    """Where it moves: by step, whose turn it was."""
    cost_ns: float
    """What mending it saves in addition to the faults before it."""
    alone_ns: float
    """What it saves alone."""
    others: tuple[AxisName, ...] = ()
    """Axes on which the same shows."""

    @property
    def is_of_cores(self) -> bool:
        """The host of each takes longer for all that it does."""
        return bool(self.subjects) and all(each.cause.is_core for each in self.subjects)


class Named(NamedTuple):
    """A subject as the exam asks for it."""

    axis: AxisName
    subjects: tuple[int, ...]
    cause: str
    margin_ns: float


@dataclass(frozen=True)
class Faults:
    """Those of a run, the largest first."""

    listed: tuple[Fault, ...]
    step_ns: float
    joint_ns: float
    """What all of them cost together."""

    @property
    def named(self) -> list[Named]:
        return [
            Named(
                fault.axis, (each.number,), "core" if each.cause.is_core else each.cause.kind, each.margin_ns
            )
            for fault in self.listed
            for each in fault.subjects
        ]

    @property
    def moves(self) -> bool:
        return any(fault.moves for fault in self.listed)


@dataclass
class _Candidate:
    axis: Axis
    outcome: Outcome
    targets: Targets
    alone_ns: float
    others: tuple[AxisName, ...] = ()


@once_per_run
def faults_of(run: Run, scope: Scope) -> Faults:
    replays = replays_of(run, scope)
    if not replays.is_possible:
        return Faults((), replays.step_ns, 0.0)
    listed, joint = _claimed(replays, _candidates(replays))
    return Faults(tuple(listed), replays.step_ns, joint)


def _candidates(replays: Replays) -> list[_Candidate]:
    found = []
    for make in AXES:
        axis = make(replays)
        outcome = named(axis)
        if outcome.moves:
            every = evened_targets(replays.run, replays.scope) if outcome.varies else axis.targets
            targets = axis.without_diffuse(every)
            found.append(_Candidate(axis, outcome, targets, replays.saved_ns(targets)))
        # Slow cores are a fault of their own.
        for slow in (False, True):
            who = {
                s: late
                for s, late in zip(outcome.subjects, outcome.late_steps, strict=True)
                if axis.is_diffuse(s) == slow
            }
            if who:
                targets = axis.targets if axis.name in MOVED else axis.only([*who])
                targets = targets if slow else axis.without_diffuse(targets)
                part = Outcome(tuple(who), tuple(who.values()))
                found.append(_Candidate(axis, part, targets, replays.saved_ns(targets)))
    return found


def _claimed(replays: Replays, candidates: Sequence[_Candidate]) -> tuple[list[Fault], float]:
    """Again and again the one that saves most in addition to those before it; of those that save as much, the one with
    the fewest subjects, then in the order of the axes."""
    left, claimed, listed = list(candidates), None, list[tuple[_Candidate, float]]()
    so_far = 0.0
    while left:
        more = {
            id(each): (
                each.alone_ns
                if claimed is None
                else replays.saved_ns(claimed.with_also(each.targets)) - so_far
            )
            for each in left
        }
        most = max(more.values())
        best = min(
            (each for each in left if more[id(each)] >= min(_AS_LARGE * most, most)),
            key=lambda each: len(each.outcome.subjects) or len(each.axis.subjects),
        )
        left.remove(best)
        cost = more[id(best)]
        if cost < max(_LEAST * replays.step_ns, _LEAST_LEFT * best.alone_ns) and listed:
            nearest = listed[0][0]
            nearest.others = (*nearest.others, best.axis.name)
            continue
        claimed = best.targets if claimed is None else claimed.with_also(best.targets)
        so_far += cost
        listed.append((best, cost))
    return [_fault(each, cost) for each, cost in listed], so_far


def _fault(found: _Candidate, cost_ns: float) -> Fault:
    axis, outcome, ranks = found.axis, found.outcome, found.axis.replays.graph.ranks
    subjects = [
        Subject(
            _number(axis, number),
            axis.margins_ns[number],
            cause_of(axis, number),
            late,
        )
        for number, late in zip(outcome.subjects, outcome.late_steps, strict=True)
    ]
    subjects.sort(key=lambda each: -each.margin_ns)
    turns = tuple(ranks[number] for number in outcome.turns)
    return Fault(axis.name, tuple(subjects), outcome.moves, turns, cost_ns, found.alone_ns, found.others)


def _number(axis: Axis, subject: int) -> int:
    graph = axis.replays.graph
    if axis.name == "rank":
        return graph.ranks[subject]
    return graph.steps[subject] if axis.name == "step" and subject < len(graph.steps) else subject
