"""Scenarios for whatif: each changes some durations of a graph, and states what it assumes."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from rankscope.analysis.across_ranks.layout import layout_of
from rankscope.analysis.across_ranks.segments import BALANCES, Balance, Segments
from rankscope.analysis.core.device_events import gpu_ranks
from rankscope.analysis.core.grouping import group_medians
from rankscope.analysis.core.intervals import Ints
from rankscope.analysis.core.scope import Scope
from rankscope.analysis.critical_path.compute_clock import ComputeClock
from rankscope.analysis.critical_path.graph.nodes import (
    DEVICE_CLASSES,
    HOST_CLASSES,
    NONE,
    Graph,
    Mask,
    MatchedCollectives,
    follow,
)
from rankscope.analysis.critical_path.path import PATH_CLASSES
from rankscope.analysis.critical_path.reduced.run_graph import ReducedGraph, Work
from rankscope.analysis.critical_path.replay import Durations, begins_recording
from rankscope.collective_kinds import KINDS
from rankscope.errors import UsageError
from rankscope.ranges import rank_words
from rankscope.records import dataclass
from rankscope.store.arrays import Floats, count_before, number_rows, unique_values
from rankscope.timeline.run import Run

_COMM = DEVICE_CLASSES.index("comm")
_COMPUTE = PATH_CLASSES.index("compute")
_EXPOSED, _IDLE = "exposed_comm_ns", "idle_ns"


@dataclass(frozen=True)
class Scenario:
    """One change to a run."""

    what: str
    change: Callable[[Graph, Durations], Durations]
    """Of the graph of all events."""
    change_reduced: Callable[[ReducedGraph, Work], Work]
    """Of the reduced graph."""
    assumption: str
    part: str = ""
    """The class of the breakdown that it makes shorter: it saves no more than that class takes on any rank."""
    most_ns: float = float("inf")
    """Nor more than this per step."""
    late_rank: int | None = None
    """The rank that it sets to the median of its peers; who these are, the run says (`with_peers`)."""
    of_segments: bool = False
    """It changes compute segments."""
    reachable: bool = False
    """Other ranks, steps or stages of the same run do it already; else it is a limit."""


def hide_comm() -> Scenario:
    def change(graph: Graph, durations: Durations) -> Durations:
        alone = (graph.device.kind == _COMM) & (graph.device.match == NONE)
        return replace(
            durations, transfer=np.zeros_like(durations.transfer), device=np.where(alone, 0, durations.device)
        )

    def reduced(graph: ReducedGraph, work: Work) -> Work:
        alone = graph.is_collective & (graph.match == NONE)
        return replace(
            _without(work, (_COMM,)),
            transfer=np.zeros_like(work.transfer),
            own_ns=np.where(alone, 0, work.own_ns),
        )

    return Scenario(
        "communication hidden",
        change,
        reduced,
        "communication hidden: a collective takes no time once its last rank has arrived; the other ranks still wait "
        "for that rank",
        _EXPOSED,
    )


def _without(work: Work, classes: Sequence[int]) -> Work:
    """No time is spent in these classes of the path."""
    spent = (np.zeros_like(time) if kind in classes else time for kind, time in enumerate(work.spent))
    return replace(work, spent=tuple(spent))


def bandwidth(factor: float) -> Scenario:
    def faster(matched: MatchedCollectives, transfer: Ints) -> Ints:
        latency = _latencies(matched, transfer)
        return latency + np.rint((transfer - latency) / factor).astype(np.int64)

    return _transfers(
        f"bandwidth x{factor:g}",
        faster,
        f"bandwidth x{factor:g}: the part of a transfer that grows with its size is divided by {factor:g}; the "
        "latency, fitted by group, does not change (it is 0 where all sizes are equal)",
    )


def _transfers(
    what: str, change: Callable[[MatchedCollectives, Ints], Ints], assumption: str, *, reachable: bool = False
) -> Scenario:
    """A change of the transfer times only."""
    return Scenario(
        what,
        lambda graph, durations: replace(durations, transfer=change(graph.collectives, durations.transfer)),
        lambda graph, work: replace(work, transfer=change(graph.collectives, work.transfer)),
        assumption,
        _EXPOSED,
        reachable=reachable,
    )


def calls_merged(group: int, kind: str, calls: float, latency_ns: float) -> Scenario:
    """So many collectives of a group and kind as one: they have its latency once."""
    spared = round(latency_ns * (1 - 1 / calls))

    def change(matched: MatchedCollectives, transfer: Ints) -> Ints:
        merged = (matched.group == group) & (matched.kind == KINDS.index(kind))
        return np.where(merged, np.maximum(transfer - spared, 0), transfer)

    return _transfers(
        f"{kind} calls merged",
        change,
        f"{kind} calls merged: {calls:.0f} calls a step have the latency of one; the bytes take as long as before",
    )


def _latencies(matched: MatchedCollectives, transfer: Ints) -> Ints:
    """The part of each transfer that does not depend on its size: a in t = a + x/b, with 0 <= a <= t.

    x is the traffic on a link, so that the kinds of a group can share a fit; a kind with several sizes has its own.
    """
    factor = (
        np.array([2 if kind == "all_reduce" else 1 for kind in KINDS])[matched.kind]
        if len(matched.kind)
        else matched.kind
    )
    traffic = matched.bytes * factor
    latency = np.zeros(len(transfer), dtype=np.int64)
    by_group, by_kind = matched.group * len(KINDS), matched.group * len(KINDS) + matched.kind
    for keys in (by_group, by_kind):
        for key in unique_values(keys):
            mine = np.flatnonzero((keys == key) & (matched.bytes > 0))
            size, took = traffic[mine].astype(float), transfer[mine].astype(float)
            if len(unique_values(size)) < 2:
                continue
            slope, intercept = np.polyfit(size, took, 1)
            if slope > 0:
                latency[mine] = np.clip(np.rint(intercept), 0, transfer[mine]).astype(np.int64)
    return latency


def kernel(name: str, factor: float) -> Scenario:
    def is_named(kernel_name: str) -> bool:
        return name.lower() in kernel_name.lower()

    def check(is_there: bool) -> None:
        if not is_there:
            raise UsageError(
                f"no kernel has '{name}' in its name",
                why="Kernels of collectives are not included: use --hide-comm or --bandwidth for them.",
                hint="List the kernels: rankscope stats RUN -r kernels",
            )

    def change(graph: Graph, durations: Durations) -> Durations:
        named = np.array([*map(is_named, graph.names)], dtype=bool)
        check(bool(_computing(graph, named).any()))
        return _faster(graph, durations, named, factor)

    def reduced(graph: ReducedGraph, work: Work) -> Work:
        check(bool(graph.kernel_shares(is_named).any()))
        return _less_compute(graph, work, is_named, factor)

    return Scenario(
        f"kernel {name} x{factor:g}",
        change,
        reduced,
        f"kernels with '{name}' in their name run {factor:g} times as fast, on every rank; nothing else changes",
        "compute_ns",
    )


def kernels(names: Sequence[str], factor: float) -> Scenario:
    """These kernels, by their whole names."""
    is_named = set(names).__contains__
    return Scenario(
        f"{len(names)} kernels x{factor:g}",
        lambda graph, durations: _faster(
            graph, durations, np.array([*map(is_named, graph.names)], dtype=bool), factor
        ),
        lambda graph, work: _less_compute(graph, work, is_named, factor),
        f"these kernels run {factor:g} times as fast, on every rank; nothing else changes",
        "compute_ns",
    )


def _computing(graph: Graph, named: Mask) -> Mask:
    """The kernels with these names: copies and collectives are none."""
    computing: Mask = named[graph.device.name] & (graph.device.kind == _COMPUTE)
    return computing


def _faster(graph: Graph, durations: Durations, named: Mask, factor: float) -> Durations:
    took = np.rint(durations.device / factor).astype(np.int64)
    return replace(durations, device=np.where(_computing(graph, named), took, durations.device))


def _less_compute(graph: ReducedGraph, work: Work, chosen: Callable[[str], bool], factor: float) -> Work:
    """The reduced graph has no names: the kernels have the same share in all compute time of a rank."""
    rest = 1 - graph.kernel_shares(chosen) * (1 - 1 / factor)
    times = np.rint(work.spent[_COMPUTE] * rest[graph.rank[graph.to]]).astype(np.int64)
    spent = (times if kind == _COMPUTE else time for kind, time in enumerate(work.spent))
    own_ns = np.rint(work.own_ns * np.where(graph.kind == _COMPUTE, rest[graph.rank], 1)).astype(np.int64)
    return replace(work, spent=tuple(spent), own_ns=own_ns)


def no_gaps() -> Scenario:
    return _host_time_gone(
        "host gaps gone",
        ("host", "dataloader", "between"),
        "host gaps gone: the host and its data are always ready; the host still waits in synchronising calls, and "
        "launches keep their latency",
    )


def host_ahead() -> Scenario:
    return _host_time_gone(
        "host ahead",
        ("host", "between"),
        "host ahead: the host needs no time of its own; it still waits for data and in synchronising calls",
    )


def data_ready() -> Scenario:
    return _host_time_gone("data ready", ("dataloader",), "data ready: no step waits for its batch")


def _host_time_gone(what: str, classes: tuple[str, ...], assumption: str) -> Scenario:
    codes = [HOST_CLASSES.index(name) for name in classes]
    return Scenario(
        what,
        lambda graph, durations: replace(
            durations, host=np.where(np.isin(graph.host.kind, codes), 0, durations.host)
        ),
        lambda graph, work: _without(work, [PATH_CLASSES.index(name) for name in classes]),
        assumption,
        _IDLE,
    )


def syncs_gone(names: Sequence[str] = ()) -> Scenario:
    """Calls of these names, or all, do not wait."""
    chosen_names = set(names)

    def change(graph: Graph, durations: Durations) -> Durations:
        named = np.array([not names or call in chosen_names for call in graph.names], dtype=bool)
        gone = (graph.host.kind == HOST_CLASSES.index("sync")) & named[graph.host.name]
        return replace(durations, host=np.where(gone, 0, durations.host), waits=durations.waits & ~gone)

    def reduced(graph: ReducedGraph, work: Work) -> Work:
        chosen = np.array([not names or call in chosen_names for call in graph.syncs] + [False], dtype=bool)
        gone, on_host = chosen[graph.sync], graph.on_host[graph.origin]
        sync = PATH_CLASSES.index("sync")
        spent = [*work.spent]
        spent[sync] = np.where(gone & on_host, 0, spent[sync])
        work = replace(work, spent=tuple(spent), waits=work.waits & ~(gone & ~on_host))
        return work if names else _without(work, [sync])

    which = ", ".join(names) if names else "synchronising calls"
    return Scenario(
        f"no wait in {which}",
        change,
        reduced,
        f"no wait in {which}: the host goes on at once and reads results later",
        _IDLE,
    )


def peers_of(run: Run, ranks: Sequence[int]) -> dict[int, list[int]]:
    """The ranks that do the same work as each of these: roles and pipeline stages do different work, and the
    work of ranks without GPU events is on the host."""
    layout, on_gpu = layout_of(run, Scope()), gpu_ranks(run)
    work = {rank: (layout.work(rank), rank in on_gpu) for rank in run.ranks}
    alike: dict[tuple[tuple[str, int], bool], list[int]] = {}
    for rank, what in work.items():
        alike.setdefault(what, []).append(rank)
    return {rank: [other for other in alike[work[rank]] if other != rank] for rank in ranks if rank in work}


def with_peers(run: Run, scenario: Scenario) -> Scenario:
    """The scenario as it is for a rank of this run."""
    rank = scenario.late_rank
    return scenario if rank is None else rank_at_median(rank, peers_of(run, [rank]))


def rank_at_median(rank: int, peers: Mapping[int, Sequence[int]]) -> Scenario:
    scenario = ranks_at_median((rank,), peers)

    def check(ranks: Sequence[int]) -> None:
        if rank not in ranks:
            raise UsageError(
                f"this run has no rank {rank}",
                why=f"It has {rank_words(list(ranks))}.",
                hint="Choose one of them.",
            )
        if len(ranks) < 2:
            raise UsageError(
                "one rank alone has no median to compare with",
                why="Only one rank was recorded, or chosen.",
                hint="Capture more ranks: rankscope profile --ranks all",
            )

    def change(graph: Graph, durations: Durations) -> Durations:
        check(graph.ranks)
        return scenario.change(graph, durations)

    def reduced(graph: ReducedGraph, work: Work) -> Work:
        check(graph.ranks)
        return scenario.change_reduced(graph, work)

    return replace(scenario, change=change, change_reduced=reduced, late_rank=rank)


def ranks_at_median(ranks: Sequence[int], peers: Mapping[int, Sequence[int]]) -> Scenario:
    """Each of `ranks` as fast as the median of its peers that are not among them; without peers, of all others."""

    def change(graph: Graph, durations: Durations) -> Durations:
        device, host = graph.device, graph.host
        # The kernel of a collective includes waiting for other ranks, so it is not compared.
        work = np.where(device.kind == _COMM, NONE, device.name)
        # Time between steps may be waiting that is not recorded.
        stays = np.isin(host.kind, [HOST_CLASSES.index(kind) for kind in ("sync", "between", "unrecorded")])
        # The call of a host collective and its start on its own thread have one name.
        name = 2 * (host.name * len(HOST_CLASSES) + host.kind) + (host.opens != NONE)
        name = np.where(stays | (host.match != NONE), NONE, name)
        step, moment = _steps(graph, device.rank, device.start), _steps(graph, host.rank, host.time)
        slow = {graph.ranks.index(rank) for rank in ranks if rank in graph.ranks}
        took, time = durations.device, durations.host
        on_gpu = set(unique_values(device.rank).tolist())
        works, moments = _Comparable(device.rank, step, work), _Comparable(host.rank, moment, name)
        for who in sorted(slow):
            near = {
                graph.ranks.index(peer) for peer in peers.get(graph.ranks[who], ()) if peer in graph.ranks
            }
            others = sorted(near - slow) or sorted(set(range(len(graph.ranks))) - slow)
            if others:
                took = works.at_median(took, who, others)
                # On a host, the work of a stage is one node for each message: stages send and receive differently.
                is_stage = not near - slow and who not in on_gpu
                time = (moments.scaled if is_stage else moments.at_median)(time, who, others)
                time = _without_late_starts(graph, time, who, others)
        return replace(durations, device=took, host=time)

    named = rank_words(sorted(ranks))
    return Scenario(
        f"{named} at the median",
        change,
        lambda graph, work: graph.at_median(work, ranks, peers),
        f"{named} at the median: each kernel, copy and host time lasts at most as long as the median over the other "
        "ranks at the same place in the step; what most of them do not do takes no time",
        reachable=True,
    )


def _without_late_starts(graph: Graph, time: Ints, who: int, others: Sequence[int]) -> Ints:
    """Host times in which a rank without a GPU begins its recordings when the others do: what it did before, in a step
    that was not recorded, made it late. The start of the work on a GPU does not follow that of the host."""
    if (graph.device.rank == who).any():
        return time
    late = graph.late_starts(graph.ranks[who], [graph.ranks[other] for other in others])
    first = np.flatnonzero(begins_recording(graph) & (graph.host.rank == who))
    if not len(late.begin) or not len(first):
        return time
    at = np.searchsorted(late.begin, graph.host.time[first], side="right") - 1
    time = time.copy()
    time[first] -= late.late_ns[np.maximum(at, 0)]
    return time


def links_at_median(ranks: Sequence[int], members: Mapping[int, Sequence[int]]) -> Scenario:
    """Transfers in the groups of `ranks` as fast as the median in the other groups of the same kind and size.

    `members` has the ranks of each group.
    """

    def change(matched: MatchedCollectives, transfer: Ints) -> Ints:
        slow = [group for group, its_ranks in members.items() if set(its_ranks) & set(ranks)]
        is_slow = np.isin(matched.group, slow)
        _, alike = number_rows([matched.kind, matched.bytes])
        transfer = transfer.copy()
        for number in unique_values(alike[is_slow]).tolist():
            others = transfer[(alike == number) & ~is_slow]
            mine = is_slow & (alike == number)
            if len(others):
                transfer[mine] = np.minimum(transfer[mine], np.rint(np.median(others)).astype(np.int64))
        return transfer

    named = rank_words(sorted(ranks))
    return _transfers(
        f"links of {named} at the median",
        change,
        f"links of {named} at the median: their transfers take as long as those of the same kind and size in groups "
        "without them",
        reachable=True,
    )


def balanced(
    what: Balance, chosen: Callable[[Segments], Mask] | None = None, *, transfers: bool | None = None
) -> Scenario:
    """Segments as long as in a balanced run; `chosen`: only these. `transfers`: whether they change too (default: with
    all, unless segments are chosen)."""
    at_median = transfers if transfers is not None else what == "all" and chosen is None

    def change(graph: Graph, durations: Durations) -> Durations:
        segments, target = _targets(graph.segments(), what, chosen)
        device, host = graph.device, graph.host
        computing = np.flatnonzero(device.kind == _COMPUTE)
        launched = follow(device.launch, host.time, NONE)
        time = np.where(device.launch != NONE, launched, device.start)[computing]
        took, on_host = durations.device.astype(float), durations.host.copy()
        moments = np.flatnonzero((host.kind == HOST_CLASSES.index("host")) & (host.match == NONE))
        clock = ComputeClock.of(segments, graph.ranks)
        for number, rank in enumerate(graph.ranks):
            mine = np.flatnonzero(segments.rank == rank)
            nodes = device.rank[computing] == number
            if not nodes.any():  # the host computes
                at = moments[(host.rank[moments] == number) & (host.before[moments] != NONE)]
                begin, end = (
                    clock.moments(host.rank[at], times)
                    for times in (host.time[host.before[at]], host.time[at])
                )
                now, then = (clock.between(begin, end, took_ns) for took_ns in (segments.duration_ns, target))
                on_host[at] = np.maximum(on_host[at] + np.rint(then - now).astype(np.int64), 0)
                continue
            at = np.searchsorted(segments.launched[mine], time[nodes], side="right") - 1
            inside = at >= 0
            segment = mine[at[inside]]
            factor = target[segment] / np.maximum(segments.duration_ns[segment], 1)
            took[computing[nodes][inside]] *= factor
        transfer = (
            _median_transfers(graph.collectives, durations.transfer) if at_median else durations.transfer
        )
        return replace(durations, device=np.rint(took).astype(np.int64), host=on_host, transfer=transfer)

    def reduced(graph: ReducedGraph, work: Work) -> Work:
        _, target = _targets(graph.segments(), what, chosen)
        ways, points = graph.computing
        compute = ways.scaled(work.spent[_COMPUTE], target)
        spent = (compute if kind == _COMPUTE else time for kind, time in enumerate(work.spent))
        own_ns = points.scaled(work.own_ns, target)
        transfer = _median_transfers(graph.collectives, work.transfer) if at_median else work.transfer
        return replace(work, spent=tuple(spent), own_ns=own_ns, transfer=transfer)

    means = {
        "ranks": "the mean over the ranks of its stage",
        "stages": "the mean over the ranks of its stage, and all stages need the same time for a micro-batch",
        "all": "the mean over the ranks of its stage, over micro-batches and steps, and all stages need the same time; "
        "transfers take the median of their kind and size",
    }
    return Scenario(
        f"{what} balanced" if what != "all" else "everything balanced",
        change,
        reduced,
        f"balanced ({what}): the compute between two communications takes {means[what]}; other times of the host and "
        "the order do not change",
        of_segments=True,
        reachable=True,
    )


def _targets(
    segments: Segments, what: Balance, chosen: Callable[[Segments], Mask] | None
) -> tuple[Segments, Floats]:
    target = segments.balanced_ns(what)
    return segments, np.where(chosen(segments), target, segments.duration_ns) if chosen else target


def _median_transfers(matched: MatchedCollectives, transfer: Ints) -> Ints:
    """Each as long as the median of those of its kind and size between as many ranks."""
    _, alike = number_rows([matched.kind, matched.bytes, matched.members])
    return np.rint(group_medians(alike, transfer)[alike]).astype(np.int64)


def _steps(graph: Graph, rank: Ints, time: Ints) -> Ints:
    """The index of the step of its rank in which each time lies; -1 before the first step."""
    host = graph.host
    begins = np.flatnonzero((host.step != NONE) & ~host.is_end)
    if len(begins) == 0 or len(time) == 0:
        return np.zeros(len(time), dtype=np.int64)
    origin = int(min(host.time.min(), time.min()))
    width = int(max(host.time.max(), time.max())) - origin + 2
    placed = host.rank[begins] * width + host.time[begins] - origin
    first = np.searchsorted(placed, np.arange(int(rank.max()) + 1) * width)
    step: Ints = np.searchsorted(placed, rank * width + time - origin, side="right") - first[rank] - 1
    return step


class _Comparable:
    """Nodes that other ranks have at the same place: the n-th of its name in the step."""

    def __init__(self, rank: Ints, step: Ints, name: Ints) -> None:
        """A node whose name is NONE is not compared."""
        self.node = np.flatnonzero(name != NONE)
        self.rank, self.step = rank[self.node], step[self.node]
        name = name[self.node]
        occurrence = count_before([self.rank, self.step, name], self.node) if len(name) else name
        _, self.place = number_rows([self.step, name, occurrence])

    def at_median(self, took: Ints, who: int, others: Sequence[int]) -> Ints:
        """The durations with those of rank `who` limited to the median over others; a missing event counts as 0. Of a
        step that none of the others has nothing changes."""
        mine = np.flatnonzero(self.rank == who)
        if len(mine) == 0:
            return took
        wanted, first, column = np.unique(self.place[mine], return_index=True, return_inverse=True)
        compared = np.flatnonzero(np.isin(self.rank, others))
        at = np.searchsorted(wanted, self.place[compared])
        there = (at < len(wanted)) & (wanted[np.minimum(at, len(wanted) - 1)] == self.place[compared])
        row, step = np.searchsorted(others, self.rank[compared]), self.step[mine[first]]
        steps, of_step = np.unique(step, return_inverse=True)
        recorded = np.zeros((len(others), len(steps) + 1), dtype=bool)
        number = np.minimum(np.searchsorted(steps, self.step[compared]), len(steps) - 1)
        recorded[row, np.where(steps[number] == self.step[compared], number, len(steps))] = True
        has_step = recorded[:, of_step.reshape(-1)]
        table = np.where(has_step, 0.0, np.inf)
        table[row[there], at[there]] = took[self.node[compared[there]]]
        table.sort(axis=0)
        count, number = has_step.sum(axis=0), np.arange(len(wanted))
        middle = (table[np.maximum(count - 1, 0) // 2, number] + table[count // 2 * (count > 0), number]) / 2
        median = np.full(len(wanted), np.iinfo(np.int64).max)
        median[count > 0] = np.rint(middle[count > 0]).astype(np.int64)
        changed: Ints = took.copy()
        node = self.node[mine]
        changed[node] = np.minimum(took[node], median[column.reshape(-1)])
        return changed

    def scaled(self, took: Ints, who: int, others: Sequence[int]) -> Ints:
        """The durations with those of rank `who` scaled so that a step takes at most as long as the median over others,
        for ranks whose events have no counterpart in each other."""
        steps = self.step - self.step.min(initial=0)
        shape = (int(self.rank.max(initial=who)) + 1, int(steps.max(initial=0)) + 1)
        cell = self.rank * shape[1] + steps
        total = np.bincount(cell, took[self.node], shape[0] * shape[1]).reshape(shape)
        recorded = np.bincount(cell, minlength=total.size).reshape(shape) > 0
        comparable = np.flatnonzero(recorded[who] & recorded[others].all(axis=0))
        factor = np.ones(shape[1])
        usual = np.median(total[others][:, comparable], axis=0)
        factor[comparable] = np.minimum(usual / np.maximum(total[who, comparable], 1), 1)
        mine = np.flatnonzero(self.rank == who)
        node = self.node[mine]
        changed: Ints = took.copy()
        changed[node] = np.rint(took[node] * factor[steps[mine]])
        return changed


@dataclass(frozen=True)
class Changes:
    """The changes that a user asks for, as they are written."""

    hide_comm: bool = False
    bandwidth: str | None = None
    """'2x'."""
    ranks: tuple[str, ...] = ()
    """'2=median'."""
    kernels: tuple[str, ...] = ()
    """'gelu=2x'."""
    no_gaps: bool = False
    data_ready: bool = False
    no_sync: bool = False
    balance: str | None = None
    """'ranks', 'stages' or 'all'."""


def scenarios_of(changes: Changes) -> list[Scenario]:
    scenarios = [hide_comm()] if changes.hide_comm else []
    if changes.bandwidth is not None:
        scenarios.append(bandwidth(parse_factor("--bandwidth", changes.bandwidth)))
    scenarios += [rank_at_median(parse_rank(text), {}) for text in changes.ranks]
    scenarios += [kernel(*parse_kernel(text)) for text in changes.kernels]
    if changes.balance is not None:
        scenarios.append(balanced(parse_balance(changes.balance)))
    asked = ((changes.no_gaps, no_gaps), (changes.data_ready, data_ready), (changes.no_sync, syncs_gone))
    return [*scenarios, *(scenario() for wanted, scenario in asked if wanted)]


def parse_balance(text: str) -> Balance:
    for what in BALANCES:
        if text == what:
            return what
    raise UsageError(
        f"--balance {text} is not one of {', '.join(BALANCES)}",
        why="It says over what the compute is balanced.",
        hint="Write it like --balance ranks",
    )


def parse_rank(text: str) -> int:
    """The rank of 'R=median'."""
    match = re.fullmatch(r"([0-9]+)=median", text)
    if not match:
        raise UsageError(
            f"--rank {text} is not R=median",
            why="The only change of a rank is to set it to the median of all ranks.",
            hint="Write it like --rank 2=median",
        )
    return int(match[1])


def parse_kernel(text: str) -> tuple[str, float]:
    """The name and the factor of 'NAME=2x'."""
    name, equals, factor = text.rpartition("=")
    if not equals or not name:
        raise UsageError(
            f"--kernel {text} is not NAME=FACTOR",
            why="NAME is a part of a kernel's name.",
            hint="Write it like --kernel gelu=2x",
        )
    return name, parse_factor("--kernel", factor)


def parse_factor(option: str, text: str) -> float:
    """'2x' or '1.5'."""
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)x?", text.strip().lower())
    value = float(match[1]) if match else 0.0
    if value <= 0:
        raise UsageError(
            f"{option}: '{text}' is not a factor",
            why="A factor is a number above 0.",
            hint="Write it like 2x or 1.5x.",
        )
    return value
