"""Line charts over time, steps or sizes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rankscope.units import format_plain, format_value
from rankscope.views.charts.chart import Chart
from rankscope.views.charts.frame import AXIS_HEIGHT, WIDTH, Axis, Key, legend, x_axis, y_axis
from rankscope.views.charts.scales import Linear
from rankscope.views.charts.svg import Drawing
from rankscope.views.charts.theme import SERIES

_PLOT_HEIGHT = 190.0
_LEFT = 64.0
MOST_LINES = 7
_MOST_MARKS = 60


@dataclass(frozen=True)
class Line:
    label: str
    points: Sequence[tuple[float, float]]
    """(x, y), sorted by x."""
    dashed: bool = False
    marks: bool = True
    colour: str = ""


@dataclass(frozen=True)
class Band:
    """The area between the lowest and the highest of many lines, where they are too many to draw."""

    label: str
    points: Sequence[tuple[float, float, float]]
    """x, lowest, highest."""


def lines(
    name: str, title: str, subtitle: str, drawn: Sequence[Line], x: tuple[str, str], y: tuple[str, str],
    band: Band | None = None, whole_x: bool = False, staircase: bool = False,
) -> Chart:  # fmt: skip
    """`x` and `y` are (title, unit) of the axes. Each line has its own colour and mark; y starts at 0."""
    drawing = Drawing()
    colours = [line.colour or SERIES[number % len(SERIES)] for number, line in enumerate(drawn)]
    keys = [
        Key(line.label, colour, "mark" if line.marks else "dashed" if line.dashed else "line", number)
        for number, (line, colour) in enumerate(zip(drawn, colours, strict=True))
    ]
    if band:
        keys.append(Key(band.label, "idle"))
    top = legend(drawing, keys, _LEFT, 0) + 22
    bottom = top + _PLOT_HEIGHT
    xs = [point[0] for line in drawn for point in line.points] + [p[0] for p in (band.points if band else ())]
    ys = [point[1] for line in drawn for point in line.points] + [p[2] for p in (band.points if band else ())]
    low, high = (min(xs), max(xs)) if xs else (0, 1)
    if low == high:
        low, high = low - 1, high + 1
    x_scale = Linear(low, high, _LEFT + 8, WIDTH - 20)
    y_scale = Linear(0, max(ys, default=1) * 1.06 or 1, bottom, top)
    y_axis(drawing, Axis(y_scale, *y), _LEFT, WIDTH - 12)
    x_axis(drawing, Axis(x_scale, *x, whole=whole_x), top, bottom)
    if band and band.points:
        outline = [(x_scale(at), y_scale(most)) for at, _, most in band.points]
        outline += [(x_scale(at), y_scale(least)) for at, least, _ in reversed(band.points)]
        path = "M" + "L".join(f"{px:.1f} {py:.1f}" for px, py in outline) + "z"
        drawing.path(path, "idle", band.label, stroke="var(--ink-3)", stroke_width="0.5")
    for number, (line, colour) in enumerate(zip(drawn, colours, strict=True)):
        placed = [(x_scale(px), y_scale(py)) for px, py in line.points]
        drawing.polyline(
            _stairs(placed) if staircase else placed, colour, line.label,
            stroke_width="1.6", stroke_dasharray="5 3" if line.dashed else None,
        )  # fmt: skip
        if line.marks and len(placed) <= _MOST_MARKS:
            for (px, py), (vx, vy) in zip(placed, line.points, strict=True):
                tip = f"{line.label}\n{x[0]} {_shown(x[1], vx)}: {_shown(y[1], vy)}"
                drawing.mark(number, px, py, 3.5, colour, tip)
    return Chart(name, title, subtitle, WIDTH, bottom + AXIS_HEIGHT, drawing.body())


def _shown(unit: str, value: float) -> str:
    return format_value(unit, value) if unit else format_plain(value)


def _stairs(points: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """The points of a step function: a value holds until the next one."""
    stairs: list[tuple[float, float]] = []
    for at, (x, y) in enumerate(points):
        if at:
            stairs.append((x, points[at - 1][1]))
        stairs.append((x, y))
    return stairs
