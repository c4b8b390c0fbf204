"""Two runs on one time axis: ranks of the second are renumbered, and the first steps of both coincide.

The page aligns the others: it shows the second run from the step that it shows of the first.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from rankscope.analysis.core.scope import Scope
from rankscope.analysis.diff.two_runs import diff, shown_rows
from rankscope.errors import UsageError
from rankscope.viewer.answers import Answer, Route, integer
from rankscope.viewer.session import Session
from rankscope.views.envelope import Question, envelope

SECOND = 1_000_000
"""Added to rank numbers of the second run."""


def align(first: Session, second: Session) -> None:
    """Shift one run so that the first steps coincide; without steps, the first events. No time becomes negative."""
    runs = (first.run, second.run)
    starts = [run.rows("SELECT min(start_ns) FROM steps")[0][0] for run in runs]
    if None in starts:
        starts = [run.rows("SELECT coalesce(min(start_ns), 0) FROM slices")[0][0] for run in runs]
    later = starts[0] - starts[1]
    moved = second if later >= 0 else first
    is_drawn = moved.drawn is moved.run
    moved.run = moved.run.shift(abs(later))
    moved.drawn = moved.run if is_drawn else moved.drawn.shift(abs(later))


def combined(
    sessions: tuple[Session, Session], first: dict[str, Route], second: dict[str, Route]
) -> dict[str, Route]:
    """Routes over both runs. The `rank` parameter selects the run, or `run=2` where there is no rank."""

    def by_rank(name: str) -> Route:
        def answer(query: dict[str, str]) -> Answer:
            rank = integer(query.get("rank") or "0")
            if rank < SECOND and query.get("run") != "2":
                return first[name](query)
            if rank >= SECOND:
                query = {**query, "rank": str(rank - SECOND)}
                if query.get("after"):  # a slice of that rank
                    query["after"] = f"{rank - SECOND}.{query['after'].partition('.')[2]}"
            return _renumbered(second[name](query))

        return answer

    routes = {name: by_rank(name) for name in first}
    routes["run"] = lambda query: _run(first["run"](query), second["run"](query))
    routes["overview"] = lambda query: _overview(query, sessions, first["overview"], second["overview"])
    routes["area"] = lambda query: _area(query, first["area"], second["area"])
    routes["events"] = lambda query: _events(query, first["events"], second["events"])
    routes["share"] = lambda query: _share()
    routes["diff"] = lambda query: _diff(sessions)
    return routes


def _renumbered(answer: Answer) -> Answer:
    """The answer of the second run with its ranks renumbered."""
    if isinstance(answer, tuple):
        return _renumber(answer[0]), answer[1]
    renumbered: dict[str, Any] | list[Any] = _renumber(answer)
    return renumbered


def _renumber(value: Any) -> Any:
    if isinstance(value, list):
        return [_renumber(item) for item in value]
    if not isinstance(value, dict):
        return value
    renumbered = {key: _renumber(item) if key != "args" else item for key, item in value.items()}
    for key in ("rank", "last"):
        if isinstance(renumbered.get(key), int):
            renumbered[key] += SECOND
    if isinstance(renumbered.get("ranks"), (list, tuple)):
        renumbered["ranks"] = [rank + SECOND for rank in renumbered["ranks"]]
    return renumbered


def _run(first: Any, second: Any) -> Answer:
    return {
        **first,
        "title": f"{first['title']} and {second['title']}",
        "titles": [first["title"], second["title"]],
        "second_steps": second["steps"],
        "ranks": [*first["ranks"], *(rank + SECOND for rank in second["ranks"])],
        "begin_ns": min(first["begin_ns"], second["begin_ns"]),
        "end_ns": max(first["end_ns"], second["end_ns"]),
        "ends_ns": [first["end_ns"], second["end_ns"]],
    }


def _split(query: dict[str, str], all_ranks: list[int]) -> tuple[list[int], list[int]]:
    """The requested ranks of the first and of the second run."""
    ranks = [integer(text) for text in query["ranks"].split(",")] if query.get("ranks") else all_ranks
    return [rank for rank in ranks if rank < SECOND], [rank - SECOND for rank in ranks if rank >= SECOND]


def _overview(
    query: dict[str, str], sessions: tuple[Session, Session], first: Route, second: Route
) -> Answer:
    all_ranks = [*sessions[0].run.ranks, *(rank + SECOND for rank in sessions[1].run.ranks)]
    parts = [
        route({**query, "ranks": ",".join(map(str, ranks))})
        for ranks, route in zip(_split(query, all_ranks), (first, second), strict=True)
        if ranks
    ]
    header: dict[str, Any] = {}
    columns: dict[str, list[Any]] = {}
    for part in parts:
        assert isinstance(part, tuple)
        ranks = [*header.get("ranks", []), *part[0]["ranks"]]
        header = {**part[0], "ranks": ranks}
        for name, column in part[1].items():
            columns.setdefault(name, []).append(column)
    return header, {name: np.concatenate(pieces) for name, pieces in columns.items()}


def _area(query: dict[str, str], first: Route, second: Route) -> Answer:
    """Shares of both runs; names of the first run, or of the second when only its ranks are requested."""
    in_first, in_second = _split(query, [])
    answers: list[Any] = []
    if in_first:
        answers.append(first({**query, "ranks": ",".join(map(str, in_first))}))
    if in_second:
        answers.append(_renumber(second(_of_second(query, in_second))))
    return {**answers[0], "shares": [share for answer in answers for share in answer["shares"]]}


def _events(query: dict[str, str], first: Route, second: Route) -> Answer:
    """Of the first run, or of the second when only its ranks are requested."""
    in_first, in_second = _split(query, [])
    if in_first:
        return first({**query, "ranks": ",".join(map(str, in_first))})
    return _renumbered(second(_of_second(query, in_second)))


def _of_second(query: dict[str, str], ranks: list[int]) -> dict[str, str]:
    """The query with the second run's own ranks, in the keys of tracks and slices too."""
    translated = {**query, "ranks": ",".join(map(str, ranks))}
    for name in ("tracks", "slice"):
        keys = [key.partition(".") for key in query.get(name, "").split(",") if key]
        translated[name] = ",".join(
            f"{integer(rank) - SECOND}.{rest}" for rank, _, rest in keys if integer(rank) >= SECOND
        )
    return translated


def _share() -> Answer:
    raise UsageError(
        "a shared file holds one run", hint="Open one of the two alone: rankscope view RUN, then share it."
    )


def _diff(sessions: tuple[Session, Session]) -> Answer:
    with sessions[0].database() as base, sessions[1].database() as new:
        result = diff(base, new, Scope())
    answer = envelope(result, Question({"BASE": sessions[0].words, "NEW": sessions[1].words}))
    return {**answer, "rows": shown_rows(result)}
