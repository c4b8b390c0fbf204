"""The tracks of one rank in drawing order: streams with their annotations, communication, then threads of the host."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import numpy as np

from rankscope.viewer.collective_lanes import COMMUNICATION
from rankscope.viewer.session import Session

_LEAST_SHARE = 0.02
"""Of the busiest stream's time: streams with less fold into one row. torch makes dozens for copies."""
_KIND_ORDER = ("thread", "async", "annotation", "span")


def rank_tracks(session: Session, rank: int) -> list[dict[str, Any]]:
    """Every track with slices, with its group, its categories and the share of the run's time in which it is busy."""
    with session.drawing() as opened:
        rows = opened.records(
            "SELECT segment, track, kind, label, slices, rows, device, stream FROM tracks "
            "WHERE rank = ? AND slices > 0 ORDER BY segment, sort_index NULLS LAST, track",
            [rank],
        )
        categories = opened.rows(
            "SELECT segment, track, list(DISTINCT category ORDER BY category) FROM slices WHERE rank = ? "
            "AND category IS NOT NULL GROUP BY segment, track",
            [rank],
        )
    known = {(segment, track): names for segment, track, names in categories}
    begin, end = session.bounds
    for row in rows:
        row["categories"] = known.get((row["segment"], row["track"]), [])
        row["group"] = "streams" if row["stream"] is not None else "host"
        row["share"] = _busy_ns(session, rank, row["segment"], row["track"]) / max(end - begin, 1)
    devices = {row["device"] for row in rows if row["kind"] == "stream"}
    for row in rows:
        row["short"] = _short(row, one_device=len(devices) == 1)
    streams = _with_annotations([row for row in rows if row["group"] == "streams"])
    folded = _little_used(streams)
    host = [row for row in rows if row["group"] == "host"]
    host.sort(key=lambda row: (_place(row["kind"]), row["device"] or 0, row["segment"]))
    return [
        *(row for row in streams if (row["device"], row["stream"]) not in folded),
        *_communication(session, rank),
        *(row | {"group": "more"} for row in streams if (row["device"], row["stream"]) in folded),
        *host,
    ]


def _place(kind: str) -> int:
    return _KIND_ORDER.index(kind) if kind in _KIND_ORDER else len(_KIND_ORDER)


def _busy_ns(session: Session, rank: int, segment: int, track: int) -> int:
    """The time in its first row: slices of the others are inside those, or run beside them."""
    lanes = session.lanes(rank, segment)
    rows = lanes.by_track.get(track)
    return 0 if rows is None else int(np.sum(lanes.duration[rows[0, 2] : rows[0, 3]]))


def _short(row: dict[str, Any], *, one_device: bool) -> str:
    """The label in the gutter: the stream alone where the rank has one device, 'annotations' below it."""
    if row["group"] == "streams" and row["kind"] == "annotation":
        return "annotations"
    if row["kind"] == "stream" and one_device:
        return f"stream {row['stream']}"
    return str(row["label"])


def _with_annotations(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The busiest stream first, and the annotations of each below it."""
    by_stream: dict[tuple[int, int], list[dict[str, Any]]] = defaultdict(list)
    for row in sorted(rows, key=lambda row: row["kind"] == "annotation"):
        by_stream[row["device"] or 0, row["stream"]].append(row)
    ordered = sorted(by_stream.items(), key=lambda item: (item[0][0], -_share(item[1]), item[0][1]))
    return [row for _, tracks in ordered for row in tracks]


def _share(tracks: list[dict[str, Any]]) -> float:
    return max((float(row["share"]) for row in tracks if row["kind"] == "stream"), default=0.0)


def _little_used(rows: list[dict[str, Any]]) -> set[tuple[int, int]]:
    """The streams that are busy for a small part of the busiest one's time; one alone is not folded."""
    shares = {(row["device"], row["stream"]): row["share"] for row in rows if row["kind"] == "stream"}
    most = max(shares.values(), default=0.0)
    found = {key for key, share in shares.items() if share < _LEAST_SHARE * most}
    return found if len(found) > 1 else set()


def _communication(session: Session, rank: int) -> list[dict[str, Any]]:
    lanes = session.communication(rank)
    if not len(lanes.start):
        return []
    begin, end = session.bounds
    return [
        {
            "segment": 0,
            "track": COMMUNICATION,
            "kind": "communication",
            "group": "communication",
            "label": "communication",
            "short": "communication",
            "slices": len(lanes.start),
            "rows": len(lanes.lanes),
            "device": None,
            "stream": None,
            "categories": ["collective"],
            "share": int(lanes.duration[lanes.lanes[0, 2] : lanes.lanes[0, 3]].sum()) / max(end - begin, 1),
        }
    ]
