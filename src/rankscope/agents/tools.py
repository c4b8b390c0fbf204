"""The tools of `rankscope mcp`: each takes checked arguments and gives the answer object, never an exception.

They know nothing of MCP, so the exam and the tests can call them in their own process.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from html import unescape
from pathlib import Path
from typing import Any

from rankscope.agents.open_runs import OpenRun, OpenRuns, Viewers
from rankscope.agents.parameters import Parameter, checked_arguments, parameters_of
from rankscope.agents.small_answers import refused, small_answer
from rankscope.analysis import REPORTS
from rankscope.analysis.across_ranks.collectives import one_collective, worst_collectives
from rankscope.analysis.core.report import Report
from rankscope.analysis.core.result import Column, Result, query_result
from rankscope.analysis.core.scope import Scope, parse_ranks, parse_steps
from rankscope.analysis.critical_path.changes import Changes
from rankscope.analysis.critical_path.scenarios import scenarios_of
from rankscope.analysis.critical_path.whatif import whatif
from rankscope.analysis.diff.compare import Rules
from rankscope.analysis.diff.samples import REPORTS as COMPARED
from rankscope.analysis.diff.two_runs import diff
from rankscope.analysis.evidence import looked_up, parse_evidence
from rankscope.analysis.health.doctor import doctor
from rankscope.analysis.summary import subject
from rankscope.errors import RankscopeError, UsageError
from rankscope.ranges import as_ranges
from rankscope.records import dataclass
from rankscope.text.run_words import RunWords, shell_word
from rankscope.text.spelling import did_you_mean
from rankscope.views.envelope import Question, definition_page, viewer_link
from rankscope.views.report.definitions import definition

Answer = dict[str, Any]

_RUN = Parameter("run", "string", "path of an open run; not needed while one is open")
_STEPS = Parameter("steps", "string", "only these steps: '3:5' or '4'; default: all")
_RANKS = Parameter("ranks", "string", "only these ranks: '0,8-15'; default: all")
_PAGE = Parameter("page", "integer", "first row; next_page of the answer before")
_BLOCK_ENDS = re.compile(r"</(?:p|li|tr|pre|h\d)>")
_CELL = re.compile(r"</t[dh]>\s*<t[dh][^>]*>")
_TAG = re.compile(r"<[^>]+>")
_LONGEST_PARAGRAPH = 200
_ALL_REPORTS = {
    **REPORTS,
    "doctor": Report("doctor", "Can this recording be trusted?", lambda run, scope, by: doctor(run, scope)),
}


@dataclass(frozen=True)
class Tool:
    """One tool: what it answers, its parameters, and the function."""

    name: str
    description: str
    parameters: tuple[Parameter, ...]
    answer: Callable[[Tools, Mapping[str, Any]], Answer]


class Tools:
    """The tools over the runs that are open."""

    def __init__(self, paths: Sequence[Path], cache: Path | None, say: Callable[[str], None]) -> None:
        self.runs = OpenRuns(paths, cache, say)
        self.viewers = Viewers(cache)

    def call(self, name: str, arguments: Mapping[str, Any]) -> Answer:
        """The answer of a tool; of an error too: outcome cannot_answer, and `error` with its three parts."""
        try:
            tool = TOOLS.get(name)
            if tool is None:
                raise UsageError(
                    f"there is no tool '{name[:80]}'",
                    why=f"The tools are: {', '.join(TOOLS)}.",
                    hint=did_you_mean(name[:80], TOOLS).strip() or "Use one of them.",
                )
            return tool.answer(self, checked_arguments(tool.parameters, arguments))
        except RankscopeError as error:
            return refused(name, error.message, error.why, error.hint)
        except Exception as error:  # noqa: BLE001 - one failed question must not end the server
            why = f"{type(error).__name__}: {error}"
            return refused(name, f"{name} failed", why, "Open the run again; if it stays, report it.")

    def close(self) -> None:
        self.runs.close()
        self.viewers.close()


def _scope(given: Mapping[str, Any], opened: OpenRun) -> Scope:
    steps = parse_steps(given["steps"]) if given.get("steps") else None
    scope = Scope(parse_ranks(given.get("ranks") or "all"), steps)
    scope.check(opened.run)
    return scope


def _small(given: Mapping[str, Any], opened: OpenRun, result: Result) -> Answer:
    window = ("--steps", given["steps"]) if given.get("steps") else ()
    whole_run = not window and given.get("ranks") in (None, "all")
    question = Question({"RUN": RunWords((str(opened.path),), window)}, whole_run)
    return small_answer(result, question, given.get("page", 0), run=str(opened.path))


def _open(tools: Tools, given: Mapping[str, Any]) -> Answer:
    opened = tools.runs.open(given["path"])
    summary = REPORTS["summary"].analyse(opened.run, Scope(), None)
    facts = {
        "what": subject(opened.run, Scope(), summary),
        "ranks": as_ranges(opened.run.ranks),
        "open": [str(path) for path in tools.runs.paths],
    }
    notes = (*map(str, opened.run.problems), *summary.notes)
    result = Result("open", summary.title, summary.window, (), [], summary.findings, notes, facts=facts)
    return _small(given, opened, result)


def _report(tools: Tools, given: Mapping[str, Any], name: str | None = None) -> Answer:
    """A report by its name, or the rows of an evidence id."""
    opened = tools.runs.find(given.get("run"))
    evidence = parse_evidence(name or given["name"])
    report = _ALL_REPORTS.get(evidence.report)
    if report is None:
        raise UsageError(
            f"there is no report '{evidence.report[:80]}'",
            why=f"The reports are: {', '.join(_ALL_REPORTS)}.",
            hint=f"{did_you_mean(evidence.report[:80], _ALL_REPORTS)}list_definitions says what each answers.",
        )
    by = given.get("by")
    if by is not None and by not in report.keys:
        raise UsageError(
            f"{report.name} cannot be split by '{by[:80]}'",
            why=f"It can be split by: {', '.join(report.keys) or 'nothing'}.",
            hint="Leave out `by`.",
        )
    scope = _scope(given, opened)
    if evidence.keys:
        return _small(given, opened, looked_up(evidence, report, opened.run, scope))
    return _small(given, opened, report.analyse(opened.run, scope, by))


def _collective(tools: Tools, given: Mapping[str, Any]) -> Answer:
    opened = tools.runs.find(given.get("run"))
    if "number" in given:
        return _small(given, opened, one_collective(opened.run, given["number"]))
    return _small(given, opened, worst_collectives(opened.run, _scope(given, opened)))


def _diff(tools: Tools, given: Mapping[str, Any]) -> Answer:
    base, new = tools.runs.find(given["base"]), tools.runs.find(given["new"])
    scopes = [_scope(given, opened) for opened in (base, new)]
    rules = Rules((given["report"],)) if "report" in given else Rules()
    words = {"BASE": RunWords((str(base.path),)), "NEW": RunWords((str(new.path),))}
    result = diff(base.run, new.run, scopes[0], rules)
    names = {"base": str(base.path), "new": str(new.path)}
    return small_answer(result, Question(words), given.get("page", 0), **names)


def _whatif(tools: Tools, given: Mapping[str, Any]) -> Answer:
    opened = tools.runs.find(given.get("run"))
    changes = Changes(**{name: value for name, value in given.items() if name in Changes.__annotations__})
    return _small(given, opened, whatif(opened.run, _scope(given, opened), scenarios_of(changes)))


def _query(tools: Tools, given: Mapping[str, Any]) -> Answer:
    opened = tools.runs.find(given.get("run"))
    answer = opened.query(given["sql"])
    rows, more = answer["rows"], answer["more"]
    note = f"only the first {len(rows):,} rows of the query: aggregate, or use LIMIT and OFFSET"
    return _small(given, opened, query_result(answer["columns"], rows, more, (note,) if more else ()))


def _link(tools: Tools, given: Mapping[str, Any]) -> Answer:
    opened = tools.runs.find(given.get("run"))
    link, title = _target(opened, given)
    url, moved = tools.viewers.show(opened.path, link, given.get("viewer"))
    view = f"rankscope view {shell_word(opened.path)} --at {shell_word(link)}"
    facts = {"url": url, "moved": moved, "link": link, "view": view}
    return _small(given, opened, Result("link", title, "whole file", (), [], facts=facts, unknown=""))


def _target(opened: OpenRun, given: Mapping[str, Any]) -> tuple[str, str]:
    """The link to what is asked for, and what is there."""
    if "finding" in given:
        findings = REPORTS["findings"].analyse(opened.run, Scope(), None).findings
        if not 1 <= given["finding"] <= len(findings):
            raise UsageError(
                f"there is no finding {given['finding']}",
                why=f"The run has {len(findings)}, numbered from 1."
                if findings
                else "The run has no findings.",
                hint="findings() lists them with their numbers.",
            )
        finding = findings[given["finding"] - 1]
        return viewer_link(finding, given["finding"]), finding.title
    if "link" in given:
        return given["link"], "The viewer at the given place"
    words = ["#v=1"]
    if "begin_ns" in given and "end_ns" in given:
        words.append(f"t={given['begin_ns']}-{given['end_ns']}")
    if "rank" in given:
        if given["rank"] not in opened.run.ranks:
            raise UsageError(
                f"there is no rank {given['rank']}",
                why=f"The run has {as_ranges(opened.run.ranks)}.",
                hint="Name one of them.",
            )
        words.append(f"open={given['rank']}")
    title = "The viewer on the whole run" if len(words) == 1 else "The viewer at this time and rank"
    return "&".join(words), title


def _paragraphs(page: str) -> list[str]:
    """A page of docs/reports without its markup, cut between words into pieces that fit into a cell of an answer."""
    texts = (unescape(_TAG.sub("", _CELL.sub(": ", block))) for block in _BLOCK_ENDS.split(page))
    pieces = []
    for text in filter(str.strip, texts):
        pieces.append("")
        for word in text.split():
            if len(pieces[-1]) + len(word) >= _LONGEST_PARAGRAPH and pieces[-1]:
                pieces.append("")
            pieces[-1] = f"{pieces[-1]} {word}".strip()
    return pieces


def _definitions(tools: Tools, given: Mapping[str, Any]) -> Answer:
    if "name" in given:
        report = given["name"]
        columns: tuple[Column, ...] = (Column("text"),)
        rows: list[dict[str, Any]] = [{"text": text} for text in _paragraphs(definition(report))]
        title = f"The definition of {report}"
    else:
        columns = (Column("report"), Column("question"), Column("by"), Column("definition"))
        names = [column.name for column in columns]
        cells = [
            (name, of.question, ", ".join(of.keys), definition_page(name))
            for name, of in _ALL_REPORTS.items()
        ]
        rows = [dict(zip(names, row, strict=True)) for row in cells]
        title = "Reports, and where their figures are defined"
    result = Result("definitions", title, "", columns, rows)
    return small_answer(result, Question(), given.get("page", 0))


def _named(report: str) -> Callable[[Tools, Mapping[str, Any]], Answer]:
    return lambda tools, given: _report(tools, given, report)


TOOLS = {
    tool.name: tool
    for tool in (
        Tool(
            "open",
            "Open a run: a folder with one trace per rank, or a trace file. Raw traces are read once into a cache "
            "beside them. Gives ranks, steps and the verdict.",
            (Parameter("path", "string", "of the run", required=True),),
            _open,
        ),
        Tool(
            "summary",
            "How long is a step, what is it made of, and what was found? facts has the figures of the whole run, "
            "rows those of each rank.",
            (_RUN, _RANKS, _STEPS, _PAGE),
            _named("summary"),
        ),
        Tool(
            "findings",
            "What is wrong with the run: faults first, by cost, then limits, which say what could be saved at most "
            "(`kind`); each with cause, cost per step, evidence, next commands and a link into the viewer.",
            (_RUN, _STEPS, _PAGE),
            _named("findings"),
        ),
        Tool(
            "report",
            "One report by its name (list_definitions lists them), or the rows behind an evidence id.",
            (
                _RUN,
                Parameter("name", "string", "of the report, or an id of `evidence`", required=True),
                Parameter("by", "string", "split rows by this: rank, step, node, group, shape, …"),
                _RANKS,
                _STEPS,
                _PAGE,
            ),
            _report,
        ),
        Tool(
            "collective",
            "The collectives in which ranks wait longest, with the rank to blame; with a number, that collective on "
            "all its ranks in order of arrival.",
            (_RUN, Parameter("number", "integer", "of the collective"), _STEPS, _PAGE),
            _collective,
        ),
        Tool(
            "blame",
            "Which rank, link, step, stage or micro-batch is at fault, why, in which steps, and what it costs. It "
            "accuses nobody where none stands out.",
            (_RUN, _STEPS, _PAGE),
            _named("faults"),
        ),
        Tool(
            "critical_path",
            "What the run's time depends on, across ranks: compute, host, communication, on which rank.",
            (_RUN, _STEPS, _PAGE),
            _named("critical"),
        ),
        Tool(
            "diff",
            "What changed between two open runs, and is it more than noise? Positive change_pct is slower.",
            (
                Parameter("base", "string", "path of the run before", required=True),
                Parameter("new", "string", "path of the run after", required=True),
                Parameter("report", "string", "only this part", choices=COMPARED),
                _STEPS,
                _PAGE,
            ),
            _diff,
        ),
        Tool(
            "whatif",
            "How long would a step take after a change? Replays the run. Without a change: the common ones.",
            (
                _RUN,
                *parameters_of(Changes.OPTIONS),
                _STEPS,
            ),
            _whatif,
        ),
        Tool(
            "query",
            "One read-only SELECT (DuckDB) over the tables of the run, at most 1,000 rows and 30 s; SHOW TABLES lists "
            "them. For single events only: reports have the figures.",
            (_RUN, Parameter("sql", "string", "one SELECT", required=True), _PAGE),
            _query,
        ),
        Tool(
            "link",
            "The address of a page that shows a finding, a rank or a time in the timeline. Moves the pages of a viewer "
            "that runs; starts one on this machine where none does.",
            (
                _RUN,
                Parameter("finding", "integer", "number of a finding, from 1"),
                Parameter("rank", "integer", "expand this rank"),
                Parameter("begin_ns", "integer", "show from here, in ns from the run's start"),
                Parameter("end_ns", "integer", "until here"),
                Parameter("link", "string", "`link` of a finding: '#v=1&…'"),
                Parameter("viewer", "string", "address that `rankscope view` has printed"),
            ),
            _link,
        ),
        Tool(
            "list_definitions",
            "All reports with the question each answers; with a name, the definition of its figures.",
            (Parameter("name", "string", "of a report", choices=tuple(_ALL_REPORTS)), _PAGE),
            _definitions,
        ),
    )
}
