"""The collectives of a run as arrays, one entry per collective and rank."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import fields, replace
from functools import cached_property
from typing import Any

import numpy as np

from rankscope.collective_kinds import BATCHED, KINDS, POINT_TO_POINT, TOGETHER
from rankscope.records import dataclass
from rankscope.store.arrays import NONE, Ints, Mask
from rankscope.timeline.collectives.groups import Group


@dataclass(frozen=True)
class Unmatched:
    """Collectives without a counterpart on another rank, and the reason."""

    why: str
    count: int
    ranks: tuple[int, ...]


@dataclass(frozen=True)
class Message:
    """A send or a receive in a kernel of several."""

    is_send: bool
    peer: int
    """The other rank; NONE if not recorded."""
    group: str


@dataclass(frozen=True)
class Collectives:
    """One entry per collective and rank, sorted by rank and start.

    Times count from the run's start; they are start and end of the communication itself.
    """

    rank: Ints
    segment: Ints
    slice: Ints
    """Id of its slice; (rank, segment, slice) identifies it."""
    track: Ints
    group: Ints
    """Index into `groups`."""
    kind: Ints
    """Index into collective_kinds.KINDS."""
    dtype: Ints
    """Index into `dtypes`; NONE if unknown."""
    bytes: Ints
    """Message size S as nccl-tests defines it; NONE if unknown."""
    seq: Ints
    """Sequence number within its group; NONE if not recorded."""
    step: Ints
    start: Ints
    end: Ints
    on_device: Mask
    call: Ints
    """Id of the op that called it, on the same rank and segment; NONE if unknown."""
    call_start: Ints
    peer: Ints
    in_elements: Ints
    out_elements: Ints
    match: Ints
    """Number of its match, the same on all ranks; NONE if unmatched, and for a kernel with several messages, or with
    one whose other end has several: those are matched by `pairs`."""
    batch: Ints
    """The messages of a kernel of batch_isend_irecv: an index into `batches`; NONE for others."""
    sends: Ints
    """By matched message: the entry of its send."""
    recvs: Ints
    """By matched message: the entry of its receive."""
    groups: tuple[Group, ...]
    dtypes: tuple[str, ...]
    batches: tuple[tuple[Message, ...], ...] = ()
    unmatched: tuple[Unmatched, ...] = ()

    @property
    def count(self) -> int:
        """The number of matches. Matches are numbered from 0 in order of time."""
        return int(self.match.max(initial=NONE)) + 1

    @property
    def duration(self) -> Ints:
        return self.end - self.start

    @property
    def pairs(self) -> Ints:
        """[2, message]: the entries of its send and of its receive. A batched kernel has several messages."""
        return np.stack([self.sends, self.recvs])

    @cached_property
    def point_to_point(self) -> Mask:
        return np.isin(self.kind, [KINDS.index(kind) for kind in (*POINT_TO_POINT, BATCHED)])

    @cached_property
    def together(self) -> Mask:
        """True for kinds that all ranks leave at the same time."""
        return np.isin(self.kind, [KINDS.index(kind) for kind in TOGETHER])

    def of_ranks(self, ranks: Collection[int]) -> Collectives:
        return self.pick(np.isin(self.rank, sorted(ranks)))

    def pick(self, mask: Mask) -> Collectives:
        """Some of the entries, and the messages between them. The numbers of matches are kept."""
        arrays: dict[str, Any] = {
            field.name: value[mask]
            for field in fields(self)
            if isinstance(value := getattr(self, field.name), np.ndarray)
            and field.name not in ("sends", "recvs")
        }
        number, both = np.cumsum(mask) - 1, mask[self.sends] & mask[self.recvs]
        sends, recvs = number[self.sends[both]], number[self.recvs[both]]
        return replace(self, **arrays, sends=sends, recvs=recvs)
