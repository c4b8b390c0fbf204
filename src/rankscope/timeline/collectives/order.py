"""Numbers for collectives without a recorded sequence number: from their order on each rank."""

from __future__ import annotations

import numpy as np

from rankscope.collective_kinds import KINDS
from rankscope.store.arrays import NONE, Ints, Mask, count_before, number_rows, starts_group
from rankscope.timeline.collectives.entries import Collectives

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
    recorded = entries.seq[rows]
    if (recorded == NONE).all():
        return number
    return _adopt(number, recorded, entries.rank[rows])


def _adopt(number: Ints, recorded: Ints, rank: Ints) -> Ints:
    """The recorded numbers; for ranks without any, the number of the other ranks at the same position."""
    adopted = np.full(int(number.max()) + 1, NONE)
    has = np.flatnonzero(recorded != NONE)
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
