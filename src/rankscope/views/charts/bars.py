"""Horizontal bar charts: stacked parts of a whole, or several values per row side by side."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rankscope.units import format_value
from rankscope.views.charts.chart import Chart
from rankscope.views.charts.frame import AXIS_HEIGHT, WIDTH, Axis, Key, legend, x_axis
from rankscope.views.charts.scales import Linear
from rankscope.views.charts.svg import Drawing, text_width
from rankscope.views.text import shorten_names

_TALLEST = 1100.0
_LABEL_MOST = 250.0
_THINNEST, _THICKEST = 3.0, 18.0


@dataclass(frozen=True)
class Part:
    """One part of a bar in the legend."""

    label: str
    colour: str


@dataclass(frozen=True)
class Bar:
    """One bar, with its values in the order of the parts."""

    label: str
    values: Sequence[float]
    note: str = ""
    """Text at the end of the bar."""
    alarming: bool = False


def bars(
    name: str,
    title: str,
    subtitle: str,
    parts: Sequence[Part],
    rows: Sequence[Bar],
    unit: str,
    axis_title: str,
    width: float = WIDTH,
) -> Chart:
    """One bar per row; several parts are stacked and have a legend."""
    drawing = Drawing()
    pitch = min(_THICKEST + 5, max(_THINNEST, _TALLEST / max(len(rows), 1)))
    thick = pitch - (5 if pitch > 12 else 1 if pitch > 4 else 0.3)
    labels = _labels(rows)
    left = 16 + max((text_width(label) for label in labels), default=0.0)
    notes = max((text_width(row.note) for row in rows), default=0.0)
    right = width - 14 - (notes + 6 if notes else 0)
    keys = [Key(part.label, part.colour) for part in parts]
    top = legend(drawing, keys, left, 0, width) if len(parts) > 1 else 6.0
    bottom = top + pitch * len(rows)
    longest = max((sum(row.values) for row in rows), default=0) or 1
    scale = Linear(0, longest, left, right)
    x_axis(drawing, Axis(scale, axis_title, unit), top, bottom)
    every = max(1, round(12 / pitch + 0.49))
    for index, (row, label) in enumerate(zip(rows, labels, strict=True)):
        y = top + index * pitch
        if index % every == 0 or row.alarming:
            weight = {"font_weight": "600"} if row.alarming else {}
            drawing.text(
                left - 8, y + thick / 2 + 4, label, "end", "bad" if row.alarming else "ink-2", **weight
            )
        done = 0.0
        for part, value in zip(parts, row.values, strict=True):
            if value > 0:
                share = f" ({100 * value / sum(row.values):.1f} %)" if len(parts) > 1 else ""
                what = f"{part.label}: " if part.label else ""
                tip = f"{row.label}\n{what}{format_value(unit, value)}{share}"
                outline = {"stroke": "var(--ink-3)", "stroke_width": "0.4"} if part.colour == "idle" else {}
                drawing.rect(
                    scale(done), y, scale(done + value) - scale(done), thick, part.colour, tip, **outline
                )
            done += value
        if row.note:
            drawing.text(scale(done) + 6, y + thick / 2 + 4, row.note)
    return Chart(name, title, subtitle, width, bottom + AXIS_HEIGHT, drawing.body())


def paired_bars(
    name: str, title: str, subtitle: str, parts: Sequence[Part], rows: Sequence[Bar], unit: str, axis_title: str,
    highest: float | None = None,
) -> Chart:  # fmt: skip
    """One bar per part, side by side: for values that do not add up."""
    drawing = Drawing()
    thick = 9.0
    pitch = thick * len(parts) + 8
    labels = _labels(rows)
    left = 16 + max((text_width(label) for label in labels), default=0.0)
    top = legend(drawing, [Key(part.label, part.colour) for part in parts], left, 0)
    bottom = top + pitch * len(rows)
    longest = highest or max((max(row.values) for row in rows), default=0) or 1
    scale = Linear(0, longest, left, WIDTH - 60)
    x_axis(drawing, Axis(scale, axis_title, unit), top, bottom)
    for index, (row, label) in enumerate(zip(rows, labels, strict=True)):
        y = top + index * pitch
        drawing.text(left - 8, y + pitch / 2, label, "end")
        for number, (part, value) in enumerate(zip(parts, row.values, strict=True)):
            at = y + number * thick
            tip = f"{row.label}\n{part.label}: {format_value(unit, value)}"
            drawing.rect(left, at, scale(value) - left, thick - 1, part.colour, tip)
            drawing.text(scale(value) + 4, at + 8, format_value(unit, value), font_size="9")
    return Chart(name, title, subtitle, WIDTH, bottom + AXIS_HEIGHT, drawing.body())


def _labels(rows: Sequence[Bar]) -> list[str]:
    return shorten_names([row.label for row in rows], int(_LABEL_MOST / text_width("x")))
