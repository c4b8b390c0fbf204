"""Routes for the panel: reports and SQL queries."""

from __future__ import annotations

from rankscope.analysis import REPORTS
from rankscope.analysis.core.result import Result
from rankscope.analysis.core.scope import Scope, parse_ranks, parse_steps
from rankscope.errors import UsageError
from rankscope.text.spelling import RENAMED_REPORTS
from rankscope.timeline.run import Run
from rankscope.timeline.sql_views import VIEWS, describe
from rankscope.viewer.answers import Answer, client_left, integer
from rankscope.viewer.session import Session
from rankscope.views.envelope import Question, envelope

_MOST_ROWS = 1000


def analysed(run: Run, asked: str, scope: Scope, by: str | None = None) -> Result:
    """A report by its name, or by one that it had before."""
    name = RENAMED_REPORTS.get(asked, asked)
    if name not in REPORTS:
        raise UsageError(f"there is no report '{name}'", hint=f"There are: {', '.join(REPORTS)}.")
    return REPORTS[name].analyse(run, scope, by)


def report(session: Session, query: dict[str, str]) -> Answer:
    """Any report of `rankscope stats`, with the same options."""
    scope = Scope(
        parse_ranks(query.get("ranks") or "all"),
        parse_steps(query["steps"]) if query.get("steps") else None,
        whole_file=query.get("window") == "file",
    )
    with session.database() as run:
        scope.check(run)
        result = analysed(run, query["name"], scope, query.get("by") or None)
    question = Question({"RUN": session.words}, whole_run=scope == Scope())
    answer = envelope(result.head(integer(query.get("top", str(_MOST_ROWS)))), question)
    titles = [column.title or column.name.replace("_", " ") for column in result.columns]
    for column, title in zip(answer["columns"], titles, strict=True):
        column["title"] = title
    return answer


def sql(session: Session, query: dict[str, str]) -> Answer:
    """One SELECT over the documented views, in a process of its own; it ends when the client leaves."""
    return session.sql.query(query["sql"], client_left.get())


def schema(session: Session, query: dict[str, str]) -> Answer:
    """The views that SQL can read, for the help below the input."""
    return [
        {"name": view.name, "help": view.help, "columns": [f.name for f in describe(view)]} for view in VIEWS
    ]
