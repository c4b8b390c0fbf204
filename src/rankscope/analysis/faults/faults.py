"""The faults of a run: who is named on each axis, what it costs and why; no two claim the same time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import replace

from rankscope.analysis.across_ranks.layout import layout_of
from rankscope.analysis.core.cache import once_per_run
from rankscope.analysis.core.result import Fact, Unit
from rankscope.analysis.core.scope import Scope
from rankscope.analysis.faults.axes import AXES, NOUNS, Axis, AxisName, Earlier, Replays
from rankscope.analysis.faults.causes import Cause, cause_of
from rankscope.analysis.faults.naming import Named, are_together, late_steps, named
from rankscope.analysis.faults.targets import Targets, evened_targets
from rankscope.records import dataclass
from rankscope.timeline.run import Run
from rankscope.units import format_rounded

_AS_LARGE = 0.9
"""Of the largest: faults that save as much are claimed by the number of their subjects."""
_LEAST_LEFT = 0.2
"""Of what it would save alone: a fault with less left is another view of one before it."""
_LEAST, _LEAST_ON_HOST = 0.02, 0.05
"""Of a mean step; of stages whose hosts differ."""
_HIDES = 1.2
"""Times what they save alone: subjects that save more together hide each other."""
_MOST, _MOST_NAMES = 12, 2
MOVED = ("stage",)
"""Axes on which work is moved from one subject to the others: it costs what all of them at the mean would save."""


@dataclass(frozen=True)
class Subject:
    """Who is named, and why."""

    subject: int
    """As its axis numbers it."""
    number: int
    """A rank; a stage; a micro-batch, from 1; the index of a step or of a process group."""
    label: str
    """The same in words: of a process group its name."""
    margin_ns: float
    """What it costs once all else on its axis is mended."""
    cause: Cause
    late_steps: tuple[int, ...]
    """Indices of steps."""
    by_step: tuple[float, ...] = ()
    """What it costs in each step alone; empty where that was not asked."""
    groups: tuple[int, ...] = ()
    """Of a link: the slow process groups."""


@dataclass(frozen=True)
class Node:
    """A machine of which all recorded ranks are named."""

    name: str
    ranks: tuple[int, ...]


@dataclass(frozen=True)
class Fault:
    """Subjects of one axis that cost time together; none of them where it moves from step to step."""

    axis: AxisName
    subjects: tuple[Subject, ...]
    moves: bool
    turns: tuple[int | None, ...]
    """Where it moves: by step, whose turn it was; None where nobody was late."""
    cost_ns: float
    """What mending it saves in addition to the faults before it."""
    alone_ns: float
    """What it saves alone."""
    others: tuple[AxisName, ...] = ()
    """Axes on which the same shows."""
    varies: bool = False
    """Where it moves: all have more work in one step and less in another."""
    example: Subject | None = None
    """Where it moves: the subject that costs most, in the steps in which it does."""
    nodes: tuple[Node, ...] = ()
    """Of the rank axis: whole machines among the subjects."""

    @property
    def noun(self) -> str:
        """What a subject is called."""
        return NOUNS[self.axis]

    def fact(self, each: Subject, quantity: str, value: float | str, unit: Unit = "") -> Fact:
        """A figure of a subject, which is in its row of the report."""
        ranks, row = (each.number,) if self.axis == "rank" else (), {"axis": self.noun, "subject": each.label}
        return Fact(quantity, value, unit, f"{self.noun} {each.label}", ranks, row, "faults")

    @property
    def is_of_cores(self) -> bool:
        """The host of each takes longer for all that it does."""
        return bool(self.subjects) and all(each.cause.is_core for each in self.subjects)


@dataclass(frozen=True)
class Faults:
    """Those of a run, the largest first."""

    listed: tuple[Fault, ...]
    step_ns: float
    joint_ns: float
    """What all of them cost together."""
    mended: Targets
    """All of them at their targets."""
    notes: tuple[str, ...] = ()
    """What costs time and is no fault: the first step of a recording, what recurs on all ranks with a period."""


@dataclass
class _Candidate:
    axis: Axis
    outcome: Named
    targets: Targets
    alone_ns: float
    others: tuple[AxisName, ...] = ()


@once_per_run
def faults_of(run: Run, scope: Scope) -> Faults:
    """What hides behind others is found once they are mended."""
    listed: list[Fault] = []
    moved, notes = set[AxisName](), dict[tuple[int, ...], str]()
    replays, earlier = Replays(run, scope), dict[AxisName, Earlier]()
    while replays.is_possible and len(listed) < _MOST:
        named_before = {(fault.axis, each.subject) for fault in listed for each in fault.subjects}
        new, mended = _claimed(replays, _candidates(replays, named_before, moved, notes, earlier))
        if not new:
            break
        for fault in new:
            _add(fault, listed, run)
        moved |= {fault.axis for fault in new if fault.moves or fault.axis in MOVED}
        replays = Replays(run, scope, replays.mended.with_also(mended))
    return Faults(
        tuple(listed),
        replays.step_ns,
        sum(fault.cost_ns for fault in listed),
        replays.mended,
        tuple(notes.values()),
    )


def _candidates(
    replays: Replays,
    named_before: Set[tuple[AxisName, int]],
    moved: Set[AxisName],
    notes: dict[tuple[int, ...], str],
    earlier: dict[AxisName, Earlier],
) -> list[_Candidate]:
    """The subjects that were not named before, on axes on which nothing moves. `notes` gets what is no fault, by
    step; `earlier` the axes."""
    candidates = []
    for axis in (make(replays) for name, make in AXES.items() if name not in moved):
        axis.earlier = earlier.get(axis.name)
        outcome = named(axis)
        for steps, note in _notes(axis, outcome):
            notes.setdefault(steps, note)
        if axis.name == "stage" and outcome.subjects and axis.value_ns < _LEAST_ON_HOST * replays.step_ns:
            stages = {cause_of(axis, stage).kind for stage in outcome.subjects}
            outcome = outcome if "host" not in stages else Named()
        if outcome.moves:
            targets = axis.without_diffuse(axis.targets)
            if outcome.varies:
                on_host = axis.main_class(None) == "host"
                targets = evened_targets(replays.run, replays.scope, of_all_kinds=on_host)
            candidates.append(_Candidate(axis, outcome, targets, replays.saved_ns(targets)))
        late = dict(zip(outcome.subjects, outcome.late_steps, strict=True))
        for who in _parts(axis, {each: late[each] for each in late if (axis.name, each) not in named_before}):
            targets = axis.targets if axis.name in MOVED else axis.only(who)
            alone = replays.saved_ns(targets)
            in_steps = {each: late[each] for each in who}
            part = Named(tuple(who), tuple(in_steps.values()))
            sharp = targets if all(map(axis.is_diffuse, who)) else axis.without_diffuse(targets, in_steps)
            if (saved := replays.saved_ns(sharp)) >= alone / 2:
                targets, alone = sharp, saved
            candidates.append(_Candidate(axis, part, targets, alone))
        if kept := axis.kept():
            earlier[axis.name] = kept
    return candidates


def _notes(axis: Axis, outcome: Named) -> Iterator[tuple[tuple[int, ...], str]]:
    for step in outcome.firsts:
        more = format_rounded("ns", axis.margins_ns[step] * axis.replays.steps)
        yield (step,), f"Step {_number(axis, step)}, the first of its recording, takes {more} longer."
    if len(outcome.periodic) > 1:
        first, second = outcome.periodic[:2]
        longest = max(outcome.periodic, key=lambda step: axis.margins_ns[step])
        more = format_rounded(
            "ns", axis.margin_ns(*outcome.periodic) * axis.replays.steps / len(outcome.periodic)
        )
        names = ", ".join(cause_of(axis, longest).names[:_MOST_NAMES])
        yield (
            outcome.periodic,
            f"One step in {second - first} takes {more} longer on all ranks{names and f': {names}'}.",
        )


def _parts(axis: Axis, late: Mapping[int, tuple[int, ...]]) -> list[list[int]]:
    """Slow cores are a fault of their own, unless they hide what the others cost."""
    who = [*late]
    slow = [each for each in who if axis.is_diffuse(each)]
    rest = [each for each in who if each not in slow]
    if slow and rest and axis.alone_ns(rest) < axis.alone_ns(who) / 2:
        return [who]
    parts = [part for each in (rest, slow) if each for part in _by_node(axis, each)]
    return [each for part in parts for each in _by_reason(axis, part, late)]


def _by_reason(axis: Axis, who: list[int], late: Mapping[int, tuple[int, ...]]) -> list[list[int]]:
    """Ranks that are late in other classes of work, or in other steps, are faults of their own, unless they hide each
    other."""
    parts = list[list[int]]()
    for each in who if axis.name == "rank" else ():
        for part in parts:
            is_alike = axis.main_class(part[0]) == axis.main_class(each)
            if is_alike and are_together(late[part[0]], late[each]):
                part.append(each)
                break
        else:
            parts.append([each])
    is_apart = len(parts) > 1 and _HIDES * sum(map(axis.alone_ns, parts)) >= axis.alone_ns(who)
    return parts if is_apart else [who]


def _by_node(axis: Axis, who: list[int]) -> list[list[int]]:
    """Whole machines, each late in one class of work, are faults of their own, one for each class, unless neither they
    nor the others save anything alone."""
    ranks = axis.replays.graph.ranks
    of_nodes = dict[str, list[int]]()
    for node in _nodes(axis, who):
        mine = [ranks.index(rank) for rank in node.ranks]
        classes = {axis.main_class(each) for each in mine}
        if len(classes) == 1:
            of_nodes.setdefault(classes.pop(), []).extend(mine)
    apart = {each for part in of_nodes.values() for each in part}
    parts = [*of_nodes.values(), [each for each in who if each not in apart]]
    parts = [part for part in parts if part]
    least = _LEAST * axis.replays.step_ns
    return parts if len(parts) > 1 and any(axis.alone_ns(part) >= least for part in parts) else [who]


def _nodes(axis: Axis, who: Sequence[int]) -> tuple[Node, ...]:
    """The machines of two ranks or more, among several, of which all recorded ranks are named."""
    if axis.name != "rank":
        return ()
    machines = dict[str, list[int]]()
    for number, rank in enumerate(axis.replays.graph.ranks):
        if host := axis.replays.run.hosts.get(rank):
            machines.setdefault(host, []).append(number)
    ranks, named_ones = axis.replays.graph.ranks, {*who}
    return tuple(
        Node(name, tuple(ranks[each] for each in mine))
        for name, mine in machines.items()
        if 1 < len(mine) < len(ranks) and named_ones.issuperset(mine)
    )


def _claimed(replays: Replays, candidates: Sequence[_Candidate]) -> tuple[list[Fault], Targets]:
    """Again and again the one that saves most in addition to those before it; of those that save as much, the one with
    the fewest subjects, then in the order of the axes. And all of them as mended."""
    left, listed = list(candidates), list[tuple[_Candidate, float]]()
    claimed, so_far = Targets.unchanged(replays.pieces), 0.0
    while left:
        more = {id(each): replays.saved_ns(claimed.with_also(each.targets)) - so_far for each in left}
        most = max(more.values())
        best = min(
            (each for each in left if more[id(each)] >= min(_AS_LARGE * most, most)),
            key=lambda each: len(each.outcome.subjects) or len(each.axis.subjects),
        )
        left.remove(best)
        cost = more[id(best)]
        if cost < max(_LEAST * replays.step_ns, _LEAST_LEFT * best.alone_ns):
            if listed:
                listed[0][0].others = (*listed[0][0].others, best.axis.name)
            continue
        claimed = claimed.with_also(best.targets)
        so_far += cost
        listed.append((best, cost))
    return [_fault(each, cost) for each, cost in listed], claimed


def _fault(claimed: _Candidate, cost_ns: float) -> Fault:
    axis, outcome, ranks = claimed.axis, claimed.outcome, claimed.axis.replays.graph.ranks

    def subject(number: int, late: tuple[int, ...]) -> Subject:
        margin, stated = axis.margins_ns[number], _number(axis, number)
        groups = axis.replays.run.collectives.groups
        return Subject(
            number,
            stated,
            groups[stated].name if axis.name == "link" else str(stated),
            min(margin, cost_ns) if axis.name in MOVED else margin,
            cause_of(axis, number),
            late,
            tuple(axis.by_step[number].tolist()) if number in axis.by_step else (),
            axis.groups.get(number, ()),
        )

    subjects = [subject(*each) for each in zip(outcome.subjects, outcome.late_steps, strict=True)]
    subjects.sort(key=lambda each: -each.margin_ns)
    example = None
    if outcome.moves and axis.by_step:
        most = max(axis.by_step, key=lambda each: axis.margins_ns[each])
        example = subject(most, late_steps(axis.by_step[most], axis.replays.step_ns))
    return Fault(
        axis.name,
        tuple(subjects),
        outcome.moves,
        tuple(None if number is None else ranks[number] for number in outcome.turns),
        cost_ns,
        Replays(axis.replays.run, axis.replays.scope).saved_ns(claimed.targets),
        claimed.others,
        outcome.varies,
        example,
        _nodes(axis, outcome.subjects),
    )


def _add(fault: Fault, listed: list[Fault], run: Run) -> None:
    """A stage whose ranks are all named already is the same thing seen from another axis."""
    if fault.axis == "stage" and not fault.moves:
        layout = layout_of(run, Scope())
        stages = {each.number for each in fault.subjects}
        theirs = {rank for rank in run.ranks if layout.stage(rank) in stages}
        for at, other in enumerate(listed):
            if other.axis == "rank" and theirs <= {each.number for each in other.subjects}:
                listed[at] = replace(
                    other,
                    cost_ns=other.cost_ns + fault.cost_ns,
                    alone_ns=other.alone_ns + fault.alone_ns,
                    others=(*other.others, "stage"),
                )
                return
    listed.append(fault)


def _number(axis: Axis, subject: int) -> int:
    graph = axis.replays.graph
    if axis.name == "rank":
        return graph.ranks[subject]
    if axis.name == "position":
        return subject + 1
    return graph.steps[subject] if axis.name == "step" and subject < len(graph.steps) else subject
