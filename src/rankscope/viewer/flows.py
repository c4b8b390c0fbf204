"""Route for flow arrows: what the slices of one name launch in a window."""

from __future__ import annotations

from rankscope.viewer.answers import Answer, Route, integer
from rankscope.viewer.session import Session

_MOST = 400


def routes(session: Session) -> dict[str, Route]:
    return {"flows": lambda query: flows(session, query)}


def flows(session: Session, query: dict[str, str]) -> Answer:
    """From ops or launches of a name on a rank to the device activity that they launch; the longest first."""
    rank, begin, end = (integer(query[name]) for name in ("rank", "begin", "end"))
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
            ORDER BY d.dur_ns DESC LIMIT {_MOST + 1}
            """,
            [rank, query["name"], end, begin, rank, rank],
        )
    return {
        "more": len(pairs) > _MOST,
        "flows": [
            [
                {"rank": rank, "segment": segment, "track": track, "row": row, "start": start}
                for track, row, start in ((source, depth, left), (target, below, arrives))
            ]
            for segment, source, depth, left, target, below, arrives in pairs[:_MOST]
        ],
    }
