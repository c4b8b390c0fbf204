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
from rankscope.analysis.graph.events import NONE, PATH_CLASSES
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
    edit = pieces.took[mine] - targets.then[mine]
    of_class = {name: (edit != 0) & (pieces.kind[mine] == PATH_CLASSES.index(name)) for name in _CLASSES}
    cuts = {name: int(np.abs(edit[which]).sum()) for name, which in of_class.items()}
    costs: dict[CauseClass, float] = {}
    for name in sorted(_CLASSES, key=lambda each: -cuts[each]):
        # It costs at most what is cut from it.
        if cuts[name] > max(costs.values(), default=0.0) * axis.replays.steps:
            costs[name] = axis.without(mine[of_class[name]])
    if not costs:
        return Cause("host", "pause", explained_ns=axis.margin_ns(subject))  # it began late
    kind = max(costs, key=costs.__getitem__)
    if kind == "host" and of_class[does := _what_the_host_does(axis, mine)].any():
        kind = does
    of_kind = pieces.kind[mine] == PATH_CLASSES.index(kind)
    chosen, edit = mine[of_kind], edit[of_kind]
    names, number = np.unique(pieces.name[chosen], return_inverse=True)
    sizes = np.bincount(number, weights=np.maximum(edit, 0))
    shown = _largest(sizes)
    if told := _by_name(axis, subject, kind, chosen, edit):
        return replace(told, explained_ns=costs[kind] if kind in costs else axis.without(chosen))
    explained = axis.without(chosen[np.isin(pieces.name[chosen], names[shown])])
    how, factor = _how(axis, kind, chosen, edit)
    texts = [pieces.graph.names[code] for code in names[shown].tolist() if code != NONE]
    if kind == "host" and how == "longer":
        work = Counter[str]()
        idle = 0
        for each in host_work(axis.replays, edit, chosen):
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


def _by_name(axis: Axis, subject: int, kind: CauseClass, chosen: Ints, edit: Ints) -> Cause | None:
    """Where pieces do not tell: most of what is too much is in those without a name, or on the host of a rank without a
    GPU, whose pieces reach from collective to collective."""
    pieces = axis.targets.pieces
    on_host = axis.name == "rank" and kind == "host" and bool(axis.replays.graph.is_alone[subject])
    unnamed = kind == "compute" and edit[pieces.name[chosen] == NONE].sum() > edit.sum() / 2
    beside = _beside_peers(axis, subject, on_host) if on_host or unnamed else None
    if beside is None:
        return None
    if beside.excess.sum() <= edit.sum() / 2:
        before = pieces.graph.names[pieces.name[chosen[edit.argmax()]]]
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


def _how(axis: Axis, kind: str, chosen: Ints, edit: Ints) -> tuple[How, float | None]:
    took, usual = axis.targets.pieces.took[chosen], axis.targets.usual[chosen]
    if axis.name == "stage" and not (usual > 0).any():
        return "extra", None
    cut = np.maximum(edit, 0)
    if cut[usual == 0].sum() > cut.sum() / 2:
        return "extra", None
    if kind == "host" and axis.is_diffuse_in(chosen):
        return "slower", None
    if kind != "compute":
        return "longer", None
    factor = one_factor(took[usual > 0], usual[usual > 0])
    return ("slower", factor) if factor else ("longer", None)


def _what_the_host_does(axis: Axis, mine: Ints) -> CauseClass:
    """Host time that is spent on work for the device: launching what its peers do not have, or copying."""
    pieces, targets = axis.targets.pieces, axis.targets
    cut, is_extra = np.maximum(pieces.took[mine] - targets.then[mine], 0), targets.usual[mine] == 0
    on_host = pieces.kind[mine] == PATH_CLASSES.index("host")
    computes = pieces.is_own[mine] & (pieces.kind[mine] == PATH_CLASSES.index("compute"))
    if all(cut[which & is_extra].sum() > cut[which].sum() / 2 for which in (on_host, computes)):
        return "compute"
    copying = sum(
        each.ns for each in host_work(axis.replays, cut[on_host], mine[on_host]) if each.around in _COPIES
    )
    return "copy" if copying > cut[on_host].sum() / 2 else "host"


class HostWork(NamedTuple):
    """What the host did for too long."""

    around: str
    """The op, else the annotation; '' where it was in none."""
    before: str
    """What it did next."""
    ns: int


def host_work(replays: Replays, cut: Ints, of: Ints | None = None) -> list[HostWork]:
    """Of the host pieces with most to cut; `cut` is that of all pieces, or of these."""
    pieces, graph = replays.pieces, replays.graph
    most = np.flatnonzero(cut > 0)
    most = most[np.argsort(-cut[most], kind="stable")[:_MOST_PIECES]]
    used, cut = most if of is None else of[most], cut[most]
    middle = graph.start[pieces.point[used]] - pieces.took[used] // 2
    work = list[HostWork]()
    for number in unique_values(pieces.rank[used]).tolist():
        mine = pieces.rank[used] == number
        run = part_of(replays.run, frozenset({graph.ranks[number]}))
        texts = covering_names(run, graph.ranks[number], middle[mine])
        names = [graph.names[code] for code in pieces.name[used[mine]].tolist()]
        work += [HostWork(*each) for each in zip(texts, names, cut[mine].tolist(), strict=True)]
    return work
