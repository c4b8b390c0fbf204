"""Answers of a bounded size, in which names out of traces are data.

An assistant pays for every byte it reads, and must not take a kernel's name for an instruction. Every text is cut and
has no control characters; names within our own sentences are in quotation marks; rows and findings come in pages.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from rankscope.analysis.core.result import Result
from rankscope.analysis.core.words import NAMES
from rankscope.errors import UsageError
from rankscope.ranges import as_ranges
from rankscope.text.json_values import plain
from rankscope.units import shorten_middle
from rankscope.views.envelope import Question, envelope
from rankscope.views.text import clean

MOST_BYTES = 8000
"""Of an answer as JSON: two to three thousand tokens."""
LONGEST_NAME = 200
_LONGEST_TEXT = 600
_LONGEST_LIST = 16
_MOST_NOTES = 6
_MOST_IDS = 12
_FINDINGS_BYTES = 5000
_MOST_FACTS = 12
_NAME_COLUMNS = frozenset(
    {
        *("name", "op", "source", "line", "annotation", "module", "within", "before", "key", "group"),
        *("description", "collective", "hidden_by", "file", "node"),
        *NAMES,
    }
)
"""Columns whose cells, and quantities whose values, are names out of the trace."""
_ROWS_TO_LOOK_AT = 50
_SHORTEST_CUT, _LONGEST_CUT = 20, 121
"""Cells to which the reports shorten names in their sentences."""


def small_answer(result: Result, question: Question, page: int = 0, **more: Any) -> dict[str, Any]:
    """The envelope of a result from row `page` on, as many rows as fit; `next_page` is where the next page begins.

    Of the report `findings`, whose rows are its findings, the findings are paged.
    """
    pages_findings = result.name == "findings"
    total = len(result.findings) if pages_findings else len(result.rows)
    if page < 0 or page > max(total - 1, 0):
        raise UsageError(
            f"there is no page {page}",
            why=f"The answer has {total:,} rows, from 0.",
            hint="Use the value of next_page in the answer before.",
        )
    # Without the rows before the page, and with no more after it than can fit.
    shown_rows = result.rows[page : page + MOST_BYTES // 10]
    answer = envelope(replace(result, rows=shown_rows), question)
    names = _names(result)
    names += [name for finding in result.findings for name in finding.names if name]
    findings = [
        _small_finding(finding, names, number) for number, finding in enumerate(answer["findings"], 1)
    ]
    columns = [] if pages_findings else [(column["name"], column["unit"]) for column in answer["columns"]]
    small = {
        **more,
        "name": answer["name"],
        "title": _sentence(answer["title"], names),
        "window": answer["window"],
        "columns": [{"name": _name(name), "unit": unit} for name, unit in columns],
        "facts": {
            key: _sentence(value, names) if isinstance(value, str) else _value(value)
            for key, value in answer["facts"].items()
        },
        "rows": [],
        "findings": [],
        "notes": [_sentence(note, names) for note in answer["notes"][:_MOST_NOTES]],
        "outcome": answer["outcome"],
        "reason": _sentence(answer["reason"], names),
        "evidence": answer["evidence"][:_MOST_IDS],
        "definition": answer["definition"],
        "next": answer["next"],
        "truncated": False,
        "next_page": None,
        "rows_total": total,
    }
    if pages_findings:
        shown = _fill(small, "findings", findings[page:], MOST_BYTES)
        listed = len(findings) - page
    else:
        rows = [{_name(name): _value(row.get(name)) for name, _ in columns} for row in answer["rows"]]
        _fill(small, "findings", findings, _FINDINGS_BYTES)
        shown = _fill(small, "rows", rows, MOST_BYTES)
        listed = total - page
    if listed and not shown:
        raise UsageError(
            "one row is larger than an answer may be",
            why=f"An answer has at most {MOST_BYTES:,} bytes.",
            hint="Choose fewer columns.",
        )
    small["next_page"] = page + shown if shown < listed else None
    cut = len(small["findings"]) < len(findings) and not pages_findings
    small["truncated"] = cut or shown < listed or result.hidden > 0
    return small


def refused(name: str, message: str, why: str, hint: str, **more: Any) -> dict[str, Any]:
    """The envelope of an error: it has three parts."""
    parts = {"message": _name(message), "why": _name(why, _LONGEST_TEXT), "hint": _name(hint, _LONGEST_TEXT)}
    empty = small_answer(Result(name, "", "", (), [], unknown=parts["message"]), Question(), **more)
    return {**empty, "definition": "docs/assistants.md", "next": [], "error": parts}


def size_of(answer: Mapping[str, Any]) -> int:
    """Bytes as JSON, as it is sent."""
    return len(as_text(answer).encode())


def as_text(answer: Any) -> str:
    """JSON; a byte of a path that is not UTF-8 is a question mark in it."""
    text = json.dumps(answer, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return text.encode("utf-8", "replace").decode()


def _fill(answer: dict[str, Any], key: str, items: list[Any], most: int) -> int:
    """Append items while the answer stays small; the number that fit."""
    left = most - size_of(answer)
    for item in items:
        left -= size_of(item) + 1
        if left < 0:
            break
        answer[key].append(item)
    return len(answer[key])


def _small_finding(finding: Mapping[str, Any], names: list[str], number: int) -> dict[str, Any]:
    all_names = [*names, *_strings(finding["facts"])]
    facts = [
        {key: _value(fact[key]) for key in ("quantity", "value", "unit", "subject", "id")}
        for fact in finding["facts"][:_MOST_FACTS]
    ]
    return {
        "number": number,
        "kind": finding["kind"],
        "severity": finding["severity"],
        "report": finding["report"],
        "title": _sentence(finding["title"], all_names),
        "lines": [_sentence(line, all_names) for line in finding["lines"]],
        "advice": _sentence(finding["advice"], all_names),
        "ranks": list(finding["ranks"][:_LONGEST_LIST]),
        "ranks_text": shorten_middle(as_ranges(sorted(finding["ranks"])), LONGEST_NAME)
        if finding["ranks"]
        else "",
        "subject": _name(finding["subject"]),
        "steps": list(finding["steps"][:_LONGEST_LIST]),
        **{key: finding[key] for key in ("cost_ns", "alone_ns")},
        "facts": facts,
        "commands": finding["commands"],
        "link": finding["link"],
        "view": finding["view"],
    }


def _value(value: Any) -> Any:
    """A cell: names are cut, long lists too."""
    value = plain(value)
    if isinstance(value, str):
        return _name(value)
    if isinstance(value, list):
        return [_value(item) for item in value[:_LONGEST_LIST]]
    if isinstance(value, dict):
        return {_name(key): _value(item) for key, item in list(value.items())[:_LONGEST_LIST]}
    return value


def _name(text: str, most: int = LONGEST_NAME) -> str:
    """A name out of a trace, or another text: one line without control characters, of so many cells."""
    return shorten_middle(clean(text[: 20 * most]), most)


def _sentence(text: str, names: Iterable[str]) -> str:
    """A sentence of ours, with the names in it in quotation marks."""
    names = sorted(set(names), key=len, reverse=True)
    for name in names:
        if len(name) > LONGEST_NAME:
            text = text.replace(name, _quoted(name))
    text = text[: 20 * _LONGEST_TEXT]
    spellings = {spelling for name in names for spelling in _spellings(name, text)}
    if spellings:
        pattern = "|".join(map(re.escape, sorted(spellings, key=len, reverse=True)))
        text = re.sub(rf"(?<![\w\"])(?:{pattern})(?![\w\"])", lambda match: _quoted(match[0]), text)
    return _name(text, _LONGEST_TEXT)


def _quoted(name: str) -> str:
    """A name cannot end its own quotation."""
    inner = _name(name).replace('"', "'")
    return f'"{inner}"'


def _spellings(name: str, text: str) -> Iterable[str]:
    """How a name may be written in a sentence: as it is, without its C++ decoration, or shortened."""
    if len(name) > 2 * _LONGEST_TEXT:  # what shortening leaves of it are its two ends
        name = name[:_LONGEST_TEXT] + name[-_LONGEST_TEXT:]
    bare = re.split(r"[<(]", name.removeprefix("void "), maxsplit=1)[0].rpartition("::")[2].strip()
    for whole in {name, bare} - {""}:
        if whole in text:
            yield whole
        elif "…" in text:
            cuts = (shorten_middle(whole, width) for width in range(_SHORTEST_CUT, _LONGEST_CUT))
            yield from (cut for cut in cuts if "…" in cut and cut in text)


def _names(result: Result) -> list[str]:
    """The names in the first rows of a result."""
    columns = [column.name for column in result.columns if column.name in _NAME_COLUMNS]
    rows = result.rows[:_ROWS_TO_LOOK_AT]
    return [
        *dict.fromkeys(cell for row in rows for name in columns if isinstance(cell := row.get(name), str))
    ]


def _strings(facts: Iterable[Mapping[str, Any]]) -> list[str]:
    """The names that facts hold."""
    cells = [{**fact["row"], fact["quantity"]: fact["value"]}.items() for fact in facts]
    named = [value for pairs in cells for key, value in pairs if key in _NAME_COLUMNS]
    return [value for value in named if isinstance(value, str)]
