"""Which rank takes longer than its peers, and which part of its own time does: one figure a rank and step.

The own time of a rank in a step is the step without its waiting inside collectives. Ranks that wait for each other have
equal steps, so the rank with more own time than its peers is the one that the others wait for, however many collectives
and process groups lie between. Peers are the ranks of the same pipeline stage.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from rankscope.analysis.across_ranks.layout import layout_of
from rankscope.analysis.across_ranks.nodes import nodes
from rankscope.analysis.across_ranks.time_split import PARTS, step_times
from rankscope.analysis.core.cache import once_per_run
from rankscope.analysis.core.collective_waits import waits
from rankscope.analysis.core.device_events import gpu_ranks
from rankscope.analysis.core.grouping import group_medians
from rankscope.analysis.core.scope import Scope
from rankscope.analysis.core.step_times import mean_step_ns
from rankscope.records import dataclass
from rankscope.store.arrays import NONE, Ints, count_before, number_rows
from rankscope.timeline.collectives.groups import Group
from rankscope.timeline.run import Run
from rankscope.watch.step_table import low_median

Floats = NDArray[np.float64]
OWN = tuple(name for name in PARTS if name != "waiting")

# Chosen while looking at the cases of benchmarks/exam that are not held out (docs/exam.md). Each limit names the cases
# that it must tell from healthy ones, or the healthy ones that it must pass over.
_LEAST_SHARE = 0.01
"""Of the mean step: GPUs of one kind differ by this much. Cases healthy-*: with three more seeds, 0.6 % named a rank in
one of 50. Faults of 1 % are found less often."""
_LEAST_SHARE_OF_STAGES = 0.03
"""The same for a pipeline stage of one rank: stages differ by design. Cases healthy-pp4, contention-10%-pp4."""
_LEAST_SHARE_ON_HOST = 0.05
"""The same where hosts compute: an operating system disturbs them. Cases gloo2-healthy-*, gloo4-healthy-*."""
_LEAST_STEPS, _LEAST_SHARE_ONCE = 3, 0.10
"""With fewer steps, or none, a rank must be late by this share of the window. Chosen, not measured."""
_LEAST_SCORE = 4.0
"""The mean excess in units of its standard error. With 64 ranks, noise reaches 4 in one run of 500. Cases host-7%-dp64,
healthy-dp8tp8."""
_LEAST_SPREAD_SCORE = 3.0
"""The same in units of the error from the rank's own steps, which other faults and hiccups make larger. Cases host-*,
contention-*."""
_STEADY_SHARE, _STEADY_PART = 0.75, 0.25
"""Share of the steps in which a steady straggler is late, by so much of its mean at least. Cases compute-*, throttle-*;
moving-* must stay below."""
_OUTLIER_SCORE, _OUTLIER_SHARE = 5.0, 0.02
"""An outlier exceeds this many standard deviations, and this share of a step. Cases gc-*, checkpoint-*: a pause in some
steps."""
_SAME_SHARE = 0.75
"""Ranks that are late by this share of the latest have the same cause: a node, or a link of their group. Cases node-*,
node-host-*, link-*."""
_SAME_NODE = 0.5
"""A node that is late by this share of its late ranks has their cause. Cases node-host-*: a pause of a rank adds up."""
_BETWEEN_SCORE = 3.0
"""How far a rank stands out among the means of the others, in their standard deviations. Cases healthy-*, in which GPUs
differ in speed."""
_NAMED_SHARE = 2 / 3
"""A rank that is late in some steps only is named with this share of all lateness. A rank that is last in every second
step by chance must stay below. Cases moving-*, gc-*, *-every*."""
_ALONE, _ALONE_SHARE = 2.0, 0.6
"""A rank that is late in one step is named when it is later there than anybody in any other step by this factor, and
with this share of all lateness. The others may be late by chance. Jobs checkpoint-* of
benchmarks/exam/ordinary_job.py."""
_WITNESS = 0.5
"""Pauses of a host are believed against its compute from this part on. Jobs slow-data and sharded of
benchmarks/exam/ordinary_job.py."""
_MOVING_STEPS, _MOVING_SHARE = 3, 0.02
"""Ranks differ when the last one is late by this share of the median step in so many steps. Cases moving-*."""
_MOVING_SHARE_ON_HOST, _MOVING_PART, _MOVING_MEAN = 0.2, 0.5, 0.3
"""The same where the host computes, in at least this part of the steps (of three, two), and by so much of the step on
average: the cores of one machine differ by as much from second to second. Jobs healthy-* of
benchmarks/exam/ordinary_job.py (up to 0.24 on average); uneven-batches must be above (from 0.41 on)."""
_RESIDUALS = 3
"""And by so many residuals (p95) of the clocks. Chosen, not measured."""
_HALF_SCALE, _HALF_FEW = 0.741, 11.0
"""From the shortest half of n normal values to their standard deviation: 0.741 (1 + 11 / n), from a simulation."""
_MEDIAN_ERROR = 1.25
"""The standard error of a median over that of a mean, of normal values."""
_SCALE = 1.4826
"""From a median of absolute deviations to a standard deviation."""


@dataclass(frozen=True)
class Lateness:
    """Arrays by part, rank and step."""

    ranks: tuple[int, ...]
    steps: tuple[int | None, ...]
    """(None,) in a run without steps: the window counts as one."""
    excess: Floats
    """[part, rank, step]: time minus the median of the peers, by OWN; 0 where a rank or all its peers lack the step."""
    mean_step_ns: float
    has_peers: NDArray[np.bool_]
    """By rank: whether another rank is in the same pipeline stage."""
    residual_ns: float = 0.0
    """How far the clocks may be off (p95), at most."""
    on_host: bool = False
    """No rank has a GPU: the host computes."""
    node: Culprits | None = None
    """The ranks of a node that is late as a whole: their excess is over the ranks of other nodes."""

    @property
    def own_excess(self) -> Floats:
        """[rank, step]: how much longer than its peers a rank takes."""
        total: Floats = self.excess.sum(axis=0)
        return total

    @property
    def least_ns(self) -> float:
        """A rank that is late by less in a step is not told from noise."""
        share = _MOVING_SHARE_ON_HOST if self.on_host else _MOVING_SHARE
        return max(share * self.mean_step_ns, _RESIDUALS * self.residual_ns)

    @property
    def noise_ns(self) -> float:
        """Standard deviation of one figure of a rank that is not late."""
        excess = self.own_excess
        if excess.shape[1] < 6:
            excess = excess - np.median(excess, axis=1, keepdims=True) * (excess.shape[1] >= 3)
            noise = _SCALE * np.median(np.abs(excess))
        else:
            noise = np.median([_shortest_half(values) for values in excess])
        return float(max(noise, 1e-4 * self.mean_step_ns, 1.0))


def _shortest_half(values: Floats) -> float:
    """A standard deviation from the shortest range that has half of the values: the other half may be late."""
    ordered = np.sort(values)
    half = (len(values) + 1) // 2
    shortest = (ordered[half - 1 :] - ordered[: len(ordered) - half + 1]).min()
    return float(_HALF_SCALE * (1 + _HALF_FEW / len(values)) * shortest)


@dataclass(frozen=True)
class Culprits:
    """The ranks that are late; none where no rank is, or another one in each step."""

    ranks: tuple[int, ...] = ()
    """The latest first."""
    moves: bool = False
    """Nobody is named, but the last rank of a step is late beyond noise."""
    own_ns: float = 0.0
    """Of the first: excess per step."""
    late_steps: int = 0
    in_steps: tuple[int | None, ...] = ()
    """The steps in which they are late, where these are some of several."""


@once_per_run
def lateness(run: Run, scope: Scope) -> Lateness | None:
    """Of the steps in scope, over all ranks; None with fewer than two ranks."""
    ranks, all_steps, split = step_times(run, scope)
    if len(ranks) < 2:
        return None
    # A step that one rank alone recorded says nothing about who is late.
    common = (~np.isnan(split[0])).sum(axis=0) > 1
    common |= not common.any()
    steps = tuple(step for step, is_common in zip(all_steps, common.tolist(), strict=True) if is_common)
    split = split[:, :, common]
    layout = layout_of(run, Scope())
    roles = [layout.work(rank) for rank in ranks]
    parts = np.stack([split[PARTS.index(name)] for name in OWN])
    excess = _over_peers(parts, roles)
    # A rank that is ahead has no compute left to hide its transfers behind: only longer transfers are a slow link.
    longer = link_excess(run, ranks, steps)
    link = OWN.index("link")
    excess[link] = np.clip(np.minimum(np.nan_to_num(split[PARTS.index("link")]), longer), 0, None)
    mean = mean_step_ns(run, Scope(steps=scope.steps))
    members = Counter(roles)
    has_peers = np.array([members[role] > 1 for role in roles])
    clocks = run.clocks.ranks
    is_one_clock = {clock.method for clock in clocks} <= {"reference", "one host"}
    residual = 0 if is_one_clock else max((clock.residual_p95_ns or 0 for clock in clocks), default=0)
    late = Lateness(ranks, steps, excess, mean, has_peers, residual, not gpu_ranks(run))
    return _with_late_node(late, parts, roles, nodes(run))


def link_excess(run: Run, ranks: tuple[int, ...], steps: tuple[int | None, ...]) -> Floats:
    """By rank and step: the time of its transfers minus that of the same transfers in sibling groups.

    Siblings have as many ranks, as far apart; the transfers are of one kind and size. Without siblings it is 0. Between
    processes of one machine that communicate on their hosts there is no link: who has a core then differs.
    """
    all_waits = waits(run)
    rows, transfer = all_waits.rows, all_waits.entry_transfer
    total = np.zeros((len(ranks), len(steps)))
    hosts = nodes(run)
    has_link = np.array(
        [len({hosts.get(rank, rank) for rank in group.ranks or ()}) != 1 for group in rows.groups]
    )
    used = np.flatnonzero((transfer > 0) & np.isin(rows.rank, ranks))
    used = used[rows.on_device[used] | has_link[rows.group[used]]] if len(used) else used
    step = np.zeros(len(used), dtype=np.int64)
    if steps != (None,):
        numbers = np.array(steps, dtype=np.int64)
        used = used[np.isin(rows.step[used], numbers)]
        step = np.searchsorted(numbers, rows.step[used])
    if len(used) == 0:
        return total
    shapes = np.array([_shape(group) for group in rows.groups], dtype=np.int64)[rows.group[used]]
    _, alike = number_rows([rows.kind[used], rows.bytes[used], shapes[:, 0], shapes[:, 1]])
    low, high = np.minimum(rows.rank[used], rows.peer[used]), np.maximum(rows.rank[used], rows.peer[used])
    is_pair = rows.peer[used] != NONE
    _, unit = number_rows([rows.group[used], np.where(is_pair, low, NONE), np.where(is_pair, high, NONE)])
    cells, cell = number_rows([alike, unit, step])
    typical = group_medians(cell, transfer[used])
    # Of each kind of transfer and step, one row of the units, to compare each with the others.
    tables, table = number_rows([cells[:, 0], cells[:, 2]])
    column = count_before([table], cells[:, 1])
    units = np.full((len(tables), int(column.max()) + 1), np.nan)
    units[table, column] = typical
    low, high = middle_of_others(units)
    others = ((low + high) / 2)[table, column]
    excess = np.nan_to_num(transfer[used] - others[cell])
    np.add.at(total, (np.searchsorted(ranks, rows.rank[used]), step), excess)
    return total


def middle_of_others(values: Floats) -> tuple[Floats, Floats]:
    """For each value the two middle ones of the others along the last axis, which are the same one of an odd number.

    NaN is no value; it is what a value without others gets.
    """
    order = np.argsort(values, axis=-1, kind="stable")
    ordered = np.take_along_axis(values, order, axis=-1)
    position = np.empty_like(order)
    np.put_along_axis(position, order, np.broadcast_to(np.arange(values.shape[-1]), order.shape), axis=-1)
    others = (~np.isnan(values)).sum(axis=-1, keepdims=True) - 1

    def other(number: Ints) -> Floats:
        """Of the others in order, the one of this number; the value itself is passed over."""
        at = np.minimum(np.maximum(number, 0) + (number >= position), values.shape[-1] - 1)
        has_others = (others > 0) & ~np.isnan(values)
        value: Floats = np.where(has_others, np.take_along_axis(ordered, at, axis=-1), np.nan)
        return value

    return other((others - 1) // 2), other(others // 2)


def _shape(group: Group) -> tuple[int, int]:
    """The number of ranks of a group, and the distance between neighbours (0 where it varies)."""
    ranks = group.ranks or ()
    apart = {after - before for before, after in pairwise(ranks)}
    return len(ranks), apart.pop() if len(apart) == 1 else 0


def _over_peers(parts: Floats, roles: list[tuple[str, int]]) -> Floats:
    """Times minus the median of the other ranks of the same role; of all other ranks where it has none."""
    usual = np.full_like(parts, np.nan)
    for role, count in Counter(roles).items():
        mine = [number for number, other in enumerate(roles) if other == role]
        group = parts if count == 1 else parts[:, mine]
        # Of two peers the faster one: the other may be the late one.
        lower, _ = middle_of_others(group.swapaxes(1, 2))
        usual[:, mine] = lower.swapaxes(1, 2)[:, mine if count == 1 else slice(None)]
    return np.nan_to_num(parts - usual)


def _with_late_node(
    late: Lateness, parts: Floats, roles: list[tuple[str, int]], hosts: dict[int, str]
) -> Lateness:
    """The same, unless a node is late as a whole, which is compared with other nodes as a rank is with its peers.

    Half of the ranks may be late together: then the median of a rank's peers is as late as it, or noise.
    """
    names = [hosts.get(rank, "") for rank in late.ranks]
    if "" in names or len(set(names)) < 2:
        return late
    excess = parts - _usual_on_other_nodes(parts, roles, names)
    excess[OWN.index("link")] = late.excess[OWN.index("link")]
    own = excess.sum(axis=0)
    compared = sorted({name for name, values in zip(names, own, strict=True) if not np.isnan(values).all()})
    if len(compared) < 2:
        return late
    members = [[number for number, name in enumerate(names) if name == node] for node in compared]
    # The low median: most of its ranks are as late, so that a late rank does not make a late node.
    of_nodes = np.nan_to_num(np.stack([low_median(own[mine]) for mine in members]))
    numbered, has_peers = tuple(range(len(compared))), np.ones(len(compared), dtype=bool)
    who = _culprits(replace(late, ranks=numbered, excess=of_nodes[None], has_peers=has_peers))
    numbers = [number for node in who.ranks for number in members[node]]
    late_ranks = culprits(late)
    is_same = {*late_ranks.ranks} <= {late.ranks[number] for number in numbers}
    # Two nodes are two samples of the noise, and mirror images: the noise of the ranks says what a median of them has.
    fewest = min(map(len, members))
    error = _MEDIAN_ERROR * late.noise_ns * np.sqrt(2 / fewest / len(late.steps))
    least = max(_LEAST_SCORE * error, _SAME_NODE * late_ranks.own_ns)
    if not numbers or not is_same or who.own_ns < least:
        return late
    over_nodes = late.excess.copy()
    over_nodes[:, numbers] = np.nan_to_num(excess[:, numbers])
    numbers.sort(key=lambda number: -over_nodes[:, number].sum())
    named = replace(who, ranks=tuple(late.ranks[number] for number in numbers))
    return replace(late, excess=over_nodes, node=named)


def _usual_on_other_nodes(parts: Floats, roles: list[tuple[str, int]], names: list[str]) -> Floats:
    """For each rank the median of the other nodes' medians over their ranks of its role; NaN where none has it."""
    usual = np.full_like(parts, np.nan)
    for role in set(roles):
        members: dict[str, list[int]] = {}
        for number, (other, name) in enumerate(zip(roles, names, strict=True)):
            if other == role:
                members.setdefault(name, []).append(number)
        of_nodes = np.stack([low_median(parts[:, mine], 1) for mine in members.values()], axis=-1)
        lower, _ = middle_of_others(of_nodes)
        for column, mine in enumerate(members.values()):
            usual[:, mine] = lower[:, None, :, column]
    return usual


