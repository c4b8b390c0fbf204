"""A Result as an HTML table for a notebook: the figures of the terminal table, escaped, without scripts."""

from __future__ import annotations

from html import escape

from rankscope.analysis.core.result import Finding, Result
from rankscope.views.columns import Field, fields, shown
from rankscope.views.table import NOTHING
from rankscope.views.text import clean, shorten_names

_LONGEST_CELL = 80


def html(result: Result) -> str:
    """Title and window, findings, table, notes."""
    parts = [f"<p><b>{_text(result.title or result.name)}</b> <small>· {_text(result.window)}</small></p>"]
    if result.findings:
        parts.append(f"<ul>{''.join(map(_finding, result.findings))}</ul>")
    if result.rows and shown(result):
        parts.append(_table(fields(result)))
    elif not (result.rows and result.columns):
        parts.append(f"<p><i>{NOTHING}</i></p>")
    parts += [f"<p><small>· {_text(note)}</small></p>" for note in result.notes]
    return "\n".join(parts)


def _finding(finding: Finding) -> str:
    text = f"<li><b>{finding.severity}</b>: {_text(finding.title)}"
    if finding.evidence:
        text += f"<br>{_text(finding.evidence)}"
    if finding.hint:
        text += f"<br>→ {_text(finding.hint)}"
    return f"{text}</li>"


def _table(columns: list[Field]) -> str:
    head = "".join(f'<th style="{_align(column)}">{_text(column.heading)}</th>' for column in columns)
    rows = zip(*map(_cells, columns), strict=True)
    body = "\n".join(f"<tr>{''.join(row)}</tr>" for row in rows)
    return f"<table>\n<thead><tr>{head}</tr></thead>\n<tbody>\n{body}\n</tbody>\n</table>"


def _cells(column: Field) -> list[str]:
    shown = shorten_names(column.cells, _LONGEST_CELL)
    return [
        f'<td style="{_align(column)}"'
        + (f' title="{_text(text)}"' if short != text else "")
        + f">{_text(short)}</td>"
        for text, short in zip(column.cells, shown, strict=True)
    ]


def _align(column: Field) -> str:
    return "text-align: left" if column.kind == "text" else "text-align: right"


def _text(text: str) -> str:
    return escape(clean(text))
