"""Two runs on one axis: the second's ranks have numbers of their own, and its first step begins with the first's."""

from __future__ import annotations

from typing import Any

import numpy as np

from rankscope.analysis.core.scope import Scope
from rankscope.analysis.diff.two_runs import diff
from rankscope.viewer.server import Answer, Route
from rankscope.viewer.session import Session

SECOND = 1_000_000
"""Added to the ranks of the second run."""


def align(first: Session, second: Session) -> None:
    """Move the second run's time so that both begin at the same point: their first step, else their first event."""
    runs = (first.run, second.run)
    starts = [run.rows("SELECT min(start_ns) FROM steps")[0][0] for run in runs]
    if None in starts:
        starts = [run.rows("SELECT coalesce(min(start_ns), 0) FROM slices")[0][0] for run in runs]
    for run in {second.run, second.drawn}:
        run.move(starts[0] - starts[1])


def combined(
    sessions: tuple[Session, Session], first: dict[str, Route], second: dict[str, Route]
) -> dict[str, Route]:
    """The routes of both: by the rank asked for, else by `run=2`."""

    def by_rank(name: str) -> Route:
        def answer(query: dict[str, str]) -> Answer:
            rank = int(query.get("rank") or 0)
            if rank < SECOND and query.get("run") != "2":
                return first[name](query)
            own = {**query, "rank": str(rank - SECOND)} if rank >= SECOND else query
            return _renumbered(second[name](own))

        return answer

    routes = {name: by_rank(name) for name in first}
    routes["run"] = lambda query: _run(first["run"](query), second["run"](query))
    routes["overview"] = lambda query: _overview(query, sessions, first["overview"], second["overview"])
    routes["area"] = lambda query: _area(query, first["area"], second["area"])
    routes["diff"] = lambda query: _diff(sessions)
    return routes


def _renumbered(answer: Answer) -> Answer:
    """Ranks of the second run, wherever an answer names one."""
    if isinstance(answer, tuple):
        return _add(answer[0]), answer[1]
    renumbered: dict[str, Any] | list[Any] = _add(answer)
    return renumbered


def _add(value: Any) -> Any:
    if isinstance(value, list):
        return [_add(item) for item in value]
    if not isinstance(value, dict):
        return value
    found = {key: _add(item) if key != "args" else item for key, item in value.items()}
    for key in ("rank", "last"):
        if isinstance(found.get(key), int):
            found[key] += SECOND
    if isinstance(found.get("ranks"), (list, tuple)):
        found["ranks"] = [rank + SECOND for rank in found["ranks"]]
    return found


def _run(first: Any, second: Any) -> Answer:
    return {
        **first,
        "title": f"{first['title']} and {second['title']}",
        "titles": [first["title"], second["title"]],
        "ranks": [*first["ranks"], *(rank + SECOND for rank in second["ranks"])],
        "begin_ns": min(first["begin_ns"], second["begin_ns"]),
        "end_ns": max(first["end_ns"], second["end_ns"]),
    }


def _split(query: dict[str, str], everybody: list[int]) -> tuple[list[int], list[int]]:
    ranks = [int(text) for text in query["ranks"].split(",")] if query.get("ranks") else everybody
    return [rank for rank in ranks if rank < SECOND], [rank - SECOND for rank in ranks if rank >= SECOND]


def _overview(
    query: dict[str, str], sessions: tuple[Session, Session], first: Route, second: Route
) -> Answer:
    everybody = [*sessions[0].run.ranks, *(rank + SECOND for rank in sessions[1].run.ranks)]
    parts = [
        route({**query, "ranks": ",".join(map(str, ranks))})
        for ranks, route in zip(_split(query, everybody), (first, second), strict=True)
        if ranks
    ]
    facts: dict[str, Any] = {}
    columns: dict[str, list[Any]] = {}
    for part in parts:
        assert isinstance(part, tuple)
        ranks = [*facts.get("ranks", []), *part[0]["ranks"]]
        facts = {**part[0], "ranks": ranks}
        for name, column in part[1].items():
            columns.setdefault(name, []).append(column)
    return facts, {name: np.concatenate(pieces) for name, pieces in columns.items()}


def _area(query: dict[str, str], first: Route, second: Route) -> Answer:
    """Shares of both; names of the run that has the first of the ranks asked for."""
    mine, others = _split(query, [])
    answers: list[Any] = []
    if mine:
        answers.append(first({**query, "ranks": ",".join(map(str, mine))}))
    if others:
        answers.append(_add(second({**query, "ranks": ",".join(map(str, others))})))
    return {**answers[0], "shares": [share for answer in answers for share in answer["shares"]]}


def _diff(sessions: tuple[Session, Session]) -> Answer:
    with sessions[0].database() as base, sessions[1].database() as new:
        return diff(base, new, Scope()).to_dict()
