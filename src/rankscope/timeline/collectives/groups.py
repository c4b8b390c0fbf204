"""Process groups: from the metadata of collectives, else from the file's header and gloo's worker threads."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from rankscope.records import dataclass

UNKNOWN = "?"
"""The name of a group without a recorded name."""

_WORKERS = 2
"""Threads that torch starts for each gloo process group."""


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


def recorded_group(
    name: str | None, description: str | None, ranks: str | None, size: int | None, listed: Sequence[Group]
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


def groups_of_threads(threads: Sequence[str], listed: Sequence[Group]) -> dict[str, Group]:
    """The group of each gloo worker thread, or {} if that is ambiguous.

    Every group starts two workers when it is created, so thread ids and groups are in the same order.
    """
    if not listed or not all(thread.isdigit() for thread in threads):
        return {}
    in_order = sorted(threads, key=int)
    if len(in_order) == _WORKERS * len(listed):
        rows = [in_order[i : i + _WORKERS] for i in range(0, len(in_order), _WORKERS)]
    else:  # some workers recorded nothing: consecutive ids belong together
        rows = []
        for thread in in_order:
            if rows and int(thread) == int(rows[-1][-1]) + 1 and len(rows[-1]) < _WORKERS:
                rows[-1].append(thread)
            else:
                rows.append([thread])
    if len(rows) != len(listed):
        return {}
    return {thread: group for row, group in zip(rows, listed, strict=True) for thread in row}


def _description(text: Any) -> str:
    return "" if text in (None, "undefined") else str(text)
