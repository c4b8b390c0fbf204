"""Routes for the panel: reports, findings, the roofs of the roofline, and SQL queries."""

from __future__ import annotations

import re
from pathlib import Path

from rankscope.analysis import REPORTS
from rankscope.analysis.core.ceilings import ceilings
from rankscope.analysis.core.result import Change, Found
from rankscope.analysis.core.scope import Scope, parse_ranks, parse_steps
from rankscope.analysis.findings import collect
from rankscope.errors import UsageError
from rankscope.run_words import shell_word
from rankscope.store.run import VIEWS, describe
from rankscope.viewer.answers import Answer, Route, client_left, integer
from rankscope.viewer.scenes import scene
from rankscope.viewer.session import Session

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
    answer = result.head(integer(query.get("top", str(_MOST_ROWS)))).to_dict()
    titles = [column.title or column.name.replace("_", " ") for column in result.columns]
    for column, title in zip(answer["columns"], titles, strict=True):
        column["title"] = title
    return answer


def findings(session: Session) -> Answer:
    """The findings of all reports, in the order of the summary, each with the scene that shows it."""
    with session.database() as run:
        return {
            "findings": [
                {
                    **one.finding.to_dict(),
                    "report": one.report,
                    "scene": scene(session, one).to_dict(),
                    "commands": commands(one, session.path),
                }
                for one in collect(run, Scope())
            ]
        }


_COMMAND_IN_HINT = re.compile(r"rankscope [a-z]+ RUN(?: -[\w-]+| [\w=,:]+(?=[ .,;)]|$))*")
_WHATIF_OPTIONS: dict[Change, str] = {
    "communication hidden": "--hide-comm",
    "host gaps gone": "--no-gaps",
    "data ready": "--data-ready",
    "syncs gone": "--no-sync",
}


def commands(found: Found, path: Path) -> list[str]:
    """What to enter in a shell to go on: the command of the hint, the table behind the finding, the predicted gain."""
    finding = found.finding
    run = shell_word(str(path))
    wanted = [text.replace(" RUN", f" {run}", 1) for text in _COMMAND_IN_HINT.findall(finding.hint)]
    wanted.append(f"rankscope stats {run} -r {found.report}")
    if finding.remedy is not None:
        if finding.remedy.change == "rank at median":
            changes = " ".join(f"--rank {rank}=median" for rank in finding.remedy.ranks)
            wanted.append(f"rankscope whatif {run} {changes}")
        elif option := _WHATIF_OPTIONS.get(finding.remedy.change):
            wanted.append(f"rankscope whatif {run} {option}")
    return list(dict.fromkeys(wanted))


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
