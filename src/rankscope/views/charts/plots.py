"""The plots that charts are made of: bars, lines and scatter plots, with their axes and legends."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rankscope.ranges import as_ranges
from rankscope.text.names import shorten_names
from rankscope.units import format_value
from rankscope.views.charts.chart import Chart
from rankscope.views.charts.scales import LEAST_TICKS, Linear, Log, Scale, decades, tick_labels
from rankscope.views.charts.svg import Drawing, text_width
from rankscope.views.charts.theme import SERIES, var

WIDTH = 760.0
AXIS_HEIGHT = 38.0
_LEGEND_HEIGHT = 22.0
_TALLEST = 1100.0
"""All bars together."""
_LABEL_MOST = 250.0
_THINNEST, _THICKEST = 3.0, 18.0
_BESIDE = 9.0
"""Of bars side by side."""
_LINES_HEIGHT, _LINES_LEFT = 190.0, 64.0
MOST_LINES = 7
_SPREAD_WIDTH = 16.0
_MOST_MARKS = 60
SCATTER_HEIGHT, _SCATTER_LEFT = 340.0, 72.0
_LABELLED = 6

AxisTitle = tuple[str, str]
"""The title of an axis and the unit of its values."""


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
        top = y + (lines - 1) * _LEGEND_HEIGHT
        if key.kind == "square":
            drawing.rect(left, top + 5, 11, 11, key.colour, stroke="var(--ink-3)", stroke_width="0.5")
        elif key.kind == "mark":
            drawing.mark(key.shape, left + 6, top + 10, 5, key.colour)
        else:
            dash = "5 3" if key.kind == "dashed" else None
            drawing.line(
                left, top + 10, left + 14, top + 10, key.colour, stroke_width="2", stroke_dasharray=dash
            )
        drawing.text(left + 18, top + 14, key.label)
        left += width
    return lines * _LEGEND_HEIGHT if keys else 0.0


@dataclass(frozen=True)
class Axis:
    """A scale with its title and the unit of its values."""

    scale: Scale
    title: str
    unit: str = ""
    whole: bool = False
    """Only whole numbers get a tick: steps, ranks."""

    def ticks(self, apart: float) -> tuple[list[tuple[float, str]], list[float], str]:
        """Position and label of each tick, about `apart` pixels apart; grid lines between them; title and unit."""
        scale = self.scale
        ticks = scale.ticks(max(LEAST_TICKS, int(abs(scale.end - scale.start) / apart)))
        if self.whole:
            ticks = [tick for tick in ticks if float(tick).is_integer()]
        labels, unit = tick_labels(self.unit, ticks)
        minor = [scale(tick) for tick in scale.minor_ticks()] if isinstance(scale, Log) else []
        title = f"{self.title} ({unit})" if unit else self.title
        return [(scale(tick), label) for tick, label in zip(ticks, labels, strict=True)], minor, title


def x_axis(drawing: Drawing, axis: Axis, top: float, bottom: float) -> None:
    """Vertical grid lines, with labels and the title below."""
    ticks, minor, title = axis.ticks(90)
    for x in minor:
        drawing.line(x, top, x, bottom, "line", stroke_width="0.4")
    for x, label in ticks:
        drawing.line(x, top, x, bottom + 4, "line", stroke_width="1")
        drawing.text(x, bottom + 16, label, "middle")
    drawing.text((axis.scale.start + axis.scale.end) / 2, bottom + 31, title, "middle", "ink")


def y_axis(drawing: Drawing, axis: Axis, left: float, right: float) -> None:
    """Horizontal grid lines, with labels to the left and the title above, where it is not rotated."""
    ticks, minor, title = axis.ticks(45)
    for y in minor:
        drawing.line(left, y, right, y, "line", stroke_width="0.4")
    for y, label in ticks:
        drawing.line(left - 4, y, right, y, "line", stroke_width="1")
        drawing.text(left - 8, y + 4, label, "end")
    drawing.text(10, min(axis.scale.start, axis.scale.end) - 9, title, colour="ink")


def row_label(
    drawing: Drawing, left: float, y: float, label: str, alarming: bool, weight: str = "600"
) -> None:
    """To the left of a row whose middle is at `y`."""
    bold = {"font_weight": weight} if alarming else {}
    drawing.text(left - 8, y + 4, label, "end", "bad" if alarming else "ink-2", **bold)


def labelled_rows(pitch: float, alarming: Sequence[bool]) -> list[int]:
    """The rows that have room for a label, if they are `pitch` apart: alarming ones, and others not beside them."""
    every = max(1, round(12 / pitch + 0.49))
    marked = [number for number, is_alarming in enumerate(alarming) if is_alarming]
    others = [
        number
        for number in range(0, len(alarming), every)
        if all(abs(number - other) >= every for other in marked)
    ]
    return sorted({*marked, *others})


@dataclass(frozen=True)
class Bar:
    """One bar, with its values in the order of the parts."""

    label: str
    values: Sequence[float]
    note: str = ""
    """Text at the end of the bar."""
    rank: int | None = None
    """Bars of ranks may be joined."""
    spread: tuple[float, float] | None = None
    """Of joined bars: the shortest and the longest. Their values are means."""


_MOST_BARS = 16
_ALIKE = 0.02
"""Bars whose parts differ by less than this share of the longest bar are alike."""


def joined(rows: Sequence[Bar]) -> list[Bar]:
    """At most _MOST_BARS: of more ranks, those that are alike become one bar, and outliers keep theirs, above."""
    if len(rows) <= _MOST_BARS:
        return list(rows)
    alike = _ALIKE * max(sum(row.values) for row in rows)
    groups: list[list[Bar]] = []
    while not groups or len(groups) > _MOST_BARS:
        groups, alike = _groups(rows, alike), 1.5 * alike
    return [_band(group) for group in sorted(groups, key=len)]


def _groups(rows: Sequence[Bar], alike: float) -> list[list[Bar]]:
    """Each bar with the first one that it is like."""
    groups: list[list[Bar]] = []
    for row in rows:
        for group in groups:
            pairs = zip(row.values, group[0].values, strict=True)
            if all(abs(a - b) <= alike for a, b in pairs):
                group.append(row)
                break
        else:
            groups.append([row])
    return groups


def _band(group: Sequence[Bar]) -> Bar:
    if len(group) == 1:
        return group[0]
    ranks = sorted({row.rank for row in group if row.rank is not None})
    sums = [sum(row.values) for row in group]
    values = [sum(column) / len(group) for column in zip(*(row.values for row in group), strict=True)]
    notes = {row.note for row in group}
    note = notes.pop() if len(notes) == 1 else ""
    label = f"{len(ranks)} ranks: {as_ranges(ranks)}"
    return Bar(label, values, note, spread=(min(sums), max(sums)))


def bars(
    name: str, title: str, subtitle: str, parts: Sequence[Key], rows: Sequence[Bar], unit: str, axis_title: str,
    width: float = WIDTH, beside: float = 0,
) -> Chart:  # fmt: skip
    """One bar per row; several parts are stacked and have a legend. `beside`: they do not add up, so they stand side by
    side, each with its value, on an axis that ends there."""
    drawing = Drawing()
    pitch = min(_THICKEST + 5, max(_THINNEST, _TALLEST / max(len(rows), 1)))
    thick = pitch - (5 if pitch > 12 else 1 if pitch > 4 else 0.3)
    if beside:
        pitch, thick = _BESIDE * len(parts) + 8, _BESIDE * len(parts)
    labels = shorten_names([row.label for row in rows], int(_LABEL_MOST / text_width("x")))
    left = 16 + max(map(text_width, labels), default=0.0)
    notes = max((text_width(row.note) for row in rows), default=0.0)
    right = width - (60 if beside else 20 + notes if notes else 14)
    top = legend(drawing, parts, left, 0, width) if len(parts) > 1 else 6.0
    bottom = top + pitch * len(rows)
    longest = max((row.spread[1] if row.spread else sum(row.values) for row in rows), default=0) or 1
    scale = Linear(0, beside or longest, left, right)
    x_axis(drawing, Axis(scale, axis_title, unit), top, bottom)
    labelled = labelled_rows(pitch, [False] * len(rows))
    for index, (row, label) in enumerate(zip(rows, labels, strict=True)):
        y = top + index * pitch
        if index in labelled:
            row_label(drawing, left, y + thick / 2, label, alarming=False)
        done = 0.0
        for number, (part, value) in enumerate(zip(parts, row.values, strict=True)):
            what = f"{part.label}: " if part.label else ""
            if beside:
                at, text = y + number * _BESIDE, format_value(unit, value)
                tip = f"{row.label}\n{what}{text}"
                drawing.rect(left, at, scale(value) - left, _BESIDE - 1, part.colour, tip)
                drawing.text(scale(value) + 4, at + 8, text, font_size="9")
                continue
            if value > 0:
                share = f" ({100 * value / sum(row.values):.1f} %)" if len(parts) > 1 else ""
                mean = "mean of these ranks: " if row.spread else ""
                tip = f"{row.label}\n{mean}{what}{format_value(unit, value)}{share}"
                long = scale(done + value) - scale(done)
                drawing.rect(scale(done), y, long, thick, part.colour, tip, **outline(part))
            done += value
        if row.spread:
            low, high = map(scale, row.spread)
            middle = y + thick / 2
            drawing.path(
                f"M{low:.1f} {middle - 4:.1f}v8m0-4H{high:.1f}m0-4v8",
                "bg",
                stroke=var("ink"),
                fill_opacity="0",
            )
            done = row.spread[1]
        if row.note:
            drawing.text(scale(done) + 6, y + thick / 2 + 4, row.note)
    return Chart(name, title, subtitle, width, bottom + AXIS_HEIGHT, drawing.body())


def outline(part: Key) -> dict[str, str]:
    """Of what is hardly darker than the ground."""
    return {"stroke": "var(--ink-3)", "stroke_width": "0.4"} if part.colour == "idle" else {}


@dataclass(frozen=True)
class Line:
    label: str
    points: Sequence[tuple[float, float]]
    """(x, y), sorted by x."""
    dashed: bool = False
    marks: bool = True
    colour: str = ""
    label_beside: bool = False
    """Of the curves of a scatter plot: above its middle, not at its end."""


Spread = tuple[float, float, float, str]
"""Of many lines, which would lie on top of each other: x, the lowest and the highest value there, and a tooltip."""


def lines(
    name: str, title: str, subtitle: str, drawn: Sequence[Line], x: AxisTitle, y: AxisTitle,
    spreads: Sequence[Spread] = (), spread_label: str = "", whole_x: bool = False, staircase: bool = False,
    from_zero: bool = True, width: float = WIDTH,
) -> Chart:  # fmt: skip
    """Each line has its own colour and mark."""
    drawing = Drawing()
    colours = [line.colour or SERIES[number % len(SERIES)] for number, line in enumerate(drawn)]
    keys = [
        Key(line.label, colour, "mark" if line.marks else "dashed" if line.dashed else "line", number)
        for number, (line, colour) in enumerate(zip(drawn, colours, strict=True))
    ]
    if spreads:
        keys.append(Key(spread_label, "idle"))
    top = legend(drawing, keys, _LINES_LEFT, 0, width) + 22
    bottom = top + _LINES_HEIGHT
    xs = [point[0] for line in drawn for point in line.points]
    ys = [point[1] for line in drawn for point in line.points]
    ys += [value for _, *bounds, _ in spreads for value in bounds]
    low, high = (min(xs), max(xs)) if xs else (0, 1)
    if low == high:
        low, high = low - 1, high + 1
    aside = _SPREAD_WIDTH if spreads else 8
    x_scale = Linear(low, high, _LINES_LEFT + aside, width - 12 - aside)
    lowest, highest = (0.0, max(ys, default=1.0)) if from_zero else (min(ys), max(ys))
    margin = 0.06 * (highest - lowest) or 1
    y_scale = Linear(lowest - (0 if from_zero else margin), highest + margin, bottom, top)
    y_axis(drawing, Axis(y_scale, *y), _LINES_LEFT, width - 12)
    x_axis(drawing, Axis(x_scale, *x, whole=whole_x), top, bottom)
    wide = min(_SPREAD_WIDTH, 0.6 * (x_scale.end - x_scale.start) / max(len(spreads), 1))
    for at, least, most, tip in spreads:
        ceiling, floor = y_scale(most), y_scale(least)
        tall = max(floor - ceiling, 1.5)
        outline = {"stroke": "var(--ink-3)", "stroke_width": "0.6"}
        drawing.rect(x_scale(at) - wide / 2, ceiling, wide, tall, "idle", tip, **outline)
    for number, (line, colour) in enumerate(zip(drawn, colours, strict=True)):
        placed = [(x_scale(px), y_scale(py)) for px, py in line.points]
        corners = placed
        if staircase:  # a value holds until the next one
            before = [placed[0], *placed[:-1]] if placed else []
            stairs = zip(before, placed, strict=True)
            corners = [corner for (_, old), (px, new) in stairs for corner in ((px, old), (px, new))][1:]
        dash = "5 3" if line.dashed else None
        drawing.polyline(corners, colour, line.label, stroke_width="1.6", stroke_dasharray=dash)
        if line.marks and len(placed) <= _MOST_MARKS:
            for (px, py), (vx, vy) in zip(placed, line.points, strict=True):
                tip = f"{line.label}\n{x[0]} {format_value(x[1], vx)}: {format_value(y[1], vy)}"
                drawing.mark(number, px, py, 3.5, colour, tip)
    return Chart(name, title, subtitle, width, bottom + AXIS_HEIGHT, drawing.body())


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


def scatter(
    name: str, title: str, subtitle: str, series: Sequence[str], points: Sequence[Point], curves: Sequence[Line],
    x: AxisTitle, y: AxisTitle, least_decades: int = 1, width: float = WIDTH, height: float = SCATTER_HEIGHT,
) -> Chart:  # fmt: skip
    """Marks in the colours of their series, and curves such as roofs and fits, on two logarithmic axes. All values must
    be positive."""
    drawing = Drawing()
    keys = [Key(label, SERIES[n % len(SERIES)], "mark", n) for n, label in enumerate(series)]
    top = legend(drawing, keys, _SCATTER_LEFT, 0, width) + 22
    bottom = top + height
    every_x = [point.x for point in points] + [px for curve in curves for px, _ in curve.points]
    every_y = [point.y for point in points] + [py for curve in curves for _, py in curve.points]
    x_scale = Log(*decades(every_x, least_decades), _SCATTER_LEFT, width - 16)
    y_scale = Log(*decades(every_y, least_decades), bottom, top)
    y_axis(drawing, Axis(y_scale, *y), _SCATTER_LEFT, width - 16)
    x_axis(drawing, Axis(x_scale, *x), top, bottom)
    taken: list[float] = []
    for curve in curves:
        placed = [(x_scale(px), y_scale(py)) for px, py in curve.points]
        dash = "6 4" if curve.dashed else None
        colour = curve.colour or "ink-2"
        drawing.polyline(placed, colour, curve.label, stroke_width="1.6", stroke_dasharray=dash)
        if curve.label_beside:
            # Above the roof, where no marks are.
            (x1, y1), (x2, y2) = placed[0], placed[-1]
            drawing.text(x1 + 0.6 * (x2 - x1) - 8, y1 + 0.6 * (y2 - y1) - 2, curve.label, "end", colour)
            continue
        end_x, end_y = placed[-1]
        at = end_y - 6
        while any(abs(at - other) < 12 for other in taken):
            at += 13
        taken.append(at)
        drawing.text(min(end_x, width - 20), at, curve.label, "end", colour)
    by_size = sorted(points, key=lambda p: -p.weight)
    for point in by_size:  # small ones on top
        radius = 3.5 + 10 * point.weight**0.5
        colour = keys[point.series].colour
        drawing.mark(point.series, x_scale(point.x), y_scale(point.y), radius, colour, point.tip)
    labelled: list[tuple[float, float]] = []
    for point in by_size[:_LABELLED]:  # without overlaps
        left, middle = x_scale(point.x), y_scale(point.y)
        if not point.label or any(
            abs(middle - at_y) < 12 and abs(left - at_x) < 160 for at_x, at_y in labelled
        ):
            continue
        labelled.append((left, middle))
        gap = 8 + 10 * point.weight**0.5
        fits = left + gap + text_width(point.label) < width - 16
        anchor = "start" if fits else "end"
        drawing.text(left + gap if fits else left - gap, middle + 4, point.label, anchor, "ink")
    return Chart(name, title, subtitle, width, bottom + AXIS_HEIGHT, drawing.body())
