"""What the side panels ask: reports, findings, SQL, memory over time."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import numpy as np

from rankscope.analysis import REPORTS
from rankscope.analysis.core.scope import Scope, parse_ranks, parse_steps
from rankscope.analysis.findings import collect
from rankscope.errors import UsageError
from rankscope.store.run import VIEWS, describe
from rankscope.viewer.counters import device_label, memory_devices
from rankscope.viewer.server import Answer, Route
from rankscope.viewer.session import Session

_MOST_ROWS = 1000
_CURVE_POINTS = 2000


def routes(session: Session) -> dict[str, Route]:
    return {
        "report": lambda query: report(session, query),
        "findings": lambda query: findings(session),
        "query": lambda query: sql(session, query),
        "schema": lambda query: schema(),
        "memory": lambda query: memory(session, query),
    }


def report(session: Session, query: dict[str, str]) -> Answer:
    """Any report of `rankscope stats`, with the same choices."""
    name = query["name"]
    if name not in REPORTS:
        raise UsageError(f"there is no report '{name}'", hint=f"There are: {', '.join(REPORTS)}.")
    scope = Scope(
        parse_ranks(query.get("ranks") or "all"), parse_steps(query["steps"]) if query.get("steps") else None
    )
    with session.database() as run:
        scope.check(run)
        result = REPORTS[name].analyse(run, scope, query.get("by") or None)
    answer = result.head(int(query.get("top", _MOST_ROWS))).to_dict()
    titles = [column.title or column.name.replace("_", " ") for column in result.columns]
    for column, title in zip(answer["columns"], titles, strict=True):
        column["title"] = title
    return answer


def findings(session: Session) -> Answer:
    """What all analyses found, in the order of the summary."""
    with session.database() as run:
        found = collect(run, Scope())
    return {"findings": [{**asdict(one.finding), "report": one.report} for one in found]}


def sql(session: Session, query: dict[str, str]) -> Answer:
    """One SELECT over the documented views; nothing can be written, nothing outside the store read."""
    with session.database() as run:
        names, rows = run.query(query["sql"])
    return {"columns": names, "rows": [list(row) for row in rows[:_MOST_ROWS]], "total": len(rows)}


def schema() -> Answer:
    """The views SQL may ask, for the box's help."""
    return [
        {"name": view.name, "help": view.help, "columns": [f.name for f in describe(view)]} for view in VIEWS
    ]


def memory(session: Session, query: dict[str, str]) -> Answer:
    """Allocated and reserved bytes of a rank's devices over time; of each stretch its highest point."""
    rank = int(query["rank"])
    with session.database() as run:
        curves: list[dict[str, Any]] = []
        for kind, device in memory_devices(run, rank):
            points = run.arrays(
                "SELECT ts_ns, allocated_bytes AS allocated, coalesce(reserved_bytes, 0) AS reserved FROM instants "
                "WHERE rank = ? AND device_type = ? AND device = ? AND allocated_bytes IS NOT NULL ORDER BY ts_ns",
                [rank, kind, device],
            )
            curves.append({"device": device_label(kind, device), **_thin(points)})
    return {"rank": rank, "curves": curves}


def _thin(points: dict[str, Any]) -> dict[str, list[float]]:
    """At most so many points: where several fall together, the highest stays."""
    count = len(points["ts_ns"])
    size = -(-count // _CURVE_POINTS)
    starts = np.arange(0, count, size)
    allocated = points["allocated"]
    best = np.array([int(at + np.argmax(allocated[at : at + size])) for at in starts], dtype=np.int64)
    return {name: values[best].astype(np.float64).tolist() for name, values in points.items()}
