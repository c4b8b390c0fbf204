"""Rank by time: each row is a rank, each stretch of it filled from below with compute, communication and copies."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rankscope.units import format_ns
from rankscope.views.charts.chart import Chart
from rankscope.views.charts.frame import AXIS_HEIGHT, WIDTH, Axis, Key, legend, x_axis
from rankscope.views.charts.scales import Linear
from rankscope.views.charts.svg import Drawing, step_path, text_width

_TALLEST = 1100.0
_THICKEST, _THINNEST = 17.0, 2.0
_FEW = 100.0
"""Pixels that few ranks share: a lone one is drawn thicker."""
KEYS = (
    Key("compute", "compute"),
    Key("exposed communication", "comm"),
    Key("exposed copies", "copy"),
    Key("idle", "idle"),
)


@dataclass(frozen=True)
class Row:
    """One rank."""

    label: str
    shares: Sequence[Sequence[float]]
    """Compute, communication, copies: the share of each stretch of time."""
    tip: str
    alarming: bool = False


@dataclass(frozen=True)
class Step:
    label: str
    start_ns: int


def heatmap(
    title: str, subtitle: str, rows: Sequence[Row], edges: Sequence[int], steps: Sequence[Step]
) -> Chart:
    """`edges` are the ends of the stretches, in ns from the run's start."""
    drawing = Drawing(WIDTH, 0)
    left = 16 + max((text_width(row.label) for row in rows), default=0.0)
    scale = Linear(edges[0], edges[-1], left, WIDTH - 12)
    top = legend(drawing, KEYS, left, 0) + (16 if steps else 4)
    pitch = min(max(_THICKEST, min(44.0, _FEW / len(rows))), max(_THINNEST, _TALLEST / len(rows)))
    thick = pitch - (3 if pitch > 8 else 0.6 if pitch > 3 else 0.0)
    bottom = top + pitch * len(rows)
    x_axis(drawing, Axis(scale, "Time from the run's start", "ns"), top, bottom)
    x = [scale(edge) for edge in edges]
    every = max(1, round(12 / pitch + 0.49))
    for index, row in enumerate(rows):
        y = top + index * pitch
        if index % every == 0 or row.alarming:
            weight = {"font_weight": "600"} if row.alarming else {}
            drawing.text(
                left - 8, y + thick / 2 + 4, row.label, "end", "bad" if row.alarming else "ink-2", **weight
            )
        drawing.rect(left, y, WIDTH - 12 - left, thick, "idle", row.tip)
        _fill(drawing, row, x, y, thick)
    _mark_steps(drawing, steps, scale, top, bottom)
    return Chart("heatmap", title, subtitle, WIDTH, bottom + AXIS_HEIGHT, drawing.body())


def _fill(drawing: Drawing, row: Row, x: list[float], y: float, thick: float) -> None:
    """Whole tenths of the row's height, so that equal neighbours become one shape."""
    levels = max(2, min(10, round(thick)))
    floor = [y + thick] * (len(x) - 1)
    for key, shares in zip(KEYS, row.shares, strict=False):
        ceiling = [
            max(y, base - thick * round(share * levels) / levels)
            for base, share in zip(floor, shares, strict=True)
        ]
        path = step_path(x, ceiling, floor)
        if path:
            drawing.path(path, key.colour, pointer_events="none")
        floor = ceiling


def _mark_steps(drawing: Drawing, steps: Sequence[Step], scale: Linear, top: float, bottom: float) -> None:
    last = -1000.0
    for step in steps:
        x = scale(step.start_ns)
        if x - last < 6:
            continue
        drawing.line(x, top - 12, x, bottom, "ink-3", stroke_width="0.8", stroke_dasharray="2 2")
        if x - last > text_width(step.label) + 6:
            drawing.text(x + 3, top - 4, step.label, font_size="10")
        last = x


def tip_of(label: str, spans: dict[str, float]) -> str:
    """'rank 3' and its shares, one a line."""
    total = sum(spans.values()) or 1
    return "\n".join(
        [label, *(f"{name}: {format_ns(ns)} ({100 * ns / total:.1f} %)" for name, ns in spans.items())]
    )
