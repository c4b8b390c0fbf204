"""The collectives of the graph: who takes part, who came last and how long the transfer took."""

from __future__ import annotations

import numpy as np

from rankscope.analysis.core.intervals import Ints
from rankscope.analysis.critical_path.graph.nodes import NONE, Device, Host, Meetings
from rankscope.store.collectives.entries import Collectives


def matched_here(rows: Collectives, number: Ints) -> tuple[Collectives, Collectives]:
    """The matched collectives of the ranks that have a number: those on the device, those on the host."""
    known = (rows.rank < len(number)) & (rows.rank >= 0) & (rows.match != NONE)
    mine = known & (number[np.where(known, rows.rank, 0)] != NONE)
    return rows.pick(mine & rows.on_device), rows.pick(mine & ~rows.on_device)


def event_key(rank: Ints, segment: Ints, id: Ints) -> Ints:
    """One number for an event of any file: ids take 40 bits, segments 8."""
    return (rank << 48) | (segment << 40) | id


def meetings(
    rows: Collectives, count: int, on_host: Collectives, device: Device, host: Host, number: Ints
) -> Meetings:
    """For each matched collective the node that came last (it waited least), and the transfer."""
    last, members = np.full(count, NONE), np.zeros(count, dtype=np.int64)
    least = np.full(count, np.iinfo(np.int64).max)
    of_host = np.zeros(count, dtype=bool)
    sizes, group, kind = (np.full(count, NONE) for _ in range(3))
    matched = rows.match != NONE
    sizes[rows.match[matched]] = rows.bytes[matched]
    group[rows.match[matched]], kind[rows.match[matched]] = rows.group[matched], rows.kind[matched]
    nodes = np.flatnonzero(device.match != NONE)
    opened = np.flatnonzero(host.opens != NONE)
    # On the device a node lasts as long as the rank was inside; on the host the entries say how long.
    inside = _host_durations(on_host, number, host, opened)
    for which, at, took, here in (
        (nodes, device.match[nodes], (device.end - device.start)[nodes], False),
        (opened, host.opens[opened], inside, True),
    ):
        if len(which) == 0:
            continue
        np.add.at(members, at, 1)
        order = np.lexsort((-which, -took))  # the shortest comes last and stays; of equals the first
        better = took[order] <= least[at[order]]
        last[at[order][better]] = which[order][better]
        np.minimum.at(least, at, took)
        of_host[at] = here
    transfer = np.where(least == np.iinfo(np.int64).max, 0, least)
    return Meetings(transfer, last, of_host, members, sizes, group, kind)


def _host_durations(on_host: Collectives, number: Ints, host: Host, opened: Ints) -> Ints:
    if len(opened) == 0 or len(on_host.rank) == 0:
        return np.zeros(len(opened), dtype=np.int64)
    width = on_host.count
    keys = number[on_host.rank] * width + on_host.match
    order = np.argsort(keys)
    at = np.searchsorted(keys[order], host.rank[opened] * width + host.opens[opened])
    return on_host.duration[order][np.minimum(at, len(keys) - 1)]
