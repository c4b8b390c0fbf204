"""Routes for search: names that match a text, and the slices of these names one after the other."""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from dataclasses import dataclass
from typing import Any

import numpy as np

from rankscope.errors import UsageError
from rankscope.ranges import as_ranges
from rankscope.sql import sql_texts
from rankscope.viewer.answers import Answer, Route, integer
from rankscope.viewer.level_of_detail import Ints
from rankscope.viewer.session import Session

_MOST_NAMES = 100
_FIRST = -(2**62)


def routes(session: Session) -> dict[str, Route]:
    searching = _Searching(session)
    return {"search": searching.search, "find": searching.find}


@dataclass(frozen=True)
class _Hits:
    """Slices in order of start; `key` is (start, rank, segment, id)."""

    key: Ints

    def beside(self, at: tuple[int, ...], back: bool) -> int | None:
        """The place of the next or previous hit; a slice at `at` itself is left out."""
        keys = _Tuples(self.key)
        place = bisect_left(keys, at) - 1 if back else bisect_right(keys, at)
        return place if 0 <= place < len(self.key) else None


class _Tuples:
    """The rows of an array as tuples, which bisect compares."""

    def __init__(self, rows: Ints) -> None:
        self._rows = rows

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, at: int) -> tuple[int, ...]:
        return tuple(self._rows[at].tolist())


class _Searching:
    """The names of a run are read once; so are the hits of the last search, through which a user walks."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._names: list[dict[str, Any]] | None = None
        self._last: tuple[object, _Hits] | None = None

    def search(self, query: dict[str, str]) -> Answer:
        """Names that contain a text or match a regular expression, with category, ranks, count and total time."""
        found = [row for row in self._all_names() if _matches(query)(row["name"])]
        return {
            "q": query["q"],
            "names": found[:_MOST_NAMES],
            "count": sum(row["count"] for row in found),
            "more_names": max(0, len(found) - _MOST_NAMES),
        }

    def find(self, query: dict[str, str]) -> Answer:
        """The next or previous slice of a name, or of all names that match `q`, on one rank or all; and its place."""
        hits = self._hits(query)
        back = query.get("direction") == "previous"
        after = [integer(part) for part in query["after"].split(".")] if query.get("after") else []
        if len(after) not in (0, 3):
            raise ValueError("after must be rank.segment.id")
        at = (integer(query["at"]), *(after or [_FIRST if back else -_FIRST] * 3))
        place = hits.beside(at, back)
        if place is None:
            return {"found": None, "count": len(hits.key)}
        _, rank, segment, id = hits.key[place].tolist()
        with self._session.drawing() as run:
            (found,) = run.records(
                "SELECT rank, segment, id, track, depth, name, category, start_ns, dur_ns FROM slices "
                "WHERE rank = ? AND segment = ? AND id = ?",
                [rank, segment, id],
            )
        return {"found": found, "place": place + 1, "count": len(hits.key)}

    def _all_names(self) -> list[dict[str, Any]]:
        with self._session.drawing() as run:
            if self._names is None:
                self._names = run.records(
                    "SELECT name, category, count(*) AS count, list(DISTINCT rank ORDER BY rank) AS ranks, "
                    "sum(dur_ns)::BIGINT AS total_ns, min(start_ns) AS first_ns FROM slices "
                    "GROUP BY name, category ORDER BY total_ns DESC, name"
                )
                for row in self._names:
                    row["ranks"] = as_ranges(row["ranks"])
            return self._names

    def _hits(self, query: dict[str, str]) -> _Hits:
        wanted = tuple(query.get(word, "") for word in ("name", "q", "regex", "rank"))
        if self._last is not None and self._last[0] == wanted:
            return self._last[1]
        if query.get("name"):
            names = [query["name"]]
        else:
            matches = _matches(query)
            names = [*dict.fromkeys(row["name"] for row in self._all_names() if matches(row["name"]))]
        rank = f"AND rank = {integer(query['rank'])}" if query.get("rank") else ""
        key = np.zeros((0, 4), dtype=np.int64)
        if names:
            with self._session.drawing() as run:
                columns = run.arrays(
                    f"SELECT start_ns, rank::BIGINT AS rank, segment::BIGINT AS segment, id FROM slices "
                    f"WHERE name IN ({sql_texts(names)}) {rank} ORDER BY ALL"
                )
            key = np.column_stack([columns[name] for name in ("start_ns", "rank", "segment", "id")])
        self._last = (wanted, _Hits(key))
        return self._last[1]


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
