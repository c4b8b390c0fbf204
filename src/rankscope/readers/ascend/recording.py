"""The files beside a trace_view.json, with the rank and the process groups.

NAME_ascend_pt/profiler_info_3.json, profiler_metadata.json, ASCEND_PROFILER_OUTPUT/trace_view.json
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rankscope.readers.base import TraceIdentity, rank_from_name
from rankscope.readers.checked_values import as_object, json_object

OUTPUT = "ASCEND_PROFILER_OUTPUT"
_INFO = re.compile(r"profiler_info_(\d{1,6})\.json")
_LARGEST = 256 << 20
_OPERATION = re.compile(r"^\w+?__(\d{1,3})_\d+")
"""hcom_allReduce__606_0_1: the kind, the last three digits of the group's hash, a running number."""


@dataclass(frozen=True)
class Group:
    """A process group. Only the hash of its id is recorded with operations."""

    hash: str
    name: str = ""
    ranks: tuple[int, ...] = ()


@dataclass(frozen=True)
class Recording:
    """What the other files tell."""

    groups: dict[str, Group] = field(default_factory=dict)
    """By hash."""
    group_of: dict[str, str] = field(default_factory=dict)
    """The hash of an operation's group by the operation's name, from communication.json."""

    def group(self, operation: str) -> Group | None:
        """The group of an operation; None if it cannot be told."""
        hash_recorded = self.group_of.get(operation)
        if hash_recorded is not None:
            return self.groups.get(hash_recorded, Group(hash_recorded))
        match = _OPERATION.match(operation)
        if match is None:
            return None
        ending = [group for hash, group in self.groups.items() if hash.endswith(match[1].zfill(3))]
        return ending[0] if len(ending) == 1 else Group(match[1])


def group_hash(id: str) -> str:
    """The number that CANN gives a group: two polynomial hashes of 32 bits of its id."""
    high = low = 0
    for letter in id:
        high = (high * 29 + ord(letter)) & 0xFFFFFFFF
        low = (low * 131 + ord(letter)) & 0xFFFFFFFF
    return str(high << 32 | low)


def identity_of(trace: Path) -> TraceIdentity:
    folder = _folder(trace)
    ranks = {
        int(match[1]) for path in folder.glob("profiler_info_*.json") if (match := _INFO.fullmatch(path.name))
    }
    rank, source = (ranks.pop(), "profiler_info") if len(ranks) == 1 else (rank_from_name(trace), "file name")
    if rank is None:
        rank, source = rank_from_name(folder), "folder name"
    world = max((len(ranks) for ranks in _group_ranks(folder).values()), default=0)
    return TraceIdentity(rank, source if rank is not None else "", world or None)


def read_recording(trace: Path) -> Recording:
    folder = _folder(trace)
    groups = {}
    for id, about in _listed_groups(folder).items():
        hash = group_hash(id)
        groups[hash] = Group(hash, str(about.get("group_name", "")), _group_ranks(folder).get(id, ()))
    group_of: dict[str, str] = {}
    for step in _json(trace.parent / "communication.json").values():
        for operations in as_object(step).values():
            for name in as_object(operations):
                operation, _, hash = name.partition("@")
                if hash:
                    group_of[operation] = hash
    return Recording(groups, group_of)


def _folder(trace: Path) -> Path:
    return trace.parent.parent if trace.parent.name == OUTPUT else trace.parent


def _listed_groups(folder: Path) -> dict[str, dict[str, Any]]:
    listed = _json(folder / "profiler_metadata.json").get("parallel_group_info")
    return {id: about for id, about in as_object(listed).items() if isinstance(about, dict)}


def _group_ranks(folder: Path) -> dict[str, tuple[int, ...]]:
    """The ranks of each group, by its id."""
    ranks_of = {}
    for id, about in _listed_groups(folder).items():
        ranks = about.get("global_ranks")
        if isinstance(ranks, list) and ranks and set(map(type, ranks)) == {int}:
            ranks_of[id] = tuple(ranks)
    return ranks_of


def _json(path: Path) -> dict[str, Any]:
    """The object in a file; {} if it is missing, damaged or far too large."""
    try:
        return json_object(path.read_bytes()) if path.is_file() and path.stat().st_size <= _LARGEST else {}
    except OSError:
        return {}
