"""What moved between two runs: the work that takes longer in one of them than the same work took in the other.

The replay of faults, with other peers: the same rank, at the same place of a step of the other run. What is longer is
put back part by part, the one that adds most first, so the parts add up.
"""

from __future__ import annotations

from collections import Counter
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
from rankscope.ranges import as_ranges, rank_words
from rankscope.records import dataclass
from rankscope.store.arrays import Floats, Ints, count_before, number_rows, unique_values
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
_PLURAL = ("copy", "transfer")
_HINTS: dict[PartClass, str] = {
    "compute": "Find the call: rankscope stats NEW -r ops --by source{ranks} (needs --with-stack).",
    "copy": "Look at the copies: rankscope stats NEW -r ops,gpu{ranks}.",
    "host": "Look at the host: rankscope stats NEW -r ops,runtime_api{ranks}.",
    "dataloader": "Look at data loading: rankscope stats NEW -r dataloader{ranks}.",
    "transfer": "Look at the transfers: rankscope stats NEW -r collectives.",
}
_Work = tuple[PartClass, tuple[int, ...]]
"""A class, and indices of ranks or numbers of process groups."""
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
    place: str = "in "
    """Where its name says where it is."""
    only_here: bool = False
    """The other run does not have this name there."""
    steps: tuple[int, ...] = ()
    """The one in which most of it is; none where it is in several."""
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
        verb = ("add" if self.moved_ns > 0 else "save") + "s" * (self.kind not in _PLURAL)
        most = f", most {self.place}{self.name}" if self.name else ""
        also = f", which is {'new' if self.moved_ns > 0 else 'gone'}" if self.only_here else ""
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
    hidden: tuple[Part, ...]
    """They add little, because others of the parts take as long; `alone_ns` without these."""
    change_ns: float
    """Of the step time, as it was recorded."""

    @property
    def leading(self) -> tuple[Part, ...]:
        """Of those that explain the change, the largest and others that are nearly as large."""
        parts = [part for part in self.parts if part.moved_ns * self.change_ns > 0]
        most = max((abs(part.moved_ns) for part in parts), default=0)
        return tuple(part for part in parts if abs(part.moved_ns) >= _TELLING * most)

    @property
    def words(self) -> str:
        return "; ".join(part.words for part in self.leading)

    @property
    def evidence(self) -> str:
        """The other parts, and those that are hidden."""
        sentences = [part.words for part in self.parts if part not in self.leading][:_MOST]
        for part in self.hidden[:_MOST]:
            verb = "add" if part.alone_ns > 0 else "save"
            alone = format_rounded("ns", abs(part.alone_ns))
            sentences.append(f"{part.subject} alone would {verb} {alone}, which the other parts hide")
        if abs(left_ns := self.change_ns - self.moved_ns) >= _TELLING * abs(self.change_ns):
            left = format_rounded("ns", abs(left_ns))
            sentences.append(f"the work that changed does not explain {left} of the change")
        return ". ".join(f"{text[0].upper()}{text[1:]}" for text in sentences)

    @property
    def moved_ns(self) -> float:
        """All of it."""
        return sum(part.moved_ns for part in (*self.parts, *self.hidden)) + self.rest_ns

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(part.name for part in (*self.parts, *self.hidden) if part.name))

    @property
    def facts(self) -> tuple[Fact, ...]:
        return tuple(
            Fact("moved_ns", round(part.moved_ns), "ns", part.subject, part.ranks) for part in self.parts
        )


