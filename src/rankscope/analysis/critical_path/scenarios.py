"""Scenarios for whatif: each changes some durations of a graph, and states what it assumes."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from rankscope.analysis.core.intervals import Ints
from rankscope.analysis.critical_path.graph.nodes import DEVICE_CLASSES, HOST_CLASSES, NONE, Graph
from rankscope.analysis.critical_path.replay import Durations
from rankscope.collective_kinds import KINDS
from rankscope.errors import UsageError
from rankscope.ranges import as_ranges

_COMM = DEVICE_CLASSES.index("comm")
_GAPS = tuple(HOST_CLASSES.index(name) for name in ("host", "dataloader", "between"))


@dataclass(frozen=True)
class Scenario:
    """One change to a run."""

    what: str
    change: Callable[[Graph, Durations], Durations]
    assumption: str


def hide_comm() -> Scenario:
    def change(graph: Graph, durations: Durations) -> Durations:
        alone = (graph.device.kind == _COMM) & (graph.device.match == NONE)
        return durations.changed(
            transfer=np.zeros_like(durations.transfer), device=np.where(alone, 0, durations.device)
        )

    return Scenario(
        "communication hidden",
        change,
        "communication hidden: a collective takes no time once its last rank has arrived; the other ranks still wait "
        "for that rank",
    )


def bandwidth(factor: float) -> Scenario:
    def change(graph: Graph, durations: Durations) -> Durations:
        latency = _latencies(graph, durations.transfer)
        faster = latency + np.rint((durations.transfer - latency) / factor).astype(np.int64)
        return durations.changed(transfer=faster)

    return Scenario(
        f"bandwidth x{factor:g}",
        change,
        f"bandwidth x{factor:g}: the part of a transfer that grows with its size is divided by {factor:g}; the "
        "latency, fitted by group, does not change (it is 0 where all sizes are equal)",
    )


def _latencies(graph: Graph, transfer: Ints) -> Ints:
    """The part of each transfer that does not depend on its size: a in t = a + x/b, with 0 <= a <= t.

    x is the traffic on a link, so that the kinds of a group can share a fit; a kind with several sizes has its own.
    """
    matched = graph.collectives
    factor = (
        np.array([2 if kind == "all_reduce" else 1 for kind in KINDS])[matched.kind]
        if len(matched.kind)
        else matched.kind
    )
    traffic = matched.bytes * factor
    latency = np.zeros(len(transfer), dtype=np.int64)
    by_group, by_kind = matched.group * len(KINDS), matched.group * len(KINDS) + matched.kind
    for keys in (by_group, by_kind):
        for key in np.unique(keys):
            mine = np.flatnonzero((keys == key) & (matched.bytes > 0))
            size, took = traffic[mine].astype(float), transfer[mine].astype(float)
            if len(np.unique(size)) < 2:
                continue
            slope, intercept = np.polyfit(size, took, 1)
            if slope > 0:
                latency[mine] = np.clip(np.rint(intercept), 0, transfer[mine]).astype(np.int64)
    return latency


def kernel(name: str, factor: float) -> Scenario:
    def change(graph: Graph, durations: Durations) -> Durations:
        named = np.array([name.lower() in one.lower() for one in graph.names], dtype=bool)
        mine = (
            named[graph.device.name] & (graph.device.kind != _COMM)
            if len(graph.device.name)
            else np.zeros(0, bool)
        )
        if not mine.any():
            raise UsageError(
                f"no kernel has '{name}' in its name",
                why="Kernels of collectives are not included: use --hide-comm or --bandwidth for them.",
                hint="List the kernels: rankscope stats RUN -r kernels",
            )
        faster = np.rint(durations.device / factor).astype(np.int64)
        return durations.changed(device=np.where(mine, faster, durations.device))

    return Scenario(
        f"kernel {name} x{factor:g}",
        change,
        f"kernels with '{name}' in their name run {factor:g} times as fast, on every rank; nothing else changes",
    )


def no_gaps() -> Scenario:
    def change(graph: Graph, durations: Durations) -> Durations:
        return durations.changed(host=np.where(np.isin(graph.host.kind, _GAPS), 0, durations.host))

    return Scenario(
        "host gaps gone",
        change,
        "host gaps gone: the host and its data are always ready; the host still waits in synchronising calls, and "
        "launches keep their latency",
    )


def rank_at_median(rank: int) -> Scenario:
    def change(graph: Graph, durations: Durations) -> Durations:
        if rank not in graph.ranks:
            raise UsageError(
                f"rank {rank} is not in this run",
                why=f"It has {as_ranges(list(graph.ranks))}.",
                hint="Choose one of them.",
            )
        if len(graph.ranks) < 3:
            raise UsageError(
                f"the median over {len(graph.ranks)} rank{'s' * (len(graph.ranks) != 1)} is not meaningful",
                why="The median needs at least three ranks.",
                hint="Capture more ranks: rankscope profile --ranks all",
            )
        who = graph.ranks.index(rank)
        device, host = graph.device, graph.host
        # The kernel of a collective includes waiting for other ranks, so it is not compared.
        work = np.where(device.kind == _COMM, NONE, device.name)
        # Time between steps may be waiting that is not recorded.
        kept = np.isin(host.kind, [HOST_CLASSES.index(kind) for kind in ("sync", "between")])
        name = np.where(kept, NONE, host.name * len(HOST_CLASSES) + host.kind)
        count = len(graph.ranks)
        step = _steps(graph, device.rank, device.start)
        moment = _steps(graph, host.rank, host.time)
        return durations.changed(
            device=_at_median(device.rank, step, work, durations.device, who, count),
            host=_at_median(host.rank, moment, name, durations.host, who, count),
        )

    return Scenario(
        f"rank {rank} at the median",
        change,
        f"rank {rank} at the median: each of its kernels, copies and host times lasts at most as long as the median "
        "over the ranks at the same place in the step; what most ranks do not do takes no time",
    )


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
    found: Ints = np.searchsorted(placed, rank * width + time - origin, side="right") - first[rank] - 1
    return found


def _at_median(rank: Ints, step: Ints, name: Ints, took: Ints, who: int, ranks: int) -> Ints:
    """The durations with those of rank `who` limited to the median over all ranks; a missing event counts as 0."""
    named = np.flatnonzero(name != NONE)
    if len(named) == 0:
        return took
    r, s, n = rank[named], step[named], name[named]
    occurrence = _occurrences(np.stack([r, s, n]))
    _, place = np.unique(np.stack([s, n, occurrence]), axis=1, return_inverse=True)
    place = place.reshape(-1)
    mine = np.flatnonzero(r == who)
    wanted, column = np.unique(place[mine], return_inverse=True)
    table = np.zeros((ranks, len(wanted)))
    at = np.searchsorted(wanted, place)
    there = (at < len(wanted)) & (wanted[np.minimum(at, len(wanted) - 1)] == place)
    table[r[there], at[there]] = took[named][there]
    median = np.rint(np.median(table, axis=0)).astype(np.int64)
    changed: Ints = took.copy()
    changed[named[mine]] = np.minimum(took[named[mine]], median[column.reshape(-1)])
    return changed


def _occurrences(keys: Ints) -> Ints:
    """For each column of `keys`, the number of equal columns before it."""
    _, group = np.unique(keys, axis=1, return_inverse=True)
    group = group.reshape(-1)
    order = np.argsort(group, kind="stable")
    sorted_group = group[order]
    first = np.searchsorted(sorted_group, sorted_group)
    count = np.empty(len(group), dtype=np.int64)
    count[order] = np.arange(len(group)) - first
    return count


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
