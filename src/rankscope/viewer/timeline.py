"""Routes for drawing: the run, the overview of all ranks, the tracks of a rank, and tiles of a track."""

from __future__ import annotations

import shlex
from typing import Any

import numpy as np

from rankscope.analysis import REPORTS
from rankscope.store.run import Run
from rankscope.units import format_ns
from rankscope.viewer.answers import Answer, Route, integer
from rankscope.viewer.collective_lanes import COMMUNICATION
from rankscope.viewer.lanes import KINDS
from rankscope.viewer.session import Session

TILE_WIDTH = 1024
"""Pixels of a tile. Tile (level, index) has pixels of 2**level ns and starts at pixel index * TILE_WIDTH."""
_MOST_COLUMNS = 4096

_TRACK_ORDER = ("communication", "stream", "thread", "async", "annotation", "span")


def routes(session: Session) -> dict[str, Route]:
    return {
        "run": lambda query: run_info(session),
        "overview": lambda query: overview(session, query),
        "tracks": lambda query: tracks(session, query),
        "tile": lambda query: tile(session, query),
    }


def run_info(session: Session) -> Answer:
    """What the page loads first: ranks, steps, bounds, names of reports."""
    begin, end = session.bounds
    with session.database() as opened:
        steps = opened.records(
            "SELECT step, min(end_ns - time_ns) AS start_ns, sum(time_ns)::BIGINT AS dur_ns "
            "FROM steps WHERE rank = (SELECT min(rank) FROM steps) GROUP BY step ORDER BY 2"
        )
    return {
        "title": session.title,
        "path": shlex.quote(str(session.path)),
        "ranks": session.run.ranks,
        "begin_ns": begin,
        "end_ns": end,
        "steps": steps,
        "kinds": list(KINDS),
        "reports": [
            {"name": report.name, "question": report.question, "by": list(report.keys)}
            for report in REPORTS.values()
        ],
        "tile_width": TILE_WIDTH,
        "clocks": _clocks(session.run),
    }


def _clocks(run: Run) -> dict[str, Any]:
    """How well the clocks of the ranks are aligned, as a text for the page's header."""
    if len(run.ranks) < 2:
        return {"text": ""}
    if run.clock_mode == "raw":
        return {"text": "wall clocks"}
    measured = [clock.error_ns for clock in run.clocks.ranks if clock.error_ns is not None]
    not_aligned = sum(clock.method == "wall clock" for clock in run.clocks.ranks)
    unknown = sum(clock.method == "collectives" and clock.error_ns is None for clock in run.clocks.ranks)
    text = f"clocks ±{format_ns(max(measured))}" if measured else "clocks not measured"
    if unknown:  # too few collectives for an error
        text = f"{text}, error of {unknown} ranks unknown" if measured else "clocks aligned, error unknown"
    return {"text": text + (f", {not_aligned} ranks not aligned" if not_aligned else "")}


def overview(session: Session, query: dict[str, str]) -> Answer:
    """For each rank and column of pixels, the share of time spent in each class, and not recorded, as 0 to 255.

    The rows of all ranks are concatenated. `first_ns` and `last_ns` are the bounds of each rank's own recording.
    """
    begin, end = integer(query["begin"]), integer(query["end"])
    width = min(integer(query.get("width", "1000")), _MOST_COLUMNS)
    if end <= begin or width < 1:
        raise ValueError("the window is empty")
    ranks = session.ranks(query)
    edges = np.linspace(begin, end, width + 1).astype(np.int64)
    times = [session.rank_time(rank) for rank in ranks]
    shares = np.stack([time.shares(edges) for time in times], axis=1)
    bounds = np.array([time.bounds or (0, 0) for time in times], dtype=np.float64)
    blank = np.floor(np.stack([time.unrecorded(edges) for time in times]) * 255).astype(np.uint8)
    cells = np.ceil(shares * 255).astype(np.uint8)  # rounded up: the shortest activity stays visible
    return (
        {
            "ranks": ranks,
            "width": width,
            "begin_ns": begin,
            "end_ns": end,
            "on_host": any(t.on_host for t in times),
        },
        {
            "compute": cells[0].reshape(-1),
            "comm": cells[1].reshape(-1),
            "copy": cells[2].reshape(-1),
            "unrecorded": blank.reshape(-1),
            "first_ns": bounds[:, 0],
            "last_ns": bounds[:, 1],
        },
    )


def tracks(session: Session, query: dict[str, str]) -> Answer:
    """The tracks of one rank in drawing order: collectives, streams, threads, then the rest."""
    rank = integer(query["rank"])
    with session.drawing() as opened:
        rows = opened.records(
            "SELECT segment, track, kind, label, slices, rows, device, stream FROM tracks "
            "WHERE rank = ? AND slices > 0 ORDER BY segment, sort_index NULLS LAST, track",
            [rank],
        )
    communication = session.communication(rank)
    if len(communication.start):
        rows.append(
            {
                "segment": 0,
                "track": COMMUNICATION,
                "kind": "communication",
                "label": "communication",
                "slices": len(communication.start),
                "rows": len(communication.lanes),
                "device": None,
                "stream": None,
            }
        )
    order = {kind: place for place, kind in enumerate(_TRACK_ORDER)}
    rows.sort(key=lambda row: (order.get(row["kind"], len(order)), row["device"] or 0, *_sort_key(row)))
    return {"rank": rank, "tracks": rows}


def _sort_key(row: dict[str, Any]) -> tuple[int, int]:
    """Streams with most slices first, since torch creates dozens for copies. Threads stay in the file's order."""
    return (-row["slices"] if row["kind"] == "stream" else 0, row["segment"])


def tile(session: Session, query: dict[str, str]) -> Answer:
    """One tile of one track: for each row and pixel, the longest slice that starts there and their number."""
    rank, segment, track = integer(query["rank"]), integer(query["segment"]), integer(query["track"])
    level, index = integer(query["level"]), integer(query["index"])
    if not 0 <= level <= 60:
        raise ValueError("level must be 0 to 60")
    if track == COMMUNICATION:
        lanes, shift = session.communication(rank), 0
    else:
        lanes, shift = session.lanes(rank, segment), session.drawn.shift_ns(session.entry(rank, segment))
    step = 1 << level
    row, found, count = lanes.tile(track, index * TILE_WIDTH * step - shift, step, TILE_WIDTH)
    name = np.asarray(lanes.name[found])
    names: dict[str, Any] = {str(number): lanes.names[number] for number in np.unique(name).tolist()}
    return (
        {"rank": rank, "segment": segment, "track": track, "level": level, "index": index, "names": names},
        {
            "start": (np.asarray(lanes.start[found]) + shift).astype(np.float64),
            "duration": np.asarray(lanes.duration[found]).astype(np.float64),
            "id": np.asarray(lanes.id[found]).astype(np.float64),
            "name": name.astype(np.uint32),
            "count": count.astype(np.uint32),
            "segment": (
                np.full(len(found), segment) if lanes.segment is None else lanes.segment[found]
            ).astype(np.uint16),
            "row": row.astype(np.uint16),
            "kind": np.asarray(lanes.kind[found]),
        },
    )
