"""The collectives of a run as arrays, one entry per collective and rank."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import fields, replace
from functools import cached_property
from typing import Any

import numpy as np

from rankscope.collective_kinds import BATCHED, KINDS, POINT_TO_POINT, TOGETHER
from rankscope.records import dataclass
from rankscope.store.arrays import NONE, Ints, Mask
from rankscope.store.index import BY_ROLE, SegmentEntry

UNKNOWN = "?"
"""The name of a group without a recorded name."""

_OF_ONE_RANK = f"{UNKNOWN} of rank "


@dataclass(frozen=True)
class Group:
    """A process group. Groups with the same name and different ranks are different groups."""

    name: str
    description: str = ""
    ranks: tuple[int, ...] | None = None
    """None if not recorded."""
    size: int | None = None

    @property
    def is_named(self) -> bool:
        return not self.name.startswith(UNKNOWN)

    @property
    def is_unknown(self) -> bool:
        """Whether it is one of several, and not told which: its collectives match with none of other ranks."""
        return self.name.startswith(_OF_ONE_RANK)


def unknown_group(rank: int) -> Group:
    """For collectives of a rank that has several groups."""
    return Group(f"{_OF_ONE_RANK}{rank}")


def header_groups(header: Mapping[str, Any]) -> list[Group]:
    """The groups of a rank in order of creation, from torch's distributedInfo."""
    info = header.get("distributedInfo")
    listed = info.get("pg_config") if isinstance(info, dict) else None
    groups = []
    for entry in listed if isinstance(listed, list) else []:
        if not isinstance(entry, dict):
            continue
        ranks = entry.get("ranks")
        are_numbers = isinstance(ranks, list) and set(map(type, ranks)) <= {int}
        size = entry.get("pg_size")
        groups.append(
            Group(
                str(entry.get("pg_name", UNKNOWN)),
                _description(entry.get("pg_desc")),
                tuple(ranks) if isinstance(ranks, list) and are_numbers else None,
                size if isinstance(size, int) else len(ranks) if isinstance(ranks, list) else None,
            )
        )
    return groups


def listed_groups(entry: SegmentEntry) -> list[Group]:
    """The groups of a file's header, with the ranks of the run."""
    groups = header_groups(entry.header)
    if entry.rank_source != BY_ROLE:
        return groups
    return [in_role(group, entry.role, entry.first_rank) for group in groups]


def in_role(group: Group, role: str, first_rank: int) -> Group:
    """A group with the ranks of the run, where the ranks of its role begin with this one. Other roles have groups of
    the same name."""
    ranks = None if group.ranks is None else tuple(rank + first_rank for rank in group.ranks)
    return replace(group, name=f"{group.name} of {role} from rank {first_rank}", ranks=ranks)


def recorded_group(
    name: str | None, description: str | None, ranks: str | None, size: int | None, listed: Iterable[Group]
) -> Group:
    """The group of a collective with metadata. Where the metadata truncates the ranks, the header has them."""
    members = parse_ranks(ranks)
    if members is None:
        members = next((group.ranks for group in listed if group.name == name and group.size == size), None)
    return Group(
        name or UNKNOWN, _description(description), members, size or (len(members) if members else None)
    )


def parse_ranks(text: str | None) -> tuple[int, ...] | None:
    """The ranks in '[0, 1, 2, 3]'; None if there is no list or it is truncated ('...')."""
    if not text or not re.fullmatch(r"\[\s*\d+(?:\s*,\s*\d+)*\s*\]", text):
        return None
    return tuple(int(number) for number in re.findall(r"\d+", text))


def _description(text: Any) -> str:
    return "" if text in (None, "undefined") else str(text)


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
