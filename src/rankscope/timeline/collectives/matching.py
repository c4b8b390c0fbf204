"""Matches the collectives of all ranks: by process group and sequence number, else by order.

Neither needs aligned clocks. Wall clocks only separate recordings more than a minute apart. Sends and receives are
matched in pairs (`messages`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from rankscope.collective_kinds import BATCHED, KINDS, POINT_TO_POINT
from rankscope.records import dataclass
from rankscope.store.arrays import (
    NONE,
    Ints,
    Mask,
    count_before,
    number_rows,
    ranges,
    starts_group,
    unique_values,
)
from rankscope.timeline.collectives.entries import Collectives, Unmatched

_MAX_SHIFT = 256
"""Largest shift that is tried: how many collectives later than another a rank may have started to record."""
_COMPARED = 1024
"""How many collectives are compared for each shift."""
_MIN_SHARE_IN_STEPS = 0.5
"""Steps are used if more than this share of the collectives lies inside steps."""


def align_by_order(entries: Collectives, rows: Ints) -> Ints:
    """Sequence numbers for the entries `rows` of one group, equal for entries that belong together.

    If some ranks have recorded numbers, the other ranks get the same ones.
    """
    _, number = number_rows(order_keys(entries, rows))
    recorded, rank = entries.seq[rows], entries.rank[rows]
    has = np.flatnonzero(recorded != NONE)
    if not len(has):
        return number
    # Ranks without any get the number of the other ranks at the same position.
    adopted = np.full(int(number.max()) + 1, NONE)
    adopted[number[has][::-1]] = recorded[has][::-1]  # reversed: the first rank wins
    has_none = ~np.isin(rank, rank[has])
    return np.where(has_none, adopted[number], recorded)


def order_keys(entries: Collectives, rows: Ints) -> list[Ints]:
    """For each entry: step, a number for its kind, size and type, and how many equal ones came before.

    The size is ignored where it may differ between ranks (all_to_all) or only the root has one (scatter).
    """
    rank = entries.rank[rows]
    uneven = np.isin(entries.kind[rows], [KINDS.index(kind) for kind in ("all_to_all", "scatter")])
    what = [
        entries.kind[rows],
        np.where(uneven, NONE, entries.bytes[rows]),
        np.where(uneven, NONE, entries.dtype[rows]),
    ]
    _, token = number_rows(what)
    step = entries.step[rows]
    if np.mean(step != NONE) <= _MIN_SHARE_IN_STEPS:
        step = np.full(len(rows), NONE)
        step[_before_anchor(token, rank, entries.start[rows], entries.end[rows])] = NONE - 1
    time = np.where(entries.call_start[rows] != NONE, entries.call_start[rows], entries.start[rows])
    return [step, token, count_before([rank, step, token], time)]


def _before_anchor(token: Ints, rank: Ints, start: Ints, end: Ints) -> Mask:
    """True for entries before the first collective that all ranks recorded."""
    order = np.lexsort((start, rank))
    places = np.split(order, np.flatnonzero(starts_group([rank[order]]))[1:])
    reference = max(places, key=len)
    moved = [_shift(token[reference], token[rows], end[reference], end[rows]) for rows in places]
    first = max(max(shift, 0) for shift in moved)
    early = np.zeros(len(rank), dtype=bool)
    for rows, shift in zip(places, moved, strict=True):
        early[rows[: max(first - shift, 0)]] = True
    return early


def _shift(reference: Ints, tokens: Ints, reference_end: Ints, end: Ints) -> int:
    """The index in the reference of this rank's first collective; negative if this rank started earlier.

    It is the shift with the best agreement. A training loop repeats itself, so among equally good shifts the one
    with the closest ends by wall clock wins.
    """
    best: tuple[float, float, int] | None = None
    for shift in sorted(range(-_MAX_SHIFT, _MAX_SHIFT + 1), key=abs):
        a, b = max(shift, 0), max(-shift, 0)
        count = min(len(reference) - a, len(tokens) - b, _COMPARED)
        if count < min(8, len(tokens), len(reference)) or count <= 0:
            continue
        agree = float(np.mean(reference[a : a + count] == tokens[b : b + count]))
        apart = float(np.median(np.abs(reference_end[a : a + count] - end[b : b + count])))
        if (
            best is None
            or (agree, -apart) > (best[0] + 1e-9, -best[1])
            or (agree > best[0] - 1e-9 and apart < best[1])
        ):
            best = (agree, apart, shift)
    return best[2] if best else 0


@dataclass(frozen=True)
class Pairs:
    """Matched messages: the entries of their sends and of their receives."""

    sends: Ints
    recvs: Ints
    alone: Mask
    """Neither of the two kernels has another message."""


def pair_messages(entries: Collectives, session: Ints) -> Pairs:
    """The pairs, by the start of their sends. Only messages of one recording session match."""
    messages = _messages(entries)
    per_entry = np.bincount(messages[0], minlength=len(entries.rank))
    has_peer = (messages[2] != NONE) & (messages[2] != entries.rank[messages[0]])
    is_send = messages[1][has_peer]
    entry, peer, group = (column[has_peer] for column in (messages[0], *messages[2:]))
    if len(entry) == 0:
        return Pairs(entry, entry, is_send)
    rank = entries.rank[entry]
    source, target = (np.where(is_send, *ends) for ends in ((rank, peer), (peer, rank)))
    _, ends = number_rows([session[entry], source, target])
    # Between two ranks that have no name of a group in common, the group tells nothing.
    cells, cell = number_rows([ends, group])
    has_send, has_recv = (np.bincount(cell[side], minlength=len(cells)) > 0 for side in (is_send, ~is_send))
    agree = np.zeros(int(ends.max()) + 1, dtype=bool)
    agree[cells[has_send & has_recv, 0]] = True
    _, lane = number_rows([ends, np.where(agree[ends], group, NONE)])
    lanes = int(lane.max()) + 1
    sent, received = (np.bincount(lane[side], minlength=lanes) for side in (is_send, ~is_send))
    equal = (sent == received)[lane]
    numbered = (np.bincount(lane, weights=entries.seq[entry] == NONE, minlength=lanes) == 0)[lane]
    order = np.empty(len(entry), dtype=np.int64)
    when = np.where(equal & numbered, entries.seq[entry], entries.start[entry])
    order[np.lexsort((np.arange(len(entry)), entries.start[entry], when))] = np.arange(len(entry))
    # Where one rank has recorded more, its messages are counted within each step, and only in steps that both have.
    in_steps = (np.bincount(lane, weights=entries.step[entry] == NONE, minlength=lanes) == 0)[lane]
    step = np.where(~equal & in_steps, entries.step[entry], NONE)
    cells, cell = number_rows([lane, step])
    sent, received = (np.bincount(cell[side], minlength=len(cells)) for side in (is_send, ~is_send))
    usable = (step == NONE) | (sent == received)[cell]
    nth = count_before([cell, is_send.astype(np.int64)], order)
    by_key = np.lexsort((~is_send, nth, cell))
    by_key = by_key[usable[by_key]]
    first, second = by_key[:-1], by_key[1:]
    same = (cell[first] == cell[second]) & (nth[first] == nth[second])
    sends, recvs = entry[first[same]], entry[second[same]]
    by_time = np.lexsort((recvs, sends, entries.start[sends]))
    sends, recvs = sends[by_time], recvs[by_time]
    return Pairs(sends, recvs, (per_entry[sends] == 1) & (per_entry[recvs] == 1))


def _messages(entries: Collectives) -> tuple[Ints, Mask, Ints, Ints]:
    """Every send and receive: its entry, whether it is a send, its peer, and a number for the name of its group.

    Those of one kernel are in the order of their calls.
    """
    names: dict[str, int] = {}
    single = np.flatnonzero(
        np.isin(entries.kind, [KINDS.index(kind) for kind in POINT_TO_POINT]) & (entries.batch == NONE)
    )
    of_group = np.array(
        [names.setdefault(group.name, len(names)) for group in entries.groups], dtype=np.int64
    )
    batched = np.flatnonzero(entries.batch != NONE)
    sizes = np.array([len(batch) for batch in entries.batches], dtype=np.int64)
    members = [message for batch in entries.batches for message in batch]
    is_send = np.array([message.is_send for message in members], dtype=bool)
    peer = np.array([message.peer for message in members], dtype=np.int64)
    group = np.array([names.setdefault(message.group, len(names)) for message in members], dtype=np.int64)
    count = sizes[entries.batch[batched]]
    first = (np.cumsum(sizes) - sizes)[entries.batch[batched]]
    at = ranges(first, count)
    return (
        np.concatenate([single, np.repeat(batched, count)]),
        np.concatenate([entries.kind[single] == KINDS.index("send"), is_send[at]]),
        np.concatenate([entries.peer[single], peer[at]]),
        np.concatenate([of_group[entries.group[single]], group[at]]),
    )


def match_collectives(entries: Collectives, session: Ints) -> Collectives:
    """Number the matches. Entries match only within one recording session (`loading.recording_sessions`)."""
    if len(entries.rank) == 0:
        return entries
    solo = np.array([group.size == 1 for group in entries.groups])[entries.group]
    two_sided = entries.point_to_point
    is_unknown = np.array([group.is_unknown for group in entries.groups])[entries.group]
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
        "their process group is not recorded, and the times do not tell it": left & is_unknown,
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
