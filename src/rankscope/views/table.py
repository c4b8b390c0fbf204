"""A Result as a terminal table: numbers aligned to the right, one line per row, fitted to a width.

If not everything fits, in this order: headings are stacked; minor columns are omitted, then numeric ones, from the
right, down to the first four; names shrink to 24 cells (12 if there are several); short text columns are omitted;
then the rest, from the right.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rankscope.analysis.core.result import Column, Finding, Result
from rankscope.records import dataclass
from rankscope.text.json_values import plain
from rankscope.text.names import shorten_name
from rankscope.units import display_width
from rankscope.views.columns import NOTHING, Field, Kind, fields
from rankscope.views.findings import advice_lines, apart, titled
from rankscope.views.terminal import BOLD, DIM, SEVERITY_STYLES, paint
from rankscope.views.text import clean, hang, pad, wrap

_LEAST_WIDTH = 20  # narrower tables are not useful; the terminal may wrap
_PROSE_WIDTH = 100  # longer lines of text are hard to read, whatever the width of the table
_GAP = "  "
_NAME_SHARE = 0.35  # of the width is reserved for names, enough to distinguish kernels
_NAME_LEAST = 24
_TEXT_LEAST = 12
_CORE_MEASURES = 4  # of nsys's columns: Time %, Total, Instances, Avg
# Columns wider than this are flexible: their cells are cut to the room that is left.
_FIXED_TEXT = 16
_FIXED_NUMBER = 28
_NSYS_WIDEST = 100
_NSYS_MEASURED_ROWS = 100
"""Rows that determine the width of a column. Longer cells in later rows are cut, as in nsys."""


def table(result: Result, width: int, color: bool) -> str:
    """Title and window, findings, rows and notes, separated by blank lines."""
    width = max(width, _LEAST_WIDTH)
    prose = min(width, _PROSE_WIDTH)
    notes = list(result.notes)
    blocks = [_title(result, prose, color)]
    blocks += [
        [line for finding in listed for line in _finding(finding, prose, color)]
        for listed in apart(result.findings)
    ]
    columns = fields(result) if result.rows else []
    if columns:
        lines, left_out = grid(columns, width, color)
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
    if window and display_width(f"{title} · {window}") <= width:
        return [f"{paint(title, BOLD, color)} {paint(f'· {window}', DIM, color)}"]
    below = hang("· ", window, width) if window else []
    return [
        *(paint(line, BOLD, color) for line in wrap(title, width)),
        *(paint(line, DIM, color) for line in below),
    ]


def _finding(finding: Finding, width: int, color: bool) -> list[str]:
    """Severity as a word (not by colour alone) and title, then facts and advice."""
    word = f"{finding.severity}: "
    lines = hang(word, clean(titled(finding)), width) or [word.rstrip()]
    lines[0] = paint(word[:-1], SEVERITY_STYLES[finding.severity], color) + lines[0][len(word) - 1 :]
    lines += [line for text in finding.lines for line in hang("  ", clean(text), width)]
    return lines + advice_lines("  → ", finding, width)


def grid(columns: Sequence[Field], width: int, color: bool) -> tuple[list[str], list[str]]:
    """Heading, rule and rows; and the titles of the columns that did not fit."""
    shapes = []
    for column in columns:
        cells, stacked = (
            max(map(display_width, texts), default=0)
            for texts in (column.shown(), (*column.label.split(), *_unit_line(column)))
        )
        shapes.append(_Shape(column.kind, cells, display_width(column.heading), stacked, column.minor))
    widths, stacked_headings = _fit(shapes, width)
    sized = [(columns[index], size) for index, size in widths.items()]
    # Headings of several lines are aligned to the rule: the title above, the unit in the last line.
    stacks = [
        [*wrap(column.label, size), *_unit_line(column)]
        if stacked_headings and column.kind != "text"
        else [column.heading]
        for column, size in sized
    ]
    height = max(map(len, stacks))
    blocks = [
        [
            *[" " * size] * (height - len(stack)),
            *(pad(shorten_name(line, size), size, column.kind != "text") for line in stack),
        ]
        for stack, (column, size) in zip(stacks, sized, strict=True)
    ]
    heading = [_GAP.join(cells).rstrip() for cells in zip(*blocks, strict=True)]
    rule = _GAP.join("─" * size for _, size in sized)
    aligned = [
        [pad(cell, size, column.kind != "text") for cell in column.shown(size)] for column, size in sized
    ]
    rows = [_GAP.join(row).rstrip() for row in zip(*aligned, strict=True)]
    left_out = [column.label for index, column in enumerate(columns) if index not in widths]
    return [*heading, paint(rule, DIM, color), *rows], left_out


def _unit_line(column: Field) -> list[str]:
    return [f"({column.unit})"] if column.unit and column.title else []


@dataclass(frozen=True)
class _Shape:
    """The sizes of a column, in cells."""

    kind: Kind
    cells: int
    """The widest cell."""
    heading: int
    """The heading on one line."""
    stacked: int
    """The widest line of the stacked heading."""
    minor: bool = False

    @property
    def flexible(self) -> bool:
        """Whether cells are cut to the available room; other columns are shown whole or not at all."""
        return max(self.cells, self.stacked) > (_FIXED_TEXT if self.kind == "text" else _FIXED_NUMBER)

    def natural(self, stacked: bool) -> int:
        return max(self.cells, self.stacked if stacked else self.heading)


def _fit(shapes: Sequence[_Shape], width: int) -> tuple[dict[int, int], bool]:
    """The widths of the columns that are shown, by index, and whether headings are stacked. As many columns as fit; at
    least the first, cut to the width."""
    for shown, stacked, text_room in _plans(shapes, width):
        room = width - len(_GAP) * (len(shown) - 1)
        natural = {index: shapes[index].natural(stacked) for index in shown}
        widths = {
            index: min(size, text_room) if shapes[index].flexible else size for index, size in natural.items()
        }
        left = room - sum(widths.values())
        if left < 0:
            continue
        # Flexible columns share what is left evenly, up to what each needs.
        while left and (growing := [index for index in shown if widths[index] < natural[index]]):
            share = max(1, left // len(growing))
            for index in growing:
                more = min(share, left, natural[index] - widths[index])
                widths[index] += more
                left -= more
        return widths, stacked
    return {0: min(width, shapes[0].natural(True))} if shapes else {}, True


def _plans(shapes: Sequence[_Shape], width: int) -> Iterator[tuple[list[int], bool, int]]:
    """Candidates (columns, stacked, least width of a flexible column), the best first."""
    shown = list(range(len(shapes)))
    several = sum(shape.flexible for shape in shapes) > 1
    wanted = max(_NAME_LEAST, int(width * _NAME_SHARE))
    minor = [index for index in shown[1:] if shapes[index].minor]
    measures = [index for index in shown if shapes[index].kind == "measure" and index not in minor]
    extra, core = measures[_CORE_MEASURES:], measures[1:_CORE_MEASURES]
    side_text = [
        i for i in shown[1:] if shapes[i].kind == "text" and not shapes[i].flexible and i not in minor
    ]
    for stacked in (False, True):
        yield shown, stacked, wanted
    for index in (*reversed(minor), *reversed(extra)):
        shown = [i for i in shown if i != index]
        for stacked in (False, True):
            yield shown, stacked, wanted
    least = _TEXT_LEAST if several else _NAME_LEAST
    yield shown, True, least
    rest = [index for index in shown[1:] if index not in (*core, *side_text)]
    for index in (*reversed(side_text), *reversed(core), *reversed(rest)):
        shown = [i for i in shown if i != index]
        yield shown, True, least


def nsys_table(result: Result) -> str:
    """The column format of `nsys stats`: centred headings, numbers aligned to the right; without rows, the reason.

    Long names are cut at the end, as nsys does, so that both outputs can be compared line by line.
    """
    lines = ["", f" ** {clean(result.title)} ({result.name}):", ""]
    notes = [clean(note) for note in result.notes]
    if result.rows:
        blocks = (
            _nsys_column(column, [row.get(column.name) for row in result.rows]) for column in result.columns
        )
        lines += [f" {_GAP.join(cells)}" for cells in zip(*blocks, strict=True)]
    else:
        lines.append(f" SKIPPED: {notes.pop(0) if notes else 'no data'}")
    return "\n".join([*lines, "", *(f" · {note}" for note in notes), *([""] if notes else [])])


def _nsys_column(column: Column, values: list[object]) -> list[str]:
    """Heading, rule and cells."""
    cells = []
    for value in map(plain, values):
        is_number = isinstance(value, (int, float))
        if is_number and column.decimals is not None:
            text = f"{value:.{column.decimals}f}"
        else:
            text = str(value) if is_number else clean(str(value if value is not None else ""))
        cells.append((text, is_number))
    heading = display_width(column.name)
    widest = max(heading, *(display_width(text) for text, _ in cells[:_NSYS_MEASURED_ROWS]))
    width = min(widest, max(_NSYS_WIDEST, heading))
    before = " " * ((width - heading) // 2)
    return [
        pad(before + column.name, width, False),
        "-" * width,
        *(
            pad(text if display_width(text) <= width else text[: width - 1] + "…", width, is_number)
            for text, is_number in cells
        ),
    ]
