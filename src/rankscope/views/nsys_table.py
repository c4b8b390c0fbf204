"""A Result in the column format of `nsys stats`: centred headings, numbers aligned to the right.

Long names are cut at the end, as nsys does, so that both outputs can be compared line by line.
"""

from __future__ import annotations

from typing import Any

from rankscope.analysis.core.result import Column, Result
from rankscope.text.json_values import plain
from rankscope.units import display_width
from rankscope.views.text import clean

_WIDEST = 100
_MEASURED_ROWS = 100
"""Rows that determine the width of a column. Longer cells in later rows are cut, as in nsys."""


def nsys_table(result: Result) -> str:
    """Title, headings, rule and rows; without rows, the reason."""
    lines = ["", f" ** {clean(result.title)} ({result.name}):", ""]
    if result.rows:
        lines += _grid(result)
    else:
        lines += [" SKIPPED: " + (clean(result.notes[0]) if result.notes else "no data")]
    notes = result.notes if result.rows else result.notes[1:]
    return "\n".join([*lines, "", *(f" · {clean(note)}" for note in notes), *([""] if notes else [])])


def _grid(result: Result) -> list[str]:
    cells = [[_cell(row.get(column.name), column) for column in result.columns] for row in result.rows]
    widths = [
        max(display_width(column.name), *(display_width(row[i][0]) for row in cells[:_MEASURED_ROWS]))
        for i, column in enumerate(result.columns)
    ]
    widths = [
        min(width, max(_WIDEST, display_width(c.name)))
        for width, c in zip(widths, result.columns, strict=True)
    ]
    heading = "  ".join(
        _centred(column.name, width) for column, width in zip(result.columns, widths, strict=True)
    )
    rule = "  ".join("-" * width for width in widths)
    rows = [
        "  ".join(_aligned(*cell, width) for cell, width in zip(row, widths, strict=True)) for row in cells
    ]
    return [f" {line}" for line in (heading, rule, *rows)]


def _cell(value: Any, column: Column) -> tuple[str, bool]:
    """The text, and whether it is a number (aligned to the right)."""
    value = plain(value)
    if value is None:
        return "", False
    if isinstance(value, (int, float)):
        return (f"{value:.{column.decimals}f}" if column.decimals is not None else str(value)), True
    return clean(str(value)), False


def _centred(text: str, width: int) -> str:
    space = width - display_width(text)
    return " " * (space // 2) + text + " " * (space - space // 2)


def _aligned(text: str, right: bool, width: int) -> str:
    if display_width(text) > width:
        text = text[: width - 1] + "…"
    space = " " * (width - display_width(text))
    return space + text if right else text + space