class _Compared:
    """Work of a side that is compared with that of the other: how long it takes, and in which step."""

    def __init__(self, took: Ints, step: Ints, steps: int) -> None:
        self.took, self.step, self.steps = took, step, steps
        self.spot = self.cell = np.zeros(0, dtype=np.int64)
        """The same number for what is at the same place of a step, and for what belongs together in one; on both
        sides."""

    def cut(self, other: _Compared) -> tuple[Ints, Ints]:
        """How long it takes with no step of a cell longer than its counterpart; and what its counterparts take."""
        if not len(self.took):
            return self.took, self.took
        usual = _in_other(self.spot, self.took, self.steps, other.spot, other.took, other.steps)
        alike, total, cell = self._cells
        there, there_total, _ = other._cells
        too_much = total - _in_other(alike, total, self.steps, there, there_total, other.steps)
        left = self.took - longest_cut(cell, np.maximum(self.took - usual, 0), np.maximum(too_much, 0))
        return left, usual

    @cached_property
    def _cells(self) -> tuple[Ints, Ints, Ints]:
        """By cell and step: the cell, and how long it takes; and by entry, which one of these it is in."""
        cells, number = number_rows([self.cell, self.step])
        return cells[:, 0], np.bincount(number, weights=self.took).astype(np.int64), number


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
        self.work = _Compared(pieces.took[self.used], pieces.step[self.used], self.steps)
        self.transfers = _Compared(
            graph.work.transfer[self.matches], self.match_step[self.matches], self.steps
        )

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
    base: Run,
    new: Run,
    scope: Scope,
    counted: tuple[Sequence[int], Sequence[int]],
    change_ns: float,
    least: float,
) -> Moved | str:
    """What moved, in steps `counted` of each; or why that cannot be told. Parts of at least the share `least` of a step
    are listed."""
    before, after = (
        _Side(run, scope.in_run(run), steps) for run, steps in zip((base, new), counted, strict=True)
    )
    if before.replays.graph.ranks != after.replays.graph.ranks:
        return "the runs have different ranks"
    for name, side in (("base", before), ("new", after)):
        if not side.steps:
            return f"{name} has no steps"
        if not side.replays.is_possible:
            return f"the ranks of {name} wait for each other in a cycle, or their events are cut"
    _align_pieces(before, after)
    _align_transfers(before, after)
    more, less = _Longer(after, before, 1), _Longer(before, after, -1)
    first, second = (more, less) if change_ns > 0 else (less, more)
    listed = least * max(side.replays.step_ns for side in (before, after))
    parts, rest, hidden = list[Part](), 0.0, list[Part]()
    for longer in (first, second):
        for part in longer.parts:
            if abs(part.moved_ns) >= listed:
                parts.append(part)
            elif abs(part.alone_ns) >= listed:
                hidden.append(part)
            else:
                rest += part.moved_ns
        rest += longer.rest_ns
    return Moved(tuple(parts), rest, tuple(hidden), change_ns)


