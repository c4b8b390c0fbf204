"""Routes for the panel: reports and SQL queries."""

from __future__ import annotations

from rankscope.analysis import REPORTS
from rankscope.analysis.core.result import Result
from rankscope.analysis.core.scope import Scope, parse_ranks, parse_steps
from rankscope.errors import UsageError
from rankscope.text.names import shorten_names
from rankscope.text.spelling import RENAMED_REPORTS
from rankscope.timeline.run import Run
from rankscope.timeline.sql_views import VIEWS, describe
from rankscope.viewer.answers import Answer, client_left, integer
from rankscope.viewer.session import Session
from rankscope.views.envelope import Question, envelope

_MOST_ROWS = 1000
_NAME_WIDTH = 64


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
    for shown, column in zip(answer["columns"], result.columns, strict=True):
        shown["title"] = column.title or column.name.replace("_", " ")
        values = (row.get(column.name) for row in answer["rows"])
        texts = [*dict.fromkeys(value for value in values if isinstance(value, str))]
        forms = zip(texts, shorten_names(texts, _NAME_WIDTH, column.verbatim), strict=True)
        shown["short"] = {text: form for text, form in forms if form != text}
    return answer


def query(session: Session, query: dict[str, str]) -> Answer:
    """One SELECT over the documented views, in a process of its own; it ends when the client leaves."""
    return session.sql.query(query["sql"], client_left.get())


def schema(session: Session, query: dict[str, str]) -> Answer:
    """The views that SQL can read, for the help below the input."""
    return [
        {"name": view.name, "help": view.help, "columns": [f.name for f in describe(view)]} for view in VIEWS
    ]
