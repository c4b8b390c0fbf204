"""Common parts of charts: width, axes with units, legends."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rankscope.views.charts.scales import LEAST_TICKS, Log, Scale, tick_labels
from rankscope.views.charts.svg import Drawing, text_width

WIDTH = 760.0
LEGEND_HEIGHT = 22.0
AXIS_HEIGHT = 38.0


@dataclass(frozen=True)
class Key:
    """One entry of a legend: a filled square, a line or a mark, with its label."""

    label: str
    colour: str
    kind: str = "square"
    """square, line, dashed or mark."""
    shape: int = 0


def legend(drawing: Drawing, keys: Sequence[Key], x: float, y: float, most: float = WIDTH) -> float:
    """Draw the entries from left to right, wrapped; returns their height."""
    left, lines = x, 1
    for key in keys:
        width = 18 + text_width(key.label) + 16
        if left > x and left + width > most:
            left, lines = x, lines + 1
        top = y + (lines - 1) * LEGEND_HEIGHT
        _symbol(drawing, key, left, top)
        drawing.text(left + 18, top + 14, key.label)
        left += width
    return lines * LEGEND_HEIGHT if keys else 0.0


def _symbol(drawing: Drawing, key: Key, x: float, y: float) -> None:
    if key.kind == "square":
        drawing.rect(x, y + 5, 11, 11, key.colour, stroke="var(--ink-3)", stroke_width="0.5")
    elif key.kind == "mark":
        drawing.mark(key.shape, x + 6, y + 10, 5, key.colour)
    else:
        dash = "5 3" if key.kind == "dashed" else None
        drawing.line(x, y + 10, x + 14, y + 10, key.colour, stroke_width="2", stroke_dasharray=dash)


@dataclass(frozen=True)
class Axis:
    """A scale with its title and the unit of its values."""

    scale: Scale
    title: str
    unit: str = ""
    whole: bool = False
    """Only whole numbers get a tick: steps, ranks."""

    def marked(self, most: int) -> tuple[list[float], list[str], str]:
        """Positions and labels of the ticks, and the title with the unit."""
        ticks = self.scale.ticks(most)
        if self.whole:
            ticks = [tick for tick in ticks if float(tick).is_integer()]
        labels, unit = tick_labels(self.unit, ticks)
        return ticks, labels, f"{self.title} ({unit})" if unit else self.title


def x_axis(drawing: Drawing, axis: Axis, top: float, bottom: float) -> None:
    """Vertical grid lines, with labels and the title below."""
    scale = axis.scale
    ticks, labels, title = axis.marked(max(LEAST_TICKS, int(abs(scale.end - scale.start) / 90)))
    if isinstance(scale, Log):
        for tick in scale.minor_ticks():
            drawing.line(scale(tick), top, scale(tick), bottom, "line", stroke_width="0.4")
    for tick, label in zip(ticks, labels, strict=True):
        x = scale(tick)
        drawing.line(x, top, x, bottom + 4, "line", stroke_width="1")
        drawing.text(x, bottom + 16, label, "middle")
    drawing.text((scale.start + scale.end) / 2, bottom + 31, title, "middle", "ink")


def y_axis(drawing: Drawing, axis: Axis, left: float, right: float) -> None:
    """Horizontal grid lines, with labels to the left and the title above, where it is not rotated."""
    scale = axis.scale
    ticks, labels, title = axis.marked(max(LEAST_TICKS, int(abs(scale.end - scale.start) / 45)))
    if isinstance(scale, Log):
        for tick in scale.minor_ticks():
            drawing.line(left, scale(tick), right, scale(tick), "line", stroke_width="0.4")
    for tick, label in zip(ticks, labels, strict=True):
        y = scale(tick)
        drawing.line(left - 4, y, right, y, "line", stroke_width="1")
        drawing.text(left - 8, y + 4, label, "end")
    drawing.text(10, min(scale.start, scale.end) - 9, title, colour="ink")
