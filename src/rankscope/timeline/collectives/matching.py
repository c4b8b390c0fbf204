"""Matches the collectives of all ranks: by process group and sequence number, else by order.

Neither needs aligned clocks. Wall clocks only separate recordings more than a minute apart. Sends and receives are
matched in pairs (`messages`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from rankscope.collective_kinds import BATCHED, KINDS
from rankscope.store.arrays import NONE, Ints, Mask, count_before, starts_group, unique_values
from rankscope.timeline.collectives.entries import Collectives, Unmatched
from rankscope.timeline.collectives.messages import pair_messages
from rankscope.timeline.collectives.order import align_by_order


def match_collectives(entries: Collectives, session: Ints) -> Collectives:
    """Number the matches. Entries match only within one recording session (`loading.recording_sessions`)."""
    if len(entries.rank) == 0:
        return entries
    solo = np.array([group.size == 1 for group in entries.groups])[entries.group]
    two_sided = entries.point_to_point
    no_peer = two_sided & (entries.peer == NONE) & (entries.batch == NONE)
    seq = _sequence(entries, session, ~solo & ~two_sided)
    open_rows = ~solo & (seq != NONE)
    keys = [session, entries.group, seq]
    keys.append(count_before([entries.rank, *keys], entries.start))
    match = np.full(len(entries.rank), NONE)
    match[open_rows] = _number([key[open_rows] for key in keys], entries.rank[open_rows])
    differ = _kinds_differ(match, entries.kind)
    match[differ] = NONE
    messages = pair_messages(entries, session)
    first = int(match.max()) + 1
    for side in (messages.sends, messages.recvs):
        match[side[messages.alone]] = first + np.flatnonzero(messages.alone)
    paired = np.zeros(len(match), dtype=bool)
    paired[messages.sends] = paired[messages.recvs] = True
    batched = entries.kind == KINDS.index(BATCHED)
    left = (match == NONE) & ~paired
    reasons = {
        "their process group has one rank": solo & left,
        "their process group is not recorded, and the times do not tell it": left
        & _of_unknown_group(entries),
        "a batch of sends and receives without recorded calls": no_peer & batched,
        "point-to-point without a recorded peer": no_peer,
        "other ranks run another kind of collective at that position": differ,
        "no other rank of their process group has a file": left & _peers_missing(entries),
        "the other rank has no matching send or receive": left & two_sided,
        "no other rank has a collective at that position": left,
    }
    return replace(
        entries,
        match=_renumber(match, entries.start),
        sends=messages.sends,
        recvs=messages.recvs,
        unmatched=_count_unmatched(entries, reasons),
    )


def _sequence(entries: Collectives, session: Ints, wanted: Mask) -> Ints:
    """Sequence numbers. Where a rank's file has none in a group, they follow from the order."""
    seq: Ints = entries.seq.copy()
    seq[~wanted] = NONE
    session_group = session * len(entries.groups) + entries.group
    without = wanted & (entries.seq == NONE)
    for number in unique_values(session_group[without]):
        rows = np.flatnonzero(wanted & (session_group == number))
        seq[rows] = align_by_order(entries, rows)
    return seq


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


def _kinds_differ(match: Ints, kind: Ints) -> Mask:
    """True for entries of matches whose ranks run different kinds of collectives."""
    rows = np.flatnonzero(match != NONE)
    if len(rows) == 0:
        return np.zeros(len(match), dtype=bool)
    count = int(match.max()) + 1
    low = np.full(count, len(KINDS))
    high = np.full(count, NONE)
    np.minimum.at(low, match[rows], kind[rows])
    np.maximum.at(high, match[rows], kind[rows])
    bad = low < high
    result: Mask = (match != NONE) & bad[np.maximum(match, 0)]
    return result


def _peers_missing(entries: Collectives) -> Mask:
    present = set(unique_values(entries.rank).tolist())
    missing = [
        group.ranks is not None and len(present & set(group.ranks)) < min(2, len(group.ranks))
        for group in entries.groups
    ]
    return np.array(missing, dtype=bool)[entries.group]


def _of_unknown_group(entries: Collectives) -> Mask:
    return np.array([group.is_unknown for group in entries.groups], dtype=bool)[entries.group]


def _renumber(match: Ints, start: Ints) -> Ints:
    """Number the matches from 0 in the order of their first start."""
    rows = np.flatnonzero(match != NONE)
    if len(rows) == 0:
        return match
    first = np.full(int(match.max()) + 1, np.iinfo(np.int64).max)
    np.minimum.at(first, match[rows], start[rows])
    new_number = np.empty(len(first), dtype=np.int64)
    new_number[np.argsort(first, kind="stable")] = np.arange(len(first))
    result: Ints = match.copy()
    result[rows] = new_number[match[rows]]
    return result


def _count_unmatched(entries: Collectives, reasons: dict[str, Mask]) -> tuple[Unmatched, ...]:
    """Count each entry under the first reason that applies."""
    left = np.ones(len(entries.rank), dtype=bool)
    counts = []
    for why, mask in reasons.items():
        rows = mask & left
        left &= ~mask
        if rows.any():
            counts.append(Unmatched(why, int(rows.sum()), tuple(unique_values(entries.rank[rows]).tolist())))
    return tuple(counts)
