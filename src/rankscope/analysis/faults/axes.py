"""What the subjects of each axis cost: all at their targets, and all but one (docs/definitions.md, "Faults")."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import field
from functools import cached_property
from typing import Literal, NamedTuple

import numpy as np

from rankscope.analysis.across_ranks.layout import layout_of
from rankscope.analysis.core.cache import once_per_run
from rankscope.analysis.core.intervals import Ints, rounded
from rankscope.analysis.core.scope import Scope
from rankscope.analysis.core.step_times import mean_step_ns
from rankscope.analysis.faults.targets import (
    LONG,
    Targets,
    link_targets,
    peer_groups,
    pieces_of,
    position_targets,
    rank_targets,
    stage_targets,
    step_targets,
)
from rankscope.analysis.graph.events import NONE, PATH_CLASSES, Mask
from rankscope.analysis.graph.graph import WORK_CLASSES
from rankscope.analysis.graph.pieces import KINDS, Pieces
from rankscope.analysis.graph.replay import Part, Played, Replay
from rankscope.records import dataclass
from rankscope.store.arrays import Floats, grouped, number_rows, starts_group, unique_values
from rankscope.timeline.run import Run

AxisName = Literal["rank", "link", "step", "stage", "position"]
NOUNS: dict[AxisName, str] = {
    "rank": "rank",
    "link": "link",
    "step": "step",
    "stage": "stage",
    "position": "micro-batch",
}
"""What the subject of an axis is called."""
_HOST = PATH_CLASSES.index("host")
_SLOW_LINK = 0.05
"""Of the time of a group's transfers: what is beyond their targets."""
_SEVERAL, _MUCH = 2, 0.02
"""Times its counterparts and of a mean step: as far beyond them a piece stands out that is not LONG. Chosen on the
recordings with real hosts, where a pause meets pieces that are long by themselves."""
QUIET, _OF_NODE, _QUIET_TOGETHER = 0.003, 8, 0.01
"""Of a mean step: a subject that costs less is not looked at step by step; nor are more subjects than a node has that
cost less together: half of what is named. The noise of hundreds of healthy ranks is 0.004."""


class Replays:
    """A run and its replays with pieces at their targets. Costs are per step, in addition to what is mended already."""

    def __init__(self, run: Run, scope: Scope, mended: Targets | None = None) -> None:
        self.run, self.scope = run, scope
        self.pieces: Pieces = pieces_of(run, scope)
        self.graph = self.pieces.graph
        self.replay = replay_of(run, scope)
        self.mended = mended or Targets.unchanged(self.pieces)
        self.steps = max(len(unique_values(self.pieces.step[self.pieces.step != NONE])), 1)
        self.step_ns = mean_step_ns(run, scope)

    @property
    def is_possible(self) -> bool:
        return bool(self.graph.inside.any()) and not self.replay.has_cycle

    @cached_property
    def no_matches(self) -> Ints:
        """By match: NONE, the subject of an axis on which no transfer is compared."""
        return np.full(len(self.graph.collectives.transfer), NONE)

    def played(self, targets: Targets) -> Played:
        """With these at their targets too."""
        return self._at(self.mended.with_also(targets))

    @cached_property
    def before(self) -> Played:
        return self._at(self.mended)

    def _at(self, targets: Targets) -> Played:
        recorded = self.replay.arrays(targets.met_on(self.graph.work))
        changed = np.flatnonzero(targets.then != self.pieces.took)
        return self.edited(recorded, changed, self.pieces.took, targets.then)

    def edited(self, played: Played, at: Ints, before: Ints, after: Ints) -> Played:
        """With these pieces as long as `after`; `played` has them as long as `before`."""
        pieces, replay = self.pieces, self.replay
        weight, took = played.weight.copy(), played.took.copy()
        events = at[pieces.is_own[at]]
        took[replay.unit_of_point[pieces.point[events]]] = after[events]
        for _, ways, old, new in pieces.on_ways(at, before, after):
            place = replay.place[ways]
            moves = place != NONE
            weight[place[moves]] += (new - old)[moves]
        return Played(weight, took, played.begins_ns)

    @cached_property
    def before_ns(self) -> float:
        """Of all steps together."""
        return self.replay.played_ns(self.before)

    def saved_ns(self, targets: Targets) -> float:
        """With these at their targets."""
        return self.saved_by(self.played(targets))

    def saved_by(self, played: Played) -> float:
        return (self.before_ns - self.replay.played_ns(played)) / self.steps


