"""Routes about slices: one in detail, its neighbours, and what the slices of one name launch."""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from rankscope.timeline.run import Run
from rankscope.viewer.answers import Answer, integers
from rankscope.viewer.session import Session

_BINS = 32
_MOST_FLOWS = 400
_REFERENCES = ("launch", "op", "python", "module", "parent")


def slice_details(session: Session, query: dict[str, str]) -> Answer:
    """One slice: its arguments, its duration compared with others of its name, its callers and launches."""
    key = [*integers(query, "rank", "segment", "id")]
    with session.drawing() as run:
        found = run.records("SELECT * FROM slices WHERE rank = ? AND segment = ? AND id = ?", key)
        if not found:
            raise ValueError("there is no such slice")
        (slice,) = found
        args = run.rows("SELECT args FROM events WHERE rank = ? AND segment = ? AND id = ?", key)
        label = run.rows(
            "SELECT label FROM tracks WHERE rank = ? AND segment = ? AND track = ?",
            [*key[:2], slice["track"]],
        )
        related = {name: _brief(run, key, slice[name]) for name in _REFERENCES if slice[name] is not None}
        links = run.records(
            "SELECT kind, source, target, source_ns, target_ns FROM links "
            "WHERE rank = ? AND segment = ? AND (source = ? OR target = ?) LIMIT 20",
            [*key[:2], key[2], key[2]],
        )
        launched = run.records(
            "SELECT id, name, category, start_ns, dur_ns, track, depth FROM slices "
            "WHERE rank = ? AND segment = ? AND id <> ? AND (launch = ? OR (op = ? AND device IS NOT NULL)) "
            "ORDER BY start_ns LIMIT 20",
            [*key, key[2], key[2]],
        )
        origin = run.records("SELECT * FROM origins WHERE rank = ? AND segment = ? AND id = ?", key)
        compared = _compare(run, slice)
        rows = run.collectives
        here = (rows.rank == key[0]) & (rows.segment == key[1]) & (rows.slice == key[2])
        is_collective = bool(here.any())
    return {
        **slice,
        "is_collective": is_collective,
        "args": json.loads(args[0][0]) if args and args[0][0] else {},
        "where": label[0][0] if label else "",
        "related": {name: brief for name, brief in related.items() if brief},
        "links": links,
        "launched": launched,
        "origin": origin[0] if origin else None,
        "compared": compared,
    }


def _brief(run: Run, key: list[int], id: int) -> dict[str, Any] | None:
    rows = run.records(
        "SELECT id, name, category, start_ns, dur_ns, track, depth FROM slices "
        "WHERE rank = ? AND segment = ? AND id = ?",
        [*key[:2], id],
    )
    return rows[0] if rows else None


def _compare(run: Run, slice: dict[str, Any]) -> dict[str, Any]:
    """Statistics of the durations of all slices with this name and category, over all ranks."""
    durations = run.arrays(
        "SELECT greatest(dur_ns, 0) AS dur FROM slices WHERE name = ? AND category IS NOT DISTINCT FROM ?",
        [slice["name"], slice["category"]],
    )["dur"]
    low, high = float(durations.min()), float(durations.max())
    edges = (
        np.geomspace(max(low, 1.0), max(high, 1.0) + 1, _BINS + 1)
        if high > low
        else np.array([low, high + 1])
    )
    counts, edges = np.histogram(np.maximum(durations, edges[0]), bins=edges)
    return {
        "count": len(durations),
        "p50_ns": float(np.percentile(durations, 50)),
        "p99_ns": float(np.percentile(durations, 99)),
        "min_ns": low,
        "max_ns": high,
        "longer": int((durations > slice["dur_ns"]).sum()),
        "histogram": {"edges_ns": edges.tolist(), "counts": counts.tolist()},
    }


def neighbour(session: Session, query: dict[str, str]) -> Answer:
    """The slice before or after a slice in the same row."""
    rank, segment, id, by = integers(query, "rank", "segment", "id", "by")
    lanes = session.lanes(rank, segment)
    (place,) = np.flatnonzero(np.asarray(lanes.id) == id).tolist() or [-1]
    other = place + (1 if by > 0 else -1)
    lane = next((row for row in lanes.lanes.tolist() if row[2] <= place < row[3]), None)
    if place < 0 or lane is None or not lane[2] <= other < lane[3]:
        return {"found": None}
    shift = session.drawn.shift_ns(session.entry(rank, segment))
    found = {
        "rank": rank,
        "segment": segment,
        "id": int(lanes.id[other]),
        "track": lane[0],
        "depth": lane[1],
        "name": lanes.names[lanes.name[other]],
        "start_ns": int(lanes.start[other]) + shift,
        "dur_ns": int(lanes.duration[other]),
    }
    return {"found": found}


def flows(session: Session, query: dict[str, str]) -> Answer:
    """From ops or launches of a name on a rank to the device activity that they launch; the longest first."""
    rank, begin, end = integers(query, "rank", "begin", "end")
    with session.drawing() as run:
        pairs = run.rows(
            f"""
            WITH callers AS (
                SELECT rank, segment, id, track, depth, start_ns FROM slices
                WHERE rank = ? AND name = ? AND start_ns < ? AND start_ns + dur_ns > ?
            ), launched AS (
                SELECT rank, segment, op AS caller, track, depth, start_ns, dur_ns FROM slices
                WHERE rank = ? AND device IS NOT NULL AND op IS NOT NULL
                UNION ALL
                SELECT rank, segment, launch, track, depth, start_ns, dur_ns FROM slices
                WHERE rank = ? AND device IS NOT NULL AND launch IS NOT NULL
            )
            SELECT c.segment, c.track, c.depth, c.start_ns, d.track, d.depth, d.start_ns
            FROM callers c JOIN launched d ON d.segment = c.segment AND d.caller = c.id
            ORDER BY d.dur_ns DESC LIMIT {_MOST_FLOWS + 1}
            """,
            [rank, query["name"], end, begin, rank, rank],
        )
    return {
        "more": len(pairs) > _MOST_FLOWS,
        "flows": [
            [
                {"rank": rank, "segment": segment, "track": track, "row": row, "start": start}
                for track, row, start in ((source, depth, left), (target, below, arrives))
            ]
            for segment, source, depth, left, target, below, arrives in pairs[:_MOST_FLOWS]
        ],
    }
