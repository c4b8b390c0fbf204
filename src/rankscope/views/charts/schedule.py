"""The schedule of a pipeline: what each stage does in a step, beside the ideal one, and the parts of its bubbles."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

import numpy as np

from rankscope.analysis.across_ranks.schedule_picture import IDEAL, RECORDED, schedule_picture
from rankscope.analysis.core.intervals import union
from rankscope.analysis.core.result import Result, Row
from rankscope.analysis.core.scope import Scope
from rankscope.timeline.run import Run
from rankscope.units import format_ns
from rankscope.views.charts.chart import Chart, nothing_to_draw
from rankscope.views.charts.plots import AXIS_HEIGHT, WIDTH, Axis, Bar, Key, bars, legend, row_label, x_axis
from rankscope.views.charts.scales import Linear
from rankscope.views.charts.svg import Drawing, rectangles, text_width

_KINDS = {
    "forward": Key("forward", "compute"),
    "backward": Key("backward", "backward"),
    "compute": Key("compute", "compute"),
    "transfer": Key("transfer", "comm"),
    "wait": Key("waiting in other collectives", "wait"),
    "other": Key("other work", "s7"),
    "bubble": Key("bubble", "bubble"),
}
"""In the order of the legend; what comes first is drawn over what follows."""
_PASSES = ("forward", "backward")
_PARTS = {
    "schedule_ns": Key("by design", "bubble"),
    "stages_ns": Key("unequal stages", "s2"),
    "rank_ns": Key("slow ranks", "s4"),
    "rest_ns": Key("transfer and jitter", "comm"),
}
_HEADING = 18.0
_TALLEST = 640.0
"""All rows of one schedule together."""
_MOST_ROWS = 64


def bubbles_in_run(result: Result, run: Run, scope: Scope) -> Chart:
    """The schedule, and below it the parts of the bubbles."""
    parts, drawn = bubble_parts(result), schedule(schedule_picture(run, scope.in_run(run)))
    below = f'<g transform="translate(0 {drawn.height + _HEADING:.0f})">{parts.body}</g>'
    heading = Drawing()
    heading.text(10, drawn.height + 12, parts.title, colour="ink", font_weight="600")
    body = f"{drawn.body}{heading.body()}{below}"
    return replace(drawn, name=result.name, height=drawn.height + _HEADING + parts.height, body=body)


def bubble_parts(result: Result) -> Chart:
    """A bar for each stage or rank; one part where the parts are not known."""
    if not result.rows:
        raise nothing_to_draw(result)
    by = "rank" if "rank" in result.rows[0] else "stage"
    names = [name for name in _PARTS if result.rows[0][name] is not None] or ["bubble_ns"]
    keys = [_PARTS.get(name, Key("", "bubble")) for name in names]
    rows = [
        Bar(f"{by} {row[by]}", [row[name] for name in names], f"{row['bubble_pct'] or 0:.1f} %")
        for row in result.rows[:_MOST_ROWS]
    ]
    title = "Bubbles per step, and what they come from"
    return bars(result.name, title, f"{result.window}; mean over ranks and steps", keys, rows, "ns", "Time")


def schedule(picture: Result, width: float = WIDTH, alarming: Collection[int] = ()) -> Chart:
    """Recorded and ideal, one below the other, on one axis; labels of `alarming` ranks are bold."""
    by_schedule: dict[str, dict[int, list[Row]]] = {RECORDED: {}, IDEAL: {}}
    for row in picture.rows:
        by_stage = by_schedule[row["schedule"]]
        if row["stage"] in by_stage or len(by_stage) < _MOST_ROWS:
            by_stage.setdefault(row["stage"], []).append(row)
    if not by_schedule[RECORDED]:
        raise nothing_to_draw(picture)
    drawing = Drawing()
    every = [row for rows in by_schedule.values() for parts in rows.values() for row in parts]
    end = max(row["start_ns"] + row["dur_ns"] for row in every)
    labels = {
        RECORDED: [
            f"stage {stage} · rank {parts[0]['rank']}" for stage, parts in by_schedule[RECORDED].items()
        ],
        IDEAL: [f"stage {stage}" for stage in by_schedule[IDEAL]],
    }
    left = 16 + max(map(text_width, labels[RECORDED]))
    scale = Linear(0, end, left, width - 14 - text_width("99.9 %"))
    used = {row["kind"] for row in every}
    top = legend(drawing, [key for kind, key in _KINDS.items() if kind in used], 10, 0, width) + 4
    pitch = min(22.0, max(6.0, _TALLEST / len(by_schedule[RECORDED])))
    bottom = top + sum(_HEADING + pitch * len(rows) for rows in by_schedule.values() if rows)
    facts = picture.facts
    step = "" if facts["step"] is None else f"step {facts['step']}"
    x_axis(
        drawing,
        Axis(scale, f"Time from the start of {step or 'the recording'}", "ns"),
        top + _HEADING,
        bottom,
    )
    chosen = "the slowest" if facts["is_slowest"] else "one"
    headings = {
        RECORDED: (
            "Recorded: " + f"{step}, " * bool(step),
            f" on {chosen} of {facts['pipelines']} pipelines",
        ),
        IDEAL: ("Ideal: the same order, equal stages, no transfer: ", ""),
    }
    for name, rows in by_schedule.items():
        if not rows:
            continue
        length = max(row["start_ns"] + row["dur_ns"] for parts in rows.values() for row in parts)
        drawing.rect(0, top, width, _HEADING - 2, "bg")
        before, after = headings[name]
        heading = f"{before}{format_ns(length, 1)}{after * (facts['pipelines'] > 1)}"
        drawing.text(10, top + 12, heading, colour="ink", font_weight="600")
        drawing.text(scale(length) + 6, top + 12, "bubble")
        top += _HEADING
        for label, parts in zip(labels[name], rows.values(), strict=True):
            window = facts["window_ns"][parts[0]["rank"]] if name == RECORDED else length
            is_alarming = name == RECORDED and parts[0]["rank"] in alarming
            row_label(drawing, scale.start, top + pitch / 2 - 2, label, is_alarming)
            _draw_row(drawing, scale, parts, label, (top, pitch), (length, window))
            top += pitch
    subtitle = f"{picture.window}, the step of median length"
    subtitle += "; numbers are micro-batches" * ("forward" in used)
    subtitle += "; paler: every other chunk of a stage" * any((row["chunk"] or 0) > 1 for row in every)
    return Chart(picture.name, picture.title, subtitle, width, bottom + AXIS_HEIGHT, drawing.body())


def _draw_row(
    drawing: Drawing,
    scale: Linear,
    parts: Sequence[Row],
    label: str,
    at: tuple[float, float],
    lengths: tuple[int, int],
) -> None:
    """`at`: top and pitch; `lengths`: of the schedule, and of this rank's step."""
    (y, pitch), (length, window) = at, lengths
    thick = pitch - (4 if pitch > 12 else 1)
    drawing.rect(scale.start, y, scale(length) - scale.start, thick, "idle")
    bubble = sum(row["dur_ns"] for row in parts if row["kind"] == "bubble")
    bubble_share = f"{100 * bubble / max(window, 1):.1f} %"
    for kind, key in reversed(_KINDS.items()):
        mine = [row for row in parts if row["kind"] == kind]
        if kind in _PASSES:
            for row in mine:
                _draw_pass(drawing, scale, row, label, key.colour, y, thick)
            continue
        share = f" ({bubble_share})" if kind == "bubble" else ""
        tip = f"{label}\n{key.label}: {format_ns(sum(row['dur_ns'] for row in mine))}{share}"
        # What is closer than half a pixel is drawn as one.
        pause = round(0.5 * length / (scale(length) - scale.start))
        starts = np.array([row["start_ns"] for row in mine], dtype=np.int64)
        ends = starts + np.array([row["dur_ns"] for row in mine], dtype=np.int64)
        joined = union(starts, ends + pause)
        sides = [
            np.array([scale(time) for time in side.tolist()]) for side in (joined.start, joined.end - pause)
        ]
        if kind != "bubble":
            sides[1] = np.maximum(sides[1], sides[0] + 0.8)
        wide = sides[1] - sides[0] >= 0.5
        lines = [np.full(int(wide.sum()), at) for at in (y, y + thick)]
        if wide.any():
            drawing.path(rectangles(sides[0][wide], sides[1][wide], *lines), key.colour, tip)
    drawing.text(scale(length) + 6, y + thick / 2 + 4, bubble_share)


def _draw_pass(
    drawing: Drawing, scale: Linear, row: Row, label: str, colour: str, y: float, thick: float
) -> None:
    begin, end = scale(row["start_ns"]), scale(row["start_ns"] + row["dur_ns"])
    number = str(row["micro_batch"])
    chunk = f", chunk {row['chunk']}" if row["chunk"] > 1 else ""
    tip = f"{label}\n{row['kind']} of micro-batch {number}{chunk}: {format_ns(row['dur_ns'])}"
    outline = {"stroke": "var(--bg)", "stroke_width": "0.6"}
    paler = {"fill_opacity": "0.85"} if row["chunk"] % 2 == 0 else {}
    drawing.rect(begin, y, end - begin, thick, colour, tip, **outline, **paler)
    if end - begin >= text_width(number, 10) + 3 and thick >= 11:
        ends = {"pointer_events": "none", "font_size": "10"}
        drawing.text((begin + end) / 2, y + thick / 2 + 4, number, "middle", "on-compute", **ends)
