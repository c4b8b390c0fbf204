"""Routes for drawing: the run, the overview of all ranks, the tracks of a rank, and tiles of a track."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from rankscope.analysis import REPORTS
from rankscope.analysis.core.intervals import Intervals, Ints, covered_before
from rankscope.text.run_words import shell_word
from rankscope.text.spelling import RENAMED_REPORTS
from rankscope.timeline.run import Run
from rankscope.units import format_rounded
from rankscope.viewer.answers import Answer, Route, integer
from rankscope.viewer.collective_lanes import COMMUNICATION
from rankscope.viewer.lanes import KINDS
from rankscope.viewer.rank_tracks import rank_tracks
from rankscope.viewer.session import Session

TILE_WIDTH = 1024
"""Pixels of a tile. Tile (level, index) has pixels of 2**level ns and starts at pixel index * TILE_WIDTH."""
_MOST_COLUMNS = 4096


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
        steps = _steps(opened)
    return {
        "title": session.title,
        "path": shell_word(str(session.path)),
        "ranks": session.run.ranks,
        "begin_ns": begin,
        "end_ns": end,
        "steps": steps,
        "kinds": list(KINDS),
        "reports": [
            {"name": report.name, "question": report.question, "by": list(report.keys)}
            for report in REPORTS.values()
        ],
        "renamed_reports": RENAMED_REPORTS,
        "tile_width": TILE_WIDTH,
        "clocks": _clocks(session.run),
        "device": _device(session.run),
        "world": _world_size(session.run),
    }


def _steps(run: Run) -> list[dict[str, Any]]:
    """The steps of the first rank that has any. The first is asked alone: asking all opens every file of the store."""
    steps = "SELECT step, min(end_ns - time_ns) AS start_ns, sum(time_ns)::BIGINT AS dur_ns FROM steps"
    if run.ranks:
        first = run.ranks[0]
        alone = run.only([first])
        later = run.origin_ns(first) - alone.origin_ns(first)
        rows = alone.records(f"{steps} GROUP BY step ORDER BY 2")
        if rows:
            return [row | {"start_ns": row["start_ns"] + later} for row in rows]
    return run.records(f"{steps} WHERE rank = (SELECT min(rank) FROM steps) GROUP BY step ORDER BY 2")


def _headers(run: Run) -> list[dict[str, Any]]:
    return [head for entry in run.segments if isinstance(head := entry.manifest.get("header"), dict)]


def _device(run: Run) -> str:
    """The model of the GPUs, without the vendor; of several, the first."""
    for header in _headers(run):
        devices = header.get("deviceProperties")
        if isinstance(devices, list) and devices and isinstance(devices[0], dict):
            return str(devices[0].get("name", "")).removeprefix("NVIDIA ")
    return ""


def _world_size(run: Run) -> int | None:
    """None where the files do not tell."""
    known = [
        info.get("world_size")
        for head in _headers(run)
        if isinstance(info := head.get("distributedInfo"), dict)
    ]
    return max((size for size in known if isinstance(size, int)), default=None)


def _clocks(run: Run) -> dict[str, Any]:
    """How well the clocks of the ranks are aligned, as a text for the page's header."""
    if len(run.ranks) < 2:
        return {"text": ""}
    if run.clock_mode == "raw":
        return {"text": "wall clocks"}
    measured = [clock.error_ns for clock in run.clocks.ranks if clock.error_ns is not None]
    not_aligned = sum(clock.method == "wall clock" for clock in run.clocks.ranks)
    unknown = sum(clock.method == "collectives" and clock.error_ns is None for clock in run.clocks.ranks)
    text = f"clocks ±{format_rounded('ns', max(measured))}" if measured else "clocks not measured"
    if unknown:  # too few collectives for an error
        text = f"{text}, error of {unknown} ranks unknown" if measured else "clocks aligned, error unknown"
    return {"text": text + (f", {not_aligned} ranks not aligned" if not_aligned else "")}


def overview(session: Session, query: dict[str, str]) -> Answer:
    """For each rank and column of pixels, the share of time spent in each class, and not recorded, as 0 to 255.

    `comm` is exposed communication without `wait`, in which the rank waits for another rank.

    The rows of all ranks are concatenated. `first_ns` and `last_ns` are the bounds of each rank's own recording.
    """
    begin, end = integer(query["begin"]), integer(query["end"])
    width = min(integer(query.get("width", "1000")), _MOST_COLUMNS)
    if end <= begin or width < 1:
        raise ValueError("the window is empty")
    ranks = session.ranks(query)
    edges = np.linspace(begin, end, width + 1).astype(np.int64)
    times = [session.rank_time(rank) for rank in ranks]
    activities = [session.activity(rank) for rank in ranks]
    bounds = np.array([time.bounds or (0, 0) for time in times], dtype=np.float64)
    blank = np.floor(np.stack([time.unrecorded(edges) for time in times]) * 255).astype(np.uint8)
    return (
        {
            "ranks": ranks,
            "width": width,
            "begin_ns": begin,
            "end_ns": end,
            "on_host": any(t.on_host for t in times),
        },
        {
            **{
                name: np.concatenate([_cells(getattr(one, name), edges) for one in activities])
                for name in ("compute", "comm", "wait", "copy")
            },
            "unrecorded": blank.reshape(-1),
            "first_ns": bounds[:, 0],
            "last_ns": bounds[:, 1],
        },
    )


def _cells(parts: Intervals, edges: Ints) -> NDArray[np.uint8]:
    """The share of each interval between two edges. Rounded up: the shortest activity stays visible."""
    share = np.diff(covered_before(parts, edges)) / np.maximum(np.diff(edges), 1)
    return np.ceil(share * 255).astype(np.uint8)


def tracks(session: Session, query: dict[str, str]) -> Answer:
    """The tracks of one rank in drawing order."""
    rank = integer(query["rank"])
    return {"rank": rank, "tracks": rank_tracks(session, rank)}


def tile(session: Session, query: dict[str, str]) -> Answer:
    """One tile of one track: for each row and pixel, the longest slice that starts there and their number.

    With collectives in it, also how long each waits at its start, its match and the rank it waits for.
    """
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
    segments = np.full(len(found), segment) if lanes.segment is None else lanes.segment[found]
    ids, kind = np.asarray(lanes.id[found]), np.asarray(lanes.kind[found])
    waits = (
        session.collective_slices(rank).columns(segments, ids) if (kind == KINDS.index("comm")).any() else {}
    )
    names: dict[str, Any] = {str(number): lanes.names[number] for number in np.unique(name).tolist()}
    return (
        {"rank": rank, "segment": segment, "track": track, "level": level, "index": index, "names": names},
        {
            "start": (np.asarray(lanes.start[found]) + shift).astype(np.float64),
            "duration": np.asarray(lanes.duration[found]).astype(np.float64),
            "id": ids.astype(np.float64),
            **waits,
            "name": name.astype(np.uint32),
            "count": count.astype(np.uint32),
            "segment": segments.astype(np.uint16),
            "row": row.astype(np.uint16),
            "kind": kind,
        },
    )