class _Longer:
    """What takes longer on one side than on the other, and what each part of it adds."""

    def __init__(self, here: _Side, there: _Side, sign: Literal[1, -1]) -> None:
        self.here, self.there, self.sign = here, there, sign
        self.replays = here.replays
        recorded = Targets.unchanged(self.replays.pieces)
        took, usual, transfer = recorded.took.copy(), recorded.usual.copy(), recorded.transfer.copy()
        took[here.used], usual[here.used] = here.work.cut(there.work)
        transfer[here.matches], _ = here.transfers.cut(there.transfers)
        self.targets = replace(recorded, took=took, usual=usual, transfer=transfer)
        self.cut: Ints = recorded.took - took
        self.cut_transfer: Ints = recorded.transfer - transfer
        self._known: dict[tuple[_Work, ...], float] = {}

    @cached_property
    def total_ns(self) -> float:
        """What all of it adds to a step."""
        return self.replays.saved_ns(self.targets)

    def adds_ns(self, *chosen: _Work) -> float:
        """What these parts add, with everything else as it was there."""
        if chosen not in self._known:
            self._known[chosen] = self.total_ns - self.replays.saved_ns(self._with_recorded(chosen))
        return self._known[chosen]

    def _with_recorded(self, chosen: Sequence[_Work]) -> Targets:
        points, matches = np.zeros(len(self.cut), dtype=bool), np.zeros(len(self.cut_transfer), dtype=bool)
        for kind, subjects in chosen:
            if kind == "transfer":
                matches |= np.isin(self._of_match, subjects)
            else:
                points |= self._of_class(kind) & np.isin(self.replays.pieces.rank, subjects)
        targets = self.targets.except_for(points)
        recorded = self.replays.graph.work.transfer
        return replace(targets, transfer=np.where(matches, recorded, targets.transfer))

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
        by_subject = np.bincount(of, weights=cut, minlength=1)
        if by_subject.sum() < self._least * self.here.steps:
            return []
        order = tuple(np.argsort(-by_subject, kind="stable")[: int((by_subject > 0).sum())].tolist())
        few = max(len(unique_values(of)) // 2, 1)
        parts = list[tuple[int, ...]]()
        while len(order) > 1 and (left_ns := self.adds_ns((kind, order))) >= self._least:
            low, high = 1, min(few, len(order) - 1)
            if self.adds_ns((kind, order[high:])) > left_ns / 2:
                break
            while low < high:
                middle = (low + high) // 2
                if self.adds_ns((kind, order[middle:])) > left_ns / 2:
                    low = middle + 1
                else:
                    high = middle
            parts.append(order[:low])
            order = order[low:]
        return [*parts, order]

    @cached_property
    def _put_back(self) -> tuple[list[Part], float]:
        """The parts, each put back in addition to those before it; and what is left when they are."""
        left = [(kind, subjects) for kind in _CLASSES for subjects in self._split(kind)]
        alone = {part: self.adds_ns(part) for part in left}
        left = [part for part in left if alone[part] >= self._least]
        back, parts, so_far = list[_Work](), list[Part](), 0.0
        while left:
            with_also = {part: self.adds_ns(*back, part) for part in left}
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
            where = where or (
                f" of {len(subjects)} of {count} process groups" if len(subjects) < count else ""
            )
            chosen = np.isin(self._of_match, subjects)
            steps = self._steps(self.here.match_step, np.where(chosen, self.cut_transfer, 0))
            is_all, shown = len(subjects) == count, subjects
            name, place, only_here = "", "", False
        else:
            shown = tuple(sorted(graph.ranks[subject] for subject in subjects))
            is_all = len(subjects) * 2 > len(graph.ranks)
            others = "all" if len(subjects) == len(graph.ranks) else f"{len(subjects)} of {len(graph.ranks)}"
            where = f" on {others} ranks" if is_all else f" on {rank_words(shown)}"
            where = where if len(graph.ranks) > 1 else ""
            cut = np.where(self._of_class(kind) & np.isin(pieces.rank, subjects), self.cut, 0)
            steps = self._steps(pieces.step, cut)
            name, place, only_here = self._name(kind, cut)
        return Part(
            kind,
            shown,
            where,
            self.sign * adds_ns,
            self.sign * alone_ns,
            name,
            place,
            only_here,
            steps,
            is_all,
        )

    def _steps(self, step: Ints, cut: Ints) -> tuple[int, ...]:
        """The one step in which most of it is; none where it is in several."""
        by_step = np.bincount(np.maximum(step, 0), weights=cut, minlength=1)
        at = int(by_step.argmax())
        is_single = self.here.steps > 2 and by_step[at] >= (1 - _TELLING) * by_step.sum()
        return (self.replays.graph.steps[at],) if is_single else ()

    def _name(self, kind: PartClass, cut: Ints) -> tuple[str, str, bool]:
        """Of the pieces with most to cut; where that is; and whether only this side has it."""
        if kind == "dataloader":
            return "", "", False
        if kind == "host":
            axis = Axis("rank", self.replays, self.targets, (), self.replays.graph.rank)
            work = Counter[tuple[str, str]]()
            for each in host_work(axis, cut):
                work[("in ", each.around) if each.around else ("in no op, before ", each.before)] += each.ns
            (place, name), most = work.most_common(1)[0]
            is_most = most >= _TELLING * cut.sum()
            return (shorten_name(name, _NAME_CELLS), place, False) if is_most else ("", "", False)
        pieces, other = self.replays.pieces, self.there.replays
        named = np.flatnonzero((pieces.name != NONE) & (cut > 0))
        by_name = np.bincount(pieces.name[named], weights=cut[named], minlength=1)
        code = int(by_name.argmax())
        if by_name[code] < _TELLING * cut.sum():
            return "", "", False
        name = self.replays.graph.names[code]
        mine = unique_values(pieces.rank[named[pieces.name[named] == code]])
        theirs = other.graph.names.index(name) if name in other.graph.names else None
        has = np.isin(other.pieces.rank, mine) & (other.pieces.name == theirs)
        return shorten_name(name, _NAME_CELLS), "in ", not has.any()


def _align_pieces(*sides: _Side) -> None:
    """By rank, stretch, kind, name and which one of those it is. A rank that communicates more often on one side has
    one stretch."""
    number: dict[str, int] = {}
    last = np.zeros((2, len(sides[0].replays.graph.ranks)), dtype=np.int64)
    for side, of_side in zip(sides, last, strict=True):
        pieces = side.replays.pieces
        np.maximum.at(of_side, pieces.rank[side.used], pieces.stretch[side.used])
    is_same = last[0] == last[1]
    spots = list[list[Ints]]()
    for side in sides:
        pieces, graph = side.replays.pieces, side.replays.graph
        codes = np.array(
            [*(number.setdefault(name, len(number)) for name in graph.names), NONE], dtype=np.int64
        )
        rank = pieces.rank[side.used]
        stretch = np.where(is_same[rank], pieces.stretch[side.used], 0)
        what = [pieces.kind, pieces.is_own.astype(np.int64), codes[pieces.name]]
        keys = [rank, stretch, *(column[side.used] for column in what)]
        order = count_before([side.work.step, *keys], graph.launched[pieces.point[side.used]])
        spots.append([*keys, order])
    cells = _numbered([keys[:3] for keys in spots])
    for side, spot, cell in zip(sides, _numbered(spots), cells, strict=True):
        side.work.spot, side.work.cell = spot, cell


def _align_transfers(*sides: _Side) -> None:
    """By process group, kind, size and which one of those it is."""
    number: dict[tuple[object, ...], int] = {}
    spots = list[list[Ints]]()
    for side in sides:
        matched, used = side.replays.graph.collectives, side.matches
        group = np.array([number.setdefault(key, len(number)) for key in side.groups], dtype=np.int64)
        keys = [group[matched.group[used]], matched.kind[used], matched.bytes[used]]
        spots.append([*keys, count_before([side.transfers.step, *keys], side.launched[used])])
    for side, spot, keys in zip(sides, _numbered(spots), spots, strict=True):
        side.transfers.spot, side.transfers.cell = spot, keys[0]


def _numbered(rows: Sequence[Sequence[Ints]]) -> list[Ints]:
    """By side, the same number for the same row."""
    _, number = number_rows([np.concatenate(pair) for pair in zip(*rows, strict=True)])
    return np.split(number, [len(rows[0][0])])


def _in_other(spot: Ints, took: Ints, steps: int, their_spot: Ints, their_took: Ints, others: int) -> Ints:
    """By entry: how long its counterpart on the other side takes. Of the entries of a spot, one in each step, the
    shortest is compared with the shortest and so on; those that a step does not have count as 0. Where one side has
    fewer steps, it is interpolated between them."""
    count = int(max(spot.max(initial=NONE), their_spot.max(initial=NONE))) + 1
    order = np.lexsort((took, spot))
    have, has = np.bincount(spot, minlength=count), np.bincount(their_spot, minlength=count)
    begin, their_begin = np.cumsum(have) - have, np.cumsum(has) - has
    position = np.empty(len(order), dtype=np.int64)
    position[order] = np.arange(len(order))
    position += (steps - have - begin)[spot]
    at: Floats = np.clip((position + 0.5) * (others / steps) - 0.5, 0, others - 1)
    ordered = their_took[np.lexsort((their_took, their_spot))]
    missing = others - has[spot]

    def nth(number: Ints) -> Ints:
        """In ascending order, those of the other side."""
        known = number >= missing
        values = np.zeros(len(spot), dtype=np.int64)
        values[known] = ordered[(their_begin[spot] + number - missing)[known]]
        return values

    low = np.floor(at).astype(np.int64)
    between = nth(low) + (nth(np.minimum(low + 1, others - 1)) - nth(low)) * (at - low)
    return np.rint(between).astype(np.int64)
