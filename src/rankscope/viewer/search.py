"""Routes for search: names that match a text, and the slices of these names one after the other."""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from typing import Any

import numpy as np

from rankscope.collective_kinds import KINDS
from rankscope.errors import UsageError
from rankscope.ranges import as_ranges
from rankscope.sql import sql_texts
from rankscope.store.arrays import Ints
from rankscope.text.names import shorten_names
from rankscope.viewer.answers import Answer, integer
from rankscope.viewer.session import Session
from rankscope.viewer.slices import BRIEF

_MOST_NAMES = 100
_NAME_WIDTH = 44
_FIRST = -(2**62)


def search(session: Session, query: dict[str, str]) -> Answer:
    """Names that contain a text or match a regular expression, with category, ranks, count and total time."""
    matches = _matches(query)
    rows = [row for row in _all_names(session) if matches(row["name"])]
    short = shorten_names([row["name"] for row in rows[:_MOST_NAMES]], _NAME_WIDTH)
    return {
        "q": query["q"],
        "names": [row | {"short": name} for row, name in zip(rows, short, strict=False)],
        "count": sum(row["count"] for row in rows),
        "more_names": max(0, len(rows) - _MOST_NAMES),
    }


def find(session: Session, query: dict[str, str]) -> Answer:
    """The next or previous slice of a name, of all names that match `q`, or of a kind of collective, on one rank or
    all; and its place."""
    hits = _hits(session, query)
    back = query.get("direction") == "previous"
    after = [integer(part) for part in query["after"].split(".")] if query.get("after") else []
    if len(after) not in (0, 3):
        raise ValueError("after must be rank.segment.id")
    position = (integer(query["at"]), *(after or [_FIRST if back else -_FIRST] * 3))

    def key(at: int) -> tuple[int, ...]:
        return tuple(hits[at].tolist())

    # A slice at the position itself is left out.
    places = range(len(hits))
    at = bisect_left(places, position, key=key) - 1 if back else bisect_right(places, position, key=key)
    if after and len(same := np.flatnonzero((hits[:, 1:] == after).all(axis=1))):
        at = int(same[0]) + (-1 if back else 1)  # a collective begins at another time than its slice
    if not 0 <= at < len(hits):
        return {"found": None, "count": len(hits)}
    _, rank, segment, id = hits[at].tolist()
    with session.drawing() as run:
        (row,) = run.records(f"{BRIEF} AND id = ?", [rank, segment, id])
    return {"found": row, "place": at + 1, "count": len(hits)}


def _all_names(session: Session) -> list[dict[str, Any]]:
    """Read once."""

    def read() -> list[dict[str, Any]]:
        rows = session.drawn.records(
            "SELECT name, category, count(*) AS count, list(DISTINCT rank ORDER BY rank) AS ranks, "
            "sum(dur_ns)::BIGINT AS total_ns, min(start_ns) AS first_ns FROM slices "
            "GROUP BY name, category ORDER BY total_ns DESC, name"
        )
        return [row | {"ranks": as_ranges(row["ranks"])} for row in rows]

    return session.once("names", read)


def _hits(session: Session, query: dict[str, str]) -> Ints:
    """Start, rank, segment and id of slices, in this order; those of the last search are kept: a user walks through."""
    wanted = tuple(query.get(word, "") for word in ("name", "q", "regex", "rank", "kind", "group", "bytes"))
    last: dict[object, Ints] = session.once("hits", dict)
    if (hits := last.get(wanted)) is not None:
        return hits
    names: list[str] = []
    hits = np.zeros((0, 4), dtype=np.int64)
    if query.get("kind"):
        hits = _collectives(session, query)
    elif query.get("name"):
        names = [query["name"]]
    else:
        matches = _matches(query)
        names = [*dict.fromkeys(row["name"] for row in _all_names(session) if matches(row["name"]))]
    rank = f"AND rank = {integer(query['rank'])}" if query.get("rank") else ""
    if names:
        with session.drawing() as run:
            columns = run.arrays(
                f"SELECT start_ns, rank::BIGINT AS rank, segment::BIGINT AS segment, id FROM slices "
                f"WHERE name IN ({sql_texts(names)}) {rank} ORDER BY ALL"
            )
        hits = np.column_stack([columns[name] for name in ("start_ns", "rank", "segment", "id")])
    last.clear()
    last[wanted] = hits
    return hits


def _collectives(session: Session, query: dict[str, str]) -> Ints:
    """The same of the collectives of a row of the report."""
    with session.database() as run:
        entries = run.collectives
    names = [group.name for group in entries.groups]
    mine = entries.kind == KINDS.index(query["kind"])
    if query.get("group"):
        mine &= np.isin(entries.group, [at for at, name in enumerate(names) if name == query["group"]])
    if query.get("bytes"):
        mine &= entries.bytes == integer(query["bytes"])
    if query.get("rank"):
        mine &= entries.rank == integer(query["rank"])
    hits: Ints = np.column_stack([entries.start, entries.rank, entries.segment, entries.slice])[mine]
    order = np.lexsort(hits.T[::-1])
    return hits[order]


def _matches(query: dict[str, str]) -> Any:
    """Whether a name is searched for. Case does not matter."""
    if query.get("regex") != "1":
        text = query["q"].lower()
        return lambda name: text in name.lower()
    try:
        return re.compile(query["q"], re.IGNORECASE).search
    except re.error as error:
        raise UsageError(
            f"{query['q']!r} is not a regular expression",
            why=f"{error}.",
            hint="Switch the .* button off to search for this text as it is.",
        ) from None
