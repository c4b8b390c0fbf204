"""Route for the flame graph of one rank: a call tree by name, weighted by host or device time."""

from __future__ import annotations

from typing import Any

import numpy as np

from rankscope.store.arrays import Ints
from rankscope.store.run import Run
from rankscope.viewer.answers import Answer, Route, integer
from rankscope.viewer.session import Session

_LEVELS = {
    "op": "category IN ('cpu_op', 'user_annotation')",
    "module": "category = 'python_function' AND starts_with(name, 'nn.Module')",
    "python": "category = 'python_function'",
}
_MISSING = {
    "op": "No ops are recorded for this rank.",
    "module": "No modules are recorded. Record them: rankscope profile --with-stack",
    "python": "No Python stacks are recorded. Record them: rankscope profile --with-stack",
}
_MOST_NODES = 4000
_ROOT = 0


def routes(session: Session) -> dict[str, Route]:
    return {"flame": lambda query: flame(session, query)}


def flame(session: Session, query: dict[str, str]) -> Answer:
    """The call tree of one rank, for the whole run or a time range; children in order of time, longest first."""
    rank, by, device = integer(query["rank"]), query.get("by", "op"), query.get("time") == "device"
    if by not in _LEVELS:
        raise ValueError(f"by must be one of {', '.join(_LEVELS)}")
    window = ""
    if query.get("begin") and query.get("end"):
        window = f"AND start_ns >= {integer(query['begin'])} AND start_ns < {integer(query['end'])}"
    with session.database() as run:
        frames = _frames(run, rank, by, window)
        busy = _device_time(run, rank) if device else None
    tree = _tree(frames, busy)
    return {**tree, "note": _MISSING[by] if not tree["total_ns"] else ""}


def _frames(run: Run, rank: int, by: str, window: str) -> dict[str, Any]:
    """Slices of the requested kind by track and start, so that a caller comes before its callees."""
    return run.arrays(
        f"""
        SELECT segment * (1::BIGINT << 50) + id AS id, segment * 1000000 + track AS track, start_ns AS start,
               start_ns + greatest(dur_ns, 0) AS stop, name
        FROM slices WHERE rank = {rank} AND {_LEVELS[by]} {window}
        ORDER BY track, start, stop DESC, depth
        """
    )


def _device_time(run: Run, rank: int) -> dict[int, int]:
    """Device time by the op, Python frame and module that launched it."""
    rows = run.rows(
        f"""
        SELECT segment * (1::BIGINT << 50) + owner, sum(dur_ns)::BIGINT FROM (
            SELECT segment, unnest([op, python, module]) AS owner, dur_ns FROM gpu WHERE rank = {rank})
        WHERE owner IS NOT NULL GROUP BY 1
        """
    )
    return dict(rows)


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


def _tree(frames: dict[str, Any], busy: dict[int, int] | None) -> dict[str, Any]:
    """Merge frames with the same name and the same caller into one node."""
    names, duration = frames["name"], frames["stop"] - frames["start"]
    parents = _parents(frames["track"], frames["start"], frames["stop"])
    node_of = np.zeros(len(parents), dtype=np.int64)
    nodes: list[dict[str, Any]] = [{"name": "all", "self_ns": 0, "total_ns": 0, "children": []}]
    known: dict[tuple[int, str], int] = {}
    own = duration.copy()
    inner = parents >= 0
    np.subtract.at(own, parents[inner], duration[inner])
    if busy is not None:
        own = np.array([busy.get(id, 0) for id in frames["id"].tolist()], dtype=np.int64)
    for at, (parent, name) in enumerate(zip(parents.tolist(), names.tolist(), strict=True)):
        above = int(node_of[parent]) if parent >= 0 else _ROOT
        key = (above, name)
        if key not in known:
            known[key] = len(nodes)
            nodes.append({"name": name, "self_ns": 0, "total_ns": 0, "children": [], "above": above})
        node_of[at] = known[key]
    self_ns = np.bincount(node_of, weights=np.maximum(own, 0), minlength=len(nodes)).astype(np.int64).tolist()
    for number in range(len(nodes) - 1, -1, -1):  # callers have lower numbers than their callees
        node = nodes[number]
        node["self_ns"] = self_ns[number]
        node["total_ns"] += self_ns[number]
        if number != _ROOT:
            above = nodes[node.pop("above")]
            above["total_ns"] += node["total_ns"]
            if node["total_ns"]:
                above["children"].append(node)
    _trim(nodes[_ROOT])
    return nodes[_ROOT]


def _trim(root: dict[str, Any]) -> None:
    """Sort children by time and drop nodes too narrow to draw."""
    least = root["total_ns"] / _MOST_NODES
    waiting = [root]
    while waiting:
        node = waiting.pop()
        node["children"] = sorted(
            (child for child in node["children"] if child["total_ns"] >= least),
            key=lambda child: -child["total_ns"],
        )
        waiting += node["children"]
