"""Collectives without sequence numbers: the n-th of a kind and size on one rank is the n-th on the others.

Steps keep one lost event from spoiling all that follow. Without steps, each rank's sequence is first moved until
it agrees with that of the rank that recorded most.
"""

from __future__ import annotations

import numpy as np

from rankscope.collective_kinds import KINDS
from rankscope.store.arrays import NONE, Ints, Mask, count_before, number_rows
from rankscope.store.collectives.entries import Collectives

_FARTHEST = 256
"""How many collectives later than another a rank may have begun to record."""
_COMPARED = 1024
"""How many collectives are looked at to find out."""
_STEPS_TELL = 0.5
"""Share of collectives inside steps from which on the steps are trusted."""


def align_by_order(found: Collectives, rows: Ints) -> Ints:
    """Sequence numbers for the entries `rows` (of one group): equal for what belongs together.

    Where some ranks have numbers in the file, the others are given these.
    """
    _, number = number_rows(order_keys(found, rows))
    told = found.seq[rows]
    if (told == NONE).all():
        return number
    return _adopt(number, told, found.rank[rows])


def _adopt(number: Ints, told: Ints, rank: Ints) -> Ints:
    """The file's numbers, and for ranks without any the number others have at the same place."""
    known = np.full(int(number.max()) + 1, NONE)
    has = np.flatnonzero(told != NONE)
    known[number[has][::-1]] = told[has][::-1]  # the first rank's word counts
    has_none = ~np.isin(rank, rank[has])
    return np.where(has_none, known[number], told)


def order_keys(found: Collectives, rows: Ints) -> list[Ints]:
    """Of each entry: step, what it is, and how many like it came before.

    Size is no part of it where each rank may have its own (all_to_all), or only the root has one (scatter).
    """
    rank = found.rank[rows]
    uneven = np.isin(found.kind[rows], [KINDS.index(kind) for kind in ("all_to_all", "scatter")])
    what = [
        found.kind[rows],
        np.where(uneven, NONE, found.bytes[rows]),
        np.where(uneven, NONE, found.dtype[rows]),
    ]
    _, token = number_rows(what)
    step = found.step[rows]
    if np.mean(step != NONE) <= _STEPS_TELL:
        step = np.full(len(rows), NONE)
        step[_before_anchor(token, rank, found.start[rows], found.end[rows])] = NONE - 1
    time = np.where(found.call_start[rows] != NONE, found.call_start[rows], found.start[rows])
    return [step, token, count_before([rank, step, token], time)]


def _before_anchor(token: Ints, rank: Ints, start: Ints, end: Ints) -> Mask:
    """What each rank ran before the first collective that all ranks recorded."""
    ranks = np.unique(rank)
    places = [np.flatnonzero(rank == number) for number in ranks]
    places = [rows[np.argsort(start[rows], kind="stable")] for rows in places]
    reference = max(places, key=len)
    moved = [_shift(token[reference], token[rows], end[reference], end[rows]) for rows in places]
    first = max(max(shift, 0) for shift in moved)
    early = np.zeros(len(rank), dtype=bool)
    for rows, shift in zip(places, moved, strict=True):
        early[rows[: max(first - shift, 0)]] = True
    return early


def _shift(reference: Ints, tokens: Ints, reference_end: Ints, end: Ints) -> int:
    """Which collective of the reference the first one here is; negative when this rank began earlier.

    The sequences must agree best there; a training loop repeats itself, so among equally good places the one
    decides at which the ends lie closest together by wall clock.
    """
    best: tuple[float, float, int] | None = None
    for shift in sorted(range(-_FARTHEST, _FARTHEST + 1), key=abs):
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
