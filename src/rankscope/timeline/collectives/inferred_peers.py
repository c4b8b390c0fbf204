"""The peers of gloo's sends and receives where the trace names none: from who meets whom on one host's clock.

gloo sends when the receiver is ready, so a send and its receive overlap, and end together where the program waits for
them. Those that end closest together vote for the peer of their position in the step; training repeats its steps. The
answer is refused as a whole where messages that are then paired by order do not overlap, or are not those that met.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from rankscope.collective_kinds import KINDS, POINT_TO_POINT
from rankscope.store.arrays import NONE, Ints, Mask, count_before, number_rows
from rankscope.timeline.collectives.entries import Collectives
from rankscope.timeline.collectives.messages import pair_messages

_TOGETHER_NS = 1_000_000
"""Ends that are further apart are no evidence: those of gloo differ by up to 0.7 ms."""
_SLACK_NS = 50_000
_MOST_MESSAGES = 100_000
_LEAST_AGREE = 0.6
"""Of the votes for a position in the step."""
_LEAST_PAIRED = 0.8
_LEAST_OVERLAP = 0.95
_LEAST_MET = 0.93
"""Of those that end closest together. In recordings of four ranks with a core each, 95 to 99 % belong together."""


def infer_peers(rows: Collectives, session: Ints, hosts: Mapping[int, str]) -> Ints:
    """The peer of each entry: as recorded, else as the times tell; NONE where they do not."""
    kinds = [KINDS.index(kind) for kind in POINT_TO_POINT]
    open_rows = np.flatnonzero(
        np.isin(rows.kind, kinds) & ~rows.on_device & (rows.peer == NONE) & (rows.batch == NONE)
    )
    names = sorted({host for host in hosts.values() if host})
    number_of_host = {rank: names.index(host) if host else NONE for rank, host in hosts.items()}
    host = np.array([number_of_host[rank] for rank in rows.rank[open_rows].tolist()], dtype=np.int64)
    open_rows, host = open_rows[host != NONE], host[host != NONE]
    if not 0 < len(open_rows) <= _MOST_MESSAGES:
        return rows.peer
    is_send = rows.kind[open_rows] == KINDS.index("send")
    _, where = number_rows([session[open_rows], host])
    position = _positions(rows, open_rows, session, is_send)
    votes: dict[int, Counter[int]] = {}
    met: set[tuple[int, int]] = set()
    for number in range(int(where.max()) + 1):
        sends, recvs = (np.flatnonzero((where == number) & side) for side in (is_send, ~is_send))
        for send, recv in _meetings(rows, open_rows, sends, recvs):
            met.add((int(open_rows[send]), int(open_rows[recv])))
            for mine, other in ((send, recv), (recv, send)):
                peer = int(rows.rank[open_rows[other]])
                votes.setdefault(int(position[mine]), Counter())[peer] += 1
    peers = rows.peer.copy()
    for number, counter in votes.items():
        peer, count = counter.most_common(1)[0]
        if count >= _LEAST_AGREE * counter.total():
            peers[open_rows[position == number]] = peer
    return peers if _fits(replace(rows, peer=peers), open_rows, session, met) else rows.peer


def _positions(rows: Collectives, index: Ints, session: Ints, is_send: Mask) -> Ints:
    """A number for each position of a send or receive in the steps of a rank; steps of another length are others."""
    rank, step = rows.rank[index], rows.step[index]
    time = np.where(rows.call_start[index] != NONE, rows.call_start[index], rows.start[index])
    cell_keys = [session[index], rank, step, is_send.astype(np.int64)]
    _, cell = number_rows(cell_keys)
    length = np.bincount(cell)[cell]
    nth = count_before([cell], time)
    outside = np.where(step == NONE, 1, 0)
    _, position = number_rows([rank, is_send.astype(np.int64), length, nth, outside])
    return position


def _meetings(rows: Collectives, index: Ints, sends: Ints, recvs: Ints) -> list[tuple[int, int]]:
    """Sends and receives of different ranks that overlap, the closest ends first, each once. Places in `index`."""
    recvs = recvs[np.argsort(rows.end[index[recvs]], kind="stable")]
    ends = rows.end[index[recvs]]
    low, high = (
        np.searchsorted(ends, rows.end[index[sends]] + by, side=side)  # type: ignore[call-overload]
        for by, side in ((-_TOGETHER_NS, "left"), (_TOGETHER_NS, "right"))
    )
    count = high - low
    send = np.repeat(sends, count)
    at = np.repeat(low - np.cumsum(count) + count, count) + np.arange(int(count.sum()))
    recv = recvs[at]
    a, b = index[send], index[recv]
    entered = np.maximum(rows.start[a], rows.start[b])
    sizes = (rows.bytes[a] == NONE) | (rows.bytes[b] == NONE) | (rows.bytes[a] == rows.bytes[b])
    possible = (rows.rank[a] != rows.rank[b]) & sizes
    possible &= entered <= np.minimum(rows.end[a], rows.end[b]) + _SLACK_NS
    send, recv = send[possible], recv[possible]
    apart = np.abs(rows.end[index[send]] - rows.end[index[recv]])
    taken: set[int] = set()
    meetings = []
    for number in np.argsort(apart, kind="stable").tolist():
        pair = (int(send[number]), int(recv[number]))
        if taken.isdisjoint(pair):
            taken.update(pair)
            meetings.append(pair)
    return meetings


def _fits(rows: Collectives, index: Ints, session: Ints, met: set[tuple[int, int]]) -> bool:
    """Whether the messages, paired by order, overlap and are those that met."""
    pairs = pair_messages(rows, session)
    mine = np.isin(pairs.sends, index) & np.isin(pairs.recvs, index)
    sends, recvs = pairs.sends[mine], pairs.recvs[mine]
    pairs_by_order = set(zip(sends.tolist(), recvs.tolist(), strict=True))
    if 2 * len(sends) < _LEAST_PAIRED * len(index) or len(met & pairs_by_order) < _LEAST_MET * len(met):
        return False
    entered = np.maximum(rows.start[sends], rows.start[recvs])
    left = np.minimum(rows.end[sends], rows.end[recvs])
    return float(np.mean(entered <= left + _SLACK_NS)) >= _LEAST_OVERLAP
