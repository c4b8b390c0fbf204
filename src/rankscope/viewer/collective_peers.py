"""Route for one collective on all its ranks: arrival, wait, the last rank to arrive, and bandwidth."""

from __future__ import annotations

from typing import Any

import numpy as np

from rankscope.analysis.core.collective_waits import Waits, waits
from rankscope.collective_kinds import KINDS
from rankscope.store.arrays import NONE, Ints
from rankscope.units import format_bytes, format_ns
from rankscope.viewer.answers import Answer, Route, integer
from rankscope.viewer.session import Session


def routes(session: Session) -> dict[str, Route]:
    return {"collective": lambda query: collective(session, query)}


def collective(session: Session, query: dict[str, str]) -> Answer:
    """The collective that a slice belongs to: one row per rank, in order of arrival."""
    rank, segment, id = (integer(query[name]) for name in ("rank", "segment", "id"))
    with session.database() as run:
        found = waits(run)
    rows = found.rows
    mine = np.flatnonzero((rows.rank == rank) & (rows.segment == segment) & (rows.slice == id))
    if len(mine) == 0:
        raise ValueError("this slice is not a collective")
    match = int(rows.match[mine[0]])
    return _described(found, mine) if match == NONE else describe_match(found, match)


def describe_match(found: Waits, match: int) -> dict[str, Any]:
    """A matched collective: one row per rank, in order of arrival."""
    return _described(found, np.flatnonzero(found.rows.match == match))


def _described(found: Waits, members: Ints) -> dict[str, Any]:
    rows = found.rows
    match = int(rows.match[members[0]])
    members = members[np.argsort(rows.start[members], kind="stable")]
    last = int(found.last[match]) if match != NONE else NONE
    first = int(rows.start[members[0]])
    peers = [
        {
            "rank": int(rows.rank[at]),
            "segment": int(rows.segment[at]),
            "id": int(rows.slice[at]),
            "track": int(rows.track[at]),
            "start_ns": int(rows.start[at]),
            "dur_ns": int(rows.end[at] - rows.start[at]),
            "arrives_ns": int(rows.start[at]) - first,
            "wait_ns": None if found.wait[at] == NONE else int(found.wait[at]),
        }
        for at in members.tolist()
    ]
    return {
        "title": f"{KINDS[rows.kind[members[0]]]} {'' if match == NONE else f'#{match}'}".strip(),
        "text": _describe(found, int(members[0]), match, len(members)),
        "last": None if last == NONE else int(rows.rank[last]),
        "rows": peers,
    }


def _describe(found: Waits, at: int, match: int, ranks: int) -> str:
    rows = found.rows
    group = rows.groups[rows.group[at]]
    words = [f"group {group.description or group.name}"] if group.is_named else []
    if group.size and group.size != ranks:
        words.append(f"{ranks} of {group.size} ranks are in this run")
    if rows.bytes[at] != NONE:
        words.append(format_bytes(int(rows.bytes[at])))
    if match == NONE:
        return ", ".join([*words, "not matched with other ranks"])
    transfer = int(found.transfer[match])
    if transfer != NONE:
        words.append(f"transfer {format_ns(transfer)}")
        if rows.bytes[at] != NONE and transfer > 0:
            words.append(f"{rows.bytes[at] / transfer:.3g} GB/s")
    return ", ".join(words)
