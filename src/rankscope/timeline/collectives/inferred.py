"""Process groups and peers of gloo's collectives where the trace names none: from the times at which ranks meet.

Every gloo group has at most two worker threads, which are started when it is created. So the threads of a process, in
the order of their ids, belong to its groups in the order of the header, with gaps where a group was not used. Of the
assignments that this leaves, the times refute the wrong ones: no rank leaves an all_reduce before the last member of
the group has entered it. Where several remain and none fits clearly best, no group is claimed.

gloo sends when the receiver is ready, so a send and its receive overlap, and end together where the program waits for
them. Those that end closest together vote for the peer of their position in the step; training repeats its steps. The
answer is refused as a whole where messages that are then paired by order do not overlap, or are not those that met.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np

from rankscope.collective_kinds import KINDS, POINT_TO_POINT
from rankscope.records import dataclass
from rankscope.store.arrays import NONE, Floats, Ints, Mask, count_before, number_rows, ranges
from rankscope.timeline.collectives.entries import Collectives, Group
from rankscope.timeline.collectives.matching import order_keys, pair_messages

_WORKERS = 2
"""Threads that torch starts for each gloo process group."""
_MOST_ASSIGNMENTS = 200
"""Of one process; where more are possible, none is claimed."""
_MOST_COMPARED = 20_000
"""Pairs of assignments. Each takes a third of a millisecond."""
_SLACK_NS = 50_000
"""A rank may be seen to leave so long before another has entered: the two clock readings are not the first and the last
thing that happens in a collective."""
_MOST_REFUTED = 0.05
"""Share of the meetings that may contradict an assignment: numbers by order slip where a rank has recorded more."""
_MOST_ALONE = 0.2
"""Share of the collectives that may have no counterpart."""
_CLEARLY = 2.0
"""The best assignment has ends that are so many times closer together than the next."""

Assignment = Mapping[int, int]
"""From threads to places in the list of the process's groups."""


@dataclass(frozen=True)
class Process:
    """The collectives of one rank in one recording session whose groups are not recorded."""

    rank: int
    session: int
    host: str
    """Processes of one host have one clock; empty if not recorded."""
    groups: tuple[Group, ...]
    """In the order of creation."""
    rows: Ints
    """Entries, in order of time."""
    thread: Ints
    """By entry the id of its thread."""


def assignments(threads: Sequence[int], groups: int) -> list[Assignment]:
    """All ways to give threads, which ascend, to groups in order, at most two to each; [] if there are too many."""
    ways: list[Assignment] = []

    def add(way: dict[int, int], at: int, group: int) -> bool:
        """False ends the search."""
        if at == len(threads):
            ways.append(way)
            return len(ways) <= _MOST_ASSIGNMENTS
        if (groups - group) * _WORKERS < len(threads) - at:
            return True
        counts = range(min(_WORKERS, len(threads) - at), -1, -1)
        return all(
            add({**way, **dict.fromkeys(threads[at : at + count], group)}, at + count, group + 1)
            for count in counts
        )

    return ways if add({}, 0, 0) else []


def infer_groups(rows: Collectives, processes: Sequence[Process]) -> dict[tuple[int, int, int], Group]:
    """The group of each thread, by rank, session and thread; without those that the times do not tell."""
    ways = {
        number: assignments(sorted(set(process.thread.tolist())), len(process.groups))
        for number, process in enumerate(processes)
    }
    neighbours = list(_neighbours(processes))
    if sum(len(ways[a]) * len(ways[b]) for a, b in neighbours) > _MOST_COMPARED:
        return {}
    fits = {(a, b): _group_fits(rows, processes[a], processes[b], ways[a], ways[b]) for a, b in neighbours}
    fits |= {(b, a): fit.T for (a, b), fit in fits.items()}
    alive = {number: np.ones(len(those), dtype=bool) for number, those in ways.items()}
    result: dict[tuple[int, int, int], Group] = {}
    for number, process in enumerate(processes):
        _keep_consistent(alive, fits)
        chosen = _clearly_best(number, alive, fits)
        if chosen is None:
            chosen = _all_the_same(process, ways[number], np.flatnonzero(alive[number]).tolist())
        if chosen is not None:
            alive[number][:] = np.arange(len(alive[number])) == chosen  # its neighbours follow
            for thread, group in ways[number][chosen].items():
                result[process.rank, process.session, thread] = process.groups[group]
    return result


