"""Scenarios for whatif: each changes some durations of a graph, and states what it assumes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from rankscope.analysis.core.grouping import group_medians
from rankscope.analysis.core.intervals import Ints, rounded
from rankscope.analysis.core.result import Remedy
from rankscope.analysis.critical_path.changes import (
    Changes,
    parse_factor,
    parse_kernel,
    parse_ranks_at_median,
)
from rankscope.analysis.faults.balanced import Balance, balanced_targets
from rankscope.analysis.faults.faults import faults_of
from rankscope.analysis.faults.targets import whole_ranks
from rankscope.analysis.graph.events import NONE, PATH_CLASSES, Mask
from rankscope.analysis.graph.graph import Graph, MatchedCollectives, Work
from rankscope.analysis.within_rank.event_tables import compute_time, copy_time
from rankscope.collective_kinds import KINDS
from rankscope.errors import UsageError
from rankscope.ranges import rank_words
from rankscope.records import dataclass
from rankscope.store.arrays import Floats, number_rows, unique_values
from rankscope.timeline.run import Run

_COMPUTE, _COMM, _COPY, _HOST, _SYNC = map(PATH_CLASSES.index, ("compute", "comm", "copy", "host", "sync"))
_EXPOSED, _IDLE = "exposed_comm_ns", "idle_ns"


@dataclass(frozen=True)
class Scenario:
    """One change to a run."""

    what: str
    change: Callable[[Run, Graph, Work], Work]
    assumption: str = ""
    """Empty where it is the change of a finding, whose text says it."""
    part: str = ""
    """The class of the breakdown that it makes shorter: it saves no more than that class takes on any rank."""
    most_ns: float = float("inf")
    """Nor more than this per step."""


def hide_comm() -> Scenario:
    def change(run: Run, graph: Graph, work: Work) -> Work:
        alone = graph.is_collective & (graph.match == NONE) | (graph.kind == _COMM) & (graph.match == NONE)
        return replace(
            _without(work, (_COMM,)),
            transfer=np.zeros_like(work.transfer),
            own_ns=np.where(alone, 0, work.own_ns),
        )

    return Scenario(
        "communication hidden",
        change,
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
        return latency + rounded((transfer - latency) / factor)

    return _transfers(
        f"bandwidth x{factor:g}",
        faster,
        f"bandwidth x{factor:g}: the part of a transfer that grows with its size is divided by {factor:g}; the "
        "latency, fitted by group, does not change (it is 0 where all sizes are equal)",
    )


def _transfers(
    what: str, change: Callable[[MatchedCollectives, Ints], Ints], assumption: str = ""
) -> Scenario:
    """A change of the transfer times only."""
    return Scenario(
        what,
        lambda run, graph, work: replace(work, transfer=change(graph.collectives, work.transfer)),
        assumption,
        _EXPOSED,
    )


def calls(run: Run, remedy: Remedy) -> Scenario:
    """Collectives of a group and kind: those of one size so many times as fast, or those up to a size merged, which
    have the latency of one."""
    name, kind = remedy.names
    group = [each.name for each in run.collectives.groups].index(name)
    spared = round(remedy.latency_ns * (1 - 1 / remedy.factor))

    def change(matched: MatchedCollectives, transfer: Ints) -> Ints:
        chosen = (matched.group == group) & (matched.kind == KINDS.index(kind))
        if remedy.change == "calls faster":
            chosen &= matched.bytes == remedy.most_bytes
            return np.where(chosen, rounded(transfer / remedy.factor), transfer)
        if remedy.most_bytes is not None:
            chosen &= matched.bytes <= remedy.most_bytes
        return np.where(chosen, np.maximum(transfer - spared, 0), transfer)

    return _transfers(remedy.change, change)


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

    return Scenario(
        f"kernel {name} x{factor:g}",
        partial(_less_time, _COMPUTE, is_named, factor, name),
        f"kernels with '{name}' in their name run {factor:g} times as fast, on every rank; nothing else changes",
        "compute_ns",
    )


def kernels(names: Sequence[str], factor: float) -> Scenario:
    """These kernels, by their whole names."""
    return Scenario(
        f"{len(names)} kernels x{factor:g}",
        partial(_less_time, _COMPUTE, set(names).__contains__, factor, ""),
        part="compute_ns",
    )


def copies_gone(names: Sequence[str]) -> Scenario:
    """Copies of these kinds take no time."""
    return Scenario("copies gone", partial(_less_time, _COPY, set(names).__contains__, float("inf"), ""))


def _less_time(
    kind: int, is_named: Callable[[str], bool], factor: float, asked: str, run: Run, graph: Graph, work: Work
) -> Work:
    """Kernels or copies that are so many times as fast. Small pieces have no names: those that are chosen have the
    same share in all of them on a rank."""
    named = np.array([*map(is_named, graph.names)], dtype=bool)
    own = ~graph.on_host & (graph.kind == kind)
    chosen = own & named[graph.name]
    rest = _small_share(run, graph, kind, is_named, own, chosen) if graph.small(kind).any() else None
    if asked and not chosen.any() and (rest is None or not rest.any()):
        raise UsageError(
            f"no kernel has '{asked}' in its name",
            why="Kernels of collectives are not included: use --hide-comm or --bandwidth for them.",
            hint="List the kernels: rankscope stats RUN -r kernels",
        )
    own_ns = np.where(chosen, rounded(work.own_ns / factor), work.own_ns)
    if rest is None:
        return replace(work, own_ns=own_ns)
    left = 1 - rest[graph.rank[graph.to]] * (1 - 1 / factor)
    spent = [*work.spent]
    spent[kind] = rounded(spent[kind] * left)
    return replace(work, spent=tuple(spent), own_ns=own_ns)


def _small_share(
    run: Run, graph: Graph, kind: int, is_named: Callable[[str], bool], own: Mask, chosen: Mask
) -> Floats:
    """By rank: the share of these kernels or copies in the small pieces of their class."""
    shares = np.zeros(len(graph.ranks))
    time_of = compute_time if kind == _COMPUTE else copy_time
    named, every = (time_of(run, graph.scope, which) for which in (is_named, lambda name: True))
    took = np.where(graph.inside, graph.work.own_ns, 0)
    of_points = [np.bincount(graph.rank, np.where(mask, took, 0), len(graph.ranks)) for mask in (chosen, own)]
    for number, rank in enumerate(graph.ranks):
        left = every.get(rank, 0) - of_points[1][number]
        shares[number] = np.clip((named.get(rank, 0) - of_points[0][number]) / left, 0, 1) if left > 0 else 0
    return shares


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
    codes = [PATH_CLASSES.index(name) for name in classes]
    return Scenario(what, lambda run, graph, work: _without(work, codes), assumption, _IDLE)


def syncs_gone(names: Sequence[str] = ()) -> Scenario:
    """Calls of these names, or all, do not wait."""

    def change(run: Run, graph: Graph, work: Work) -> Work:
        chosen = np.array([not names or call in names for call in graph.names], dtype=bool)
        gone, on_host = graph.is_sync & chosen[graph.name[graph.to]], graph.on_host[graph.origin]
        spent = [*work.spent]
        spent[_SYNC] = np.where(gone & on_host, 0, spent[_SYNC])
        work = replace(work, spent=tuple(spent), waits=work.waits & ~(gone & ~on_host))
        return work if names else _without(work, [_SYNC])

    which = ", ".join(names) if names else "synchronising calls"
    return Scenario(
        f"no wait in {which}",
        change,
        f"no wait in {which}: the host goes on at once and reads results later",
        _IDLE,
    )


def rank_at_median(rank: int) -> Scenario:
    """As fast as the median of its peers."""

    def change(run: Run, graph: Graph, work: Work) -> Work:
        if rank not in graph.ranks:
            raise UsageError(
                f"this run has no rank {rank}",
                why=f"It has {rank_words(list(graph.ranks))}.",
                hint="Choose one of them.",
            )
        if len(graph.ranks) < 2:
            raise UsageError(
                "one rank alone has no median to compare with",
                why="Only one rank was recorded, or chosen.",
                hint="Capture more ranks: rankscope profile --ranks all",
            )
        return whole_ranks(run, graph.scope, [rank]).on(work)

    what = f"rank {rank} at the median"
    return Scenario(
        what,
        change,
        f"{what}: between two communications, each kind of work takes at most as long as the median over the ranks "
        "that do the same; what is too much is taken from what is longest beyond its counterparts",
    )


def balanced(what: Balance, ranks: Sequence[int] | None = None) -> Scenario:
    """Work as in a balanced run; `ranks`: only theirs, and no transfers."""

    def change(run: Run, graph: Graph, work: Work) -> Work:
        targets = balanced_targets(run, graph.scope, what)
        if ranks is not None:
            return targets.of_ranks(ranks).on(work)
        work = targets.on(work)
        if what != "all":
            return work
        return replace(work, transfer=_median_transfers(graph.collectives, work.transfer))

    means = {
        "ranks": "the mean over the ranks of its stage",
        "stages": "the mean over the ranks of its stage, and all stages need the same time for a micro-batch",
        "all": "the mean over the ranks of its stage, over micro-batches and steps, and all stages need the same time; "
        "transfers take the median of their kind and size",
    }
    return Scenario(
        f"{what} balanced" if what != "all" else "everything balanced",
        change,
        f"balanced ({what}): between two communications, each kind of work of a rank takes {means[what]}; the order "
        "does not change",
    )


def faults_mended() -> Scenario:
    return Scenario(
        "the faults mended",
        lambda run, graph, work: faults_of(run, graph.scope).mended.on(work),
        "the faults mended: what the report `faults` names is as its peers are",
    )


def _median_transfers(matched: MatchedCollectives, transfer: Ints) -> Ints:
    """Each as long as the median of those of its kind and size between as many ranks."""
    _, alike = number_rows([matched.kind, matched.bytes, matched.members])
    return rounded(group_medians(alike, transfer)[alike])


def scenarios_of(changes: Changes) -> list[Scenario]:
    scenarios = [hide_comm()] if changes.hide_comm else []
    if changes.bandwidth is not None:
        scenarios.append(bandwidth(parse_factor("--bandwidth", changes.bandwidth)))
    scenarios += [rank_at_median(rank) for text in changes.rank for rank in parse_ranks_at_median(text)]
    scenarios += [kernel(*parse_kernel(text)) for text in changes.kernel]
    asked = ((changes.no_gaps, no_gaps), (changes.data_ready, data_ready), (changes.no_sync, syncs_gone))
    scenarios += [scenario() for wanted, scenario in asked if wanted]
    return [*scenarios, *(balanced(over) for over in dict.fromkeys(changes.balance))]
