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
_SPREAD_WIDTH = 16.0
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
class Spread:
    """The lowest and the highest value at one x."""

    x: float
    low: float
    high: float
    tip: str


@dataclass(frozen=True)
class Spreads:
    """The spread of many lines, which would lie on top of each other."""

    label: str
    each: Sequence[Spread]


def lines(
    name: str, title: str, subtitle: str, drawn: Sequence[Line], x: tuple[str, str], y: tuple[str, str],
    spreads: Spreads | None = None, whole_x: bool = False, staircase: bool = False, from_zero: bool = True,
) -> Chart:  # fmt: skip
    """`x` and `y` are (title, unit) of the axes. Each line has its own colour and mark."""
    drawing = Drawing()
    colours = [line.colour or SERIES[number % len(SERIES)] for number, line in enumerate(drawn)]
    keys = [
        Key(line.label, colour, "mark" if line.marks else "dashed" if line.dashed else "line", number)
        for number, (line, colour) in enumerate(zip(drawn, colours, strict=True))
    ]
    if spreads:
        keys.append(Key(spreads.label, "idle"))
    top = legend(drawing, keys, _LEFT, 0) + 22
    bottom = top + _PLOT_HEIGHT
    each = spreads.each if spreads else ()
    xs = [point[0] for line in drawn for point in line.points]
    ys = [point[1] for line in drawn for point in line.points]
    ys += [value for spread in each for value in (spread.low, spread.high)]
    low, high = (min(xs), max(xs)) if xs else (0, 1)
    if low == high:
        low, high = low - 1, high + 1
    aside = _SPREAD_WIDTH if spreads else 8
    x_scale = Linear(low, high, _LEFT + aside, WIDTH - 12 - aside)
    lowest, highest = (0.0, max(ys, default=1.0)) if from_zero else (min(ys), max(ys))
    margin = 0.06 * (highest - lowest) or 1
    y_scale = Linear(lowest - (0 if from_zero else margin), highest + margin, bottom, top)
    y_axis(drawing, Axis(y_scale, *y), _LEFT, WIDTH - 12)
    x_axis(drawing, Axis(x_scale, *x, whole=whole_x), top, bottom)
    width = min(_SPREAD_WIDTH, 0.6 * (x_scale.end - x_scale.start) / max(len(each), 1))
    for spread in each:
        ceiling, floor = y_scale(spread.high), y_scale(spread.low)
        tall = max(floor - ceiling, 1.5)
        outline = {"stroke": "var(--ink-3)", "stroke_width": "0.6"}
        drawing.rect(x_scale(spread.x) - width / 2, ceiling, width, tall, "idle", spread.tip, **outline)
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
