"""Process groups: from the metadata of collectives, else from the file's header; `inferred_groups` from the times."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from rankscope.records import dataclass
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
