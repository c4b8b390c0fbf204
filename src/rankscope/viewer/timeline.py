"""Routes for drawing: the tracks of a rank, and tiles of a track."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import numpy as np

from rankscope.text.names import short_forms
from rankscope.viewer.answers import KINDS, TILE_WIDTH, Answer, integer, integers
from rankscope.viewer.collectives import COMMUNICATION, collective_slices, communication
from rankscope.viewer.lanes import Lanes, with_families
from rankscope.viewer.session import Session

_LEAST_SHARE = 0.02
"""Of the busiest stream's time: streams with less fold into one row. torch makes dozens for copies."""
_BUSY = 0.05
"""Of the run's time: streams with less fold too, but for the busiest, and the busiest with kernels."""
_HOST_KINDS = ("thread", "async", "annotation", "span")


def tracks(session: Session, query: dict[str, str]) -> Answer:
    """The tracks of one rank in drawing order."""
    rank = integer(query["rank"])
    return {"rank": rank, "tracks": rank_tracks(session, rank)}


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
    categories_of = {(segment, track): names for segment, track, names in categories}
    devices = {row["device"] for row in rows if row["kind"] == "stream"}
    for row in rows:
        row["categories"] = categories_of.get((row["segment"], row["track"]), [])
        row["group"] = "streams" if row["stream"] is not None else "host"
        row["share"] = _busy_share(session, session.lanes(rank, row["segment"]), row["track"])
        # The label in the gutter: the stream alone where the rank has one device, 'annotations' below it.
        row["short"] = row["label"]
        if row["group"] == "streams" and row["kind"] == "annotation":
            row["short"] = "annotations"
        elif row["kind"] == "stream" and len(devices) == 1:
            row["short"] = f"stream {row['stream']}"
    streams = _with_annotations([row for row in rows if row["group"] == "streams"])
    folded = _little_used(streams)
    host = [row for row in rows if row["group"] == "host"]
    order = {kind: at for at, kind in enumerate(_HOST_KINDS)}
    host.sort(key=lambda row: (order.get(row["kind"], len(order)), row["device"] or 0, row["segment"]))
    return [
        *_communication(session, rank),
        *(row for row in streams if (row["device"], row["stream"]) not in folded),
        *(row | {"group": "more"} for row in streams if (row["device"], row["stream"]) in folded),
        *host,
    ]


def _busy_share(session: Session, lanes: Lanes, track: int) -> float:
    """Of the run's time, that in the track's first row: slices of the others are inside those, or run beside them."""
    begin, end = session.bounds
    rows = lanes.by_track.get(track)
    busy_ns = 0 if rows is None else int(np.sum(lanes.duration[rows[0, 2] : rows[0, 3]]))
    return busy_ns / max(end - begin, 1)


def _with_annotations(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The busiest stream first, and the annotations of each below it."""
    by_stream: dict[tuple[int, int], list[dict[str, Any]]] = defaultdict(list)
    for row in sorted(rows, key=lambda row: row["kind"] == "annotation"):
        by_stream[row["device"] or 0, row["stream"]].append(row)

    def order(stream: tuple[int, int]) -> tuple[int, float, int]:
        shares = [float(row["share"]) for row in by_stream[stream] if row["kind"] == "stream"]
        return stream[0], -max(shares, default=0.0), stream[1]

    return [row for stream in sorted(by_stream, key=order) for row in by_stream[stream]]


def _little_used(rows: list[dict[str, Any]]) -> set[tuple[int, int]]:
    """The streams that are busy for a small part of the busiest one's time; one alone is not folded."""
    streams = [row for row in rows if row["kind"] == "stream"]
    most = max((row["share"] for row in streams), default=0.0)
    least = max(_LEAST_SHARE * most, _BUSY)
    little = {(row["device"], row["stream"]) for row in streams if row["share"] < least}
    for some in (streams, [row for row in streams if "kernel" in row["categories"]]):
        busiest = max(some, key=lambda row: row["share"], default={})
        little.discard((busiest.get("device"), busiest.get("stream")))
    return little if len(little) > 1 else set()


def _communication(session: Session, rank: int) -> list[dict[str, Any]]:
    lanes = communication(session, rank)
    if not len(lanes.start):
        return []
    return [
        {
            "segment": 0,
            "track": COMMUNICATION,
            **dict.fromkeys(("kind", "group", "label", "short"), "communication"),
            "slices": len(lanes.start),
            "rows": len(lanes.lanes),
            "device": None,
            "stream": None,
            "categories": ["collective"],
            "share": _busy_share(session, lanes, COMMUNICATION),
        }
    ]


def tile(session: Session, query: dict[str, str]) -> Answer:
    """One tile of one track: for each row and pixel, the longest slice that starts there and their number.

    With collectives in it, also how long each waits at its start, its match and the rank it waits for.
    """
    rank, segment, track, level, index = integers(query, "rank", "segment", "track", "level", "index")
    if not 0 <= level <= 60:
        raise ValueError("level must be 0 to 60")
    if track == COMMUNICATION:
        lanes, shift = communication(session, rank), 0
    else:
        lanes, shift = session.lanes(rank, segment), session.drawn.shift_ns(session.entry(rank, segment))
    step = 1 << level
    row, shown, count = lanes.tile(track, index * TILE_WIDTH * step - shift, step, TILE_WIDTH)
    name = np.asarray(lanes.name[shown])
    segments = np.full(len(shown), segment) if lanes.segment is None else lanes.segment[shown]
    ids, kind = np.asarray(lanes.id[shown]), np.asarray(lanes.kind[shown])
    waits = (
        collective_slices(session, rank).columns(segments, ids) if (kind == KINDS.index("comm")).any() else {}
    )
    names: dict[str, Any] = {str(number): lanes.names[number] for number in np.unique(name).tolist()}
    return (
        {
            "rank": rank,
            "segment": segment,
            "track": track,
            "level": level,
            "index": index,
            "names": names,
            "short": short_forms(names.values()),
        },
        {
            "start": (np.asarray(lanes.start[shown]) + shift).astype(np.float64),
            "duration": np.asarray(lanes.duration[shown]).astype(np.float64),
            "id": ids.astype(np.float64),
            **waits,
            "name": name.astype(np.uint32),
            "count": count.astype(np.uint32),
            "segment": segments.astype(np.uint16),
            "row": row.astype(np.uint16),
            "kind": with_families(kind, name, lanes.names),
        },
    )
