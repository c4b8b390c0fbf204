"""A Result for other programs, with raw values in the units of the columns, not rounded: CSV, and the answer to a
question as JSON, with its outcome, its evidence and what to do next.

`--format json`, the viewer's JSON and the tools of `rankscope mcp` give the same object. docs/assistants.md describes
it, docs/adr/0160 has the reasons.
"""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import field, replace
from typing import Any, Literal
from urllib.parse import urlencode

from rankscope.analysis.core.result import PROBLEMS, Change, Finding, Result, argv
from rankscope.analysis.evidence import evidence_id
from rankscope.ranges import rank_words
from rankscope.records import dataclass
from rankscope.text.json_values import plain
from rankscope.text.run_words import Runs, named, shell_words
from rankscope.views.findings import finding_with_paths, result_with_paths
from rankscope.views.text import clean

Outcome = Literal["problem", "none", "cannot_answer"]
"""problem: a finding is a warning or critical. none: the recording answers the question, and there is none.
cannot_answer: it does not answer the question; the reason says why. A gate treats that as a failure."""

_PAGES = {
    "findings": "reports/summary",
    **dict.fromkeys(("steps", "ops.runtime_api", "ops.annotations", "memcpy"), "reports/tables"),
    "bubbles": "reports/layout",
    "blame": "reports/stragglers",
    "collective": "reports/collectives",
    "diff": "diff",
    "whatif": "whatif",
    "query": "store",
    **dict.fromkeys(("open", "link"), "assistants"),
    "definitions": "reports",
}
"""Below docs; every other report has a page of its own in docs/reports, with its further tables."""
_ALL_FINDINGS = ("summary", "findings")
_NO_REPORTS = ("diff", "whatif", "doctor", "query", "collective", "open", "link", "definitions")
"""Answers that `rankscope stats` does not give."""
_MOST_SHOWN_RANKS = 2
_MOST_NEXT = 4
_WHATIF_OPTIONS: dict[Change, str] = {
    "communication hidden": "--hide-comm",
    "host gaps gone": "--no-gaps",
    "data ready": "--data-ready",
    "syncs gone": "--no-sync",
}

# Terminal control characters (C0, DEL, C1), Unicode line ends, and surrogates, which cannot be encoded.
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")
# Text that a spreadsheet would take for a formula; some take full-width and small signs for the usual ones.
FORMULA = re.compile(r"[=+\-@\t\r＝＋－＠﹢﹣﹦﹫]")


@dataclass(frozen=True)
class Question:
    """What was asked, as far as the answer repeats it."""

    runs: Runs = field(default_factory=dict)
    """The paths for the commands."""
    whole_run: bool = False
    """All ranks and steps: then findings have the numbers that the viewer gives them."""


def outcome(result: Result) -> tuple[Outcome, str]:
    """The outcome, and the reason: of a problem the first finding, else why the question is not answered."""
    worst = next((finding for finding in result.findings if finding.severity in PROBLEMS), None)
    if worst is not None:
        return "problem", worst.title
    why = result.unanswered
    return ("cannot_answer", why) if why else ("none", "")


def envelope(result: Result, question: Question) -> dict[str, Any]:
    """The result's JSON form, and what the answer means; RUN in its texts becomes the path of the run."""
    kind, reason = outcome(result)
    numbered = question.whole_run and result.name in _ALL_FINDINGS
    findings = [
        finding_dict(finding, result, question.runs, number if numbered else None)
        for number, finding in enumerate(result.findings, 1)
    ]
    return result_with_paths(replace(result, findings=()), question.runs).to_dict() | {
        "findings": findings,
        "outcome": kind,
        "reason": reason,
        "evidence": unique(fact["id"] for finding in findings for fact in finding["facts"]),
        "definition": definition_page(result.name),
        "next": unique(next_commands(result, findings, question.runs))[:_MOST_NEXT],
        "truncated": result.hidden > 0,
    }


def finding_dict(finding: Finding, result: Result, runs: Runs, number: int | None) -> dict[str, Any]:
    """A finding with the ids of its facts, a link into the viewer and the commands that go on from it."""
    finding = replace(finding, report=finding.report or result.name)
    facts = [{**fact.to_dict(), "id": evidence_id(fact)} for fact in finding.facts]
    link = viewer_link(finding, number)
    # Of two runs, what is found about the change is looked at in the new one.
    view = _spelled(argv("rankscope view RUN --at", link), {"RUN": runs["NEW"]} if "NEW" in runs else runs)
    commands = finding_commands(finding, runs)
    values = finding_with_paths(finding, runs).to_dict()
    return values | {"facts": facts, "commands": commands, "link": link, "view": view}


def viewer_link(finding: Finding, number: int | None) -> str:
    """The part of the viewer's address that shows a finding: by its number among all, else its ranks and its span."""
    if number is not None:
        return f"#v=1&finding={number}"
    words = {"v": "1"}
    if finding.span and finding.span[1] > finding.span[0]:
        words["t"] = f"{finding.span[0]}-{finding.span[1]}"
    if finding.ranks:
        words["open"] = ",".join(map(str, finding.ranks[:_MOST_SHOWN_RANKS]))
    return f"#{urlencode(words, safe=',')}"


