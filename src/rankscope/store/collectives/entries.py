"""The collectives of a run as arrays, one entry per collective and rank."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from rankscope.collective_kinds import KINDS, TOGETHER
from rankscope.store.arrays import NONE, Ints, Mask
from rankscope.store.collectives.groups import Group


@dataclass(frozen=True)
class Unmatched:
    """Collectives that have no counterpart, and why."""

    why: str
    count: int
    ranks: tuple[int, ...]


@dataclass(frozen=True)
class Collectives:
    """What communicates, one entry a collective and rank, sorted by rank and start.

    Times are those of the run's views: start and end of the communication itself.
    """

    rank: Ints
    segment: Ints
    slice: Ints
    """Id of its slice: (rank, segment, slice) names it."""
    track: Ints
    group: Ints
    """Index into `groups`."""
    kind: Ints
    """Index into collective_kinds.KINDS."""
    dtype: Ints
    """Index into `dtypes`; NONE where it is not known."""
    bytes: Ints
    """S of nccl-tests; NONE where it is not known."""
    seq: Ints
    """Sequence number within its group; NONE where the file does not tell."""
    step: Ints
    start: Ints
    end: Ints
    on_device: Mask
    call: Ints
    """Id of the op that asked for it, on the same rank and segment; NONE where there is none."""
    call_start: Ints
    peer: Ints
    in_elements: Ints
    out_elements: Ints
    match: Ints
    """Number of its match, the same on all ranks; NONE where it has none."""
    groups: tuple[Group, ...]
    dtypes: tuple[str, ...]
    unmatched: tuple[Unmatched, ...] = ()

    @property
    def count(self) -> int:
        """How many matches there are; their numbers run from 0 in order of time."""
        return int(self.match.max(initial=NONE)) + 1

    @property
    def duration(self) -> Ints:
        return self.end - self.start

    @property
    def together(self) -> Mask:
        """Of a kind that all ranks leave at the same time."""
        return np.isin(self.kind, [KINDS.index(kind) for kind in TOGETHER])

    def pick(self, mask: Mask) -> Collectives:
        """Some of the entries; numbers of matches stay."""
        arrays: dict[str, Any] = {
            name: value[mask] for name, value in vars(self).items() if isinstance(value, np.ndarray)
        }
        return replace(self, **arrays)

    def members(self) -> Iterator[tuple[int, Ints]]:
        """Each match with the places of its entries; for small runs and tests, not for the analyses."""
        for number in range(self.count):
            yield number, np.flatnonzero(self.match == number)
