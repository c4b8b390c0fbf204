"""Build the graph of a run from the store: columns with SQL, edges with numpy."""

from __future__ import annotations

from typing import Any

import numpy as np

from rankscope.analysis.core.cache import once_per_run
from rankscope.analysis.core.collective_waits import waits
from rankscope.analysis.core.device_events import UNKNOWN, device_events
from rankscope.analysis.core.intervals import Ints
from rankscope.analysis.core.names import all_names
from rankscope.analysis.core.rollups import part_of
from rankscope.analysis.core.scope import Scope, step_numbers
from rankscope.analysis.core.step_times import periods
from rankscope.analysis.critical_path.graph.device_nodes import device_nodes
from rankscope.analysis.critical_path.graph.host_nodes import OWN_NAMES, host_nodes, with_targets
from rankscope.analysis.critical_path.graph.nodes import (
    NONE,
    DeviceNodes,
    Graph,
    HostNodes,
    MatchedCollectives,
)
from rankscope.timeline.collectives.entries import Collectives
from rankscope.timeline.run import Run


@once_per_run
def graph_of(run: Run, scope: Scope) -> Graph:
    """The graph of the events in scope."""
    run = part_of(run, scope.ranks)
    found = waits(run, scope)
    return build_graph(run, scope, found.rows, len(found.transfer))


def build_graph(run: Run, scope: Scope, rows: Collectives, matches: int) -> Graph:
    """The graph of the events in scope, in which the collectives `rows` meet."""
    ranks = tuple(rank for rank in run.ranks if scope.ranks is None or rank in scope.ranks)
    number = np.full(max(ranks, default=0) + 1, NONE)
    number[list(ranks)] = np.arange(len(ranks))
    raw = _device_columns(run, scope)
    raw["rank"] = number[raw["rank"]]
    on_device, on_host = _in_graph(rows, number)
    host_columns, launch = host_nodes(run, scope, raw, on_host, number)
    device, lags = device_nodes(raw, launch, host_columns, on_device, number, len(ranks))
    host, lags = with_targets(host_columns, device, lags, len(ranks))
    matched = _matched_collectives(rows, matches, on_host, device, host, number)
    steps = tuple(step_numbers(run, scope))
    return Graph(
        ranks,
        [*all_names(run), *OWN_NAMES],
        device,
        host,
        lags,
        matched,
        window_of(
            run,
            scope,
            np.concatenate([device.start, host.time]),
            np.concatenate([device.end, host.time]),
        ),
        steps,
        graph_notes(int((device.launch == NONE).sum()), steps),
    )


_COLUMNS = (
    "segment", "id", "track", "start", "end", "step", "kind", "launch", "launch_start", "launch_end", "launch_track",
)  # fmt: skip


def _device_columns(run: Run, scope: Scope) -> dict[str, Any]:
    """Device activity by rank and start, with its launch call and the op it was launched for."""
    parts = []
    for rank in scope.ranks_in(run):
        found = device_events(run, rank, scope)
        order = np.lexsort((found.id, found.start))
        name, op = found.work[order], found.op[order]
        parts.append(
            {
                "rank": np.full(len(found), rank),
                "name": name,
                "op": np.where(op == UNKNOWN, name, op),
                **{key: getattr(found, key)[order] for key in _COLUMNS},
            }
        )
    return {key: np.concatenate([part[key] for part in parts]) for key in parts[0]}


def window_of(run: Run, scope: Scope, starts: Ints, ends: Ints) -> tuple[int, int]:
    """From the earliest begin of a step to the latest end of one; without steps, of all nodes."""
    steps = [period for period in periods(run, scope) if period.step is not None]
    if steps and scope.steps is not None:
        return min(period.start_ns for period in steps), max(period.end_ns for period in steps)
    return (int(starts.min()), int(ends.max())) if len(ends) else (0, 0)


def graph_notes(lost: int, steps: tuple[int, ...]) -> tuple[str, ...]:
    """What is not known of a graph; `lost` GPU events have no launch."""
    notes = []
    if lost:
        notes.append(
            f"{lost:,} GPU event{'s have' if lost > 1 else ' has'} no launch in the file: host time before "
            f"{'them' if lost > 1 else 'it'} is not known"
        )
    if not steps:
        notes.append("no steps: the window is the whole file (call profiler.step() in the loop)")
    return tuple(notes)


def _in_graph(rows: Collectives, number: Ints) -> tuple[Collectives, Collectives]:
    """The matched collectives of the ranks in the graph, on the device and on the host."""
    known = (rows.rank < len(number)) & (rows.rank >= 0) & (rows.match != NONE)
    mine = known & (number[np.where(known, rows.rank, 0)] != NONE)
    return rows.pick(mine & rows.on_device), rows.pick(mine & ~rows.on_device)


def _matched_collectives(
    rows: Collectives, count: int, on_host: Collectives, device: DeviceNodes, host: HostNodes, number: Ints
) -> MatchedCollectives:
    """For each matched collective the node that arrived last (with the shortest duration) and the transfer time."""
    last, members = np.full(count, NONE), np.zeros(count, dtype=np.int64)
    least = np.full(count, np.iinfo(np.int64).max)
    of_host = np.zeros(count, dtype=bool)
    sizes, group, kind = (np.full(count, NONE) for _ in range(3))
    matched = rows.match != NONE
    sizes[rows.match[matched]] = rows.bytes[matched]
    group[rows.match[matched]], kind[rows.match[matched]] = rows.group[matched], rows.kind[matched]
    nodes = np.flatnonzero(device.match != NONE)
    opened = np.flatnonzero(host.opens != NONE)
    # A device node has the duration of the collective; host nodes have none, so it comes from the entries.
    inside = _host_durations(on_host, number, host, opened)
    for which, at, took, here in (
        (nodes, device.match[nodes], (device.end - device.start)[nodes], False),
        (opened, host.opens[opened], inside, True),
    ):
        if len(which) == 0:
            continue
        np.add.at(members, at, 1)
        order = np.lexsort((-which, -took))  # the shortest is written last; of equal ones the first
        better = took[order] <= least[at[order]]
        last[at[order][better]] = which[order][better]
        np.minimum.at(least, at, took)
        of_host[at] = here
    transfer = np.where(least == np.iinfo(np.int64).max, 0, least)
    return MatchedCollectives(transfer, last, of_host, members, sizes, group, kind)


def _host_durations(on_host: Collectives, number: Ints, host: HostNodes, opened: Ints) -> Ints:
    if len(opened) == 0 or len(on_host.rank) == 0:
        return np.zeros(len(opened), dtype=np.int64)
    width = on_host.count
    keys = number[on_host.rank] * width + on_host.match
    order = np.argsort(keys)
    at = np.searchsorted(keys[order], host.rank[opened] * width + host.opens[opened])
    return on_host.duration[order][np.minimum(at, len(keys) - 1)]
