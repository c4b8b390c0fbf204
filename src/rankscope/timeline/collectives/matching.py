"""Matches collectives across ranks: by process group and sequence number, else by order.

Matching does not need aligned clocks. Wall clocks only separate recordings more than a minute apart.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from rankscope.collective_kinds import KINDS, POINT_TO_POINT
from rankscope.store.arrays import NONE, Ints, Mask, count_before, starts_group, unique_values
from rankscope.timeline.collectives.by_order import align_by_order
from rankscope.timeline.collectives.entries import Collectives, Unmatched


def match_collectives(found: Collectives, session: Ints) -> Collectives:
    """Number the matches. Entries match only within one recording session (`loading.recording_sessions`)."""
    if len(found.rank) == 0:
        return found
    solo = np.array([group.size == 1 for group in found.groups])[found.group]
    two_sided = np.isin(found.kind, [KINDS.index(kind) for kind in POINT_TO_POINT])
    no_peer = two_sided & (found.peer == NONE)
    seq = _sequence(found, session, ~solo & ~two_sided)
    keys = _keys(found, session, seq, two_sided)
    open_rows = ~solo & ~no_peer & (two_sided | (seq != NONE))
    match = np.full(len(found.rank), NONE)
    match[open_rows] = _number([key[open_rows] for key in keys], found.rank[open_rows])
    differ = _kinds_differ(match, found.kind, two_sided)
    reasons = {
        "their process group has one rank": solo,
        "point-to-point without a recorded peer": no_peer,
        "other ranks run another kind of collective at that position": differ,
    }
    match[differ] = NONE
    missing = _peers_missing(found)
    reasons["no other rank of their process group has a file"] = (match == NONE) & missing
    reasons["no other rank has a collective at that position"] = match == NONE
    return replace(
        found, seq=found.seq, match=_renumber(match, found.start), unmatched=_count_unmatched(found, reasons)
    )


def _sequence(found: Collectives, session: Ints, wanted: Mask) -> Ints:
    """Sequence numbers. Where a rank's file has none in a group, they follow from the order."""
    seq: Ints = found.seq.copy()
    seq[~wanted] = NONE
    place = session * len(found.groups) + found.group
    without = wanted & (found.seq == NONE)
    for number in unique_values(place[without]):
        rows = np.flatnonzero(wanted & (place == number))
        seq[rows] = align_by_order(found, rows)
    return seq


def _keys(found: Collectives, session: Ints, seq: Ints, two_sided: Mask) -> list[Ints]:
    """Keys that are equal in all entries of one match and differ between entries of one rank."""
    source = np.where(found.kind == KINDS.index("send"), found.rank, found.peer)
    target = np.where(found.kind == KINDS.index("send"), found.peer, found.rank)
    place = [
        session,
        found.group,
        np.where(two_sided, source, NONE),
        np.where(two_sided, target, NONE),
        np.where(two_sided, NONE, seq),
    ]
    return [*place, count_before([found.rank, *place], found.start)]


def _number(keys: Sequence[Ints], rank: Ints) -> Ints:
    """A number for each set of equal keys on at least two ranks; NONE for the others."""
    if len(rank) == 0:
        return rank
    order = np.lexsort((rank, *reversed(keys)))
    new = starts_group([key[order] for key in keys])
    number = np.cumsum(new) - 1
    several = np.bincount(number) > 1
    match = np.empty(len(rank), dtype=np.int64)
    match[order] = np.where(several[number], number, NONE)
    return match


def _kinds_differ(match: Ints, kind: Ints, two_sided: Mask) -> Mask:
    """True for entries of matches whose ranks run different kinds of collectives."""
    rows = np.flatnonzero((match != NONE) & ~two_sided)
    if len(rows) == 0:
        return np.zeros(len(match), dtype=bool)
    count = int(match.max()) + 1
    low = np.full(count, len(KINDS))
    high = np.full(count, NONE)
    np.minimum.at(low, match[rows], kind[rows])
    np.maximum.at(high, match[rows], kind[rows])
    bad = low < high
    result: Mask = (match != NONE) & ~two_sided & bad[np.maximum(match, 0)]
    return result


def _peers_missing(found: Collectives) -> Mask:
    present = set(unique_values(found.rank).tolist())
    missing = [
        group.ranks is not None and len(present & set(group.ranks)) < min(2, len(group.ranks))
        for group in found.groups
    ]
    return np.array(missing, dtype=bool)[found.group]


def _renumber(match: Ints, start: Ints) -> Ints:
    """Number the matches from 0 in the order of their first start."""
    rows = np.flatnonzero(match != NONE)
    if len(rows) == 0:
        return match
    first = np.full(int(match.max()) + 1, np.iinfo(np.int64).max)
    np.minimum.at(first, match[rows], start[rows])
    place = np.empty(len(first), dtype=np.int64)
    place[np.argsort(first, kind="stable")] = np.arange(len(first))
    result: Ints = match.copy()
    result[rows] = place[match[rows]]
    return result


def _count_unmatched(found: Collectives, reasons: dict[str, Mask]) -> tuple[Unmatched, ...]:
    """Count each entry under the first reason that applies."""
    left = np.ones(len(found.rank), dtype=bool)
    counts = []
    for why, mask in reasons.items():
        rows = mask & left
        left &= ~mask
        if rows.any():
            counts.append(Unmatched(why, int(rows.sum()), tuple(unique_values(found.rank[rows]).tolist())))
    return tuple(counts)
