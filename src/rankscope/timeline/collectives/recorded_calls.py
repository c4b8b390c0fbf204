"""Group, sequence number and peer of gloo's collectives, as the capture wrote them into the trace's header.

`inapp.collective_calls` describes the field. Each call is an op of c10d in the trace: a collective is noted inside its
op, a send or receive just before it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from rankscope.collective_kinds import POINT_TO_POINT, kind_of
from rankscope.records import dataclass
from rankscope.store.arrays import Ints
from rankscope.timeline.collectives.groups import Group, header_groups

_SLACK_NS = 20_000
"""Kineto's clock and that of the calls differ by microseconds."""
_MOST_NS = 1 << 62


@dataclass(frozen=True)
class RecordedCall:
    """What the capture noted about a call."""

    time_ns: int
    """By the clock of the trace's events."""
    kind: str
    group: Group
    seq: int | None
    peer: int | None
    dtype: str
    elements: int | None

    @property
    def is_message(self) -> bool:
        return self.kind in POINT_TO_POINT

    def columns(self) -> dict[str, Any]:
        """What it adds to a row of the table."""
        ranks = self.group.ranks
        counted = "out_elements" if self.kind == "recv" else "in_elements"
        return {
            "group_name": self.group.name,
            "group_description": self.group.description or None,
            "group_ranks": None if ranks is None else str(list(ranks)),
            "group_size": self.group.size,
            "seq": self.seq,
            "peer": self.peer,
            counted: self.elements,
        }


def recorded_calls(header: Mapping[str, Any], clock_base_ns: int) -> list[RecordedCall]:
    """The calls in order of time; none where the header has no such field, or a damaged one."""
    captured = header.get("rankscope")
    field = captured.get("collectives") if isinstance(captured, dict) else None
    if not isinstance(field, dict):
        return []
    groups = {group.name: group for group in header_groups(header)}
    try:
        since = int(field["since_unix_ns"]) - clock_base_ns
        what = [_described(row, groups) for row in field["what"]]
        calls = [
            RecordedCall(since + int(us) * 1000, seq=None if seq is None else int(seq), **what[index])
            for us, index, seq in field["calls"]
        ]
    except (KeyError, TypeError, ValueError, IndexError):
        return []
    return sorted((call for call in calls if abs(call.time_ns) < _MOST_NS), key=lambda call: call.time_ns)


def _described(row: Sequence[Any], groups: Mapping[str, Group]) -> dict[str, Any]:
    name, group, peer, dtype, elements = row
    return {
        "kind": kind_of(str(name)) or "",
        "group": groups.get(str(group), Group(str(group))),
        "peer": None if peer is None else int(peer),
        "dtype": str(dtype or "").replace("torch.", ""),
        "elements": None if elements is None else int(elements),
    }


def calls_of(
    recorded: Sequence[RecordedCall], kinds: Sequence[str], starts: Ints
) -> list[RecordedCall | None]:
    """For each op of c10d, in order of time, what was recorded about it.

    gloo runs a reduce_scatter as an all_reduce and records it as such.
    """
    of_op: list[RecordedCall | None] = [None] * len(kinds)
    kind_names = np.array(kinds, dtype=str)
    for kind in {call.kind for call in recorded}:
        wanted = [kind, "reduce_scatter"] if kind == "all_reduce" else [kind]
        index = np.flatnonzero(np.isin(kind_names, wanted))
        mine = [call for call in recorded if call.kind == kind]
        times = np.array([call.time_ns for call in mine], dtype=np.int64)
        if kind in POINT_TO_POINT:
            at = np.searchsorted(starts[index], times - _SLACK_NS)
        else:
            at = np.searchsorted(starts[index], times + _SLACK_NS, side="right") - 1
        inside = (at >= 0) & (at < len(index))
        once = np.bincount(at[inside], minlength=len(index)) == 1
        for call, position in zip(mine, at.tolist(), strict=True):
            if 0 <= position < len(index) and once[position]:
                of_op[int(index[position])] = call
    return of_op


def complete_groups(records: Sequence[dict[str, Any]]) -> None:
    """Give the runs of a worker thread before the first recorded call the group of the others, and earlier numbers.

    Every worker thread belongs to one group. The recorder forgets the oldest calls of a long window.
    """
    of_track: dict[int, dict[str, list[dict[str, Any]]]] = {}
    for record in records:
        if record["kind"] not in POINT_TO_POINT and record["group_name"] is not None:
            of_track.setdefault(record["track"], {}).setdefault(record["group_name"], []).append(record)
    by_group: dict[str, list[dict[str, Any]]] = {}
    for record in records:
        names = of_track.get(record["track"], {})
        if record["kind"] not in POINT_TO_POINT and len(names) == 1:
            by_group.setdefault(next(iter(names)), []).append(record)
    for runs in by_group.values():
        runs.sort(key=lambda record: record["start_ns"])
        recorded_from = next(number for number, record in enumerate(runs) if record["group_name"] is not None)
        first = runs[recorded_from]
        for number, record in enumerate(runs[:recorded_from]):
            seq = None if first["seq"] is None else first["seq"] - recorded_from + number
            record |= {name: first[name] for name in ("group_name", "group_description", "group_ranks")}
            record |= {"group_size": first["group_size"], "seq": seq}