def culprits(late: Lateness) -> Culprits:
    """The ranks whose excess is larger than noise, and repeats; of a node that is late as a whole, all of them.

    Where hosts compute, cores of one machine differ from second to second. What a rank does besides computing is then
    the better witness, where it is not much less.
    """
    if late.node is not None:
        return late.node
    who = _culprits(late)
    if not late.on_host:
        return who
    besides = [OWN.index(part) for part in ("host", "dataloader")]
    pauses = _culprits(replace(late, excess=late.excess[besides]))
    is_late = (late.own_excess[[late.ranks.index(rank) for rank in pauses.ranks]] > 0).mean(axis=1)
    is_steady = bool(pauses.ranks) and not pauses.in_steps and bool((is_late >= _STEADY_SHARE).all())
    return pauses if is_steady and pauses.own_ns >= _WITNESS * who.own_ns else who


def _culprits(late: Lateness) -> Culprits:
    excess = late.own_excess
    mean = excess.mean(axis=1)
    count = excess.shape[1]
    noise = late.noise_ns
    outlier = excess > max(_OUTLIER_SCORE * noise, _OUTLIER_SHARE * late.mean_step_ns)
    between = _between(mean)
    small = np.where(late.has_peers, _LEAST_SHARE, _LEAST_SHARE_OF_STAGES)
    least = np.maximum(small, _LEAST_SHARE_ON_HOST if late.on_host else 0.0) * late.mean_step_ns
    # The median over the steps: one late step does not make a steady straggler.
    often = (excess > _STEADY_PART * mean[:, None]).sum(axis=1) >= max(_STEADY_SHARE * count, 1)
    often &= np.median(excess, axis=1) > least
    # Once is enough where it costs as much as it would in every step.
    again = (outlier.sum(axis=1) >= 2) | (outlier.any(axis=1) & (mean > _OUTLIER_SHARE * late.mean_step_ns))
    error = noise / np.sqrt(count)
    # A steady straggler is late by as much in every step; a pause now and then is judged by its outliers.
    spread = excess.std(axis=1, ddof=1) / np.sqrt(count) if count > 2 else 0 * mean
    steady = often & (mean > _LEAST_SPREAD_SCORE * spread)
    late_enough = mean > np.maximum(least, _BETWEEN_SCORE * between)
    named = late_enough & (mean > _LEAST_SCORE * error) & (steady | again)
    if count < _LEAST_STEPS:  # nothing repeats: only the size and the other ranks can tell
        named = steady = late_enough & (mean > _LEAST_SHARE_ONCE * late.mean_step_ns)
    if not named.any():
        return Culprits(moves=_moves(late))
    first = int(np.where(named, mean, -np.inf).argmax())
    # In the same steps: neither is often late without the other.
    both, times = (outlier & outlier[first]).sum(axis=1), outlier.sum(axis=1)
    together = 2 * both > np.maximum(times, times[first])
    named &= (mean > _SAME_SHARE * mean[first]) & (steady | together)
    late_steps = outlier.any(axis=0)
    is_last = named[excess.argmax(axis=0)] & late_steps
    # By how late they are, so that hiccups of other ranks do not count as much as a pause.
    latest = excess.max(axis=0)
    share = latest[is_last].sum() / max(latest[late_steps].sum(), 1)
    if not (named & steady).any() and share <= _NAMED_SHARE and not _stands_out(excess, first):
        return Culprits(moves=_moves(late))
    if share <= _NAMED_SHARE and not (named & steady).any():
        is_last &= latest == latest.max()
    in_steps = () if steady[first] or is_last.all() else tuple(np.array(late.steps)[is_last].tolist())
    return Culprits(
        tuple(late.ranks[number] for number in np.argsort(-mean, kind="stable").tolist() if named[number]),
        own_ns=float(mean[first]),
        late_steps=int((excess[first] > 2 * noise).sum()),
        in_steps=in_steps,
    )


