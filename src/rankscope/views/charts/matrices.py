"""Cells in shades of one colour, rank by step and rank by rank, and the histogram of arrivals that belongs to them."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np

from rankscope.analysis.core.result import Result
from rankscope.units import format_ns, format_rounded, format_value
from rankscope.views.charts.chart import Chart, nothing_to_draw
from rankscope.views.charts.plots import (
    AXIS_HEIGHT,
    WIDTH,
    Axis,
    Key,
    labelled_rows,
    legend,
    outline,
    row_label,
    x_axis,
    y_axis,
)
from rankscope.views.charts.scales import Linear, Log
from rankscope.views.charts.svg import Drawing, Floats, rectangles, text_width
from rankscope.views.charts.theme import SERIES

_LEVELS = 8
_TIPS = 150
"""The largest cells have a tooltip: one for each of 64 by 64 would be most of a report."""
_WIDEST, _TALLEST, _THINNEST = 64.0, 22.0, 5.0
_PRINTED = 44.0
"""Cells of this width and more contain their value."""
_MOST_COLUMNS = 240
_LEAST_TOP = 0.1
"""Of the mean step: where nobody is later than that, no cell has the full colour."""
_HISTOGRAM_LEFT, _HISTOGRAM_HEIGHT = 64.0, 200.0
_NAMED_RANKS, _NAMED_SHARE = 3, 0.15
"""Ranks with a colour: those that are last by a share of all skew."""


@dataclass(frozen=True)
class Cells:
    """A table of values with the labels of its rows and columns; 0 and less is left blank."""

    rows: Sequence[str]
    columns: Sequence[str]
    values: Floats
    unit: str
    row_title: str
    column_title: str
    colour: str
    top: float
    """The value with the full colour."""
    low: float = 0.0
    """With one, shades are logarithmic, and what is below is left blank."""
    alarming: Collection[str] = ()

    @property
    def levels(self) -> Floats:
        """The shade of each cell, 0 (blank) to _LEVELS."""
        share = np.clip(self.values / self.top, 0, 1)
        if not self.low:
            return np.ceil(share * _LEVELS - 0.5)
        least = self.low / self.top
        logs = np.log(np.maximum(share, least) / least) / -math.log(least)
        return np.where(share >= least, 1 + np.round((_LEVELS - 1) * logs), 0.0)


def _draw(name: str, title: str, subtitle: str, cells: Cells) -> Chart:
    drawing = Drawing()
    left = 16 + max(text_width(label) for label in (*cells.rows, cells.row_title))
    wide = min(_WIDEST, (WIDTH - 12 - left) / len(cells.columns))
    tall = min(_TALLEST, max(_THINNEST, 640 / len(cells.rows)))
    _shades(drawing, cells, left)
    top = 46.0
    drawing.text(left - 8, top - 6, cells.row_title, "end", "ink")
    bottom = top + tall * len(cells.rows)
    drawing.rect(left, top, wide * len(cells.columns), bottom - top, "idle", fill_opacity="0.5")
    x: Floats = np.array([left + wide * number for number in range(len(cells.columns) + 1)])
    y: Floats = np.array([top + tall * number for number in range(len(cells.rows) + 1)])
    level = cells.levels
    gap = 1.0 if min(wide, tall) > 8 else 0.0
    for number in range(1, _LEVELS + 1):
        row, column = np.nonzero(level == number)
        if len(row):
            path = rectangles(x[column], x[column + 1] - gap, y[row], y[row + 1] - gap)
            drawing.path(path, cells.colour, fill_opacity=f"{number / _LEVELS:g}")
    for number in labelled_rows(tall, [label in cells.alarming for label in cells.rows]):
        label = cells.rows[number]
        row_label(drawing, left, y[number] + tall / 2, label, label in cells.alarming)
    apart = math.ceil((max(map(text_width, cells.columns)) + 6) / wide)
    for number, label in enumerate(cells.columns):
        if number % apart == 0:
            drawing.text(x[number] + wide / 2, bottom + 14, label, "middle")
    drawing.text(left + wide * len(cells.columns) / 2, bottom + 30, cells.column_title, "middle", "ink")
    largest = np.argsort(-cells.values, axis=None, kind="stable")[:_TIPS]
    for row, column in zip(
        *(at.tolist() for at in np.unravel_index(largest, cells.values.shape)), strict=True
    ):
        value = float(cells.values[row, column])
        if value <= 0:
            break
        tip = (
            f"{cells.row_title} {cells.rows[row]}\n{cells.column_title} {cells.columns[column]}\n"
            f"{format_value(cells.unit, value)}"
        )
        drawing.rect(x[column], y[row], wide, tall, "bg", tip, fill_opacity="0")
        if wide >= _PRINTED and tall >= _TALLEST and level[row, column] > 0:
            colour = "bg" if level[row, column] > 0.6 * _LEVELS else "ink"
            text = format_rounded(cells.unit, value)
            where = x[column] + wide / 2, y[row] + tall / 2 + 4
            drawing.text(*where, text, "middle", colour, font_size="10", pointer_events="none")
    return Chart(name, title, subtitle, WIDTH, bottom + AXIS_HEIGHT, drawing.body())


def _shades(drawing: Drawing, cells: Cells, left: float) -> None:
    """The legend: the colour from blank to full."""
    low = format_rounded(cells.unit, cells.low) if cells.low else "0"
    begin = left + text_width(low) + 6
    drawing.text(left, 14, low)
    for number in range(1, _LEVELS + 1):
        opacity = {"fill_opacity": f"{number / _LEVELS:g}"}
        drawing.rect(begin + 14 * (number - 1), 5, 14, 11, cells.colour, **opacity)
    text = format_rounded(cells.unit, cells.top) + (", logarithmic" if cells.low else "")
    drawing.text(begin + 6 + 14 * _LEVELS, 14, text)


def _matrix(result: Result, row_title: str, column_title: str, colour: str, decades: int = 0) -> Chart:
    """Ranks by ranks, the largest cell with the full colour; shades are logarithmic over so many decades."""
    if not result.rows:
        raise nothing_to_draw(result)
    labels = result.facts["labels"]
    number = {label: at for at, label in enumerate(labels)}
    row_name, column_name, measure = result.columns
    values = np.zeros((len(labels), len(labels)))
    for row in result.rows:
        values[number[row[row_name.name]], number[row[column_name.name]]] = row[measure.name]
    top = float(values.max())
    low = top / 10**decades if decades and values[values > 0].min() < top else 0.0
    cells = Cells(labels, labels, values, measure.unit, row_title, column_title, colour, top, low)
    return _draw(result.name, result.title, "; ".join((result.window, *result.notes)), cells)


def waits(result: Result) -> Chart:
    """Who waited for whom. A rank that all others wait for is a column."""
    return _matrix(result, "Rank", "waited for rank", "s2")


def traffic(result: Result) -> Chart:
    """Bytes from the rank of the row to the rank of the column; messages between stages are small beside reductions."""
    return _matrix(result, "From rank", "to rank", "compute", decades=3)


def lateness(result: Result) -> Chart:
    """Ranks by steps. Of many steps, neighbours share a column: it shows the latest."""
    if not result.rows:
        raise nothing_to_draw(result)
    ranks = list(dict.fromkeys(row["rank"] for row in result.rows))
    steps = list(dict.fromkeys(row["step"] for row in result.rows))
    values = np.array([row["excess_ns"] for row in result.rows], dtype=np.float64)
    values = values.reshape(len(ranks), len(steps))
    each = math.ceil(len(steps) / _MOST_COLUMNS)
    values = np.maximum.reduceat(values, np.arange(0, len(steps), each), axis=1)
    top = max(float(values.max()), _LEAST_TOP * result.facts["mean_step_ns"])
    columns = [str(step) for step in steps[::each]]
    cells = Cells(ranks, columns, values, "ns", "Rank", "Step", "s2", top, alarming=result.facts["late"])
    subtitle = f"{result.window}; how much longer than its peers a rank takes, without waiting"
    subtitle += f"; the latest of {each} steps" if each > 1 else ""
    return _draw(result.name, result.title, subtitle, cells)


def arrivals(result: Result) -> Chart:
    """How many collectives have which skew, by the rank that arrives last."""
    if not result.rows:
        raise nothing_to_draw(result)
    skew: dict[int | None, int] = {}
    for row in result.rows:
        skew[row["last_rank"]] = skew.get(row["last_rank"], 0) + row["skew_ns"]
    ranked = sorted((rank for rank in skew if rank is not None), key=lambda rank: -skew[rank])
    named = [rank for rank in ranked if skew[rank] >= _NAMED_SHARE * sum(skew.values())][:_NAMED_RANKS]
    keys = [Key(f"rank {rank} last", SERIES[at + 1]) for at, rank in enumerate(named)]
    keys += (
        [Key("other ranks last" if named else "no rank is last often", "idle")]
        if len(skew) > len(named)
        else []
    )
    bins: dict[tuple[int, int], list[int]] = {}
    for row in result.rows:
        part = named.index(row["last_rank"]) if row["last_rank"] in named else len(named)
        bins.setdefault((row["low_ns"], row["high_ns"]), [0] * (len(named) + 1))[part] += row["count"]
    drawing = Drawing()
    top = legend(drawing, keys, _HISTOGRAM_LEFT, 0) + 24
    bottom = top + _HISTOGRAM_HEIGHT
    lowest, highest = min(low or high / 2 for low, high in bins), max(high for _, high in bins)
    across = Log(lowest, max(highest, 10 * lowest), _HISTOGRAM_LEFT, WIDTH - 16)
    up = Linear(0, max(map(sum, bins.values())) * 1.05, bottom, top)
    y_axis(drawing, Axis(up, "Collectives", whole=True), _HISTOGRAM_LEFT, WIDTH - 16)
    x_axis(drawing, Axis(across, "From the first arrival to the last", "ns"), top, bottom)
    for (low, high), counts in bins.items():
        begin, end = across(low or high / 2), across(high)
        span = f"{format_ns(low, 1)} to {format_ns(high, 1)}" if low else f"under {format_ns(high, 1)}"
        done = 0
        for key, count in zip(keys, counts, strict=False):
            if count:
                tip = f"{span}\n{key.label}: {count:,} of {sum(counts):,}"
                high_y, low_y = up(done + count), up(done)
                drawing.rect(begin, high_y, end - begin - 1, low_y - high_y, key.colour, tip, **outline(key))
            done += count
    subtitle = f"{result.window}; the wait of the first rank in each collective, send and receive"
    return Chart(result.name, result.title, subtitle, WIDTH, bottom + AXIS_HEIGHT, drawing.body())