def _all_the_same(process: Process, ways: Sequence[Assignment], left: Sequence[int]) -> int | None:
    """Of assignments that differ in groups of the same ranks only, the last: groups are made for a purpose."""
    meanings = {
        tuple(
            (thread, process.groups[group].ranks, min(_threads(ways[number], group)))
            for thread, group in ways[number].items()
        )
        for number in left
    }
    return left[-1] if len(meanings) == 1 else None


def _neighbours(processes: Sequence[Process]) -> Iterator[tuple[int, int]]:
    """Processes that follow each other in the list of a group's members."""
    number_of = {(process.session, process.rank): number for number, process in enumerate(processes)}
    pairs = {
        (process.session, a, b)
        for process in processes
        for group in process.groups
        for a, b in pairwise(
            sorted(rank for rank in group.ranks or () if (process.session, rank) in number_of)
        )
    }
    for session, a, b in sorted(pairs):
        yield number_of[session, a], number_of[session, b]


def _group_fits(
    rows: Collectives, a: Process, b: Process, ways_a: Sequence[Assignment], ways_b: Sequence[Assignment]
) -> Floats:
    """[assignment of a, assignment of b]: how far apart they leave their common groups, in ns; nan if impossible."""
    result = np.full((len(ways_a), len(ways_b)), np.nan)
    shared = [(i, b.groups.index(group)) for i, group in enumerate(a.groups) if group in b.groups]
    # Many assignments give a group the same threads.
    of_threads: dict[tuple[frozenset[int], frozenset[int]], Floats | None] = {}
    for x, way_a in enumerate(ways_a):
        for y, way_b in enumerate(ways_b):
            apart: list[Floats] = []
            for i, j in shared:
                key = (_threads(way_a, i), _threads(way_b, j))
                if key not in of_threads:
                    of_threads[key] = _group_meetings(
                        rows, _of(a, key[0]), _of(b, key[1]), not a.host or a.host != b.host
                    )
                meetings = of_threads[key]
                if meetings is None:
                    break
                apart.append(meetings)
            else:
                together = np.concatenate([np.zeros(0), *apart])
                result[x, y] = float(np.median(together)) if len(together) else 0.0
    return result


def _threads(way: Assignment, group: int) -> frozenset[int]:
    return frozenset(thread for thread, of in way.items() if of == group)


def _of(process: Process, threads: frozenset[int]) -> Ints:
    return process.rows[np.isin(process.thread, list(threads))]


def _group_meetings(rows: Collectives, a: Ints, b: Ints, other_clock: bool) -> Floats | None:
    """By common collective how far apart its ends are; None where these cannot be the same collectives."""
    if not len(a) and not len(b):
        return np.zeros(0)
    both = np.concatenate([a, b])
    _, number = number_rows(order_keys(rows, both))
    _, mine, theirs = np.intersect1d(number[: len(a)], number[len(a) :], return_indices=True)
    if len(both) - 2 * len(mine) > _MOST_ALONE * len(both):
        return None
    first, second = a[mine], b[theirs]
    apart = (rows.end[first] - rows.end[second]).astype(np.float64)
    offset = float(np.median(apart)) if other_clock else 0.0
    entered = np.maximum(rows.start[first] - offset, rows.start[second])
    left = np.minimum(rows.end[first] - offset, rows.end[second])
    refuted: Mask = rows.together[first] & (entered > left + _SLACK_NS)
    if refuted.mean() > _MOST_REFUTED:
        return None
    return np.abs(apart - offset)


_Fits = Mapping[tuple[int, int], Floats]


def _keep_consistent(alive: dict[int, Mask], fits: _Fits) -> None:
    """Keep the assignments of each process that go with one of each neighbour, directly and through others."""
    changed = True
    while changed:
        changed = False
        for (a, b), fit in fits.items():
            possible = alive[a] & (~np.isnan(fit) & alive[b]).any(axis=1)
            changed |= bool((possible != alive[a]).any())
            alive[a] = possible


def _clearly_best(number: int, alive: Mapping[int, Mask], fits: _Fits) -> int | None:
    """The assignment of a process that is left, or whose ends are clearly the closest together."""
    left = np.flatnonzero(alive[number])
    if len(left) <= 1:
        return int(left[0]) if len(left) else None
    apart = np.zeros(len(left))
    for (a, b), fit in fits.items():
        if a == number:
            among = np.where(alive[b], fit[left], np.nan)
            apart += np.nanmin(among, axis=1)
    order = np.argsort(apart, kind="stable")
    best, second = apart[order[0]], apart[order[1]]
    return int(left[order[0]]) if best > 0 and second >= _CLEARLY * best else None


_TOGETHER_NS = 1_000_000
"""Ends that are further apart are no evidence: those of gloo differ by up to 0.7 ms."""
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
    at = ranges(low, count)
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