@once_per_run
def replay_of(run: Run, scope: Scope) -> Replay:
    return Replay(pieces_of(run, scope).graph)


class Earlier(NamedTuple):
    """What an axis cost before the last faults were mended."""

    mended: Targets
    target: Played
    margins_ns: dict[int, float]
    by_step: dict[int, Floats]


@dataclass
class Axis:
    """Subjects that are compared with each other."""

    name: AxisName
    replays: Replays
    targets: Targets
    subjects: Sequence[int]
    of_point: Ints
    """The subject of each point, or NONE."""
    of_match: Ints
    """The same of each transfer."""
    lone: Collection[int] = ()
    """Those that are compared with themselves."""
    groups: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    """Of a link: its slow process groups."""
    is_of_pairs: bool = False
    """No subject has two peers."""
    earlier: Earlier | None = None

    @cached_property
    def _target(self) -> Played:
        return (
            self.earlier.target if self.earlier and self._is_as_before else self.replays.played(self.targets)
        )

    def kept(self) -> Earlier | None:
        if "by_step" not in vars(self):
            return None
        return Earlier(self.replays.mended, self._target, self.margins_ns, self.by_step)

    def _then(self, mended: Targets, at: Ints) -> Ints:
        """How long these pieces take, mended and at their targets here; 0 for others."""
        targets, then = self.targets, np.zeros(len(self.targets.took), dtype=np.int64)
        took = np.minimum(mended.took[at], targets.took[at])
        then[at] = rounded(took * (mended.scale[at] * targets.scale[at]))
        return then

    @cached_property
    def _is_as_before(self) -> bool:
        """Whether all that was mended since is at the targets of this axis: M of the others is what it was."""
        if not self.earlier:
            return False
        before, now = self.earlier.mended, self.replays.mended
        at = np.flatnonzero(before.then != now.then)
        times = (
            (getattr(each, name) for each in (before, now, self.targets))
            for name in ("transfer", "begins_ns")
        )
        return np.array_equal(self._then(before, at), self._then(now, at)) and all(
            np.array_equal(np.minimum(was, target), np.minimum(is_now, target))
            for was, is_now, target in times
        )

    @cached_property
    def _changed(self) -> Sequence[int]:
        """The subjects whose M is another one than before."""
        if not self.earlier or not self._is_as_before:
            return self.subjects
        before, now = self.earlier.mended, self.replays.mended
        points = self.targets.pieces.point[before.then != now.then]
        mended = [
            self.of_point[points],
            self.of_point[before.begins_ns != now.begins_ns],
            self.of_match[before.transfer != now.transfer],
        ]
        changed = {*unique_values(np.concatenate(mended)).tolist()}
        return [each for each in self.subjects if each in changed]

    @cached_property
    def value_ns(self) -> float:
        """V: what is saved with all subjects at their targets."""
        return self.replays.saved_by(self._target)

    def margin_ns(self, *subjects: int) -> float:
        """M: what these cost once all others are mended."""
        return self._margins([(subjects, None)])[0]

    def _margins(self, parts: Sequence[tuple[Sequence[int], int | None]]) -> list[float]:
        """M of each part, subjects that are in no other one or a step of them: everything at its target, but these as
        they were."""
        replays = self.replays
        lengths = replays.replay.lengths_ns(
            self._target, replays.before, [self._part(*part) for part in parts]
        )
        return [self.value_ns - (replays.before_ns - length) / replays.steps for length in lengths]

    def alone_ns(self, subjects: Sequence[int]) -> float:
        """A: what mending only these brings."""
        return self.replays.saved_ns(self.only(subjects))

    def only(self, subjects: Sequence[int]) -> Targets:
        points, matches = (np.isin(of, subjects) for of in (self.of_point, self.of_match))
        return self.targets.only(points, matches)

    def without(self, chosen: Ints) -> float:
        """What these pieces cost once all others are mended."""
        then, before = self._then(self.replays.mended, chosen), self.replays.mended.then
        played = self.replays.edited(self._target, chosen[then[chosen] != before[chosen]], then, before)
        return self.value_ns - self.replays.saved_by(played)

    def pieces_of(self, subject: int) -> Ints:
        order, first = self._pieces
        return order[first[subject + 1] : first[subject + 2]]

    @cached_property
    def _pieces(self) -> tuple[Ints, Ints]:
        """By subject, and where each begins; those of nobody first."""
        return self._by_subject(self.of_point[self.targets.pieces.point])

    def main_class(self, subject: int | None) -> str:
        """The class of work in which a subject has most too much; None: all of them together."""
        return WORK_CLASSES[int(self._cut(subject).argmax())]

    def below_share(self, subject: int | None) -> float:
        """By how much the stretches of a subject are shorter than the median where they are, of by how much they are
        longer where they are; in its main class."""
        return self._of_main(self.targets.below, subject) / max(float(self._cut(subject).max()), 1.0)

    def _of_main(self, amounts: Floats, subject: int | None) -> float:
        of_members = amounts[int(self._cut(subject).argmax())]
        if subject is None:
            return float(of_members.sum())
        return float(of_members[subject]) if subject < len(of_members) else 0.0

    def swings(self, subject: int | None, share: float, least_ns: float) -> bool:
        """Whether its compute is now longer than the median and now shorter: it has other work each time."""
        shorter = self._of_main(self.targets.shorter, subject)
        of = self.replays.steps * (1 if subject is not None else max(len(self.subjects), 1))
        return (
            self.main_class(subject) == "compute"
            and shorter >= share * self._cut(subject).max()
            and shorter >= least_ns * of
        )

    def is_diffuse(self, subject: int | None) -> bool:
        """Whether what is too much is in many pieces of the host that are each a little longer: its core is slow."""
        if self.main_class(subject) != "host":
            return False
        pieces = np.arange(len(self._stands_out)) if subject is None else self.pieces_of(subject)
        return self.is_diffuse_in(pieces[self.targets.pieces.kind[pieces] == _HOST])

    def is_diffuse_in(self, chosen: Ints) -> bool:
        cut = self.targets.pieces.took[chosen] - self.targets.took[chosen]
        return bool(cut[self._stands_out[chosen]].sum() < cut.sum() / 2)

    @cached_property
    def _stands_out(self) -> Mask:
        """By piece: it takes several times as long as its counterparts."""
        took, usual = self.targets.pieces.took, self.targets.usual
        is_much = (took >= _SEVERAL * usual) & (took >= _MUCH * self.replays.step_ns)
        out: Mask = (usual >= 0) & ((took >= LONG * usual) | is_much)
        return out

    def without_diffuse(self, targets: Targets, late: Mapping[int, tuple[int, ...]] | None = None) -> Targets:
        """Targets of this axis with host time that is only a little too long as recorded; but not where a subject is
        `late` in some steps only, in these."""
        if self.name != "rank":
            return targets
        pieces = targets.pieces
        diffuse = (pieces.kind == _HOST) & ~self._stands_out
        for subject, steps in (late or {}).items():
            if len(steps) < self.replays.steps:
                mine = self.pieces_of(subject)
                diffuse[mine[np.isin(pieces.step[mine], steps)]] = False
        return targets.except_for(diffuse)

    def _cut(self, subject: int | None) -> Floats:
        """By class of WORK_CLASSES, what a subject has too much."""
        cut: Floats = self._cuts.sum(axis=0) if subject is None else self._cuts[subject + 1]
        return cut

    @cached_property
    def _cuts(self) -> Floats:
        """[subject, class]; that of nobody first."""
        pieces = self.targets.pieces
        cut = np.maximum(pieces.took - self.targets.then, 0)
        cell = (self.of_point[pieces.point] + 1) * len(KINDS) + np.searchsorted(KINDS, pieces.kind)
        rows = len(self._pieces[1]) - 1
        sums = np.bincount(cell, weights=cut, minlength=rows * len(KINDS)).astype(float)
        return sums.reshape(rows, len(KINDS))

    @cached_property
    def first_steps(self) -> set[int]:
        """Of each recording: the steps in which the profiler itself takes time."""
        graph, steps = self.replays.graph, self.replays.pieces.steps
        marks = np.flatnonzero(graph.marks & (steps != NONE))
        marks = marks[np.lexsort((graph.start[marks], graph.cycle[marks], graph.rank[marks]))]
        first = starts_group([graph.rank[marks], graph.cycle[marks]]) if len(marks) else marks
        return {*steps[marks[first]].tolist()}

    @cached_property
    def _ways(self) -> tuple[Ints, Ints]:
        """The entries of the weights by subject, and where each begins; those of nobody first."""
        return self._by_subject(self.of_point[self.replays.replay.way_points])

    @cached_property
    def _units(self) -> tuple[Ints, Ints]:
        """The same of the units."""
        at = self.replays.replay.unit_points
        match = self.replays.graph.match[at]
        return self._by_subject(
            np.where(match != NONE, np.append(self.of_match, NONE)[match], self.of_point[at])
        )

    def _by_subject(self, subject: Ints) -> tuple[Ints, Ints]:
        return grouped(subject + 1, max(*self.subjects, int(subject.max(initial=NONE)), 0) + 2)

    @cached_property
    def _begins(self) -> tuple[Ints, Ints, Ints]:
        """The points that stay where they are and move to their targets; how much later they are, mended, and there."""
        mended = self.replays.mended.begins_ns
        target = np.minimum(mended, self.targets.begins_ns)
        at = np.flatnonzero((mended != 0) | (target != 0))
        return at, mended[at], target[at]

    def _part(self, subjects: Sequence[int], step: int | None) -> Part:
        replay = self.replays.replay
        ways, units = (_of(subjects, *each) for each in (self._ways, self._units))
        at, mended, begins = self._begins
        is_mine = np.isin(self.of_point[at], subjects)
        if step is not None:
            steps = self.replays.pieces.steps
            ways = ways[steps[replay.way_points[ways]] == step]
            point = replay.unit_points[units]
            match = self.replays.graph.match[point]
            units = units[
                np.where(match != NONE, np.append(self.replays.pieces.matches[0], NONE)[match], steps[point])
                == step
            ]
            is_mine &= steps[at] == step
        graph = self.replays.graph
        begins_ns = np.bincount(
            graph.rank[at], weights=np.where(is_mine, mended, begins), minlength=len(graph.ranks)
        )
        return Part(ways, units, begins_ns.astype(np.int64))

    @cached_property
    def margins_ns(self) -> dict[int, float]:
        """M of each subject. Several that cost little together cost nothing each: they need no replay of their own."""
        margins = dict.fromkeys(self.subjects, 0.0) | (self.earlier.margins_ns if self.earlier else {})
        margins |= dict.fromkeys(self._changed, 0.0)
        waiting = [self._changed] if self._changed else []
        while waiting:
            costs = self._margins([(some, None) for some in waiting])
            margins |= {some[0]: cost for some, cost in zip(waiting, costs, strict=True) if len(some) == 1}
            large = [
                some
                for some, cost in zip(waiting, costs, strict=True)
                if len(some) > 1
                and cost >= (_QUIET_TOGETHER if len(some) > _OF_NODE else QUIET) * self.replays.step_ns
            ]
            waiting = [half for some in large for half in (some[: len(some) // 2], some[len(some) // 2 :])]
        return margins

    @cached_property
    def by_step(self) -> dict[int, Floats]:
        """Of the subjects that are not quiet: what they cost in each step alone, times the number of steps."""
        steps = self.replays.steps
        loud = [each for each, margin in self.margins_ns.items() if margin > QUIET * self.replays.step_ns]
        known = self.earlier.by_step if self.earlier else {}
        new = [each for each in loud if each not in known or each in self._changed]
        costs = self._margins([((each,), step) for each in new for step in range(steps)])
        known = {**known, **dict(zip(new, np.reshape(costs, (-1, steps)) * steps, strict=True))}
        return {each: known[each] for each in loud}

    def together_by_step(self) -> list[float]:
        """What all subjects cost in each step alone, times the number of steps."""
        steps = self.replays.steps
        return [cost * steps for cost in self._margins([(self.subjects, step) for step in range(steps)])]


def _of(subjects: Sequence[int], order: Ints, first: Ints) -> Ints:
    """The entries of these subjects."""
    return np.concatenate([order[first[each + 1] : first[each + 2]] for each in subjects])


def rank_axis(replays: Replays) -> Axis:
    targets = rank_targets(replays.run, replays.scope)
    group = peer_groups(replays.run, replays.graph.ranks)
    members = np.bincount(group)
    lone = np.flatnonzero(members[group] == 1).tolist()
    return Axis(
        "rank",
        replays,
        targets,
        range(len(group)),
        replays.graph.rank,
        replays.no_matches,
        lone=lone,
        is_of_pairs=members.max() < 3,
    )


def step_axis(replays: Replays) -> Axis:
    targets = step_targets(replays.run, replays.scope)
    return Axis("step", replays, targets, range(replays.steps), replays.pieces.steps, replays.no_matches)


def link_axis(replays: Replays) -> Axis:
    """The groups of one rank whose transfers are all too long are one subject: its link."""
    targets = link_targets(replays.run, replays.scope)
    graph = replays.graph
    group = graph.collectives.group
    nothing = np.full(len(graph.rank), NONE)
    subject = np.arange(int(group.max(initial=NONE)) + 1)
    took, cut = (
        np.bincount(group, weights=time, minlength=len(subject))
        for time in (graph.work.transfer, graph.work.transfer - targets.transfer)
    )
    slow = np.flatnonzero(cut > _SLOW_LINK * took)
    if len(slow) > 1:
        met = np.flatnonzero(graph.match != NONE)
        pairs, _ = number_rows([group[graph.match[met]], graph.rank[met]])
        of_rank = {rank: pairs[pairs[:, 1] == rank, 0] for rank in unique_values(pairs[:, 1]).tolist()}
        by_rank = {rank: groups[np.isin(groups, slow)] for rank, groups in of_rank.items()}
        while by_rank:
            # First the rank with most slow groups; of those with as many, the one with the fewest others.
            rank = max(by_rank, key=lambda each: (len(by_rank[each]), -len(of_rank[each])))
            mine = by_rank.pop(rank)
            subject[mine] = mine.min(initial=len(subject))
            by_rank = {
                each: left
                for each, groups in by_rank.items()
                if len(left := groups[~np.isin(groups, mine)]) > 1
            }
    subjects = unique_values(subject[group]).tolist()
    groups = {each: tuple(slow[subject[slow] == each].tolist()) for each in subjects}
    return Axis("link", replays, targets, subjects, nothing, subject[group], groups=groups)


def stage_axis(replays: Replays) -> Axis:
    layout = layout_of(replays.run, Scope())
    stage = np.array([layout.stage(rank) for rank in replays.graph.ranks], dtype=np.int64)
    subjects = unique_values(stage).tolist()
    if len(subjects) < 2:
        subjects, targets = [], Targets.unchanged(replays.pieces)
    else:
        targets = stage_targets(replays.run, replays.scope)
    return Axis("stage", replays, targets, subjects, stage[replays.graph.rank], replays.no_matches)


def position_axis(replays: Replays) -> Axis:
    targets, of_point = position_targets(replays.run, replays.scope)
    subjects = unique_values(of_point[of_point != NONE]).tolist()
    return Axis("position", replays, targets, subjects, of_point, replays.no_matches)


AXES: dict[AxisName, Callable[[Replays], Axis]] = {
    "rank": rank_axis,
    "link": link_axis,
    "step": step_axis,
    "stage": stage_axis,
    "position": position_axis,
}
