"""Collectives: the track of a rank, how long each of their slices waited, and one of them on all its ranks."""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rankscope.analysis.core.collective_waits import Waits, waits
from rankscope.collective_kinds import KINDS as COLLECTIVE_KINDS
from rankscope.store.arrays import NONE, Ints, Mask, unique_values
from rankscope.timeline.run import Run
from rankscope.units import format_bytes, format_ns
from rankscope.viewer.answers import KINDS, Answer, integers
from rankscope.viewer.lanes import Lanes, build_pyramid, lane_table
from rankscope.viewer.session import Session

COMMUNICATION = -1
"""The number of this track; those of the store begin at 0."""


@dataclass(frozen=True)
class CollectiveSlices:
    """By slice, in order of `key`: how long it waits at its start, the number of its match, the rank it waits for."""

    key: Ints
    wait: Ints
    match: Ints
    last: Ints

    def columns(self, segment: Ints, id: Ints) -> dict[str, NDArray[np.float64]]:
        """Of these slices, if any is a matched collective; no wait and no match for those that are not."""
        key = _key(segment, id)
        at = np.minimum(np.searchsorted(self.key, key), max(len(self.key) - 1, 0))
        matched = self.key[at] == key if len(self.key) else np.zeros(len(key), dtype=bool)
        if not matched.any():
            return {}
        columns = {"wait": (self.wait, 0), "match": (self.match, NONE), "last": (self.last, NONE)}
        return {
            name: np.where(matched, values[at], none).astype(np.float64)
            for name, (values, none) in columns.items()
        }


def collective_slices(session: Session, rank: int) -> CollectiveSlices:
    """Of the collectives of a rank that are matched with those of other ranks."""
    return session.once(("collectives", rank), lambda: _collective_slices(session.run, rank))


def _collective_slices(run: Run, rank: int) -> CollectiveSlices:
    waited = waits(run)
    rows = waited.rows
    mine = np.flatnonzero((rows.rank == rank) & ((rows.match != NONE) | (waited.wait != NONE)))
    key = _key(rows.segment[mine], rows.slice[mine])
    mine, key = mine[order := np.argsort(key)], key[order]
    last = np.append(waited.last, NONE)[rows.match[mine]]  # that of NONE is the last
    last = np.where(rows.match[mine] != NONE, last, waited.waited_for[mine])
    return CollectiveSlices(
        key=key,
        wait=np.maximum(waited.wait[mine], 0),
        match=rows.match[mine],
        last=np.where(last == NONE, NONE, rows.rank[last]),
    )


def _key(segment: Ints, id: Ints) -> Ints:
    return (segment.astype(np.int64) << 48) + id


def communication(session: Session, rank: int) -> Lanes:
    """The collectives of a rank as a track."""
    if rank not in session.run.ranks:
        raise ValueError(f"the run has no rank {rank}")
    return session.once(("communication", rank), lambda: _communication(session.run, rank))


def _communication(run: Run, rank: int) -> Lanes:
    """Those that overlap are in separate rows. A name is the kind and the group."""
    entries = run.collectives.pick(run.collectives.rank == rank)
    order = np.lexsort((entries.end, entries.start))
    start, end = entries.start[order], np.maximum(entries.end[order], entries.start[order])
    row = _rows(start, end)
    order, start, end = order[by := np.lexsort((start, row))], start[by], end[by]
    row = row[by]
    labels = entries.kind[order] * (len(entries.groups) + 1) + entries.group[order]
    distinct, name = np.unique(labels, return_inverse=True)
    duration = end - start
    return Lanes(
        start=start,
        duration=duration,
        id=entries.slice[order],
        name=name.reshape(-1).astype(np.int32),
        kind=np.full(len(order), KINDS.index("comm"), dtype=np.uint8),
        names=[
            f"{COLLECTIVE_KINDS[kind]} {entries.groups[group].description or entries.groups[group].name}"
            for kind, group in (divmod(label, len(entries.groups) + 1) for label in distinct.tolist())
        ],
        lanes=lane_table(np.full(len(row), COMMUNICATION), row),
        levels=build_pyramid(duration),
        segment=entries.segment[order],
    )


