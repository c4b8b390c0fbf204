"""A Result as GitHub Markdown, for pull requests and issues: the figures of the terminal table, all columns."""

from __future__ import annotations

import re

from rankscope.analysis.core.result import Finding, Result
from rankscope.units import display_width
from rankscope.views.columns import NOTHING, Field, fields
from rankscope.views.findings import apart, titled
from rankscope.views.text import clean, pad

_LONGEST_CELL = 120
"""Kernel names can have thousands of characters; one such cell would make the whole table scroll."""
_LONGEST_PADDED = 40

# GitHub does not treat underscores between letters as emphasis, so step_time needs no escape.
_SPECIAL = re.compile(r"[\\`*\[\]<>|~$&]|(?<!\w)_|_(?!\w)")
# At the start of a line '#' makes a heading, and '-', '+' and '1.' make lists.
_LEADING = re.compile(r"^(\d+(?=[.)](?:\s|$))|(?=[#+=-]))")


def markdown(result: Result) -> str:
    """Heading, findings, table, then the window and the notes."""
    blocks = [f"## {prose(result.title or result.name)}"]
    blocks += ["\n".join(map(finding_text, listed)) for listed in apart(result.findings) if listed]
    columns = fields(result) if result.rows else []
    if columns:
        blocks.append(_grid(columns))
    elif not (result.rows and result.columns):
        blocks.append(f"_{NOTHING}_")
    remarks = [f"Window: {result.window}"] if result.window else []
    remarks += result.notes
    if remarks:
        blocks.append("\n".join(f"- {prose(remark)}" for remark in remarks))
    return "\n\n".join(blocks) + "\n"


def finding_text(finding: Finding) -> str:
    lines = [f"- **{finding.severity}**: {prose(titled(finding))}"]
    lines += [f"  - {prose(line)}" for line in (*finding.lines, finding.hint) if line]
    return "\n".join(lines)


def _grid(columns: list[Field]) -> str:
    """Cells are padded so that the source is readable as a table; a wide last column is not padded."""
    texts = [[prose(column.heading), *_cells(column)] for column in columns]
    widths = [max(3, *map(display_width, text)) for text in texts]
    if widths[-1] > _LONGEST_PADDED:
        widths[-1] = 3
    rules = [
        "-" * width if column.kind == "text" else "-" * (width - 1) + ":"
        for column, width in zip(columns, widths, strict=True)
    ]
    padded = [
        [pad(cell, width, column.kind != "text") for cell in text]
        for text, column, width in zip(texts, columns, widths, strict=True)
    ]
    heading, *rows = (f"| {' | '.join(row)} |" for row in zip(*padded, strict=True))
    return "\n".join([heading, f"| {' | '.join(rules)} |", *rows])


def _cells(column: Field) -> list[str]:
    """If any name has punctuation, the whole column is set as code: escaped C++ names are unreadable in the source."""
    texts = column.shown(_LONGEST_CELL)
    if not any(map(_SPECIAL.search, texts)):
        return texts
    return [_code(text) if text.strip() else text for text in texts]


def _code(text: str) -> str:
    """A code span that GitHub renders as `text` inside a table cell."""
    # The fence is longer than any run of backticks inside. A pipe ends a cell even in code, so it is escaped.
    fence = "`" * (1 + max(map(len, re.findall("`+", text)), default=0))
    space = " " if text[0] in "` " or text[-1] in "` " else ""
    return f"{fence}{space}{text}{space}{fence}".replace("|", "\\|")


def prose(text: str) -> str:
    """Text that GitHub renders literally."""
    escaped = _SPECIAL.sub(lambda match: "\\" + match[0], clean(text).strip())
    return _LEADING.sub(r"\1\\", escaped)
