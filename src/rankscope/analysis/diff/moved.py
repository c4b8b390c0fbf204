"""What moved between two runs: the work that takes longer in one of them than the same work took in the other.

The replay of faults, with other peers: the same rank, at the same place of a step of the other run. What is longer is
put back part by part, the one that adds most first, so the parts add up.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Literal

import numpy as np

from rankscope.analysis.core.result import Fact
from rankscope.analysis.core.scope import Scope
from rankscope.analysis.faults.axes import QUIET, Axis, Replays
from rankscope.analysis.faults.causes import host_work
from rankscope.analysis.faults.targets import Targets, longest_cut
from rankscope.analysis.graph.events import NONE, PATH_CLASSES, Mask
from rankscope.analysis.graph.graph import WORK_CLASSES
from rankscope.ranges import as_ranges, rank_words
from rankscope.records import dataclass
from rankscope.store.arrays import Floats, Ints, count_before, number_rows, starts_group, unique_values
from rankscope.text.names import shorten_name
from rankscope.timeline.run import Run
from rankscope.units import format_rounded

PartClass = Literal["compute", "copy", "host", "dataloader", "transfer"]
_CLASSES: tuple[PartClass, ...] = ("compute", "copy", "host", "dataloader", "transfer")
_WORDS: dict[PartClass, str] = {
    "compute": "compute",
    "copy": "copies",
    "host": "host time",
    "dataloader": "data loading",
    "transfer": "transfers",
}
_HINTS: dict[PartClass, str] = {
    "compute": "Find the call: rankscope stats NEW -r ops --by source{ranks} (needs --with-stack).",
    "copy": "Look at the copies: rankscope stats NEW -r ops,gpu{ranks}.",
    "host": "Look at the host: rankscope stats NEW -r ops,runtime_api{ranks}.",
    "dataloader": "Look at data loading: rankscope stats NEW -r dataloader{ranks}.",
    "transfer": "Look at the transfers: rankscope stats NEW -r collectives.",
}
_NAME_CELLS = 60
_TELLING = 0.3
"""Of what is longer in a part, that a name or another part must be to be named for it. Chosen, not measured."""
_MOST = 4


@dataclass(frozen=True)
class Part:
    """Work of one class that takes longer in one of the runs, on these ranks or in these process groups."""

    kind: PartClass
    subjects: tuple[int, ...]
    """Ranks; of transfers, numbers of process groups."""
    where: str
    """' on rank 2'; '' for a run of one rank."""
    moved_ns: float
    """What it adds to a step in addition to the parts before it; negative where it is the base that takes longer."""
    alone_ns: float
    """The same without the parts before it."""
    name: str = ""
    """Of the kernels, copies or ops with most of it."""
    only_here: bool = False
    """The other run does not have this name there."""
    steps: tuple[int, ...] = ()
    """Where nearly all of it is in a few steps."""
    is_all: bool = False

    @property
    def ranks(self) -> tuple[int, ...]:
        """Those to look at."""
        return () if self.is_all or self.kind == "transfer" else self.subjects

    @property
    def subject(self) -> str:
        """'compute on rank 2'."""
        return f"{_WORDS[self.kind]}{self.where}"

    @property
    def words(self) -> str:
        """'compute on rank 2 adds 5.98 ms, most in reduce_kernel, which is new'."""
        verb = "adds" if self.moved_ns > 0 else "saves"
        most = f", most in {self.name}" if self.name else ""
        also = f", which is {'new' if self.moved_ns > 0 else 'gone'}" if self.name and self.only_here else ""
        when = f", in step {as_ranges([*self.steps])}" if self.steps else ""
        return f"{self.subject} {verb} {format_rounded('ns', abs(self.moved_ns))}{when}{most}{also}"

    @property
    def hint(self) -> str:
        ranks = f" --ranks {as_ranges(sorted(self.ranks))}" if self.ranks else ""
        return _HINTS[self.kind].format(ranks=ranks)


@dataclass(frozen=True)
class Moved:
    """What is longer in the slower run, and then what is longer in the other."""

    parts: tuple[Part, ...]
    rest_ns: float
    """What the parts that are too small to be listed add to a step."""
    hidden: tuple[Part, ...] = ()
    """They add little, because others of the parts take as long; `alone_ns` without these."""

    @property
    def leading(self) -> tuple[Part, ...]:
        """The largest, and those that are nearly as large."""
        first = self.parts[0].moved_ns
        return tuple(part for part in self.parts if part.moved_ns / first >= _TELLING)

    @property
    def words(self) -> str:
        return "; ".join(part.words for part in self.leading)

    @property
    def evidence(self) -> str:
        """The other parts, and those that are hidden."""
        sentences = [part.words for part in self.parts if part not in self.leading]
        for part in self.hidden:
            verb = "add" if part.alone_ns > 0 else "save"
            alone = format_rounded("ns", abs(part.alone_ns))
            sentences.append(f"{part.subject} alone would {verb} {alone}, which the other parts hide")
        return ". ".join(f"{text[0].upper()}{text[1:]}" for text in sentences[:_MOST])

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(part.name for part in (*self.parts, *self.hidden) if part.name))

    @property
    def facts(self) -> tuple[Fact, ...]:
        return tuple(
            Fact("moved_ns", round(part.moved_ns), "ns", part.subject, part.ranks) for part in self.parts
        )


class _Side:
    """One of the runs: its pieces and transfers in the steps that are counted."""

    def __init__(self, run: Run, scope: Scope, counted: Collection[int]) -> None:
        self.replays = Replays(run, scope)
        pieces, graph = self.replays.pieces, self.replays.graph
        steps = [at for at, step in enumerate(graph.steps) if step in counted]
        self.steps = len(steps)
        self.used = np.flatnonzero(np.isin(pieces.step, steps))
        matched = graph.collectives
        count = len(matched.transfer)
        self.match_step, self.launched = np.full((2, count), NONE)
        met = np.flatnonzero(graph.match != NONE)
        self.match_step[graph.match[met]] = pieces.steps[met]
        self.launched[graph.match[met]] = graph.launched[met]
        self.matches = np.flatnonzero(np.isin(self.match_step, steps))
        self.last_stretch = np.zeros(len(graph.ranks), dtype=np.int64)
        np.maximum.at(self.last_stretch, pieces.rank[self.used], pieces.stretch[self.used])

    @cached_property
    def groups(self) -> list[tuple[object, ...]]:
        """By process group, what says which one it is: its members, and how many groups before it have the same."""
        seen: dict[object, int] = {}
        keys = list[tuple[object, ...]]()
        for group in self.replays.run.collectives.groups:
            members = tuple(group.ranks) if group.ranks else group.name
            seen[members] = seen.get(members, NONE) + 1
            keys.append((members, seen[members]))
        return keys


def moved(
    base: Run, new: Run, scope: Scope, counted: tuple[Sequence[int], Sequence[int]], is_slower: bool, least: float
) -> Moved | str:
    """What moved, in steps `counted` of each; or why that cannot be told. Parts of at least the share `least` of a step
    are listed."""
    sides = [_Side(run, scope.in_run(run), steps) for run, steps in zip((base, new), counted, strict=True)]
    before, after = sides
    if before.replays.graph.ranks != after.replays.graph.ranks:
        return "the runs have different ranks"
    for name, side in zip(("base", "new"), sides, strict=True):
        if not side.steps:
            return f"{name} has no steps"
        if not side.replays.is_possible:
            return f"the ranks of {name} wait for each other in a cycle, or their events are cut"
    more, less = _Longer(after, before, 1), _Longer(before, after, -1)
    first, second = (more, less) if is_slower else (less, more)
    listed = least * max(side.replays.step_ns for side in sides)
    parts, rest, hidden = list[Part](), 0.0, list[Part]()
    for longer in (first, second):
        for part in longer.parts:
            if abs(part.moved_ns) >= listed:
                parts.append(part)
                continue
            rest += part.moved_ns
            if abs(part.alone_ns) >= listed:
                hidden.append(part)
        rest += longer.rest_ns
    return Moved(tuple(parts), rest, tuple(hidden))


class _Longer:
    """What takes longer on one side than on the other, and what each part of it adds."""

    def __init__(self, here: _Side, there: _Side, sign: Literal[1, -1]) -> None:
        self.here, self.there, self.sign = here, there, sign
        self.replays = here.replays
        self.targets = _as_there(here, there)
        pieces, recorded = self.replays.pieces, self.replays.graph.work.transfer
        self.cut: Ints = pieces.took - self.targets.took
        self.cut_transfer: Ints = recorded - self.targets.transfer

    @cached_property
    def total_ns(self) -> float:
        """What all of it adds to a step."""
        return self.replays.saved_ns(self.targets)

    def adds_ns(self, chosen: Sequence[tuple[PartClass, Sequence[int]]]) -> float:
        """What these parts add, with everything else as it was there."""
        points, matches = np.zeros(len(self.cut), dtype=bool), np.zeros(len(self.cut_transfer), dtype=bool)
        for kind, subjects in chosen:
            if kind == "transfer":
                matches |= np.isin(self._of_match, subjects)
            else:
                points |= self._of_class(kind) & np.isin(self.replays.pieces.rank, subjects)
        targets = self.targets.except_for(points)
        recorded = self.replays.graph.work.transfer
        left = replace(targets, transfer=np.where(matches, recorded, targets.transfer))
        return self.total_ns - self.replays.saved_ns(left)

    @property
    def _of_match(self) -> Ints:
        return self.replays.graph.collectives.group

    def _of_class(self, kind: PartClass) -> Mask:
        mine: Mask = self.replays.pieces.kind == PATH_CLASSES.index(kind)
        return mine

    @cached_property
    def _least(self) -> float:
        return QUIET * self.replays.step_ns

    def _split(self, kind: PartClass) -> list[tuple[int, ...]]:
        """Its subjects: the few without which at least half of it is gone, as long as there are such; and the others
        together."""
        if kind == "transfer":
            of, cut = self._of_match, self.cut_transfer
        else:
            of, cut = self.replays.pieces.rank, np.where(self._of_class(kind), self.cut, 0)
        by_subject = np.bincount(of, weights=cut)
        order: list[int] = np.argsort(-by_subject, kind="stable")[: int((by_subject > 0).sum())].tolist()
        few = max(len(unique_values(of)) // 2, 1)
        parts = list[tuple[int, ...]]()
        left_ns = self.adds_ns([(kind, order)]) if order else 0.0
        while len(order) > 1 and left_ns >= self._least:
            low, high = 1, min(few, len(order) - 1)
            if self.adds_ns([(kind, order[high:])]) > left_ns / 2:
                break
            while low < high:
                middle = (low + high) // 2
                if self.adds_ns([(kind, order[middle:])]) > left_ns / 2:
                    low = middle + 1
                else:
                    high = middle
            parts.append(tuple(order[:low]))
            order = order[low:]
            left_ns = self.adds_ns([(kind, order)])
        return [*parts, tuple(order)] if order else parts

    @cached_property
    def _put_back(self) -> tuple[list[Part], float]:
        """The parts, each put back in addition to those before it; and what is left when they are."""
        left = [(kind, subjects) for kind in _CLASSES for subjects in self._split(kind)]
        alone = {part: self.adds_ns([part]) for part in left}
        left = [part for part in left if alone[part] >= self._least]
        back, parts, so_far = list[tuple[PartClass, tuple[int, ...]]](), list[Part](), 0.0
        while left:
            with_also = {part: self.adds_ns([*back, part]) for part in left} if back else alone
            best = max(left, key=lambda part: with_also[part])
            left.remove(best)
            back.append(best)
            parts.append(self._part(*best, with_also[best] - so_far, alone[best]))
            so_far = with_also[best]
        return parts, self.total_ns - so_far

    @property
    def parts(self) -> list[Part]:
        return self._put_back[0]

    @property
    def rest_ns(self) -> float:
        """What all that is too small to be a part adds."""
        return self.sign * self._put_back[1]

    def _part(self, kind: PartClass, subjects: tuple[int, ...], adds_ns: float, alone_ns: float) -> Part:
        graph, pieces = self.replays.graph, self.replays.pieces
        if kind == "transfer":
            groups = self.replays.run.collectives.groups
            count = len(unique_values(self._of_match))
            where = f" of {groups[subjects[0]].name}" if len(subjects) == 1 < count else ""
            where = where or (f" of {len(subjects)} of {count} process groups" if len(subjects) < count else "")
            chosen = np.isin(self._of_match, subjects)
            steps = self._steps(self.here.match_step, np.where(chosen, self.cut_transfer, 0))
            is_all, shown = len(subjects) == count, subjects
            name, only_here = "", False
        else:
            shown = tuple(sorted(graph.ranks[subject] for subject in subjects))
            is_all = len(subjects) * 2 > len(graph.ranks)
            others = "all" if len(subjects) == len(graph.ranks) else f"{len(subjects)} of {len(graph.ranks)}"
            where = f" on {others} ranks" if is_all else f" on {rank_words(shown)}"
            where = where if len(graph.ranks) > 1 else ""
            cut = np.where(self._of_class(kind) & np.isin(pieces.rank, subjects), self.cut, 0)
            steps = self._steps(pieces.step, cut)
            name, only_here = self._name(kind, cut)
        return Part(
            kind, shown, where, self.sign * adds_ns, self.sign * alone_ns, name, only_here, steps, is_all
        )  # fmt: skip

    def _steps(self, step: Ints, cut: Ints) -> tuple[int, ...]:
        """The one step in which most of it is; none where it is in several."""
        by_step = np.bincount(np.maximum(step, 0), weights=cut, minlength=1)
        at = int(by_step.argmax())
        is_single = self.here.steps > 2 and by_step[at] >= (1 - _TELLING) * by_step.sum()
        return (self.replays.graph.steps[at],) if is_single else ()

    def _name(self, kind: PartClass, cut: Ints) -> tuple[str, bool]:
        """Of the pieces with most to cut, and whether only this side has it."""
        if kind in ("host", "dataloader"):
            axis = Axis("rank", self.replays, self.targets, (), self.replays.graph.rank)
            work = dict[str, int]()
            for each in host_work(axis, cut):
                if each.around:
                    work[each.around] = work.get(each.around, 0) + each.ns
            name = max(work, key=lambda each: work[each], default="")
            is_most = bool(name) and work[name] >= _TELLING * cut.sum()
            return (shorten_name(name, _NAME_CELLS) if is_most else ""), False
        pieces, other = self.replays.pieces, self.there.replays
        named = np.flatnonzero((pieces.name != NONE) & (cut > 0))
        if not len(named):
            return "", False
        by_name = np.bincount(pieces.name[named], weights=cut[named])
        code = int(by_name.argmax())
        if by_name[code] < _TELLING * cut.sum():
            return "", False
        name = self.replays.graph.names[code]
        mine = unique_values(pieces.rank[named[pieces.name[named] == code]])
        has = (
            other.pieces.name == other.graph.names.index(name) if name in other.graph.names else np.zeros(0, bool)
        )
        only_here = not np.isin(other.pieces.rank[np.flatnonzero(has)], mine).any()
        return shorten_name(name, _NAME_CELLS), only_here


def _as_there(here: _Side, there: _Side) -> Targets:
    """What is longer here than there, as it is there."""
    targets = Targets.unchanged(here.replays.pieces)
    left, usual, transfer = targets.took.copy(), targets.usual.copy(), targets.transfer.copy()
    columns, took, sizes = _pieces_of(here, there)
    spot = number_rows(columns)[1]
    usual[here.used] = _in_other(spot, took, sizes, here.steps, there.steps)
    who, stretch, kind = columns[:3]
    step = np.concatenate([side.replays.pieces.step[side.used] for side in (here, there)])
    side = np.repeat(np.arange(2), sizes)
    left[here.used] = _cut([who, stretch, kind], step, side, took, usual[here.used], here.steps, there.steps)
    columns, took, sizes = _transfers_of(here, there)
    if len(here.matches):
        spot = number_rows(columns)[1]
        as_there = _in_other(spot, took, sizes, here.steps, there.steps)
        step = np.concatenate([side.match_step[side.matches] for side in (here, there)])
        side = np.repeat(np.arange(2), sizes)
        transfer[here.matches] = _cut([columns[0]], step, side, took, as_there, here.steps, there.steps)
    return replace(targets, took=left, usual=usual, transfer=transfer)


def _cut(
    same: Sequence[Ints], step: Ints, side: Ints, took: Ints, usual: Ints, steps: int, others: int
) -> Ints:
    """How long the entries of this side take, with each step of a cell no longer than its counterpart."""
    cells, cell = number_rows([side, *same, step])
    total = np.bincount(cell, weights=took).astype(np.int64)
    mine = int((cells[:, 0] == 0).sum())  # they come first
    _, alike = number_rows([*cells[:, 1:-1].T])
    there = _in_other(alike, total, (mine, len(cells) - mine), steps, others)
    count = len(usual)
    too_much = np.maximum(total[:mine] - there, 0)
    return took[:count] - longest_cut(cell[:count], np.maximum(took[:count] - usual, 0), too_much)


def _pieces_of(*sides: _Side) -> tuple[list[Ints], Ints, tuple[int, int]]:
    """Of both sides together: rank, stretch, kind, is_own, name and which one of those it is; how long each takes; how
    many there are of each side. A rank that communicates more often on one side has one stretch."""
    number: dict[str, int] = {}
    for side in sides:
        for name in side.replays.graph.names:
            number.setdefault(name, len(number))
    is_same = sides[0].last_stretch == sides[1].last_stretch
    columns, took = list[Sequence[Ints]](), list[Ints]()
    for side in sides:
        pieces, used = side.replays.pieces, side.used
        codes = np.array([*map(number.__getitem__, side.replays.graph.names), NONE], dtype=np.int64)
        rank = pieces.rank[used]
        keys = [
            rank,
            np.where(is_same[rank], pieces.stretch[used], 0),
            pieces.kind[used],
            pieces.is_own[used].astype(np.int64),
            codes[pieces.name[used]],
        ]
        order = count_before([pieces.step[used], *keys], side.replays.graph.launched[pieces.point[used]])
        columns.append([*keys, order])
        took.append(pieces.took[used])
    return (
        [np.concatenate(pair) for pair in zip(*columns, strict=True)],
        np.concatenate(took),
        (len(took[0]), len(took[1])),
    )


def _transfers_of(*sides: _Side) -> tuple[list[Ints], Ints, tuple[int, int]]:
    """The same of transfers: group, kind, size, and which one of those it is in its step."""
    number: dict[tuple[object, ...], int] = {}
    columns, took = list[Sequence[Ints]](), list[Ints]()
    for side in sides:
        matched, used = side.replays.graph.collectives, side.matches
        codes = [number.setdefault(key, len(number)) for key in side.groups]
        group = np.array([*codes, NONE], dtype=np.int64)[matched.group[used]]
        keys = [group, matched.kind[used], matched.bytes[used]]
        columns.append([*keys, count_before([side.match_step[used], *keys], side.launched[used])])
        took.append(side.replays.graph.work.transfer[used])
    return (
        [np.concatenate(pair) for pair in zip(*columns, strict=True)],
        np.concatenate(took),
        (len(took[0]), len(took[1])),
    )


def _in_other(spot: Ints, took: Ints, sizes: tuple[int, int], steps: int, others: int) -> Ints:
    """By entry of the first side: how long its counterpart on the second takes. Of the entries of a spot, one in each
    step, the shortest is compared with the shortest and so on; those that a step does not have count as 0. Between
    steps of which there are fewer, it is interpolated."""
    count = int(spot.max(initial=NONE)) + 1
    mine, theirs = spot[: sizes[0]], spot[sizes[0] :]
    order = np.lexsort((took[: sizes[0]], mine))
    first = starts_group([mine[order]]) if len(order) else np.zeros(0, dtype=bool)
    begins = np.maximum.accumulate(np.where(first, np.arange(len(order)), 0))
    have = np.bincount(mine, minlength=count)
    position = np.empty(len(order), dtype=np.int64)
    position[order] = np.arange(len(order)) - begins
    position += steps - have[mine]
    at: Floats = position * ((others - 1) / (steps - 1)) if steps > 1 else np.full(len(mine), (others - 1) / 2)
    there = took[sizes[0] :][np.lexsort((took[sizes[0] :], theirs))]
    has = np.bincount(theirs, minlength=count)
    begin = np.cumsum(has) - has

    def nth(number: Ints) -> Ints:
        """In ascending order, those of the other side."""
        inner = number - (others - has[mine])
        known = inner >= 0
        values = np.zeros(len(mine), dtype=np.int64)
        values[known] = there[(begin[mine] + inner)[known]]
        return values

    low = np.floor(at + 1e-9).astype(np.int64)
    share = np.clip(at - low, 0, 1)
    between = nth(low) * (1 - share) + nth(np.minimum(low + 1, others - 1)) * share
    return np.rint(between).astype(np.int64)
