"""Host collectives (gloo): whether the host waited for them, and which host nodes lie inside them."""

from __future__ import annotations

import numpy as np

from rankscope.analysis.core.intervals import Ints
from rankscope.analysis.core.scope import Scope
from rankscope.analysis.critical_path.graph.nodes import NONE, Mask, event_key
from rankscope.records import dataclass
from rankscope.timeline.collectives.entries import Collectives
from rankscope.timeline.run import Run


@dataclass(frozen=True)
class HostCollectives:
    """One entry for each collective and rank."""

    rows: Collectives
    rank: Ints
    """Index of the rank in the graph."""
    begins: Ints
    """Start of its slice; rows.start is later, after the synchronisation with its own GPU."""
    name: Ints
    waited_for: Mask
    """The host ran no op at its end."""


def host_collectives(run: Run, scope: Scope, rows: Collectives, number: Ints) -> HostCollectives:
    """The entries for `rows`, with their slices from the store."""
    if len(rows.rank) == 0:
        none = np.zeros(0, dtype=np.int64)
        return HostCollectives(rows, none, none, none, none.astype(bool))
    found = run.arrays(
        "SELECT s.rank::BIGINT AS rank, s.segment::BIGINT AS segment, s.id, s.start_ns AS start, "
        "n.code FROM slices s "
        "JOIN collectives c ON c.rank = s.rank AND c.segment = s.segment AND c.id = s.id "
        "JOIN internal.names n ON n.category = s.category AND n.name = s.name WHERE c.place = 'host'"
    )
    keys = event_key(found["rank"], found["segment"], found["id"])
    order = np.argsort(keys)
    at = order[np.searchsorted(keys, event_key(rows.rank, rows.segment, rows.slice), sorter=order)]
    waited_for = ~_host_works(run, scope, rows)
    return HostCollectives(rows, number[rows.rank], found["start"][at], found["code"][at], waited_for)


def _host_works(run: Run, scope: Scope, rows: Collectives) -> Mask:
    """Whether the host runs an op at the end of each collective; then it did not wait for the collective."""
    ops = run.arrays(
        "SELECT rank::BIGINT AS rank, start_ns AS start, start_ns + greatest(dur_ns, 0) AS stop FROM slices "
        f"WHERE category = 'cpu_op' AND name LIKE 'aten::%' AND {scope.where()}"
    )
    width = int(max(ops["stop"].max(initial=0), rows.end.max())) + 2
    ends = rows.rank * width + rows.end
    order = np.argsort(ends)
    # Sorts the ends, which are few, not the ops: each op covers the ends between its own start and end.
    first = np.searchsorted(ends, ops["rank"] * width + ops["start"], side="right", sorter=order)
    after = np.searchsorted(ends, ops["rank"] * width + ops["stop"], side="left", sorter=order)
    covers = first < after
    change = np.bincount(first[covers], minlength=len(ends) + 1) - np.bincount(
        after[covers], minlength=len(ends) + 1
    )
    works = np.zeros(len(ends), dtype=bool)
    works[order] = np.cumsum(change)[:-1] > 0
    return works


def chain_threads(host: dict[str, Ints], comm: HostCollectives) -> None:
    """Set the previous node of each host node, and mark the nodes inside a host collective after its data arrived."""
    rows, count = comm.rows, len(host["rank"])
    chain = np.full(count, NONE)
    if len(rows.rank):
        served = _thread(comm.rank, rows.segment, rows.track)
        order = np.lexsort((comm.begins, served))
        width = int(max(host["time"].max(initial=0), rows.end.max())) + 2
        thread = _thread(host["rank"], host["file"], host["track"])
        _, place = np.unique(np.concatenate([served, thread]), return_inverse=True)
        keys = place[: len(served)][order] * width + comm.begins[order]
        at = np.searchsorted(keys, place[len(served) :] * width + host["time"], side="right") - 1
        entry = order[np.maximum(at, 0)]
        good = (
            (at >= 0)
            & (served[entry] == thread)
            & (host["time"] <= rows.end[entry])
            & (host["track"] != NONE)
        )
        chain[good] = entry[good]
        late = good & (host["time"] > rows.start[entry]) & (host["opens"] == NONE)
        host["match"] = np.where(late, rows.match[entry], host["match"])
    host["before"] = _before(host["rank"], chain)


def _thread(rank: Ints, segment: Ints, track: Ints) -> Ints:
    return (rank << 32) | ((segment + 1) << 24) | (track + 1)


def _before(rank: Ints, chain: Ints) -> Ints:
    """The previous node of the same chain, else the last node of the rank that is in no chain."""
    count = len(rank)
    places = np.arange(count)
    free = np.where(chain == NONE, places, NONE)
    last_free = np.maximum.accumulate(free) if count else free
    before = np.full(count, NONE)
    before[1:] = last_free[:-1]
    inside = np.flatnonzero(chain != NONE)
    order = inside[np.lexsort((inside, chain[inside], rank[inside]))]
    same = (chain[order][1:] == chain[order][:-1]) & (rank[order][1:] == rank[order][:-1])
    before[order[1:][same]] = order[:-1][same]
    return np.where((before != NONE) & (rank[np.maximum(before, 0)] == rank), before, NONE)
