"""Two runs on one time axis: ranks of the second are renumbered, and the first steps of both coincide.

The page aligns the others: it shows the second run from the step that it shows of the first.
"""

from __future__ import annotations

from typing import Any

from rankscope.analysis.core.scope import Scope
from rankscope.analysis.diff.two_runs import diff, shown_rows
from rankscope.errors import UsageError
from rankscope.viewer.answers import Answer, Route, integer
from rankscope.viewer.session import Session
from rankscope.views.envelope import Question, envelope

SECOND = 1_000_000
"""Added to rank numbers of the second run."""
_WITH_RANKS = ("rank", "ranks", "tracks", "slice", "after")
"""Parameters that are ranks, or begin with them: rank.segment.id."""


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
    """Routes over both runs. A question is about one: that of its ranks, or with `run=2` the second."""

    def of_one(name: str) -> Route:
        def answer(query: dict[str, str]) -> Answer:
            is_second, own = _of_one(query)
            renumbered: Answer = _renumber(second[name](own)) if is_second else first[name](own)
            return renumbered

        return answer

    return {
        **{name: of_one(name) for name in first},
        "run": lambda query: _run(first["run"](query), second["run"](query)),
        "share": lambda query: _share(),
        "diff": lambda query: _diff(sessions),
    }


def _of_one(query: dict[str, str]) -> tuple[bool, dict[str, str]]:
    """Whether the second run is asked, and the question with its own ranks; of ranks of both, those of the first."""
    lists = {name: query[name].split(",") for name in _WITH_RANKS if query.get(name)}
    ranks = [integer(key.partition(".")[0]) for name in ("rank", "ranks") for key in lists.get(name, ())]
    is_second = query.get("run") == "2" or (bool(ranks) and min(ranks) >= SECOND)
    own = dict(query)
    for name, keys in lists.items():
        pairs = [(integer(key.partition(".")[0]), key.partition(".")) for key in keys]
        own[name] = ",".join(
            f"{rank % SECOND}{dot}{rest}" for rank, (_, dot, rest) in pairs if is_second or rank < SECOND
        )
    return is_second, own


def _renumber(value: Any) -> Any:
    """An answer of the second run with its ranks renumbered."""
    if isinstance(value, (list, tuple)):
        return type(value)(map(_renumber, value))
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
        "places": [*first["places"], *second["places"]],
        "titles": [first["title"], second["title"]],
        "second_steps": second["steps"],
        "ranks": [*first["ranks"], *(rank + SECOND for rank in second["ranks"])],
        "begin_ns": min(first["begin_ns"], second["begin_ns"]),
        "end_ns": max(first["end_ns"], second["end_ns"]),
        "ends_ns": [first["end_ns"], second["end_ns"]],
    }


def _share() -> Answer:
    raise UsageError(
        "a shared file holds one run", hint="Open one of the two alone: rankscope view RUN, then share it."
    )


def _diff(sessions: tuple[Session, Session]) -> Answer:
    with sessions[0].database() as base, sessions[1].database() as new:
        result = diff(base, new, Scope())
    answer = envelope(result, Question({"BASE": sessions[0].words, "NEW": sessions[1].words}))
    return {**answer, "rows": shown_rows(result)}
