"""Route for the flame graph: a call tree by name over steps and ranks, weighted by host or device time."""

from __future__ import annotations

from typing import Any

import numpy as np

from rankscope.ranges import as_ranges
from rankscope.store.arrays import Ints
from rankscope.text.names import short_forms
from rankscope.timeline.run import Run
from rankscope.viewer.answers import Answer, integer
from rankscope.viewer.session import Session

_LEVELS = {
    "op": "category IN ('cpu_op', 'user_annotation')",
    "module": "category = 'python_function' AND starts_with(name, 'nn.Module')",
    "python": "category = 'python_function'",
}
_MISSING = {
    "op": "No ops are recorded.",
    "module": "No modules are recorded. Record them: rankscope profile --with-stack",
    "python": "No Python stacks are recorded. Record them: rankscope profile --with-stack",
}
_MOST_NODES = 4000
_MOST_FRAMES = 500_000
"""About a second of work."""
_ROOT = 0


def flame(session: Session, query: dict[str, str]) -> Answer:
    """The call tree of some ranks (all of them by default), for the whole run or a time range, with equal calls of all
    steps and ranks merged; children in order of time, longest first."""
    device = query.get("time") == "device"
    by = query.get("by") or _deepest(session)
    if by not in _LEVELS:
        raise ValueError(f"by must be one of {', '.join(_LEVELS)}")
    window = ""
    if query.get("begin") and query.get("end"):
        window = f"AND start_ns >= {integer(query['begin'])} AND start_ns < {integer(query['end'])}"
    wanted = session.ranks(query)
    with session.database() as run:
        ranks = _within_limit(run, wanted, by, window)
        frames = _frames(run, ranks, by, window, device)
        ((steps,),) = run.rows(f"SELECT count(DISTINCT step) FROM steps WHERE true {window}")
    root = _tree(frames, device)
    short = short_forms(dict.fromkeys(frames["name"].tolist()))
    note = _MISSING[by] if not root["total_ns"] else ""
    if len(ranks) < len(wanted):
        note = f"Ranks {as_ranges(ranks)} of {len(wanted)}: these have {_MOST_FRAMES:,} calls."
    return {**root, "by": by, "note": note, "ranks": len(ranks), "steps": steps, "short": short}


def _deepest(session: Session) -> str:
    """Python functions, where stacks were recorded."""
    with session.database() as run:
        stacks = run.rows(f"SELECT 1 FROM slices WHERE {_LEVELS['python']} LIMIT 1")
    return "python" if stacks else "op"


def _within_limit(run: Run, ranks: list[int], by: str, window: str) -> list[int]:
    """The first ranks, as many as have at most _MOST_FRAMES frames; one at least."""
    frames = dict(
        run.rows(
            f"SELECT rank, count(*) FROM slices WHERE rank IN ({', '.join(map(str, ranks))}) "
            f"AND {_LEVELS[by]} {window} GROUP BY rank"
        )
    )
    sums = np.cumsum([frames.get(rank, 0) for rank in ranks])
    return ranks[: max(1, int(np.searchsorted(sums, _MOST_FRAMES, side="right")))]


def _frames(run: Run, ranks: list[int], by: str, window: str, device: bool) -> dict[str, Any]:
    """Slices of the requested kind by track and start, callers before their callees. All steps have one name.

    `busy` is the device time that each launched itself.
    """
    listed = ", ".join(map(str, ranks))
    launched = f"""
        LEFT JOIN (
            SELECT rank, segment, owner, sum(dur_ns)::BIGINT AS busy FROM (
                SELECT rank, segment, unnest([op, python, module]) AS owner, dur_ns FROM gpu WHERE rank IN ({listed}))
            WHERE owner IS NOT NULL GROUP BY ALL
        ) b ON b.rank = s.rank AND b.segment = s.segment AND b.owner = s.id
    """
    return run.arrays(
        f"""
        SELECT s.rank::BIGINT * (1::BIGINT << 40) + s.segment::BIGINT * (1::BIGINT << 24) + s.track AS track,
               start_ns AS start, start_ns + greatest(dur_ns, 0) AS stop,
               regexp_replace(name, '^ProfilerStep#[0-9]+$', 'ProfilerStep') AS name,
               {"coalesce(b.busy, 0)" if device else "0::BIGINT"} AS busy
        FROM (SELECT * FROM slices WHERE rank IN ({listed}) AND {_LEVELS[by]} {window}) s {launched if device else ""}
        ORDER BY track, start, stop DESC, depth
        """
    )


def _parents(track: Ints, start: Ints, stop: Ints) -> Ints:
    """For each frame, the innermost frame of its track that contains it, or -1. One pass with a stack."""
    parents = np.full(len(track), -1, dtype=np.int64)
    stack: list[int] = []
    ends, tracks = stop.tolist(), track.tolist()
    for at, begin in enumerate(start.tolist()):
        while stack and (
            tracks[stack[-1]] != tracks[at] or ends[stack[-1]] < ends[at] or ends[stack[-1]] <= begin
        ):
            stack.pop()
        if stack:
            parents[at] = stack[-1]
        stack.append(at)
    return parents


def _tree(frames: dict[str, Any], device: bool) -> dict[str, Any]:
    """Frames with the same name and the same caller are one node, weighted by their own time, or by `busy`."""
    duration = frames["stop"] - frames["start"]
    parents = _parents(frames["track"], frames["start"], frames["stop"])
    own_ns = frames["busy"] if device else duration.copy()
    if not device:
        inner = parents >= 0
        np.subtract.at(own_ns, parents[inner], duration[inner])
    nodes: list[dict[str, Any]] = [{"name": "all", "self_ns": 0, "total_ns": 0, "children": []}]
    numbers: dict[tuple[int, str], int] = {}
    node_of: list[int] = []
    for parent, name in zip(parents.tolist(), frames["name"].tolist(), strict=True):
        key = (node_of[parent] if parent >= 0 else _ROOT, name)
        if key not in numbers:
            numbers[key] = len(nodes)
            nodes.append({"name": name, "self_ns": 0, "total_ns": 0, "children": [], "above": key[0]})
        node_of.append(numbers[key])
    sums = np.bincount(np.array(node_of, dtype=np.int64), weights=np.maximum(own_ns, 0), minlength=len(nodes))
    self_ns = sums.astype(np.int64).tolist()
    least = max(sum(self_ns) / _MOST_NODES, 1)  # narrower nodes cannot be drawn
    for number in range(len(nodes) - 1, -1, -1):  # callers have lower numbers than their callees
        node = nodes[number]
        node["self_ns"] = self_ns[number]
        node["total_ns"] += self_ns[number]
        node["children"].sort(key=lambda child: -child["total_ns"])
        if number != _ROOT:
            above = nodes[node.pop("above")]
            above["total_ns"] += node["total_ns"]
            if node["total_ns"] >= least:
                above["children"].append(node)
    return nodes[_ROOT]
