"""What could be different: each scenario changes some durations of a graph, and says what it assumes."""

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
    """One change."""

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
        "communication hidden: a collective takes no time once its last rank is there; ranks still wait for each other",
    )


def bandwidth(factor: float) -> Scenario:
    def change(graph: Graph, durations: Durations) -> Durations:
        latency = _latencies(graph, durations.transfer)
        faster = latency + np.rint((durations.transfer - latency) / factor).astype(np.int64)
        return durations.changed(transfer=faster)

    return Scenario(
        f"bandwidth x{factor:g}",
        change,
        f"bandwidth x{factor:g}: the part of a transfer that grows with its size shrinks; the latency, fitted by "
        "group, stays (none where all sizes are the same)",
    )


def _latencies(graph: Graph, transfer: Ints) -> Ints:
    """The part of each transfer that does not depend on its size: t = a + x/b, with 0 <= a <= t.

    x is what crosses a link (S times busbw's factor), so that kinds of one group can share a fit; a kind that has
    several sizes of its own is fitted by itself.
    """
    met = graph.meetings
    factor = (
        np.array([2 if kind == "all_reduce" else 1 for kind in KINDS])[met.kind]
        if len(met.kind)
        else met.kind
    )
    traffic = met.bytes * factor
    latency = np.zeros(len(transfer), dtype=np.int64)
    by_group, by_kind = met.group * len(KINDS), met.group * len(KINDS) + met.kind
    for keys in (by_group, by_kind):
        for key in np.unique(keys):
            mine = np.flatnonzero((keys == key) & (met.bytes > 0))
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
                why="Collectives do not count: --hide-comm and --bandwidth are for those.",
                hint="See: rankscope stats RUN -r kernels",
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
        "host gaps gone: the host (and its data) is always ready; it still waits where it synchronises, and a launch "
        "still takes its latency",
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
                f"{len(graph.ranks)} ranks have no median",
                why="A rank is held against what most ranks do.",
                hint="Capture three ranks or more: rankscope profile --ranks all",
            )
        who = graph.ranks.index(rank)
        device, host = graph.device, graph.host
        # A collective's kernel lasts until the others come: its own length says nothing.
        work = np.where(device.kind == _COMM, NONE, device.name)
        # What lies between steps may be waiting of a kind that no file shows.
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
        f"rank {rank} at the median: each of its kernels, copies and stretches of host time lasts at most as long "
        "as the median rank's at the same place of the step; what most ranks do not do takes no time",
    )


def _steps(graph: Graph, rank: Ints, time: Ints) -> Ints:
    """In which step of its rank a moment lies, counted from 0; before the first, -1."""
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
    """The durations of rank `who`, none above the median over all ranks of the same thing; absent counts as 0."""
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
    # Never longer than it was: to be put at the median is to be mended.
    changed[named[mine]] = np.minimum(took[named[mine]], median[column.reshape(-1)])
    return changed


def _occurrences(keys: Ints) -> Ints:
    """For each column the number of equal columns before it."""
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