def _rows(start: Ints, end: Ints) -> Ints:
    """For each interval, in order of start, the first row that is free."""
    row = np.zeros(len(start), dtype=np.int64)
    busy: list[tuple[int, int]] = []
    free: list[int] = []
    for at, (begin, stop) in enumerate(zip(start.tolist(), end.tolist(), strict=True)):
        while busy and busy[0][0] <= begin:
            heapq.heappush(free, heapq.heappop(busy)[1])
        row[at] = heapq.heappop(free) if free else len(busy)
        heapq.heappush(busy, (stop, int(row[at])))
    return row


def collective(session: Session, query: dict[str, str]) -> Answer:
    """The collective that a slice belongs to: one row per rank, in order of arrival."""
    rank, segment, id = integers(query, "rank", "segment", "id")
    with session.database() as run:
        waited = waits(run)
    rows = waited.rows
    mine = np.flatnonzero((rows.rank == rank) & (rows.segment == segment) & (rows.slice == id))
    if len(mine) == 0:
        raise ValueError("this slice is not a collective")
    return describe(waited, int(mine[0]))


def describe(waited: Waits, at: int) -> dict[str, Any]:
    """The collective of an entry: one row per rank, in order of arrival. Of a batch of messages, the kernels at their
    other ends are in it too."""
    rows = waited.rows
    match = int(rows.match[at])
    if match != NONE:
        members, last = np.flatnonzero(rows.match == match), int(waited.last[match])
    else:
        ends = (rows.recvs[rows.sends == at], rows.sends[rows.recvs == at])
        members, last = unique_values(np.concatenate([[at], *ends])), int(waited.waited_for[at])
    members = members[np.argsort(rows.start[members], kind="stable")]
    first = int(rows.start[members[0]])
    peers = [
        {
            "rank": int(rows.rank[member]),
            "segment": int(rows.segment[member]),
            "id": int(rows.slice[member]),
            "track": int(rows.track[member]),
            "start_ns": int(rows.start[member]),
            "dur_ns": int(rows.end[member] - rows.start[member]),
            "arrives_ns": int(rows.start[member]) - first,
            "wait_ns": None if waited.wait[member] == NONE else int(waited.wait[member]),
        }
        for member in members.tolist()
    ]
    shown = int(members[0]) if match != NONE else at
    return {
        "title": f"{COLLECTIVE_KINDS[rows.kind[shown]]} {'' if match == NONE else f'#{match}'}".strip(),
        "text": _describe(waited, shown, match, len(members)),
        "last": None if last == NONE else int(rows.rank[last]),
        "rows": peers,
        "messages": messages(waited, np.isin(rows.sends, members) & np.isin(rows.recvs, members)),
    }


def messages(waited: Waits, chosen: Mask) -> list[dict[str, Any]]:
    """Of the matched sends and receives, those chosen: the ranks at both ends, and when the transfer takes place."""
    rows = waited.rows
    sends, recvs = rows.sends[chosen], rows.recvs[chosen]
    ready = np.where(waited.entry_transfer > 0, rows.end - waited.entry_transfer, rows.start)
    columns = (rows.rank[sends], rows.rank[recvs], ready[sends], rows.end[recvs])
    names = ("from", "to", "start_ns", "end_ns")
    return [
        dict(zip(names, each, strict=True))
        for each in zip(*(column.tolist() for column in columns), strict=True)
    ]


def _describe(waited: Waits, at: int, match: int, ranks: int) -> str:
    rows = waited.rows
    group = rows.groups[rows.group[at]]
    words = [f"group {group.description or group.name}"] if group.is_named else []
    if group.size and group.size != ranks and not rows.point_to_point[at]:
        words.append(f"{ranks} of {group.size} ranks are in this run")
    if rows.bytes[at] != NONE:
        words.append(format_bytes(int(rows.bytes[at])))
    if match == NONE and waited.wait[at] == NONE:
        return ", ".join([*words, "not matched with other ranks"])
    transfer = int(waited.transfer[match] if match != NONE else rows.duration[at] - waited.wait[at])
    if transfer != NONE:
        words.append(f"transfer {format_ns(transfer)}")
        if rows.bytes[at] != NONE and transfer > 0:
            words.append(f"{rows.bytes[at] / transfer:.3g} GB/s")
    return ", ".join(words)