def finding_commands(finding: Finding, runs: Runs) -> list[str]:
    """What to enter in a shell: the command of the advice, the table behind the finding, the predicted gain."""
    if finding.report in _NO_REPORTS:
        return []
    wanted = [finding.command, argv(f"rankscope stats RUN -r {finding.report}")]
    if change := whatif_options(finding):
        wanted.append(argv(f"rankscope whatif RUN {change}"))
    return unique(_spelled(command, runs) for command in wanted if command)


def _spelled(command: Sequence[str], runs: Runs) -> str:
    return shell_words(named(command, runs))


def whatif_options(finding: Finding) -> str:
    """The options of `whatif` that predict the gain of a finding; empty where it has none."""
    if finding.kind == "fault" and finding.subject == rank_words(finding.ranks):
        return " ".join(f"--rank {rank}=median" for rank in finding.ranks[:_MOST_SHOWN_RANKS])
    return _WHATIF_OPTIONS.get(finding.remedy.change, "") if finding.remedy else ""


def next_commands(result: Result, findings: Iterable[Mapping[str, Any]], runs: Runs) -> list[str]:
    """Those of the first findings; without any, the command that gives the overview."""
    wanted = [command for finding in findings for command in finding["commands"]]
    if result.hidden and result.name not in _NO_REPORTS:
        wanted.insert(
            0, _spelled(argv(f"rankscope stats RUN -r {result.name} --top all --format json"), runs)
        )
    if not wanted and result.name not in (*_ALL_FINDINGS, "diff", "definitions"):
        wanted.append(_spelled(argv("rankscope stats RUN"), runs))
    return wanted


def definition_page(report: str) -> str:
    """Where the figures of a report are defined: a page of the documentation."""
    page = _PAGES.get(report) or f"reports/{report.partition('.')[0]}"
    return f"docs/{page}.md"


def unique(items: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(items))


def csv_text(results: Sequence[Result], quote_formulas: bool = True) -> str:
    """One result: plain CSV. Several: one block each, with a '#' line before and an empty line between them.

    A record is one line: control characters in a name become a space or U+FFFD. JSON keeps the exact string.
    `quote_formulas`: text that would start a formula in a spreadsheet gets an apostrophe in front.
    """
    text = _quoted if quote_formulas else _csv_text
    blocks = []
    for result in results:
        out = io.StringIO()
        writer = csv.writer(out, lineterminator="\n")
        if len(results) > 1:
            # A double quote could open a quoted field that extends over the following rows.
            title = f"# {result.name}: {result.title} ({result.window})"
            out.write(clean(title).replace('"', "'") + "\n")
        names = [column.name for column in result.columns]
        writer.writerow(map(text, names))
        for row in result.rows:
            writer.writerow([_csv_value(row.get(c.name), c.decimals, text) for c in result.columns])
        blocks.append(out.getvalue())
    return "\n".join(blocks)


def _csv_text(text: str) -> str:
    return _CONTROL.sub(lambda match: " " if match[0].isspace() else "\ufffd", text)


def _quoted(text: str) -> str:
    is_formula = False
    if FORMULA.match(text):
        try:
            float(text)
        except ValueError:
            is_formula = True
    return "'" * is_formula + _csv_text(text)


def _csv_value(value: Any, decimals: int | None, text: Callable[[str], str]) -> str:
    value = plain(value)
    if value is None:
        return ""
    if decimals is not None and isinstance(value, (int, float)):
        return f"{value:.{decimals}f}"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (list, dict)):
        return _dump(value)
    return text(value) if isinstance(value, str) else repr(value)


def json_text(results: Sequence[Result], question: Question) -> str:
    """The first result as an object; `others` in it has the further ones. One row per line, for grep and diff."""
    first, *others = results
    return _document(first, question, [_document(result, question) for result in others]) + "\n"


def _document(result: Result, question: Question, others: Sequence[str] = ()) -> str:
    parts = envelope(result, question)
    names = [column.name for column in result.columns]
    parts["rows"] = ({name: row.get(name) for name in names} for row in parts["rows"])
    listed = ("columns", "rows", "findings", "notes", "evidence", "next")
    pairs = [
        f"{_dump(key)}: {_listed('[', map(_dump, value), ']', '  ') if key in listed else _dump(value)}"
        for key, value in parts.items()
    ]
    if others:
        pairs.append(f'"others": {_listed("[", others, "]", "")}')
    return _listed("{", pairs, "}", "")


def _listed(start: str, items: Iterable[str], end: str, indent: str) -> str:
    inner = f",\n{indent}  ".join(items)
    return f"{start}\n{indent}  {inner}\n{indent}{end}" if inner else start + end


def _dump(value: Any) -> str:
    # ASCII only: safe in every locale and on every terminal. DEL is the one control character json does not escape.
    return json.dumps(plain(value), ensure_ascii=True, allow_nan=False).replace("\x7f", "\\u007f")
