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
BRIEF = (
    "SELECT rank, segment, id, track, depth, name, category, start_ns, dur_ns FROM slices "
    "WHERE rank = ? AND segment = ?"
)
"""What leads to a slice."""
REFERENCES = ("launch", "op", "python", "module", "parent")


def slice(session: Session, query: dict[str, str]) -> Answer:
    """One slice: its arguments, its duration compared with others of its name, its callers and launches."""
    key = [*integers(query, "rank", "segment", "id")]
    with session.drawing() as run:
        rows = run.records("SELECT * FROM slices WHERE rank = ? AND segment = ? AND id = ?", key)
        if not rows:
            raise ValueError("there is no such slice")
        (slice,) = rows
        args = run.rows("SELECT args FROM events WHERE rank = ? AND segment = ? AND id = ?", key)
        label = run.rows(
            "SELECT label FROM tracks WHERE rank = ? AND segment = ? AND track = ?",
            [*key[:2], slice["track"]],
        )
        related = {
            name: run.records(f"{BRIEF} AND id = ?", [*key[:2], slice[name]])
            for name in REFERENCES
            if slice[name] is not None
        }
        links = run.records(
            "SELECT kind, source, target, source_ns, target_ns FROM links "
            "WHERE rank = ? AND segment = ? AND (source = ? OR target = ?) LIMIT 20",
            [*key[:2], key[2], key[2]],
        )
        launched = run.records(
            f"{BRIEF} AND id <> ? AND (launch = ? OR (op = ? AND device IS NOT NULL)) ORDER BY start_ns LIMIT 20",
            [*key, key[2], key[2]],
        )
        steps = run.rows(
            "SELECT min(end_ns - time_ns) FROM steps WHERE rank = ? AND step = ?", [key[0], slice["step"]]
        )
        origin = run.records("SELECT * FROM origins WHERE rank = ? AND segment = ? AND id = ?", key)
        compared = _compare(run, slice)
        entries = run.collectives
        here = (entries.rank == key[0]) & (entries.segment == key[1]) & (entries.slice == key[2])
    return {
        **slice,
        "step_start_ns": steps[0][0],
        "is_collective": bool(here.any()),
        "args": json.loads(args[0][0]) if args and args[0][0] else {},
        "where": label[0][0] if label else "",
        "related": {name: briefs[0] for name, briefs in related.items() if briefs},
        "links": links,
        "launched": launched,
        "origin": origin[0] if origin else None,
        "compared": compared,
    }


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
    (at,) = np.flatnonzero(np.asarray(lanes.id) == id).tolist() or [-1]
    other = at + (1 if by > 0 else -1)
    lane = next((row for row in lanes.lanes.tolist() if row[2] <= at < row[3]), None)
    if at < 0 or lane is None or not lane[2] <= other < lane[3]:
        return {"found": None}
    with session.drawing() as run:
        (neighbour,) = run.records(f"{BRIEF} AND id = ?", [rank, segment, int(lanes.id[other])])
    return {"found": neighbour}


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
