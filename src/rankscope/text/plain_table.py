"""A text table for commands that run with only the standard library and torch (docs/adr/0010)."""

from __future__ import annotations

from collections.abc import Sequence

GAP = 2


def plain_table(headings: Sequence[str], rows: Sequence[Sequence[str]], left: int = 1) -> str:
    """Rows under headings; the first ``left`` columns are left-aligned, the others right-aligned."""
    cells = [list(headings), *map(list, rows)]
    widths = [max(len(row[index]) for row in cells) for index in range(len(headings))]
    cells.insert(1, ["─" * width for width in widths])
    lines = []
    for row in cells:
        pairs = enumerate(zip(row, widths, strict=True))
        aligned = [cell.ljust(width) if at < left else cell.rjust(width) for at, (cell, width) in pairs]
        lines.append((" " * GAP).join(aligned).rstrip())
    return "\n".join(lines)
