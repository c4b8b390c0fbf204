"""What the pieces of work would take if they were as their peers are, by axis (docs/definitions.md, "Faults").

A stretch, the work of one class between two communications, takes at most the median of its peers. What is too much is
taken from the pieces that are longest beyond their counterparts: a pause goes whole, and the noise of many small pieces
cancels out.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import pairwise

import numpy as np

from rankscope.analysis.across_ranks.layout import layout_of
from rankscope.analysis.across_ranks.segments import segments, tells_phases
from rankscope.analysis.core.cache import once_per_run
from rankscope.analysis.core.collective_waits import waits
from rankscope.analysis.core.device_events import gpu_ranks
from rankscope.analysis.core.grouping import group_medians, sums_by
from rankscope.analysis.core.intervals import Ints, rounded
from rankscope.analysis.core.scope import Scope, in_order_of_start, steps_in_scope
from rankscope.analysis.core.step_times import mean_step_ns
from rankscope.analysis.graph.events import NONE, PATH_CLASSES, Mask
from rankscope.analysis.graph.graph import WORK_CLASSES, Graph, Work, graph_of
from rankscope.analysis.graph.pieces import KINDS, Pieces
from rankscope.records import dataclass
from rankscope.store.arrays import (
    Floats,
    count_before,
    number_rows,
    packed,
    quantile,
    starts_group,
    unique_values,
)
from rankscope.timeline.run import Run

_COMPUTE, _HOST = map(PATH_CLASSES.index, ("compute", "host"))
LEAST_STEPS = 3
"""Steps that are compared with each other; micro-batches."""
LONG, _LEAST_LONG = 5, 0.01
"""Times as long as its counterparts, a piece stands out by itself; of a rank that has no peers, also from this part of
a step."""
_SAME_FACTOR = 0.05
"""What is slower takes longer by one factor up to this, in most of its time."""
_LINK_TOLERANCE = 1.02
"""A transfer takes at most so many times the lower median of the groups that do the same."""


@dataclass(frozen=True)
class Targets:
    """What is compared along an axis, and what each of it takes at most."""

    pieces: Pieces
    took: Ints
    """By piece."""
    transfer: Ints
    """By match."""
    begins_ns: Ints
    """By point that stays where it is: how much later it is than recorded."""
    scale: Floats
    """By piece: how many times as long it is where work is moved."""
    usual: Ints
    """By piece: what its counterparts take; NONE where it was not compared."""
    below: Floats
    """[class of WORK_CLASSES, member]: by how much its work in a step is less than the median, where it is."""
    shorter: Floats
    """The same of its stretches."""

    @classmethod
    def unchanged(cls, pieces: Pieces) -> Targets:
        work, count = pieces.graph.work, len(pieces.took)
        nothing = np.zeros((len(WORK_CLASSES), 1))
        return cls(
            pieces,
            pieces.took,
            work.transfer,
            work.begins_ns,
            np.ones(count),
            np.full(count, NONE),
            nothing,
            nothing,
        )

    def on(self, work: Work) -> Work:
        """The work with what is compared at its targets."""
        return self.pieces.changed(self.met_on(work), self.then)

    def met_on(self, work: Work) -> Work:
        """The work with transfers and begins at their targets, and pieces as recorded."""
        return replace(
            work,
            transfer=np.minimum(work.transfer, self.transfer),
            begins_ns=np.minimum(work.begins_ns, self.begins_ns),
        )

    @cached_property
    def then(self) -> Ints:
        """By piece, how long it takes."""
        return rounded(self.took * self.scale)

    def except_for(self, chosen: Mask) -> Targets:
        """With these pieces as recorded."""
        return replace(
            self, took=np.where(chosen, self.pieces.took, self.took), scale=np.where(chosen, 1.0, self.scale)
        )

    def only(self, points: Mask, matches: Mask) -> Targets:
        """With pieces at these points, and these transfers, at their targets; the others as recorded."""
        recorded = self.pieces.graph.work
        return replace(
            self.except_for(~points[self.pieces.point]),
            transfer=np.where(matches, self.transfer, recorded.transfer),
            begins_ns=np.where(points, self.begins_ns, recorded.begins_ns),
        )

    def with_also(self, other: Targets) -> Targets:
        """Both."""
        return replace(
            self,
            took=np.minimum(self.took, other.took),
            transfer=np.minimum(self.transfer, other.transfer),
            begins_ns=np.minimum(self.begins_ns, other.begins_ns),
            scale=self.scale * other.scale,
        )

    def at_median(
        self,
        used: Ints,
        alike: Sequence[Ints],
        member: Ints,
        stretch: Ints,
        chosen: Ints,
        *,
        with_itself: bool = False,
        usual: Ints | None = None,
    ) -> Targets:
        """Of the pieces `used`, those that are `chosen` with each stretch at the median of the other members of its
        group: in a group, `alike` has the same values. `usual`: what the counterparts of each piece take, where that is
        not the median of its place; those that are chosen are then cut to one level."""
        pieces = self.pieces
        took, who = pieces.took[used], member[used]
        _, group = number_rows([column[used] for column in alike])
        there, _ = number_rows([group, who])
        members = np.bincount(there[:, 0])
        is_level = usual is not None
        mine = np.zeros(len(pieces.took), dtype=bool)
        mine[chosen] = True
        if usual is None:
            _, spot = number_rows([group, pieces.places(used, member, stretch)])
            usual = _median_of_others(spot, took, members[group], with_itself=with_itself)
        stretches, of_stretch = number_rows([group, stretch[used], pieces.kind[used], who])
        total = sums_by(of_stretch, took)
        _, same = number_rows([*stretches[:, :3].T])
        too_much = total - _median_of_others(same, total, members[stretches[:, 0]], with_itself=with_itself)
        left, every = self.took.copy(), self.usual.copy()
        excess, too_long = np.maximum(took - usual, 0), np.maximum(too_much, 0)
        if is_level:
            left[used] = took - level_cut(of_stretch, np.where(mine[used], excess, 0), too_long)
        else:
            left[used] = took - longest_cut(of_stretch, excess, too_long)
        every[used] = usual
        # Work that is later by one stretch is not less work.
        whole, of_whole = number_rows([stretches[:, 0], stretches[:, 2], stretches[:, 3]])
        net = np.bincount(of_whole, weights=too_much)
        below, shorter = np.zeros((2, len(WORK_CLASSES), int(member.max(initial=0)) + 1))
        np.add.at(below, (np.searchsorted(KINDS, whole[:, 1]), whole[:, 2]), np.maximum(-net, 0))
        np.add.at(
            shorter, (np.searchsorted(KINDS, stretches[:, 2]), stretches[:, 3]), np.maximum(-too_much, 0)
        )
        return replace(
            self,
            took=np.where(mine, left, self.took),
            usual=np.where(mine, every, self.usual),
            below=below,
            shorter=shorter,
        )

    def of_ranks(self, ranks: Sequence[int]) -> Targets:
        graph = self.pieces.graph
        chosen = np.isin(np.array(graph.ranks)[graph.rank], ranks)
        return self.only(chosen, np.zeros(len(self.transfer), dtype=bool))


@once_per_run
def pieces_of(run: Run, scope: Scope) -> Pieces:
    return Pieces.of(graph_of(run, scope))


def peer_groups(run: Run, ranks: Sequence[int]) -> Ints:
    """By rank: a number, the same for ranks that do the same work: on the same kind of device, in the same role and
    stage."""
    layout, on_gpu = layout_of(run, Scope()), gpu_ranks(run)
    work = [(layout.work(rank), rank in on_gpu) for rank in ranks]
    numbers = {what: number for number, what in enumerate(dict.fromkeys(work))}
    return np.array([numbers[what] for what in work], dtype=np.int64)


@once_per_run
def rank_targets(run: Run, scope: Scope) -> Targets:
    """Of every rank, by those that do the same."""
    pieces = pieces_of(run, scope)
    graph = pieces.graph
    group = peer_groups(run, graph.ranks)
    is_lone = np.bincount(group)[group] == 1
    targets = Targets.unchanged(pieces)
    compared = (pieces.step != NONE) | (not graph.steps)
    together = np.flatnonzero(compared & ~is_lone[pieces.rank])
    alike = [group[pieces.rank], pieces.step]
    targets = targets.at_median(together, alike, pieces.rank, pieces.stretch, together)
    if is_lone.any() and len(graph.ranks) > 1:
        targets = _lone_targets(run, scope, targets, is_lone[pieces.rank] & compared)
    begins = graph.work.begins_ns.copy()
    fixed = np.flatnonzero(graph.fixed & graph.inside)
    for number, begin, late in _late_starts(run, graph, group) if graph.is_alone.any() else ():
        mine = fixed[(graph.rank[fixed] == number) & (graph.start[fixed] >= begin)]
        if len(mine):
            begins[mine[graph.start[mine].argmin()]] = -late
    return replace(targets, begins_ns=begins)


def _lone_targets(run: Run, scope: Scope, targets: Targets, is_lone: Mask) -> Targets:
    """Of ranks that do what no other does: their compute by their other micro-batches; the rest step by step, and there
    only single long pieces."""
    pieces = targets.pieces
    used, of_pass, position = in_passes(run, scope, pieces, is_lone & (pieces.kind == _COMPUTE))
    if len(used):
        _, batch, phase, _ = of_pass
        member, at = np.full((2, len(pieces.took)), NONE)
        member[used], at[used] = batch, position
        whole = np.zeros_like(at)
        whole[used] = phase
        targets = targets.at_median(used, [pieces.rank, pieces.step, whole], member, at, used)
    others = np.flatnonzero((pieces.step != NONE) & (pieces.kind != _COMPUTE))
    whole = np.zeros_like(pieces.stretch)
    usual = _usual_of_name(pieces, others)
    least = np.maximum(LONG * usual, _LEAST_LONG * mean_step_ns(run, scope))
    long = is_lone[others] & (pieces.took[others] >= least)
    return targets.at_median(others, [whole, pieces.step], pieces.rank, whole, others[long], usual=usual)


def whole_ranks(run: Run, scope: Scope, ranks: Sequence[int]) -> Targets:
    """Of these ranks: those that have no peers and no GPU as long on the host, step by step, as the median of all
    others; the rest as `rank_targets`. So a user may ask for it; it names nobody."""
    pieces, targets = pieces_of(run, scope), rank_targets(run, scope).of_ranks(ranks)
    graph, group = pieces.graph, peer_groups(run, pieces.graph.ranks)
    scale = np.ones(len(pieces.took))
    used = np.flatnonzero((pieces.kind == _HOST) & (pieces.step != NONE))
    cells, cell = number_rows([pieces.step[used], pieces.rank[used]])
    total = sums_by(cell, pieces.took[used])
    usual = _median_of_others(cells[:, 0], total)
    factor = np.minimum(usual / np.maximum(total, 1), 1.0)
    alone = graph.is_alone & (np.bincount(group)[group] == 1) & np.isin(graph.ranks, ranks)
    chosen = alone[pieces.rank[used]]
    scale[used[chosen]] = factor[cell[chosen]]
    took = np.where(scale < 1, pieces.took, targets.took)
    return replace(targets, took=took, scale=scale)


def _usual_of_name(pieces: Pieces, used: Ints) -> Ints:
    """The median of the pieces of its name on other ranks; of a name that they do not have, nothing; on the host, the
    median of all names."""
    kind, took = pieces.kind[used], pieces.took[used]
    names, name = number_rows([kind, pieces.name[used]])
    mine, of_rank = number_rows([name, pieces.rank[used]])
    usual = group_medians(of_rank, took)  # by name and rank
    middle = _median_of_others(mine[:, 0], rounded(usual))
    alone = np.bincount(mine[:, 0])[mine[:, 0]] == 1
    on_host = names[mine[:, 0], 0] == _HOST
    typical = int(quantile(took[kind == _HOST], 0.5)) if (kind == _HOST).any() else 0
    return np.where(alone, np.where(on_host, typical, 0), middle)[of_rank]


def in_passes(run: Run, scope: Scope, pieces: Pieces, chosen: Mask) -> tuple[Ints, tuple[Ints, ...], Ints]:
    """The chosen pieces that are in a pass of a micro-batch through a stage; the step, micro-batch, phase and stage of
    each; and its position in the pass."""
    graph, parts = pieces.graph, segments(run, scope)
    used = np.flatnonzero(chosen & np.isin(np.array(graph.ranks)[pieces.rank], parts.rank))
    if not len(used):
        return used, (used, used, used, used), used
    rank = np.searchsorted(graph.ranks, parts.rank)
    launched = np.append(parts.launched, graph.launched[pieces.point[used]])
    places = packed([np.append(rank, pieces.rank[used]), launched])
    order = np.argsort(places[: len(rank)], kind="stable")
    at = np.searchsorted(places[order], places[len(rank) :], side="right") - 1
    segment = order[np.maximum(at, 0)]
    is_known = (rank[segment] == pieces.rank[used]) & (parts.micro_batch[segment] != NONE)
    used, segment = used[is_known], segment[is_known]
    stage, step, batch, phase, chunk = (
        getattr(parts, name)[segment] for name in ("stage", "step", "micro_batch", "phase", "chunk")
    )
    if len(used) and not tells_phases(stage, step, batch, phase):
        phase = np.zeros_like(phase)
    return used, (step, batch, phase, stage), number_rows([chunk, parts.position[segment]])[1]


def evened_targets(run: Run, scope: Scope, *, of_all_kinds: bool = False) -> Targets:
    """Of the compute of every rank, or of all that it does: the mean of those that do the same. It can only be
    moved."""
    pieces = pieces_of(run, scope)
    group = peer_groups(run, pieces.graph.ranks)
    compared = (pieces.step != NONE) | (not pieces.graph.steps)
    used = np.flatnonzero(compared & (of_all_kinds | (pieces.kind == _COMPUTE)))
    _, alike = number_rows([group[pieces.rank[used]], pieces.step[used]])
    members = np.bincount(number_rows([alike, pieces.rank[used]])[0][:, 0])
    stretches, number = number_rows([alike, pieces.stretch[used], pieces.kind[used], pieces.rank[used]])
    total = np.bincount(number, weights=pieces.took[used])
    _, same = number_rows([*stretches[:, :3].T])
    mean = np.bincount(same, weights=total)[same] / members[stretches[:, 0]]
    scale = np.ones(len(pieces.took))
    scale[used] = (mean / np.maximum(total, 1))[number]
    return replace(Targets.unchanged(pieces), scale=scale)


@once_per_run
def step_targets(run: Run, scope: Scope) -> Targets:
    """Of every step, by the others of the same rank with the same sequence of communications."""
    pieces = pieces_of(run, scope)
    sequence = _sequences(pieces)
    used = np.flatnonzero(pieces.step != NONE)
    alike = np.full(len(pieces.took), NONE)
    alike[used] = sequence[pieces.rank[used], pieces.step[used]]
    used = used[_of_several([pieces.rank[used], alike[used]], pieces.step[used])]
    return Targets.unchanged(pieces).at_median(
        used, [pieces.rank, alike], pieces.step, pieces.stretch, used, with_itself=True
    )


def _sequences(pieces: Pieces) -> Ints:
    """By rank and step: a number, the same where its communications are the same: their kinds and sizes, in order."""
    graph = pieces.graph
    step = pieces.steps
    met = np.flatnonzero((graph.match != NONE) & (step != NONE))
    met = met[np.lexsort((graph.launched[met], step[met], graph.rank[met]))]
    shape = len(graph.ranks), int(step.max(initial=0)) + 1
    matched = graph.collectives
    _, what = number_rows([matched.kind[graph.match[met]], matched.bytes[graph.match[met]]])
    bounds = np.searchsorted(graph.rank[met] * shape[1] + step[met], np.arange(shape[0] * shape[1] + 1))
    texts = [what[first:last].tobytes() for first, last in pairwise(bounds.tolist())]
    numbers = {text: number for number, text in enumerate(dict.fromkeys(texts))}
    return np.array([numbers[text] for text in texts], dtype=np.int64).reshape(shape)


@once_per_run
def stage_targets(run: Run, scope: Scope) -> Targets:
    """Of the work of every pass of a micro-batch through a stage, on the device and on the host: the mean over stages.
    It can only be moved; but where a stage takes longer for the same work, as long as the others take for it. What
    single ranks have too much is not counted."""
    pieces, targets = pieces_of(run, scope), rank_targets(run, scope)
    took, usual, scale = pieces.took.copy(), np.full(len(pieces.took), NONE), np.ones(len(pieces.took))
    for kind in (_COMPUTE, _HOST):
        mine = np.flatnonzero((pieces.kind == kind) & (pieces.step != NONE))
        factor = _slower_stages(run, pieces, mine, targets.took[mine])
        slow = mine[factor > 1]
        if len(slow):
            took[slow] = usual[slow] = rounded(pieces.took[slow] / factor[factor > 1])
            continue
        used, (step, batch, phase, stage), _ = in_passes(run, scope, pieces, pieces.kind == kind)
        stages = len(unique_values(stage))
        if stages < 2:
            continue
        passes, number = number_rows([step, batch, phase, stage, pieces.rank[used]])
        total = np.bincount(number, weights=targets.took[used])
        of_stages, of_pass = number_rows([*passes[:, :4].T])
        typical = group_medians(of_pass, rounded(total))
        _, alike = number_rows([*of_stages[:, :3].T])
        mean = (np.bincount(alike, weights=typical) / np.bincount(alike))[alike]
        whole = (np.bincount(alike) == stages)[alike]
        scale[used] = np.where(whole & (typical > 0), mean / np.maximum(typical, 1), 1.0)[of_pass[number]]
    return replace(Targets.unchanged(pieces), took=took, usual=usual, scale=scale)


def _slower_stages(run: Run, pieces: Pieces, used: Ints, took: Ints) -> Floats:
    """By piece: how many times as long its stage takes for it as the others for pieces of the same name; 1 where that
    differs by name, or is no longer."""
    layout = layout_of(run, Scope())
    stage = np.array([layout.stage(rank) for rank in pieces.graph.ranks], dtype=np.int64)[pieces.rank[used]]
    stages = unique_values(stage)
    factors = np.ones(int(stages.max(initial=0)) + 1)
    if len(stages) < 2:
        return factors[stage]
    cells, cell = number_rows([pieces.name[used] - NONE, stage])  # those without a name as 0
    members = np.bincount(cells[:, 0])[cells[:, 0]]
    typical = rounded(group_medians(cell, took))
    others = _median_of_others(cells[:, 0], typical)
    total = np.bincount(cell, weights=took)
    is_named = cells[:, 0] > 0
    common = is_named & (members > 1) & (others > 0)
    for number in stages.tolist():
        mine = is_named & (cells[:, 1] == number)
        there = mine & common
        usual = total[there] * others[there] / np.maximum(typical[there], 1)
        factors[number] = one_factor(total[there], usual, float(total[mine].sum())) or 1.0
    return factors[stage]


def one_factor(took: Floats | Ints, usual: Floats | Ints, of: float = 0.0) -> float | None:
    """How many times as long most of the time takes, that of these or so much; None where it differs, or is no
    longer."""
    factor = float(took.sum() / max(usual.sum(), 1))
    alike = np.abs(took - factor * usual) <= _SAME_FACTOR * factor * usual
    is_one = factor > 1 + _SAME_FACTOR and took[alike].sum() > max(took.sum(), of) / 2
    return factor if is_one else None


@once_per_run
def position_targets(run: Run, scope: Scope) -> tuple[Targets, Ints]:
    """Of the compute of every micro-batch, and on ranks without a GPU of all that their host does in it: the median of
    the others of the same rank and step that communicate as often in that pass. What a rank has too much is counted as
    far as half of those that do the same work have it, and what one micro-batch alone runs is not. And by point, its
    micro-batch."""
    pieces = pieces_of(run, scope)
    graph = pieces.graph
    targets, batches = Targets.unchanged(pieces), np.full(len(graph.rank), NONE)
    group = peer_groups(run, graph.ranks)
    used, (step, batch, phase, _), at = in_passes(run, scope, pieces, pieces.kind == _COMPUTE)
    if len(used):
        keys = [pieces.rank[used], step, phase]
        sizes = _last_of([*keys, batch], at)
        enough = _of_several([*keys, sizes], batch)
        used, batch, at = used[enough], batch[enough], at[enough]
        alike, member = np.full((2, len(pieces.took)), NONE)
        alike[used] = number_rows([*(key[enough] for key in keys), sizes[enough]])[1]
        member[used] = batch
        targets = targets.at_median(used, [alike], member, np.zeros_like(alike), used)
        cut = np.where(targets.usual == 0, 0, pieces.took - targets.took)[used]  # work of its own is no delay
        passes = [step[enough], batch, phase[enough]]
        cut = _of_most(cut, [*passes, group[pieces.rank[used]]], pieces.rank[used])
        took = targets.took.copy()
        took[used] = pieces.took[used] - cut
        targets = replace(targets, took=took)
        batches[pieces.point[used]] = batch
    return _position_on_host(run, scope, targets, group, batches), batches


def _position_on_host(run: Run, scope: Scope, targets: Targets, group: Ints, batches: Ints) -> Targets:
    """The pieces of the host reach from collective to collective: each loses what one micro-batch has too much in it,
    that which has most. `batches` gets its number."""
    pieces, graph, parts = targets.pieces, targets.pieces.graph, segments(run, scope)
    rank = np.searchsorted(graph.ranks, parts.rank)
    parts = parts.pick(graph.is_alone[rank] & (parts.micro_batch != NONE))
    if not len(parts.rank):
        return targets
    rank = np.searchsorted(graph.ranks, parts.rank)
    keys, batch = [rank, parts.step, parts.phase], parts.micro_batch
    passes, number = number_rows([*keys, _last_of([*keys, batch], parts.position), batch])
    total = sums_by(number, parts.duration_ns)
    _, alike = number_rows([*passes[:, :4].T])
    usual = _median_of_others(alike, total)
    several = np.bincount(alike)[alike] >= LEAST_STEPS
    below = targets.below
    below = np.zeros((len(below), max(below.shape[1], int(batch.max()) + 1)))
    below[:, : targets.below.shape[1]] = targets.below
    net = np.where(several, total - usual, 0)
    np.add.at(below[WORK_CLASSES.index("host")], passes[:, 4], np.maximum(-net, 0))
    excess = _of_most(np.maximum(net, 0), [*passes[:, [1, 2, 4]].T, group[passes[:, 0]]], passes[:, 0])
    lost = parts.duration_ns * (excess / np.maximum(total, 1))[number]
    ends = np.flatnonzero((pieces.kind == _HOST) & graph.is_alone[pieces.rank])
    times = np.append(graph.start[pieces.point[ends]], parts.end)
    places = packed([np.append(pieces.rank[ends], rank), times])
    order = np.argsort(places[: len(ends)], kind="stable")
    at = np.searchsorted(places[order], places[len(ends) :])
    ends = ends[order]
    known = at < len(ends)
    known[known] = pieces.rank[ends[at[known]]] == rank[known]
    cells, cell = number_rows([at[known], batch[known]])
    cut = np.bincount(cell, weights=lost[known])
    order = np.lexsort((-cut, cells[:, 0]))
    most = order[starts_group([cells[order, 0]])]
    where = ends[cells[most, 0]]
    took, typical = targets.took.copy(), targets.usual.copy()
    took[where] = np.maximum(pieces.took[where] - rounded(cut[most]), 0)
    typical[where] = took[where]
    batches[pieces.point[where]] = cells[most, 1]
    return replace(targets, took=took, usual=typical, below=below)


def _last_of(columns: Sequence[Ints], value: Ints) -> Ints:
    """By entry, the largest value of those that are alike."""
    _, alike = number_rows(columns)
    last = np.zeros(int(alike.max(initial=0)) + 1, dtype=np.int64)
    np.maximum.at(last, alike, value)
    return last[alike]


def _of_several(columns: Sequence[Ints], member: Ints) -> Mask:
    """By entry, whether those that are alike are of at least three members."""
    there, number = number_rows([number_rows(columns)[1], member])
    several: Mask = (np.bincount(there[:, 0])[there[:, 0]] >= LEAST_STEPS)[number]
    return several


def _of_most(cut: Ints, alike: Sequence[Ints], rank: Ints) -> Ints:
    """What is cut of each entry, less where half of the ranks have less to cut of those that are alike."""
    there, number = number_rows([number_rows(alike)[1], rank])
    total = sums_by(number, cut)
    usual = _medians(there[:, 0], total)[there[:, 0]]
    share = np.minimum(usual / np.maximum(total, 1), 1.0)[number]
    return rounded(cut * share)


@once_per_run
def link_targets(run: Run, scope: Scope) -> Targets:
    """Of every transfer, by those of the same kind, size and number of members in other groups of the same dimension
    that span as many nodes; a group without such peers by itself in other steps."""
    pieces = pieces_of(run, scope)
    graph = pieces.graph
    matched, transfer = graph.collectives, graph.work.transfer
    if not len(transfer):
        return Targets.unchanged(pieces)
    axis, spans, sizes = _group_kinds(run)
    keys = [matched.kind, matched.bytes, matched.members, axis[matched.group], spans[matched.group]]
    _, alike = number_rows(keys)
    of_group, number = number_rows([alike, matched.group])
    usual = _medians(number, transfer)
    most = np.full(len(transfer), np.iinfo(np.int64).max)
    # A member that was not recorded may have come late: what looks like a transfer is then waiting.
    is_whole = (sizes[matched.group] <= matched.members) | matched.is_message
    # Within a machine what the host itself sends goes over no link.
    met, by_host = np.flatnonzero(graph.match != NONE), np.zeros(len(transfer), dtype=bool)
    by_host[graph.match[met]] = graph.on_host[met]
    is_whole &= ~(by_host & (spans[matched.group] == 1))
    for same in unique_values(of_group[:, 0]).tolist():
        groups = np.flatnonzero(of_group[:, 0] == same)
        mine = np.flatnonzero(np.isin(number, groups) & is_whole)
        if len(groups) > 1:
            most[mine] = int(_LINK_TOLERANCE * np.sort(usual[groups])[(len(groups) - 1) // 2])
        elif len(mine):
            step, launched = pieces.matches
            spot = count_before([step[mine]], launched[mine])  # which one of its step it is
            enough = np.bincount(spot)[spot] >= LEAST_STEPS
            most[mine[enough]] = (_LINK_TOLERANCE * _medians(spot, transfer[mine])[spot][enough]).astype(
                np.int64
            )
    return replace(Targets.unchanged(pieces), transfer=np.minimum(transfer, most))


def _group_kinds(run: Run) -> tuple[Ints, Ints, Ints]:
    """By group: its dimension of the mesh, on how many machines its ranks are (0: unknown), and how many there are."""
    layout = layout_of(run, Scope())
    names = {group.name: group.axis for group in layout.groups}
    groups = run.collectives.groups
    axes = {axis: number for number, axis in enumerate(dict.fromkeys(names.values()))}
    axis = np.array(
        [*(axes.get(names.get(group.name, "other"), NONE) for group in groups), NONE], dtype=np.int64
    )
    spans = [len({run.hosts.get(rank, rank) for rank in group.ranks or ()}) for group in groups]
    sizes = [group.size or len(group.ranks or ()) for group in groups]
    return axis, np.array([*spans, 0], dtype=np.int64), np.array([*sizes, 0], dtype=np.int64)


def _medians(group: Ints, value: Ints) -> Ints:
    """By group, the lower median."""
    order = np.lexsort((value, group))
    sizes = np.bincount(group)
    first = np.cumsum(sizes) - sizes
    middle: Ints = value[order][first + (sizes - 1) // 2]
    return middle


def _late_starts(run: Run, graph: Graph, group: Ints) -> Iterator[tuple[int, int, int]]:
    """Of each rank without a GPU: when the first step of a recording begins, and by how much that is later than the
    median of others of its group: it was made late by what it did before, in a step that was not recorded. The start of
    the work on a GPU does not follow that of the host.

    The times from there to the end of the first collective say who began later: all ranks leave that together, so the
    clocks need not agree.
    """
    all_waits = waits(run, graph.scope)
    rows = all_waits.rows.pick(all_waits.rows.together & (all_waits.rows.match != NONE))
    steps = in_order_of_start(steps_in_scope(run, graph.scope))
    first = starts_group([steps["rank"], steps["segment"]])
    columns = (steps[name][first].tolist() for name in ("rank", "step", "start", "segment"))
    begins = {(rank, step): (start, segment) for rank, step, start, segment in zip(*columns, strict=True)}
    for (rank, step), (start, segment) in begins.items():
        number = graph.ranks.index(rank)
        alike = np.array(graph.ranks)[group == group[number]].tolist()
        peers = [other for other in alike if other != rank and (other, step) in begins]
        if not graph.is_alone[number] or not peers:
            continue
        its = np.flatnonzero((rows.rank == rank) & (rows.segment == segment) & (rows.start >= start))
        met = rows.match[its[np.isin(rows.match[its], rows.match[np.isin(rows.rank, peers)])]]
        if not len(met):
            continue
        entries = np.flatnonzero((rows.match == met[0]) & np.isin(rows.rank, [rank, *peers]))
        took = {int(rows.rank[at]): int(rows.end[at]) - begins[int(rows.rank[at]), step][0] for at in entries}
        usual = quantile([time for who, time in took.items() if who != rank], 0.5)
        yield number, start, max(round(float(usual)) - took[rank], 0)


def _median_of_others(
    group: Ints, value: Ints, members: Ints | None = None, *, with_itself: bool = False
) -> Ints:
    """By entry: the median of the other entries of its group, where so many members could have one: those without one
    count as 0. Without others, its own value."""
    order = np.argsort(packed([group, value]), kind="stable")
    begins = starts_group([group[order]])
    first = np.flatnonzero(begins)
    sizes = np.diff(first, append=len(order))
    first, size = np.repeat(first, sizes), np.repeat(sizes, sizes)
    at = np.arange(len(order)) - first
    count = size if members is None else np.maximum(members[order], size)
    missing = count - size
    ordered = value[order]

    def nth(number: Ints) -> Ints:
        """In ascending order, of those that are compared."""
        if not with_itself:
            number = number + (number >= at + missing)
        return np.where(number < missing, 0, ordered[first + np.clip(number - missing, 0, size - 1)])

    compared = count if with_itself else count - 1
    middle = rounded((nth(np.maximum(compared - 1, 0) // 2) + nth(compared // 2)) / 2)
    median = np.empty_like(value)
    median[order] = np.where(compared > 0, middle, ordered)
    return median


def longest_cut(stretch: Ints, excess: Ints, too_much: Ints) -> Ints:
    """By piece: what is taken from it, the longest beyond their counterparts first, until the stretch has lost what is
    too much."""
    order = np.argsort(packed([stretch, -excess]), kind="stable")
    total = np.cumsum(excess[order])
    begins = starts_group([stretch[order]])
    before = total - excess[order]
    before = before - np.repeat(before[begins], np.diff(np.flatnonzero(begins), append=len(order)))
    taken = np.empty_like(excess)
    taken[order] = np.clip(too_much[stretch[order]] - before, 0, excess[order])
    return taken


def level_cut(stretch: Ints, excess: Ints, too_much: Ints) -> Ints:
    """By piece: what is taken from it where the longest are cut to one level, so low that the stretch has lost what is
    too much."""
    order = np.lexsort((-excess, stretch))
    total = np.cumsum(excess[order])
    first = np.flatnonzero(starts_group([stretch[order]]))
    sizes = np.diff(first, append=len(order))
    first = np.repeat(first, sizes)
    total -= (total - excess[order])[first]
    level = np.zeros(len(too_much), dtype=np.int64)
    np.maximum.at(
        level, stretch[order], (total - too_much[stretch[order]]) // (np.arange(len(order)) - first + 1)
    )
    taken: Ints = np.maximum(excess - level[stretch], 0)
    return taken
