"""Scatter charts on two logarithmic axes, with curves such as roofs and fits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rankscope.views.charts.chart import Chart
from rankscope.views.charts.frame import AXIS_HEIGHT, WIDTH, Axis, Key, legend, x_axis, y_axis
from rankscope.views.charts.scales import Log, decades
from rankscope.views.charts.svg import Drawing, text_width

_PLOT_HEIGHT = 340.0
_LEFT = 72.0
_LABELLED = 6


@dataclass(frozen=True)
class Point:
    x: float
    y: float
    series: int
    tip: str
    weight: float = 0.0
    """Relative to the largest, 0 to 1; the area of the mark grows with it."""
    label: str = ""
    """Drawn beside the mark if it is among the largest."""


@dataclass(frozen=True)
class Curve:
    """A line with a label: a roof or a fit."""

    label: str
    points: Sequence[tuple[float, float]]
    colour: str = "ink-2"
    dashed: bool = False
    label_beside: bool = False


def _label_largest(drawing: Drawing, points: Sequence[Point], x: Log, y: Log) -> None:
    """Draw labels beside the largest marks, without overlaps."""
    placed: list[tuple[float, float]] = []
    for point in sorted(points, key=lambda p: -p.weight)[:_LABELLED]:
        left, top = x(point.x), y(point.y)
        if not point.label or any(abs(top - t) < 12 and abs(left - at) < 160 for at, t in placed):
            continue
        placed.append((left, top))
        gap = 8 + 10 * point.weight**0.5
        fits = left + gap + text_width(point.label) < WIDTH - 16
        drawing.text(
            left + gap if fits else left - gap, top + 4, point.label, "start" if fits else "end", "ink"
        )


def scatter(
    name: str, title: str, subtitle: str, series: Sequence[tuple[str, str]], points: Sequence[Point],
    curves: Sequence[Curve], x: tuple[str, str], y: tuple[str, str],
) -> Chart:  # fmt: skip
    """`series` are (label, colour); `x` and `y` are (title, unit) of the axes. All values must be positive."""
    drawing = Drawing()
    keys = [Key(label, colour, "mark", number) for number, (label, colour) in enumerate(series)]
    top = legend(drawing, keys, _LEFT, 0) + 22
    bottom = top + _PLOT_HEIGHT
    every_x = [point.x for point in points] + [px for curve in curves for px, _ in curve.points]
    every_y = [point.y for point in points] + [py for curve in curves for _, py in curve.points]
    x_scale = Log(*decades(every_x), _LEFT, WIDTH - 16)
    y_scale = Log(*decades(every_y), bottom, top)
    y_axis(drawing, Axis(y_scale, *y), _LEFT, WIDTH - 16)
    x_axis(drawing, Axis(x_scale, *x), top, bottom)
    taken: list[float] = []
    for curve in curves:
        placed = [(x_scale(px), y_scale(py)) for px, py in curve.points]
        drawing.polyline(
            placed,
            curve.colour,
            curve.label,
            stroke_width="1.6",
            stroke_dasharray="6 4" if curve.dashed else None,
        )
        if curve.label_beside:
            # Above the roof, where no marks are.
            (x1, y1), (x2, y2) = placed[0], placed[-1]
            drawing.text(x1 + 0.6 * (x2 - x1) - 8, y1 + 0.6 * (y2 - y1) - 2, curve.label, "end", curve.colour)
            continue
        end_x, end_y = placed[-1]
        at = end_y - 6
        while any(abs(at - other) < 12 for other in taken):
            at += 13
        taken.append(at)
        drawing.text(min(end_x, WIDTH - 20), at, curve.label, "end", curve.colour)
    for point in sorted(points, key=lambda p: -p.weight):  # small ones on top
        radius = 3.5 + 10 * point.weight**0.5
        drawing.mark(
            point.series, x_scale(point.x), y_scale(point.y), radius, series[point.series][1], point.tip
        )
    _label_largest(drawing, points, x_scale, y_scale)
    return Chart(name, title, subtitle, WIDTH, bottom + AXIS_HEIGHT, drawing.body())
