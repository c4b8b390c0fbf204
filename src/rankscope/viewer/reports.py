"""Routes for the panel: reports, findings, the roofs of the roofline, and SQL queries."""

from __future__ import annotations

from rankscope.analysis import REPORTS
from rankscope.analysis.core.ceilings import ceilings
from rankscope.analysis.core.scope import Scope, parse_ranks, parse_steps
from rankscope.analysis.findings import collect
from rankscope.errors import UsageError
from rankscope.text.run_words import Runs, RunWords, shell_word
from rankscope.timeline.sql_views import VIEWS, describe
from rankscope.viewer.answers import Answer, Route, client_left, integer
from rankscope.viewer.scenes import scene
from rankscope.viewer.session import Session
from rankscope.views.envelope import Question, envelope

_MOST_ROWS = 1000


def routes(session: Session) -> dict[str, Route]:
    return {
        "report": lambda query: report(session, query),
        "findings": lambda query: findings(session),
        "roofs": lambda query: roofs(session),
        "query": lambda query: sql(session, query),
        "schema": lambda query: schema(),
    }


def report(session: Session, query: dict[str, str]) -> Answer:
    """Any report of `rankscope stats`, with the same options."""
    name = query["name"]
    if name not in REPORTS:
        raise UsageError(f"there is no report '{name}'", hint=f"There are: {', '.join(REPORTS)}.")
    scope = Scope(
        parse_ranks(query.get("ranks") or "all"),
        parse_steps(query["steps"]) if query.get("steps") else None,
        whole_file=query.get("window") == "file",
    )
    with session.database() as run:
        scope.check(run)
        result = REPORTS[name].analyse(run, scope, query.get("by") or None)
    question = Question(_words(session), whole_run=scope == Scope())
    answer = envelope(result.head(integer(query.get("top", str(_MOST_ROWS)))), question)
    titles = [column.title or column.name.replace("_", " ") for column in result.columns]
    for column, title in zip(answer["columns"], titles, strict=True):
        column["title"] = title
    return answer


def findings(session: Session) -> Answer:
    """The findings of all reports, in the order of the summary, each with the scene that shows it."""
    with session.database() as run:
        result = REPORTS["findings"].analyse(run, Scope(), None)
        scenes = [scene(session, one).to_dict() for one in collect(run, Scope())]
    answer = envelope(result, Question(_words(session), whole_run=True))
    shown = zip(answer["findings"], scenes, strict=True)
    return answer | {"findings": [finding | {"scene": scene} for finding, scene in shown]}


def _words(session: Session) -> Runs:
    return {"RUN": RunWords(shell_word(str(session.path)))}


def roofs(session: Session) -> Answer:
    """The limits of the roofline: FLOP/s by data type, and bytes/s, of the first rank whose device is known."""
    with session.database() as run:
        for found in ceilings(run, Scope()).values():
            if found.peaks or found.bandwidth:
                return {"peaks": dict(found.peaks), "bandwidth": found.bandwidth}
    return {"peaks": {}, "bandwidth": None}


def sql(session: Session, query: dict[str, str]) -> Answer:
    """One SELECT over the documented views, in a process of its own; it ends when the client leaves."""
    return session.sql.query(query["sql"], client_left.get())


def schema() -> Answer:
    """The views that SQL can read, for the help below the input."""
    return [
        {"name": view.name, "help": view.help, "columns": [f.name for f in describe(view)]} for view in VIEWS
    ]
