"""HTML: escaping, through which all text from traces passes, and a Result as a table for a notebook."""

from __future__ import annotations

import html as standard_html
from collections.abc import Mapping

from rankscope.analysis.core.result import Finding, Result
from rankscope.views.columns import NOTHING, Field, fields
from rankscope.views.findings import apart, titled
from rankscope.views.text import clean

_LONGEST_CELL = 80


def escape(text: object) -> str:
    """Safe between tags and inside quoted attributes; control characters are shown, as \\x1b."""
    return standard_html.escape(clean(str(text)), quote=True)


def attributes(values: Mapping[str, object]) -> str:
    """' a="1" b="2"', escaped. None omits an attribute; underscores become dashes."""
    return "".join(
        f' {name.rstrip("_").replace("_", "-")}="{escape(_number(value))}"'
        for name, value in values.items()
        if value is not None
    )


def _number(value: object) -> object:
    """Floats with one decimal, which is a tenth of a pixel; '12' rather than '12.0'."""
    return f"{value + 0.0:.1f}".removesuffix(".0") if isinstance(value, float) else value


def html(result: Result) -> str:
    """Title and window, findings, table, notes: the figures of the terminal table, without scripts."""
    parts = [f"<p><b>{escape(result.title or result.name)}</b> <small>· {escape(result.window)}</small></p>"]
    parts += [f"<ul>{''.join(map(_finding, listed))}</ul>" for listed in apart(result.findings) if listed]
    columns = fields(result) if result.rows else []
    if columns:
        parts.append(_table(columns))
    elif not (result.rows and result.columns):
        parts.append(f"<p><i>{NOTHING}</i></p>")
    parts += [f"<p><small>· {escape(note)}</small></p>" for note in result.notes]
    return "\n".join(parts)


def _finding(finding: Finding) -> str:
    text = f"<li><b>{finding.severity}</b>: {escape(titled(finding))}"
    if finding.lines:
        text += f"<ul>{''.join(f'<li>{escape(line)}</li>' for line in finding.lines)}</ul>"
    if finding.hint:
        text += f"<div>→ {escape(finding.hint)}</div>"
    return f"{text}</li>"


def _table(columns: list[Field]) -> str:
    head = "".join(f'<th style="{_align(column)}">{escape(column.heading)}</th>' for column in columns)
    cells = [
        [
            f'<td style="{_align(column)}"'
            + (f' title="{escape(text)}"' if short != text else "")
            + f">{escape(short)}</td>"
            for text, short in zip(column.cells, column.shown(_LONGEST_CELL), strict=True)
        ]
        for column in columns
    ]
    body = "\n".join(f"<tr>{''.join(row)}</tr>" for row in zip(*cells, strict=True))
    return f"<table>\n<thead><tr>{head}</tr></thead>\n<tbody>\n{body}\n</tbody>\n</table>"


def _align(column: Field) -> str:
    return "text-align: left" if column.kind == "text" else "text-align: right"