def _stands_out(excess: Floats, rank: int) -> bool:
    """Whether the largest excess of a rank exceeds by far what anybody has in other steps, and others in this one."""
    step = int(excess[rank].argmax())
    others = excess.copy()
    others[rank, step] = -np.inf
    most = excess[rank, step]
    return bool(
        most > _ALONE * others.max() and most > _ALONE_SHARE * np.maximum(excess.max(axis=0), 0).sum()
    )


def _between(mean: Floats) -> Floats:
    """For each rank, how much the means of the other ranks differ; 0 where there are too few to tell."""
    if len(mean) < 4:
        return np.zeros(len(mean))
    low, high = middle_of_others(mean)
    usual = (low + high) / 2
    between = np.zeros(len(mean))
    for value in set(usual.tolist()):  # two or three: a rank more or less hardly moves the median
        low, high = middle_of_others(np.abs(mean - value))
        between = np.where(usual == value, _SCALE * (low + high) / 2, between)
    return between


def _moves(late: Lateness) -> bool:
    """Whether the last rank of a step is late beyond noise, in several steps. Ranks without peers are not compared."""
    if not late.has_peers.any():
        return False
    latest = late.own_excess[late.has_peers].max(axis=0)
    late_steps = int((latest > late.least_ns).sum())
    if late.on_host:
        often = late_steps >= max(2, _MOVING_PART * len(latest))
        return often and bool(latest.mean() > _MOVING_MEAN * late.mean_step_ns)
    return late_steps >= _MOVING_STEPS
