"""What the page asks while it draws: the run, the map, tracks and tiles. docs/viewer.md lists every route."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from rankscope.analysis import REPORTS
from rankscope.store.run import Run
from rankscope.units import format_ns
from rankscope.viewer.communication import COMMUNICATION
from rankscope.viewer.lanes import KINDS
from rankscope.viewer.server import Answer, Route
from rankscope.viewer.session import Session

TILE_WIDTH = 1024
"""Pixels of a tile; a tile is (level, index): pixels of 2**level ns, from index * TILE_WIDTH pixels on."""
_MOST_COLUMNS = 4096

_TRACK_ORDER = ("communication", "stream", "thread", "async", "annotation", "span")


def routes(session: Session) -> dict[str, Route]:
    """By name, the questions this module answers."""

    def bound(function: Callable[[Session, dict[str, str]], Answer]) -> Route:
        return lambda query: function(session, query)

    return {
        "run": bound(run_facts),
        "overview": bound(overview),
        "tracks": bound(tracks),
        "tile": bound(tile),
    }


def run_facts(session: Session, query: dict[str, str]) -> Answer:
    """What the page starts from: ranks, steps, bounds, reports."""
    begin, end = session.bounds
    with session.database() as opened:
        steps = opened.records(
            "SELECT step, min(start_ns) AS start_ns, max(start_ns + dur_ns) - min(start_ns) AS dur_ns "
            "FROM steps WHERE rank = (SELECT min(rank) FROM steps) GROUP BY step ORDER BY 2"
        )
    return {
        "title": session.title,
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
    """How far times of different ranks can be compared, in words."""
    if len(run.ranks) < 2:
        return {"text": ""}
    if run.clock_mode == "raw":
        return {"text": "wall clocks"}
    measured = [clock.error_ns for clock in run.clocks.ranks if clock.error_ns is not None]
    alone = sum(clock.method == "wall clock" for clock in run.clocks.ranks)
    text = f"clocks ±{format_ns(max(measured))}" if measured else "clocks not measured"
    return {"text": text + (f", {alone} ranks not aligned" if alone else "")}


def overview(session: Session, query: dict[str, str]) -> Answer:
    """The map: for some ranks, the share of each column of time spent on each class, 0 to 255.

    Rows of all ranks one after another; `first` and `last` say where a rank's own time begins and ends.
    """
    begin, end = int(query["begin"]), int(query["end"])
    width = min(int(query.get("width", "1000")), _MOST_COLUMNS)
    if end <= begin or width < 1:
        raise ValueError("the window is empty")
    ranks = [int(text) for text in query["ranks"].split(",")] if query.get("ranks") else session.run.ranks
    edges = np.linspace(begin, end, width + 1).astype(np.int64)
    times = [session.rank_time(rank) for rank in ranks]
    shares = np.stack([time.shares(edges) for time in times], axis=1)
    bounds = np.array([time.bounds or (0, 0) for time in times], dtype=np.float64)
    cells = np.ceil(shares * 255).astype(np.uint8)  # whatever ran in a column leaves a trace of colour
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
            "first_ns": bounds[:, 0],
            "last_ns": bounds[:, 1],
        },
    )


def tracks(session: Session, query: dict[str, str]) -> Answer:
    """The tracks of one rank in drawing order: streams, then threads, then the rest."""
    rank = int(query["rank"])
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
    rows.sort(key=lambda row: (order.get(row["kind"], len(order)), row["device"] or 0, *_busiest(row)))
    return {"rank": rank, "tracks": rows}


def _busiest(row: dict[str, Any]) -> tuple[int, int]:
    """Streams with most to show first: torch makes dozens for copies. Threads stay in the file's order."""
    return (-row["slices"] if row["kind"] == "stream" else 0, row["segment"])


def tile(session: Session, query: dict[str, str]) -> Answer:
    """One tile of one track: for each row and pixel the longest slice that starts there, and how many do."""
    rank, segment, track = int(query["rank"]), int(query["segment"]), int(query["track"])
    level, index = int(query["level"]), int(query["index"])
    if not 0 <= level <= 60:
        raise ValueError("levels are 0 to 60")
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
