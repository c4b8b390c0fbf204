"""Why a subject costs what it does: which class of its work, which names, and how these differ from their peers."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Literal, NamedTuple

import numpy as np

from rankscope.analysis.core.host_labels import covering_names
from rankscope.analysis.core.intervals import Ints
from rankscope.analysis.core.rollups import part_of
from rankscope.analysis.faults.axes import Axis
from rankscope.analysis.faults.beside import beside_peers
from rankscope.analysis.graph.events import NONE, PATH_CLASSES, Mask
from rankscope.records import dataclass
from rankscope.store.arrays import quantile, unique_values

CauseClass = Literal["compute", "copy", "host", "dataloader", "transfer"]
How = Literal["extra", "slower", "longer", "pause", "transfer"]
_CLASSES: tuple[CauseClass, ...] = ("compute", "copy", "host", "dataloader")
_BEFORE = "no op, before "
_MOST_PIECES = 200
"""Those with most to cut are looked at."""
_EXPLAINED = 0.8
"""Of all that is too much: as many names as have this much of it."""
_SAME_FACTOR = 0.05
"""The device is slower where its pieces differ by one factor up to this, in most of their time."""


_COPIES = frozenset({"aten::copy_", "aten::_to_copy", "aten::to", "aten::pin_memory", "aten::_pin_memory"})


@dataclass(frozen=True)
class Cause:
    """Of one subject."""

    kind: CauseClass
    how: How
    names: tuple[str, ...] = ()
    """Of kernels, copies and ops, the largest part first."""
    explained_ns: float = 0.0
    """What these cost once all else is mended."""
    factor: float | None = None
    """Where all are slower: how many times as long they take."""

    @property
    def is_core(self) -> bool:
        """All that the host does takes longer."""
        return self.kind == "host" and self.how == "slower"


def cause_of(axis: Axis, subject: int) -> Cause:
    if axis.name == "link":
        return Cause("transfer", "transfer", explained_ns=axis.margin_ns(subject))
    pieces, targets = axis.targets.pieces, axis.targets
    mine = axis.pieces_of(subject)
    changed = mine & (targets.then != pieces.took)
    cut = np.abs(pieces.took - targets.then)
    of_class = {name: changed & (pieces.kind == PATH_CLASSES.index(name)) for name in _CLASSES}
    costs: dict[CauseClass, float] = {}
    for name in sorted(_CLASSES, key=lambda each: -int(cut[of_class[each]].sum())):
        # It costs at most what is cut from it.
        if cut[of_class[name]].sum() > max(costs.values(), default=0.0) * axis.replays.steps:
            costs[name] = axis.without(of_class[name])
    if not costs:
        return Cause("host", "pause", explained_ns=axis.margin_ns(subject))  # it began late
    kind = max(costs, key=lambda name: costs[name])
    if kind == "host" and of_class[does := _what_the_host_does(axis, mine)].any():
        kind = does
    chosen = mine & (pieces.kind == PATH_CLASSES.index(kind))
    edit = np.where(chosen, pieces.took - targets.then, 0)
    names, number = np.unique(pieces.name[chosen], return_inverse=True)
    sizes = np.bincount(number.reshape(-1), weights=np.maximum(edit[chosen], 0))
    shown = _largest(sizes)
    if told := _by_name(axis, subject, kind, edit):
        return replace(told, explained_ns=costs[kind] if kind in costs else axis.without(chosen))
    explained = axis.without(chosen & np.isin(pieces.name, names[shown]))
    how, factor = _how(axis, kind, chosen, edit)
    texts = [pieces.graph.names[code] for code in names[shown].tolist() if code != NONE]
    if kind == "host" and how == "longer":
        work = Counter[str]()
        for each in host_work(axis, edit):
            work[each.around or f"{_BEFORE}{each.before}"] += each.ns
        idle = sum(ns for text, ns in work.items() if text.startswith(_BEFORE))
        how = "pause" if idle > work.total() / 2 else how
        texts = [[*work][at] for at in _largest(np.array([*work.values()]))]
    return Cause(kind, how, tuple(texts), explained, factor)


def _largest(sizes: Ints) -> list[int]:
    """As few as have most of it, the largest first."""
    order = np.argsort(-sizes, kind="stable")
    reached = np.cumsum(sizes[order])
    most: list[int] = order[: int(np.searchsorted(reached, _EXPLAINED * reached[-1])) + 1].tolist()
    return most


def _by_name(axis: Axis, subject: int, kind: CauseClass, edit: Ints) -> Cause | None:
    """Where pieces do not tell: most of what is too much is in those without a name, or on the host of a rank without a
    GPU, whose pieces reach from collective to collective."""
    pieces = axis.targets.pieces
    on_host = axis.name == "rank" and kind == "host" and bool(axis.replays.graph.is_alone[subject])
    unnamed = kind == "compute" and edit[pieces.name == NONE].sum() > edit.sum() / 2
    beside = beside_peers(axis, subject, on_host) if on_host or unnamed else None
    if beside is None:
        return None
    if beside.excess.sum() <= edit.sum() / 2:
        before = pieces.graph.names[pieces.name[edit.argmax()]]
        return Cause(kind, "pause", (f"{_BEFORE}{before}",)) if on_host else None
    names = tuple(beside.names[at] for at in _largest(beside.excess))
    if beside.of_more.sum() > beside.excess.sum() / 2:
        copied = beside.excess[np.isin(beside.names, [*_COPIES])].sum()
        on_cpu: CauseClass = "copy" if copied > beside.excess.sum() / 2 else "compute"
        return Cause(on_cpu if on_host else kind, "extra", names)
    there = np.minimum(beside.took, beside.usual) > 0
    factor = _one_factor(beside.took[there], beside.usual[there])
    if factor and not (on_host and there.sum() == 1):
        return Cause(kind, "slower", names, factor=factor)
    if on_host and axis.is_diffuse(subject):
        return Cause(kind, "slower", names, factor=float(beside.took.sum() / max(beside.usual.sum(), 1)))
    return Cause(kind, "longer", names)


def _one_factor(took: Ints, usual: Ints) -> float | None:
    """How many times as long most of the time takes; None where it differs, or is no longer."""
    factor = float(took.sum() / max(usual.sum(), 1))
    alike = np.abs(took / usual / factor - 1) <= _SAME_FACTOR
    is_one = factor > 1 + _SAME_FACTOR and usual[alike].sum() > usual.sum() / 2
    return factor if is_one else None


def _how(axis: Axis, kind: str, chosen: Mask, edit: Ints) -> tuple[How, float | None]:
    if axis.name == "stage":
        factor = _slower_than_others(axis, chosen)
        return ("slower", factor) if factor else ("extra", None)
    pieces, usual = axis.targets.pieces, axis.targets.usual
    edited = chosen & (edit > 0)
    if edit[edited & (usual == 0)].sum() > edit[edited].sum() / 2:
        return "extra", None
    if kind == "host" and axis.is_diffuse_in(chosen):
        return "slower", None
    if kind != "compute":
        return "longer", None
    compared = chosen & (usual > 0)
    factor = _one_factor(pieces.took[compared], usual[compared])
    return ("slower", factor) if factor else ("longer", None)


def _slower_than_others(axis: Axis, chosen: Mask) -> float | None:
    """By how much the kernels of a stage are longer than those of the same names on others, where most of their time is
    longer by one factor: its devices are slow, and it has no more work."""
    pieces = axis.targets.pieces
    alike = np.flatnonzero(pieces.is_own & (pieces.kind == PATH_CLASSES.index("compute")))
    name, mine, took = pieces.name[alike], chosen[alike], pieces.took[alike]
    common = unique_values(name[mine & np.isin(name, name[~mine])])
    if not len(common):
        return None
    medians = [
        np.array([quantile(took[(name == each) & whose], 0.5) for each in common.tolist()])
        for whose in (mine, ~mine)
    ]
    weight = np.array([took[(name == each) & mine].sum() for each in common.tolist()])
    factors = medians[0] / np.maximum(medians[1], 1)
    factor = float(np.average(factors, weights=weight))
    is_same = np.abs(factors / factor - 1) <= _SAME_FACTOR
    return factor if factor > 1 + _SAME_FACTOR and weight[is_same].sum() > took[mine].sum() / 2 else None


def _what_the_host_does(axis: Axis, mine: Mask) -> CauseClass:
    """Host time that is spent on work for the device: launching what its peers do not have, or copying."""
    pieces, targets = axis.targets.pieces, axis.targets
    cut = np.where(mine, pieces.took - targets.then, 0)
    on_host = (pieces.kind == PATH_CLASSES.index("host")) & (cut > 0)
    extra = on_host & (targets.usual == 0)
    computes = mine & pieces.is_own & (pieces.kind == PATH_CLASSES.index("compute"))
    if (
        cut[extra].sum() > cut[on_host].sum() / 2
        and cut[computes & (targets.usual == 0)].sum() > cut[computes].sum() / 2
    ):
        return "compute"
    copying = sum(each.ns for each in host_work(axis, np.where(on_host, cut, 0)) if each.around in _COPIES)
    if copying > cut[on_host].sum() / 2:
        return "copy"
    return "host"


class HostWork(NamedTuple):
    """What the host did for too long."""

    around: str
    """The op, else the annotation; '' where it was in none."""
    before: str
    """What it did next."""
    ns: int


def host_work(axis: Axis, cut: Ints) -> list[HostWork]:
    """Of the host pieces with most to cut."""
    pieces, graph = axis.targets.pieces, axis.replays.graph
    used = np.argsort(-cut, kind="stable")[:_MOST_PIECES]
    used = used[cut[used] > 0]
    middle = graph.start[pieces.point[used]] - pieces.took[used] // 2
    work = list[HostWork]()
    for number in unique_values(pieces.rank[used]).tolist():
        mine = used[pieces.rank[used] == number]
        run = part_of(axis.replays.run, frozenset({graph.ranks[number]}))
        texts = covering_names(run, graph.ranks[number], middle[pieces.rank[used] == number])
        names = [graph.names[code] for code in pieces.name[mine].tolist()]
        work += [HostWork(*each) for each in zip(texts, names, cut[mine].tolist(), strict=True)]
    return work
