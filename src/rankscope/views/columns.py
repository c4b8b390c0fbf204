"""The columns of a Result formatted for people: headings, one unit per column, cells as text."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from typing import Any, Literal

from rankscope.analysis.core.result import Column, Result
from rankscope.records import dataclass
from rankscope.text.json_values import plain
from rankscope.text.names import Parts, shorten_names, shown_parts
from rankscope.units import READABLE, SCALABLE, Scale, choose_scale, decimals_for, format_plain
from rankscope.views.text import clean

Kind = Literal["key", "measure", "text"]
"""key: a number that identifies the row (rank, step); measure: an amount; text: anything else."""

NOT_KNOWN = "-"
NOTHING = "nothing to show"
"""In place of a table without rows."""
# Unit suffixes of column names. They are removed, since the heading shows the unit.
_UNIT_ENDINGS = {
    "ns": ("ns",),
    "bytes": ("bytes",),
    "percent": ("pct",),
    "GB/s": ("gb", "s"),
    "MHz": ("mhz",),
    "W": ("w",),
    "°C": ("c",),
    "flop": ("flops",),
    "flop/s": ("flop", "s"),
}
# Headings of columns whose name is only the unit.
_UNIT_TITLES = {"ns": "Time", "bytes": "Size", "percent": "Share"}
_WORDS = {"stddev": "StdDev", "gpu": "GPU", "cpu": "CPU", "pct": "%", "us": "µs", "dtype": "dtype"}
# Statistics are compared with each other, not with totals, so they share a unit among themselves.
_STATISTICS = frozenset({"avg", "med", "min", "max", "stddev"})


@dataclass(frozen=True)
class Field:
    """One formatted column: its heading and its cells."""

    name: str
    title: str
    unit: str
    """The unit in the heading; empty if there is none."""
    kind: Kind
    cells: list[str]
    scale: Scale | None = None
    minor: bool = False
    """Omitted first when the table is too wide."""
    verbatim: bool = False

    def shown(self, width: int | None = None) -> list[str]:
        """The cells with short names, each in at most `width` cells of a terminal."""
        return shorten_names(self.cells, width, self.verbatim or self.kind != "text")

    def shown_parts(self, width: int) -> list[Parts]:
        """The ranges of characters that `shown` keeps of each cell."""
        return shown_parts(self.cells, width, self.verbatim)

    @property
    def label(self) -> str:
        """The name of the column in a sentence."""
        return self.title or self.unit

    @property
    def heading(self) -> str:
        """The heading on one line: 'Total (ms)', 'Time %', 'GB/s'."""
        if not self.title or not self.unit:
            return self.label
        return f"{self.title} %" if self.unit == "%" else f"{self.title} ({self.unit})"


def values_of(result: Result, column: Column) -> list[Any]:
    """The values of one column as JSON types."""
    return [plain(row.get(column.name)) for row in result.rows]


def fields(result: Result) -> list[Field]:
    """The columns of `result` for people, formatted; columns with names come last."""
    columns = [column for column in result.columns if not column.for_machines]
    columns.sort(key=lambda column: column.at_end)
    values = [values_of(result, column) for column in columns]
    formatted = []
    for column, column_values, scale in zip(columns, values, _scales(columns, values), strict=True):
        title, unit = _heading(column, scale)
        cells = [_cell(value, scale) for value in column_values]
        kind = _kind(column, column_values)
        formatted.append(
            Field(clean(column.name), title, unit, kind, cells, scale, column.minor, column.verbatim)
        )
    return formatted


def _heading(column: Column, scale: Scale | None) -> tuple[str, str]:
    """The title and the unit of a column, each empty where the other says it."""
    unit = scale.label if scale else ""
    title = clean(column.title)
    if not title:
        words = clean(column.name).split("_")
        ending = _UNIT_ENDINGS.get(column.unit, ())
        if ending and tuple(words[-len(ending) :]) == ending:
            words = words[: -len(ending)]
        title = " ".join(_WORDS.get(word, word) for word in words if word)
        if title and words[0] not in _WORDS:
            title = title[0].upper() + title[1:]
        title = title or _UNIT_TITLES.get(column.unit, "" if unit else clean(column.name))
    # '% of roof' contains its unit as a word; 'Calls' does not contain the unit s.
    in_title = unit and re.search(rf"(?<!\w){re.escape(unit)}(?!\w)", title)
    return title, "" if in_title else unit


def _kind(column: Column, values: Iterable[Any]) -> Kind:
    if column.unit:
        return "measure"
    types = {type(value) for value in values} - {type(None)}
    if types <= {int}:
        return "key"
    return "measure" if types <= {int, float} else "text"


def _cell(value: Any, scale: Scale | None) -> str:
    if value is None:
        return NOT_KNOWN
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, (int, float)):
        return scale.format(value) if scale else format_plain(value)
    if isinstance(value, list):
        return clean(", ".join(_cell(item, None) for item in value))
    return clean(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False))


def _scales(columns: Sequence[Column], values: Sequence[list[Any]]) -> list[Scale | None]:
    """One scale per column; None where there is nothing to scale.

    Columns that are compared share a unit: the parts of a breakdown must visibly add up. One that would show only
    zeros has its own.
    """
    numbers = [
        [value for value in column if isinstance(value, (int, float)) and not isinstance(value, bool)]
        for column in values
    ]
    scales: list[Scale | None] = [None] * len(columns)
    families: dict[tuple[str, str], list[int]] = {}
    for index, column in enumerate(columns):
        if column.decimals is not None:
            label = choose_scale(column.unit, ()).label if column.unit else ""
            scales[index] = Scale(1, label, column.decimals)
        elif column.unit:
            families.setdefault(_family(column), []).append(index)
    for (unit, _), members in families.items():
        shared = choose_scale(unit, [number for index in members for number in numbers[index]])
        decimals = 0
        for index in members:
            # With the shared scale it would show only zeros: 2.4 µs of copies beside 600 ms of compute.
            if 0 < max(map(abs, numbers[index]), default=0) < READABLE * shared.factor:
                scales[index] = choose_scale(unit, numbers[index])
            else:
                decimals = max(decimals, decimals_for(unit, shared.factor, numbers[index]))
        common = Scale(shared.factor, shared.label, decimals)
        for index in members:
            scales[index] = scales[index] or common
    return scales


def _family(column: Column) -> tuple[str, str]:
    if column.unit not in SCALABLE:
        return column.unit, column.name
    return column.unit, "statistics" if _STATISTICS & set(column.name.split("_")) else "amounts"
