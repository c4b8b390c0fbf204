"""A Result as CSV and JSON for other programs: raw values in the units of the columns, not rounded."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from rankscope.analysis.core.result import Result
from rankscope.text.json_values import plain
from rankscope.views.envelope import Question, envelope
from rankscope.views.text import clean

# Terminal control characters (C0, DEL, C1), Unicode line ends, and surrogates, which cannot be encoded.
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")


# Text that a spreadsheet would take for a formula.
_FORMULA = re.compile(r"[=+\-@\t\r]")


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
    if _FORMULA.match(text):
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
    """One result: an object. Several: a list of objects. One row per line, for grep and diff."""
    documents = [_document(result, question) for result in results]
    if len(documents) == 1:
        return documents[0] + "\n"
    return _listed("[", documents, "]", "") + "\n"


def _document(result: Result, question: Question) -> str:
    parts = envelope(result, question)
    names = [column.name for column in result.columns]
    parts["rows"] = ({name: row.get(name) for name in names} for row in parts["rows"])
    listed = ("columns", "rows", "findings", "notes", "evidence", "next")
    pairs = (
        f"{_dump(key)}: {_listed('[', map(_dump, value), ']', '  ') if key in listed else _dump(value)}"
        for key, value in parts.items()
    )
    return _listed("{", pairs, "}", "")


def _listed(start: str, items: Iterable[str], end: str, indent: str) -> str:
    inner = f",\n{indent}  ".join(items)
    return f"{start}\n{indent}  {inner}\n{indent}{end}" if inner else start + end


def _dump(value: Any) -> str:
    # ASCII only: safe in every locale and on every terminal. DEL is the one control character json does not escape.
    return json.dumps(plain(value), ensure_ascii=True, allow_nan=False).replace("\x7f", "\\u007f")
