"""What moved between two runs: the work that takes longer in one of them than the same work took in the other.

The replay of faults, with other peers: the same rank, at the same place of a step of the other run. What is longer is
put back part by part, the one that adds most first, so the parts add up.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Literal

import numpy as np

from rankscope.analysis.core.grouping import sums_by
from rankscope.analysis.core.intervals import rounded
from rankscope.analysis.core.result import Fact, argv
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
_KINDS: dict[PartClass, int] = {
    "compute": PATH_CLASSES.index("compute"),
    "copy": PATH_CLASSES.index("copy"),
    "host": PATH_CLASSES.index("host"),
    "dataloader": PATH_CLASSES.index("dataloader"),
    "transfer": PATH_CLASSES.index("comm"),
}
WORDS: dict[PartClass, str] = {
    "compute": "compute",
    "copy": "copies",
    "host": "host time",
    "dataloader": "data loading",
    "transfer": "transfers",
}
_PLURAL = ("copy", "transfer")
_ADVICE: dict[PartClass, tuple[str, str]] = {
    "compute": ("Find the call (needs --with-stack)", "ops --by source"),
    "copy": ("Look at the copies", "ops,gpu"),
    "host": ("Look at the host", "ops,runtime_api"),
    "dataloader": ("Look at data loading", "dataloader"),
    "transfer": ("Look at the transfers", "collectives"),
}
"""What to do, and the reports to look at."""
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
    ranks: tuple[int, ...]
    """Those to look at: none for most of them, and for transfers."""
    where: str
    """' on rank 2'; '' for a run of one rank."""
    moved_ns: float
    """What it adds to a step in addition to the parts before it; negative where it is the base that takes longer."""
    alone_ns: float
    """The same without the parts before it."""
    name: str
    """Of the kernels, copies or ops with most of it; or empty."""
    most: str
    """', most in reduce_kernel, which is new'; or empty."""
    steps: tuple[int, ...]
    """The one in which most of it is; none where it is in several."""

    @property
    def subject(self) -> str:
        """'compute on rank 2'."""
        return f"{WORDS[self.kind]}{self.where}"

    @property
    def words(self) -> str:
        """'compute on rank 2 adds 5.98 ms, most in reduce_kernel, which is new'."""
        verb = ("add" if self.moved_ns > 0 else "save") + "s" * (self.kind not in _PLURAL)
        when = f", in step {as_ranges([*self.steps])}" if self.steps else ""
        return f"{self.subject} {verb} {format_rounded('ns', abs(self.moved_ns))}{when}{self.most}"

    @property
    def hidden_words(self) -> str:
        """Of a part that others hide."""
        verb = "add" if self.alone_ns > 0 else "save"
        return f"{self.subject} alone would {verb} {format_rounded('ns', abs(self.alone_ns))}; other work hides it"

    @property
    def advice(self) -> tuple[str, tuple[str, ...]]:
        """The advice and its command."""
        text, reports = _ADVICE[self.kind]
        ranks = ("--ranks", as_ranges(sorted(self.ranks))) if self.ranks else ()
        return text, argv(f"rankscope stats NEW -r {reports}", *ranks)


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
    in_base: Longer
    """What is longer in the base."""

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
    def moved_ns(self) -> float:
        """All of it."""
        return sum(part.moved_ns for part in (*self.parts, *self.hidden)) + self.rest_ns

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(part.name for part in (*self.parts, *self.hidden) if part.name))

    @property
    def facts(self) -> tuple[Fact, ...]:
        left_ns = self.change_ns - self.moved_ns
        is_large = abs(left_ns) >= _TELLING * abs(self.change_ns)
        return (
            *(Fact("besides", part.words) for part in self.parts if part not in self.leading),
            *(Fact("besides", part.hidden_words) for part in self.hidden),
            *(Fact("moved_ns", round(part.moved_ns), "ns", part.subject, part.ranks) for part in self.parts),
            *(
                Fact("hidden_ns", round(part.alone_ns), "ns", part.subject, part.ranks)
                for part in self.hidden
            ),
            *([Fact("unexplained_ns", round(left_ns), "ns")] if is_large else []),
        )


class _Side:
    """One of the runs: its pieces and transfers in the steps that are counted, one entry each."""

    def __init__(self, run: Run, scope: Scope, counted: Collection[int]) -> None:
        self.replays = Replays(run, scope)
        pieces, graph = self.replays.pieces, self.replays.graph
        steps = [at for at, step in enumerate(graph.steps) if step in counted]
        match_step, match_launched = pieces.matches
        self.used, self.matches = (np.flatnonzero(np.isin(step, steps)) for step in (pieces.step, match_step))
        self.steps, matched = len(steps), graph.collectives
        self.took = self._joined(pieces.took, graph.work.transfer)
        self.step = self._joined(pieces.step, match_step)
        self.launched = self._joined(graph.launched[pieces.point], match_launched)
        self.kind = self._joined(pieces.kind, np.full_like(match_step, _KINDS["transfer"]))
        self.subject = self._joined(pieces.rank, matched.group)
        """Index of the rank; of a transfer, number of the process group."""
        self.name = self._joined(pieces.name, np.full_like(match_step, NONE))
        self.stretch = self._joined(pieces.stretch, np.zeros_like(match_step))
        self.spot = self.cell = np.zeros(0, dtype=np.int64)
        """The same number for what is at the same place of a step, and for what belongs together in one; on both
        sides."""

    def _joined(self, of_pieces: Ints, of_matches: Ints) -> Ints:
        return np.concatenate([of_pieces[self.used], of_matches[self.matches]])

    def of(self, axis: Axis, subjects: Sequence[int]) -> Mask:
        """The entries of these subjects."""
        points, matches = axis.of_point[self.replays.pieces.point], axis.of_match
        return np.isin(self._joined(points, matches), subjects)

    def keys(self, number: dict[object, int]) -> list[Ints]:
        """What tells the place of an entry in its step but for its order: rank, stretch, class, kind of piece and name;
        or process group, kind and size. `number` has those of names and groups, the same on both sides."""
        pieces, graph = self.replays.pieces, self.replays.graph
        names = [number.setdefault(name, len(number)) for name in graph.names]
        groups, seen = [], dict[object, int]()
        for group in self.replays.run.collectives.groups:
            members = group.ranks or group.name
            seen[members] = seen.get(members, NONE) + 1
            groups.append(number.setdefault((members, seen[members]), len(number)))
        matched = graph.collectives
        return [
            self._joined(pieces.rank, np.array([*groups, NONE], dtype=np.int64)[matched.group]),
            self.stretch,
            self.kind,
            self._joined(pieces.is_own.astype(np.int64), matched.kind),
            self._joined(np.array([*names, NONE], dtype=np.int64)[pieces.name], matched.bytes),
        ]

    @cached_property
    def cells(self) -> tuple[Ints, Ints, Ints]:
        """By cell and step: the cell, and how long it takes; and by entry, which one of these it is in."""
        cells, number = number_rows([self.cell, self.step])
        return cells[:, 0], sums_by(number, self.took), number

    def longer_than(self, other: _Side) -> Ints:
        """By entry, what is too much of it, so that no step of a cell is longer than its counterpart."""
        usual = _in_other(self.spot, self.took, self.steps, other.spot, other.took, other.steps)
        alike, total, cell = self.cells
        there, there_total, _ = other.cells
        too_much = total - _in_other(alike, total, self.steps, there, there_total, other.steps)
        return longest_cut(cell, np.maximum(self.took - usual, 0), np.maximum(too_much, 0))


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
    _align(before, after)
    listed = least * max(side.replays.step_ns for side in (before, after))
    parts, rest, hidden = list[Part](), 0.0, list[Part]()
    in_new, in_base = Longer(after, before, 1), Longer(before, after, -1)
    for longer in (in_new, in_base) if change_ns > 0 else (in_base, in_new):
        longer_parts, rest_ns = longer.put_back()
        for part in longer_parts:
            if abs(part.moved_ns) >= listed:
                parts.append(part)
            elif abs(part.alone_ns) >= listed:
                hidden.append(part)
            else:
                rest += part.moved_ns
        rest += rest_ns
    return Moved(tuple(parts), rest, tuple(hidden), change_ns, in_base)


def _align(*sides: _Side) -> None:
    """A rank that communicates more often on one side has one stretch."""
    last = np.zeros((2, len(sides[0].replays.graph.ranks)), dtype=np.int64)
    for side, of_side in zip(sides, last, strict=True):
        pieces = side.replays.pieces
        np.maximum.at(of_side, pieces.rank[side.used], pieces.stretch[side.used])
    number, spots = dict[object, int](), list[list[Ints]]()
    for side in sides:
        pieces = side.replays.pieces
        side.stretch[: len(side.used)] *= (last[0] == last[1])[pieces.rank[side.used]]
        keys = side.keys(number)
        spots.append([*keys, count_before([side.step, *keys], side.launched)])
    rows = [np.concatenate(pair) for pair in zip(*spots, strict=True)]
    (_, spot), (_, cell) = number_rows(rows), number_rows(rows[:3])
    first = len(sides[0].took)
    for side, its in zip(sides, (slice(first), slice(first, None)), strict=True):
        side.spot, side.cell = spot[its], cell[its]


class Longer:
    """What takes longer on one side than on the other, and what each part of it adds."""

    def __init__(self, here: _Side, there: _Side, sign: Literal[1, -1]) -> None:
        self.here, self.there, self.sign = here, there, sign
        self.replays = here.replays
        self.cut = here.longer_than(there)
        self.total_ns = self.saved_ns(self.cut)
        """What all of it adds to a step."""
        self.least = QUIET * self.replays.step_ns
        self._known: dict[tuple[_Work, ...], float] = {}

    def saved_ns(self, cut: Ints) -> float:
        """With each entry shorter by so much."""
        recorded, pieces = Targets.unchanged(self.replays.pieces), len(self.here.used)
        took, transfer = recorded.took.copy(), recorded.transfer.copy()
        took[self.here.used] -= cut[:pieces]
        transfer[self.here.matches] -= cut[pieces:]
        return self.replays.saved_ns(replace(recorded, took=took, transfer=transfer))

    def _of(self, kind: PartClass, subjects: tuple[int, ...]) -> Mask:
        chosen: Mask = (self.here.kind == _KINDS[kind]) & np.isin(self.here.subject, subjects)
        return chosen

    def adds_ns(self, *chosen: _Work) -> float:
        """What these parts add, with everything else as it was there."""
        if chosen not in self._known:
            cut = self.cut.copy()
            for part in chosen:
                cut[self._of(*part)] = 0
            self._known[chosen] = self.total_ns - self.saved_ns(cut)
        return self._known[chosen]

    def _subjects(self, kind: PartClass) -> int:
        """How many there are."""
        of_transfers = self.here.kind == _KINDS["transfer"]
        return len(unique_values(self.here.subject[of_transfers == (kind == "transfer")]))

    def _split(self, kind: PartClass) -> list[tuple[int, ...]]:
        """Its subjects: the few without which at least half of it is gone, as long as there are such; and the others
        together."""
        mine = self.here.kind == _KINDS[kind]
        by_subject = np.bincount(self.here.subject[mine], weights=self.cut[mine], minlength=1)
        if by_subject.sum() < self.least * self.here.steps:
            return []
        order = tuple(np.argsort(-by_subject, kind="stable")[: int((by_subject > 0).sum())].tolist())
        parts = list[tuple[int, ...]]()
        while len(order) > 1 and (left_ns := self.adds_ns((kind, order))) >= self.least:

            def is_half(count: int) -> bool:
                return self.adds_ns((kind, order[count:])) <= left_ns / 2  # noqa: B023

            few = min(max(self._subjects(kind) // 2, 1), len(order) - 1)
            if not is_half(few):
                break
            count = 1 + bisect_left(range(1, few), True, key=is_half)
            parts.append(order[:count])
            order = order[count:]
        return [*parts, order]

    def put_back(self) -> tuple[list[Part], float]:
        """The parts, each put back in addition to those before it; and what all that is too small to be one adds."""
        left = [(kind, subjects) for kind in _KINDS for subjects in self._split(kind)]
        left = [part for part in left if self.adds_ns(part) >= self.least]
        back, parts, so_far = list[_Work](), list[Part](), 0.0
        while left:
            best = max(left, key=lambda part: self.adds_ns(*back, part))
            left.remove(best)
            back.append(best)
            parts.append(self._part(*best, self.adds_ns(*back) - so_far, self.adds_ns(best)))
            so_far = self.adds_ns(*back)
        return parts, self.sign * (self.total_ns - so_far)

    def _part(self, kind: PartClass, subjects: tuple[int, ...], adds_ns: float, alone_ns: float) -> Part:
        graph = self.replays.graph
        cut = np.where(self._of(kind, subjects), self.cut, 0)
        name = most = where = ""
        ranks, some = tuple[int, ...](), len(subjects)
        if kind == "transfer":
            groups, count = self.replays.run.collectives.groups, self._subjects(kind)
            if some < count:
                where = (
                    f" of {groups[subjects[0]].name if some == 1 else f'{some} of {count} process groups'}"
                )
        else:
            count = len(graph.ranks)
            if some * 2 <= count:
                ranks = tuple(sorted(graph.ranks[subject] for subject in subjects))
            if count > 1:
                many = "all ranks" if some == count else f"{some} of {count} ranks"
                where = f" on {rank_words(ranks) if ranks else many}"
            name, most = self._most(kind, cut)
        by_step = np.bincount(self.here.step, weights=cut)
        at = int(by_step.argmax())
        is_in_one = self.here.steps > 2 and by_step[at] >= (1 - _TELLING) * by_step.sum()
        steps = (graph.steps[at],) if is_in_one else ()
        return Part(kind, ranks, where, self.sign * adds_ns, self.sign * alone_ns, name, most, steps)

    def _most(self, kind: PartClass, cut: Ints) -> tuple[str, str]:
        """The name of the pieces with most to cut; and where it is, and whether only this side has it, in words."""
        if kind == "dataloader":
            return "", ""
        pieces, graph, only_here = self.replays.pieces, self.replays.graph, False
        if kind == "host":
            of_pieces = np.zeros_like(pieces.took)
            of_pieces[self.here.used] = cut[: len(self.here.used)]
            work = Counter[tuple[str, str]]()
            for each in host_work(self.replays, of_pieces):
                work[("in ", each.around) if each.around else ("outside of ops, before ", each.before)] += (
                    each.ns
                )
            (place, name), spent = work.most_common(1)[0]
        else:
            named = np.flatnonzero((self.here.name != NONE) & (cut > 0))
            by_name = np.bincount(self.here.name[named], weights=cut[named], minlength=1)
            code = int(by_name.argmax())
            place, name, spent = "in ", graph.names[code], by_name[code]
            mine = unique_values(self.here.subject[named[self.here.name[named] == code]])
            other = self.there.replays
            theirs = other.graph.names.index(name) if name in other.graph.names else None
            only_here = not (np.isin(other.pieces.rank, mine) & (other.pieces.name == theirs)).any()
        if spent < _TELLING * cut.sum():
            return "", ""
        name = shorten_name(name, _NAME_CELLS)
        also = f", which is {'new' if self.sign > 0 else 'gone'}" if only_here else ""
        return name, f", most {place}{name}{also}"


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
    return rounded(between)
