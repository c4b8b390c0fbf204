"""A Result as a terminal table: numbers aligned to the right, one line per row, fitted to a width."""

from __future__ import annotations

from collections.abc import Sequence

from rankscope.analysis.core.result import Finding, Result
from rankscope.units import display_width
from rankscope.views.column_layout import GAP, Layout, Shape, fit
from rankscope.views.columns import Field, fields, shown
from rankscope.views.commands import advice_lines
from rankscope.views.terminal import BOLD, DIM, SEVERITY_STYLES, paint
from rankscope.views.text import clean, hang, pad, shorten_name, shorten_names, wrap

NOTHING = "nothing to show"
_LEAST_WIDTH = 20  # narrower tables are not useful; the terminal may wrap
_PROSE_WIDTH = 100  # longer lines of text are hard to read, whatever the width of the table


def table(result: Result, width: int, color: bool) -> str:
    """Title and window, findings, rows and notes, separated by blank lines."""
    width = max(width, _LEAST_WIDTH)
    prose = min(width, _PROSE_WIDTH)
    notes = list(result.notes)
    blocks = [_title(result, prose, color)]
    if result.findings:
        blocks.append([line for finding in result.findings for line in _finding(finding, prose, color)])
    if result.rows and shown(result):
        lines, left_out = grid(fields(result), width, color)
        blocks.append(lines)
        if left_out:
            notes.append(
                f"Not shown at {width} columns: {', '.join(left_out)}. --format csv has all columns."
            )
    elif not (result.rows and result.columns):
        blocks.append([NOTHING])
    if notes:
        blocks.append([paint(line, DIM, color) for note in notes for line in hang("· ", clean(note), prose)])
    return "\n\n".join("\n".join(block) for block in blocks if block) + "\n"


def _title(result: Result, width: int, color: bool) -> list[str]:
    title, window = clean(result.title or result.name).strip(), clean(result.window).strip()
    if not window:
        return [paint(line, BOLD, color) for line in wrap(title, width)]
    if display_width(f"{title} · {window}") <= width:
        return [f"{paint(title, BOLD, color)} {paint(f'· {window}', DIM, color)}"]
    return [
        *(paint(line, BOLD, color) for line in wrap(title, width)),
        *(paint(line, DIM, color) for line in hang("· ", window, width)),
    ]


def _finding(finding: Finding, width: int, color: bool) -> list[str]:
    """Severity as a word (not by colour alone) and title, then evidence and hint."""
    word = f"{finding.severity}: "
    lines = hang(word, clean(finding.title), width) or [word.rstrip()]
    lines[0] = paint(word[:-1], SEVERITY_STYLES[finding.severity], color) + lines[0][len(word) - 1 :]
    lines += hang("  ", clean(finding.evidence), width)
    return lines + advice_lines("  → ", finding.hint, width)


def grid(columns: Sequence[Field], width: int, color: bool) -> tuple[list[str], list[str]]:
    """Heading, rule and rows; and the titles of the columns that did not fit."""
    layout = fit([_shape(column) for column in columns], width)
    kept = [(columns[index], size) for index, size in layout.widths.items()]
    heading = _heading_lines(kept, layout)
    rule = (" " * GAP).join("─" * size for _, size in kept)
    cells = [_aligned(column, size) for column, size in kept]
    rows = [(" " * GAP).join(row).rstrip() for row in zip(*cells, strict=True)]
    left_out = [column.label for index, column in enumerate(columns) if index not in layout.widths]
    return [*heading, paint(rule, DIM, color), *rows], left_out


def _shape(column: Field) -> Shape:
    cells = max(map(display_width, column.cells), default=0)
    stacked = max(map(display_width, _stacked_words(column)), default=0)
    return Shape(column.kind, cells, display_width(column.heading), stacked, column.minor)


def _stacked_words(column: Field) -> list[str]:
    return [*column.label.split(), *_unit_line(column)]


def _unit_line(column: Field) -> list[str]:
    return [f"({column.unit})"] if column.unit and column.title else []


def _heading_lines(kept: Sequence[tuple[Field, int]], layout: Layout) -> list[str]:
    """One line of headings, or several aligned to the rule: the title above, the unit in the last line."""
    stacks = [_heading_stack(column, size, layout.stacked) for column, size in kept]
    height = max(map(len, stacks))
    filled = [[""] * (height - len(stack)) + stack for stack in stacks]
    lines = []
    for number in range(height):
        cells = [
            pad(shorten_name(stack[number], size), size, column.kind != "text")
            for stack, (column, size) in zip(filled, kept, strict=True)
        ]
        lines.append((" " * GAP).join(cells).rstrip())
    return lines


def _heading_stack(column: Field, size: int, stacked: bool) -> list[str]:
    if not stacked or column.kind == "text":
        return [column.heading]
    return [*wrap(column.label, size), *_unit_line(column)]


def _aligned(column: Field, size: int) -> list[str]:
    return [pad(cell, size, column.kind != "text") for cell in shorten_names(column.cells, size)]
