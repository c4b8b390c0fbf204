"""Why a subject costs what it does: which class of its work, which names, and how these differ from their peers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from dataclasses import replace
from typing import Literal, NamedTuple

import numpy as np

from rankscope.analysis.core.host_spans import covering_names
from rankscope.analysis.core.intervals import Ints
from rankscope.analysis.core.rollups import part_of
from rankscope.analysis.core.scope import Scope
from rankscope.analysis.faults.axes import Axis, Replays
from rankscope.analysis.faults.targets import one_factor, peer_groups
from rankscope.analysis.graph.events import NONE, PATH_CLASSES, Mask
from rankscope.analysis.within_rank.event_tables import kernel_sums
from rankscope.records import dataclass
from rankscope.store.arrays import unique_values
from rankscope.timeline.run import Run

CauseClass = Literal["compute", "copy", "host", "dataloader", "transfer"]
How = Literal["extra", "slower", "longer", "pause", "transfer"]
_CLASSES: tuple[CauseClass, ...] = ("compute", "copy", "host", "dataloader")
_BEFORE = "no op, before "
_MOST_PIECES = 200
"""Those with most to cut are looked at."""
_EXPLAINED = 0.8
"""Of all that is too much: as many names as have this much of it."""


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
    def how_much(self) -> str:
        """'slower x1.50'."""
        return f"{self.how} x{self.factor:.2f}" if self.factor else self.how

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
        idle = 0
        for each in host_work(axis.replays, edit):
            work[each.around or f"{_BEFORE}{each.before}"] += each.ns
            idle += 0 if each.around else each.ns
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
    beside = _beside_peers(axis, subject, on_host) if on_host or unnamed else None
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
    factor = one_factor(beside.took[there], beside.usual[there])
    if factor and not (on_host and there.sum() == 1):
        return Cause(kind, "slower", names, factor=factor)
    if on_host and axis.is_diffuse(subject):
        return Cause(kind, "slower", names, factor=float(beside.took.sum() / max(beside.usual.sum(), 1)))
    return Cause(kind, "longer", names)


_MOST_PEERS = 8
"""Their median is as good as that of all: the ranks of one node are apart from each other by less than others."""

_Sums = dict[str, tuple[int, int]]
"""By name: how many there are, and their time."""


@dataclass(frozen=True)
class _Beside:
    """What one rank runs, name by name, and the lower median of its peers; one entry a name."""

    names: tuple[str, ...]
    count: Ints
    usual_count: Ints
    took: Ints
    usual: Ints

    @property
    def excess(self) -> Ints:
        excess: Ints = np.maximum(self.took - self.usual, 0)
        return excess

    @property
    def of_more(self) -> Ints:
        """The part of the excess that more calls take."""
        more = np.maximum(self.count - self.usual_count, 0) * self.took // np.maximum(self.count, 1)
        part: Ints = np.minimum(more, self.excess)
        return part


def _beside_peers(axis: Axis, subject: int, on_host: bool) -> _Beside | None:
    """Kernels, or the ops of a rank without a GPU, beside those of its peers: how the work differs where pieces do not
    tell; in large runs most kernels are in pieces of many. None where it has no peers."""
    run, scope, ranks = axis.replays.run, axis.replays.scope, axis.replays.graph.ranks
    group = peer_groups(run, ranks)
    peers = np.flatnonzero((group == group[subject]) & (np.arange(len(group)) != subject))
    if axis.name != "rank" or not len(peers):
        return None
    chosen = [ranks[peer] for peer in peers[:: -(-len(peers) // _MOST_PEERS)].tolist()]
    sums = (_op_sums if on_host else _kernel_sums)(run, scope, [ranks[subject], *chosen])
    names = tuple(sorted({name for each in sums.values() for name in each}))
    table = np.array(
        [[sums.get(rank, {}).get(name, (0, 0)) for name in names] for rank in (ranks[subject], *chosen)],
        dtype=np.int64,
    ).reshape(-1, len(names), 2)
    usual = np.sort(table[1:], axis=0)[(len(chosen) - 1) // 2]
    return _Beside(names, table[0, :, 0], usual[:, 0], table[0, :, 1], usual[:, 1])


def _kernel_sums(run: Run, scope: Scope, ranks: Collection[int]) -> dict[int, _Sums]:
    """Of those that compute."""
    kept = kernel_sums(run, replace(scope, ranks=frozenset(ranks))) or {}
    return {
        rank: {each.name: (each.kernels, each.total_ns) for each in sums if each.kind == "COMPUTE"}
        for rank, sums in kept.items()
    }


def _op_sums(run: Run, scope: Scope, ranks: Collection[int]) -> dict[int, _Sums]:
    """Of outermost ops."""
    those = replace(scope, ranks=frozenset(ranks))
    sums: dict[int, _Sums] = {}
    for rank, name, count, time in part_of(run, those.ranks).rows(
        "SELECT rank, name, count(*), sum(greatest(dur_ns, 0))::BIGINT FROM slices WHERE category = 'cpu_op' "
        f"AND op IS NULL AND NOT regexp_matches(name, '^(c10d|gloo|nccl|record_param_comms)') AND {those.where()} "
        "GROUP BY ALL"
    ):
        sums.setdefault(rank, {})[name] = (count, time)
    return sums


def _how(axis: Axis, kind: str, chosen: Mask, edit: Ints) -> tuple[How, float | None]:
    pieces, usual = axis.targets.pieces, axis.targets.usual
    if axis.name == "stage" and not (usual[chosen] > 0).any():
        return "extra", None
    edited = chosen & (edit > 0)
    if edit[edited & (usual == 0)].sum() > edit[edited].sum() / 2:
        return "extra", None
    if kind == "host" and axis.is_diffuse_in(chosen):
        return "slower", None
    if kind != "compute":
        return "longer", None
    compared = chosen & (usual > 0)
    factor = one_factor(pieces.took[compared], usual[compared])
    return ("slower", factor) if factor else ("longer", None)


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
    copying = sum(
        each.ns for each in host_work(axis.replays, np.where(on_host, cut, 0)) if each.around in _COPIES
    )
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


def host_work(replays: Replays, cut: Ints) -> list[HostWork]:
    """Of the host pieces with most to cut."""
    pieces, graph = replays.pieces, replays.graph
    used = np.argsort(-cut, kind="stable")[:_MOST_PIECES]
    used = used[cut[used] > 0]
    middle = graph.start[pieces.point[used]] - pieces.took[used] // 2
    work = list[HostWork]()
    for number in unique_values(pieces.rank[used]).tolist():
        mine = used[pieces.rank[used] == number]
        run = part_of(replays.run, frozenset({graph.ranks[number]}))
        texts = covering_names(run, graph.ranks[number], middle[pieces.rank[used] == number])
        names = [graph.names[code] for code in pieces.name[mine].tolist()]
        work += [HostWork(*each) for each in zip(texts, names, cut[mine].tolist(), strict=True)]
    return work
