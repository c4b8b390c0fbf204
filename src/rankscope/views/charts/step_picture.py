"""One step on several ranks as a picture: what each did when, who was late, and who waited for it."""

from __future__ import annotations

import numpy as np

from rankscope.analysis.across_ranks.heatmap import share_of
from rankscope.analysis.across_ranks.step_picture import RankStep, StepPicture
from rankscope.analysis.core.intervals import length
from rankscope.units import format_rounded
from rankscope.views.charts.chart import Chart
from rankscope.views.charts.heatmap import KEYS, fill_shares, keys_of, tip_of
from rankscope.views.charts.plots import AXIS_HEIGHT, Axis, legend, row_label, x_axis
from rankscope.views.charts.scales import Linear
from rankscope.views.charts.svg import Drawing, text_width
from rankscope.views.text import shorten_name

WIDE, NARROW = 1000.0, 380.0
"""For a screen and for a phone."""
_PIXELS = 1.5
"""Of an interval that is filled by its shares."""
_PITCH, _GAP = 34.0, 8.0
_FONT = 11
_MOST_NAME = 40


def step_picture_chart(picture: StepPicture, width: float = WIDE) -> Chart:
    """Time counts from the start of the step on the first rank that begins it."""
    drawing = Drawing()
    origin = min(row.start_ns for row in picture.rows)
    end = max(row.end_ns for row in picture.rows)
    left = 14 + max(text_width(f"rank {row.rank}", _FONT + 1) for row in picture.rows)
    scale = Linear(0, end - origin, left, width - 8)
    thick = _PITCH - _GAP
    top, bottom = 6.0, 6.0 + _PITCH * len(picture.rows)
    x_axis(drawing, Axis(scale, f"Time from the start of step {picture.step}", "ns"), top, bottom)
    edges = np.linspace(0, end - origin, int((scale.end - scale.start) / _PIXELS) + 1).astype(np.int64)
    x = [scale(edge) for edge in edges.tolist()]
    for number, row in enumerate(picture.rows):
        y = top + number * _PITCH
        row_label(drawing, left, y + thick / 2, f"rank {row.rank}", row.is_culprit, "700")
        begin, stop = scale(row.start_ns - origin), scale(row.end_ns - origin)
        drawing.rect(begin, y, stop - begin, thick, "idle", tip_of(f"rank {row.rank}", _times(row)))
        parts = (row.compute, row.transfer, row.wait, row.copy)
        shares = [share_of(part, edges + origin).tolist() for part in parts]
        fill_shares(drawing, shares, x, y, thick)
        _label(drawing, row, scale, origin, y + thick / 2 + 4)
    if picture.arrival:
        at = scale(picture.arrival.at_ns - origin)
        dashes = {"stroke_width": "1.5", "stroke_dasharray": "4 3"}
        drawing.line(at, top - 6, at, bottom - _GAP + 6, "bad", **dashes)
    used = {key.colour for number, key in enumerate(KEYS) if any(_times(row)[number] for row in picture.rows)}
    height = bottom + AXIS_HEIGHT
    keys = [key for key in keys_of("wait" in used) if key.colour in used]
    height += legend(drawing, keys, left, height, width - 8)
    return Chart("step", f"Step {picture.step}", caption(picture), width, height, drawing.body())


def caption(picture: StepPicture) -> str:
    """What the picture shows."""
    shown = len(picture.rows)
    if shown == picture.ranks:
        whose = "on all ranks" if shown > 1 else f"on rank {picture.rows[0].rank}"
    else:
        whose = f"on {shown} of {picture.ranks:,} ranks"
    text = f"Step {picture.step} {whose}"
    if all(row.on_host for row in picture.rows):
        text += ", ops of the host (no GPU events)"
    if picture.clock_error_ns is not None:
        text += f", clocks aligned to ±{format_rounded('ns', picture.clock_error_ns)}"
    text += "."
    if picture.arrival:
        text += f" The dashed line is the arrival of rank {picture.arrival.rank}, the last, at {picture.arrival.kind}."
    return text


def _times(row: RankStep) -> list[int]:
    """In the order of KEYS."""
    return [*map(length, (row.compute, row.transfer, row.wait, row.copy)), row.idle_ns]


def _label(drawing: Drawing, row: RankStep, scale: Linear, origin: int, y: float) -> None:
    """On its stretch where it fits, else beside the middle of it, with the background behind the letters."""
    if row.stretch is None:
        return
    took = format_rounded("ns", row.stretch.end_ns - row.stretch.start_ns)
    comma = "" if row.stretch.kind == "wait" else ","
    text = f"{shorten_name(row.stretch.label, _MOST_NAME)}{comma} {took}"
    begin, end = scale(row.stretch.start_ns - origin), scale(row.stretch.end_ns - origin)
    room = text_width(text, _FONT + 1) + 8
    if end - begin >= room and row.stretch.kind not in ("comm", "copy"):  # these are neither dark nor light
        colour = "on-compute" if row.stretch.kind == "compute" else "ink"
        weight = {"font_weight": "600"} if row.is_culprit else {}
        drawing.text((begin + end) / 2, y, text, "middle", colour, **weight)
    elif row.is_culprit:
        middle = min(max((begin + end) / 2, scale.start + room / 2), scale.end - room / 2)
        halo = {"stroke": "var(--bg)", "stroke_width": "3", "paint_order": "stroke", "font_weight": "600"}
        drawing.text(middle, y, text, "middle", "ink", **halo)
