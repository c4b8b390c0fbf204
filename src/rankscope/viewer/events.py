"""Routes about all slices in a time range: as a table that is read page by page, and summed up."""

from __future__ import annotations

from typing import Any

import numpy as np

from rankscope.analysis.core.intervals import share_of
from rankscope.text.names import shorten_name, shorten_names
from rankscope.viewer.answers import Answer, integer, window_of
from rankscope.viewer.session import ACTIVITIES, Session

_MOST_ROWS = 500
"""Of one page of the table."""
_MOST_GROUPS = 200
_EVENT_NAME, _GROUP_NAME = 64, 26
"""The width of names in both tables."""
_SORTED_BY = ("name", "category", "rank", "track", "start_ns", "dur_ns", "self_ns", "step")
_GROUPED_BY = {"name": "name, category", "track": "rank, label", "rank": "rank", "category": "category"}
_ON_DEVICE = "device IS NOT NULL"


def events(session: Session, query: dict[str, str]) -> Answer:
    """One page of the slices in a time range, sorted, and how many there are.

    `tracks` names some tracks (rank.segment.track); `text` is part of the name, the category or the track's label.
    `slice` (rank.segment.id) asks for the place of one of them in this order.
    """
    by = query.get("sort", "start_ns")
    if by not in _SORTED_BY:
        raise ValueError(f"sort must be one of {', '.join(_SORTED_BY)}")
    direction = "DESC" if query.get("order") == "descending" else "ASC"
    order = f"ORDER BY {'label' if by == 'track' else by} {direction} NULLS LAST, rank, segment, id"
    source, values = _source(session, query)
    limit, offset = integer(query.get("limit", "100")), integer(query.get("offset", "0"))
    if limit < 0 or offset < 0:
        raise ValueError("limit and offset must not be negative")
    with session.drawing() as run:
        ((count, total),) = run.rows(
            f"SELECT count(*), coalesce(sum(dur_ns), 0)::BIGINT FROM ({source})", values
        )
        rows = run.records(
            f"SELECT rank, segment, id, track, depth, label, name, category, start_ns, dur_ns, self_ns, step "
            f"FROM ({source}) {order} "
            f"LIMIT {min(limit, _MOST_ROWS)} OFFSET {offset}",
            values,
        )
        places = []
        if query.get("slice"):
            rank, segment, id = (integer(part) for part in query["slice"].split("."))
            places = run.rows(
                f"SELECT place FROM (SELECT *, row_number() OVER ({order}) - 1 AS place FROM ({source})) "
                f"WHERE rank = {rank} AND segment = {segment} AND id = {id}",
                values,
            )
    rows = [row | {"short": shorten_name(row["name"], _EVENT_NAME)} for row in rows]
    return {"count": count, "total_ns": total, "rows": rows, "place": places[0][0] if places else None}


def area(session: Session, query: dict[str, str]) -> Answer:
    """A time range on some ranks or tracks: the share of each class per rank, and the slices by name, track, rank or
    category, those on devices and those on hosts apart. Slices count with their part inside the range."""
    begin, end = window_of(query)
    by = query.get("by", "name")
    if by not in _GROUPED_BY:
        raise ValueError(f"by must be one of {', '.join(_GROUPED_BY)}")
    source, values = _source(session, query)
    with session.drawing() as run:
        groups = run.records(
            f"""
            SELECT {_GROUPED_BY[by]}, {_ON_DEVICE} AS on_device, count(*) AS count, count(DISTINCT rank) AS ranks,
                   sum(least(start_ns + dur_ns, {end}) - greatest(start_ns, {begin}))::BIGINT AS inside_ns,
                   avg(dur_ns) AS avg_ns, max(dur_ns) AS max_ns
            FROM ({source}) GROUP BY {_GROUPED_BY[by]}, {_ON_DEVICE} ORDER BY inside_ns DESC
            """,
            values,
        )
    sides = {
        side: [group for group in groups if group["on_device"] is on_device]
        for side, on_device in (("device", True), ("host", False))
    }
    for side in sides.values() if by == "name" else ():
        names = shorten_names([group["name"] for group in side[:_MOST_GROUPS]], _GROUP_NAME)
        for group, name in zip(side, names, strict=False):
            group["short"] = name
    return {
        "begin_ns": begin,
        "end_ns": end,
        "shares": _shares(session, session.ranks(query), begin, end),
        **{side: listed[:_MOST_GROUPS] for side, listed in sides.items()},
        "more": {side: max(0, len(listed) - _MOST_GROUPS) for side, listed in sides.items()},
    }


def _shares(session: Session, ranks: list[int], begin: int, end: int) -> list[dict[str, Any]]:
    edges = np.array([begin, end], dtype=np.int64)
    shares = []
    for rank in ranks:
        activity = session.activity(rank)
        share = {name: float(share_of(getattr(activity, name), edges)[0]) for name in ACTIVITIES}
        unrecorded = 1 - float(share_of(activity.recorded, edges)[0])
        idle = max(0.0, 1 - sum(share.values()) - unrecorded)
        shares.append({"rank": rank, **share, "idle": idle, "unrecorded": unrecorded})
    return shares


def _source(session: Session, query: dict[str, str]) -> tuple[str, list[str]]:
    """SQL for the slices that a request names, with the labels of their tracks, and the values of its parameters."""
    begin, end = window_of(query)
    conditions = [
        f"s.start_ns < {end} AND s.start_ns + s.dur_ns > {begin}",
        f"s.rank IN ({', '.join(map(str, session.ranks(query)))})",
    ]
    if query.get("tracks"):
        keys = (tuple(integer(part) for part in key.split(".")) for key in query["tracks"].split(","))
        places = ", ".join(f"({rank}, {segment}, {track})" for rank, segment, track in keys)
        conditions.append(f"(s.rank, s.segment, s.track) IN ({places})")
    values = []
    if query.get("text"):
        conditions.append("contains(lower(concat_ws(chr(10), s.name, s.category, t.label)), lower(?))")
        values.append(query["text"])
    source = (
        "SELECT s.*, t.label FROM slices s JOIN tracks t ON "
        "t.rank = s.rank AND t.segment = s.segment AND t.track = s.track WHERE " + " AND ".join(conditions)
    )
    return source, values
