"""Ranks over time: the heat map of a run, and a picture of one step: who was late, and who waited for it. One row per
rank, filled with compute, transfers, waiting and copies.

Time is divided into intervals. Each is filled from below by the share of each class; the rest is idle.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

import numpy as np

from rankscope.analysis.across_ranks.heatmap import (
    MAP_INTERVALS,
    buckets,
    late_by_rank,
    time_maps,
)
from rankscope.analysis.across_ranks.step_picture import RankStep, StepPicture
from rankscope.analysis.core.device_events import CLASSES
from rankscope.analysis.core.intervals import EMPTY, Intervals, length, share_of, shifted
from rankscope.analysis.core.result import Result
from rankscope.analysis.core.scope import Scope, steps_in_scope
from rankscope.analysis.within_rank.breakdown import exposed_wait_times
from rankscope.text.names import shorten_name
from rankscope.timeline.run import Run
from rankscope.units import format_ns, format_rounded
from rankscope.views.charts.chart import Chart, nothing_to_draw
from rankscope.views.charts.plots import (
    AXIS_HEIGHT,
    WIDTH,
    Axis,
    Key,
    labelled_rows,
    legend,
    row_label,
    x_axis,
)
from rankscope.views.charts.scales import Linear
from rankscope.views.charts.svg import Drawing, step_path, text_width

_MOST_ROWS = 128
"""Of more ranks, those of a node share a row; the late ones have their own, above."""
_MOST_LATE_ROWS = 16
_SORTED_FROM = 64
"""More ranks than this are sorted by lateness: no one looks for a rank by its number."""
_MOST_CELLS = 26_000
"""Rows times intervals: keeps the report small."""
_TALLEST = 1100.0
_THICKEST, _THINNEST = 17.0, 2.0
_LEAST_HEIGHT = 100.0
"""Height of all rows together, in pixels, up to a limit per row: few ranks are drawn thicker."""
NARROW, USUAL, WIDE = 380.0, 1000.0, 1400.0
"""For a phone, a screen and a wide screen."""
_STEP_PIXELS = 1.5
"""Of an interval that is filled by its shares."""
_STEP_PITCH, _STEP_GAP = 34.0, 8.0
_STEP_FONT = 11
_MOST_NAME = 40
KEYS = (
    Key("compute", "compute"),
    Key("exposed transfer", "comm"),
    Key("waiting for another rank", "wait"),
    Key("exposed copies", "copy"),
    Key("idle", "idle"),
)
WAIT = [key.colour for key in KEYS].index("wait")


_COMMUNICATION = "exposed communication"
"""What a transfer is called where nothing is known about waiting: of one rank, or of collectives without a match."""


def keys_of(waiting: bool) -> list[Key]:
    """The legend; without waiting, what is left of communication may contain it."""
    if waiting:
        return list(KEYS)
    return [
        replace(key, label=_COMMUNICATION) if key.colour == "comm" else key
        for key in KEYS
        if key.colour != "wait"
    ]


@dataclass(frozen=True)
class Row:
    """One rank."""

    label: str
    shares: Sequence[Sequence[float]]
    """Compute, transfer, waiting, copies: the share of each interval."""
    tip: str
    alarming: bool = False
    unrecorded: Sequence[tuple[int, int]] = ()
    """Times between two cycles of the profiler, in ns from the start of the run: left blank."""


def heatmap(
    title: str, subtitle: str, rows: Sequence[Row], edges: Sequence[int], steps: Sequence[tuple[int, int]]
) -> Chart:
    """`edges` are the bounds of the intervals, and `steps` begins with numbers, in ns from the start of the run."""
    drawing = Drawing()
    left = 16 + max((text_width(row.label) for row in rows), default=0.0)
    scale = Linear(edges[0], edges[-1], left, WIDTH - 12)
    keys = keys_of(any(any(row.shares[WAIT]) for row in rows))
    top = legend(drawing, keys, left, 0) + (16 if steps else 4)
    pitch = min(max(_THICKEST, min(44.0, _LEAST_HEIGHT / len(rows))), max(_THINNEST, _TALLEST / len(rows)))
    thick = pitch - (3 if pitch > 8 else 0.6 if pitch > 3 else 0.0)
    bottom = top + pitch * len(rows)
    x_axis(drawing, Axis(scale, "Time from the start of the run", "ns"), top, bottom)
    x = [scale(edge) for edge in edges]
    labelled = labelled_rows(pitch, [row.alarming for row in rows])
    for index, row in enumerate(rows):
        y = top + index * pitch
        if index in labelled:
            row_label(drawing, left, y + thick / 2, row.label, row.alarming)
        sides = [left, *(scale(time) for gap in row.unrecorded for time in gap), WIDTH - 12]
        for begin, end in zip(sides[::2], sides[1::2], strict=True):
            drawing.rect(begin, y, end - begin, thick, "idle", row.tip)
        fill_shares(drawing, row.shares, x, y, thick)
    last = -1000.0
    for begin_ns, number in steps:
        at, label = scale(begin_ns), f"step {number}"
        if at - last < 6:
            continue
        drawing.line(at, top - 12, at, bottom, "ink-3", stroke_width="0.8", stroke_dasharray="2 2")
        if at - last > text_width(label) + 6:
            drawing.text(at + 3, top - 4, label, font_size="10")
        last = at
    return Chart("heatmap", title, subtitle, WIDTH, bottom + AXIS_HEIGHT, drawing.body())


def fill_shares(
    drawing: Drawing, rows: Sequence[Sequence[float]], x: Sequence[float], y: float, thick: float
) -> None:
    """Fill each interval from below. Shares are rounded to tenths, so that neighbours merge into one shape."""
    levels = max(2, min(10, round(thick)))
    places = np.asarray(x)
    floor = np.full(len(places) - 1, y + thick)
    for key, shares in zip(KEYS, rows, strict=False):
        ceiling = np.maximum(y, floor - thick * np.round(np.asarray(shares) * levels) / levels)
        path = step_path(places, ceiling, floor)
        if path:
            drawing.path(path, key.colour, pointer_events="none")
        floor = ceiling


def tip_of(label: str, times: Sequence[float]) -> str:
    """The tooltip: 'rank 3', and its times in the order of KEYS, one per line."""
    total = sum(times) or 1
    by_colour = {key.colour: ns for key, ns in zip(KEYS, times, strict=True)}
    parts = [(key.label, by_colour[key.colour]) for key in keys_of(by_colour["wait"] > 0)]
    return "\n".join([label, *(f"{name}: {format_ns(ns)} ({100 * ns / total:.1f} %)" for name, ns in parts)])


def rank_heatmap(run: Run, scope: Scope, alarming: Collection[int] = ()) -> Chart:
    """The chart of a run; labels of `alarming` ranks are bold. Of more than _MOST_ROWS ranks: the late ones first, then
    the mean of each node or of neighbouring ranks."""
    maps = time_maps(run, scope)
    mapped = [rank for rank in run.ranks if rank in maps]
    if not mapped:
        empty = Result("heatmap", _TITLE, scope.window, (), [], notes=("no rank has any activity",))
        raise nothing_to_draw(empty, "has no activity")
    late_ns = late_by_rank(run, scope) if len(mapped) > min(_SORTED_FROM, _MOST_ROWS) else {}
    shown = [rank for rank in mapped if rank in alarming][:_MOST_LATE_ROWS]
    shared: dict[str, list[int]] = {}
    row_note = ""
    if len(mapped) > _MOST_ROWS:
        rows_of = buckets(run, mapped, _MOST_ROWS - _MOST_LATE_ROWS)
        latest = {
            label: max(late_ns.get(rank, 0.0) for rank in members) for label, members in rows_of.items()
        }
        shared = {label: rows_of[label] for label in sorted(rows_of, key=lambda label: -latest[label])}
        row_note = f"; {len(mapped)} ranks in {len(shared)} rows, the latest first"
        row_note += "; late ranks above" * bool(shown)
    elif len(mapped) > _SORTED_FROM:
        shown = sorted(mapped, key=lambda rank: -late_ns.get(rank, 0.0))
        row_note = "; the latest ranks first"
    else:
        shown = mapped
    groups = {f"rank {rank}": [rank] for rank in shown} | shared
    begins = {rank: run.origin_ns(rank) for rank in mapped}
    low = min(maps[rank].low + begins[rank] for rank in mapped)
    high = max(maps[rank].high + begins[rank] for rank in mapped)
    intervals = int(np.clip(_MOST_CELLS // len(groups), 48, MAP_INTERVALS))
    edges = np.linspace(low, high, intervals + 1).astype(np.int64)
    waiting = exposed_wait_times(run, scope)
    rows = []
    for label, members in groups.items():
        of_members = [maps[rank] for rank in members]
        each_share = []
        for rank in members:
            of_compute, of_comm, of_copy = maps[rank].shares(edges - begins[rank])
            of_wait = np.minimum(of_comm, share_of(waiting.get(rank, EMPTY), edges))
            each_share.append([of_compute, of_comm - of_wait, of_wait, of_copy])
        shares = np.mean(each_share, axis=0)
        compute, comm, copy = (np.mean([getattr(each, name)[-1] for each in of_members]) for name in CLASSES)
        wait = np.mean([length(waiting.get(rank, EMPTY)) for rank in members])
        times = [compute, comm - wait, wait, copy, np.mean([each.idle_ns for each in of_members])]
        whose = label if len(members) == 1 else f"{label}: mean of {len(members)} ranks"
        tip = tip_of(whose, [max(0.0, float(time)) for time in times])
        alone = label not in shared
        recorded = shifted(of_members[0].recorded, begins[members[0]])
        gaps = zip(recorded.end[:-1].tolist(), recorded.start[1:].tolist(), strict=True)
        blank = [
            (max(low, end), min(high, start)) for end, start in gaps if alone and end < high and start > low
        ]
        rows.append(Row(label, shares.tolist(), tip, alone and members[0] in alarming, blank))
    table = steps_in_scope(run, Scope(frozenset(mapped[:1]), scope.steps))
    begun = sorted(zip(table["begin"].tolist(), table["step"].tolist(), strict=True))
    steps = [(begin, step) for begin, step in begun if low <= begin <= high]
    step_note = f"; step marks of rank {mapped[0]}" if steps else ""
    blank_note = "; blank: not recorded" * any(row.unrecorded for row in rows)
    on_host = all(maps[rank].on_host for rank in mapped)
    what = "host activity (no GPU activity recorded)" if on_host else "GPU activity"
    return heatmap(
        _TITLE, f"{scope.window}; {what}{row_note}{step_note}{blank_note}", rows, edges.tolist(), steps
    )


_TITLE = "Ranks over time"


def step_picture_chart(picture: StepPicture, width: float = USUAL) -> Chart:
    """Time counts from the start of the step on the first rank that begins it."""
    drawing = Drawing()
    origin = min(row.start_ns for row in picture.rows)
    end = max(row.end_ns for row in picture.rows)
    left = 14 + max(text_width(f"rank {row.rank}", _STEP_FONT + 1) for row in picture.rows)
    scale = Linear(0, end - origin, left, width - 8)
    thick = _STEP_PITCH - _STEP_GAP
    top, bottom = 6.0, 6.0 + _STEP_PITCH * len(picture.rows)
    x_axis(drawing, Axis(scale, f"Time from the start of step {picture.step}", "ns"), top, bottom)
    edges = np.linspace(0, end - origin, int((scale.end - scale.start) / _STEP_PIXELS) + 1).astype(np.int64)
    x = [scale(edge) for edge in edges.tolist()]
    for number, row in enumerate(picture.rows):
        y = top + number * _STEP_PITCH
        row_label(drawing, left, y + thick / 2, f"rank {row.rank}", row.is_culprit, "700")
        begin, stop = scale(row.start_ns - origin), scale(row.end_ns - origin)
        classes = _classes(row)
        drawing.rect(
            begin, y, stop - begin, thick, "idle", tip_of(f"rank {row.rank}", [*map(length, classes)])
        )
        shares = [share_of(part, edges + origin).tolist() for part in classes[:-1]]
        fill_shares(drawing, shares, x, y, thick)
        _label_stretch(drawing, row, scale, origin, y + thick / 2 + 4)
    if picture.arrival:
        at = scale(picture.arrival.at_ns - origin)
        dashes = {"stroke_width": "1.5", "stroke_dasharray": "4 3"}
        drawing.line(at, top - 6, at, bottom - _STEP_GAP + 6, "bad", **dashes)
    used = {
        key.colour
        for row in picture.rows
        for key, part in zip(KEYS, _classes(row), strict=True)
        if length(part)
    }
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


def _classes(row: RankStep) -> list[Intervals]:
    """In the order of KEYS."""
    parts = row.parts
    return [parts.compute, parts.communication, parts.waiting, parts.copy, parts.idle]


def _label_stretch(drawing: Drawing, row: RankStep, scale: Linear, origin: int, y: float) -> None:
    """On its stretch where it fits, else beside the middle of it, with the background behind the letters."""
    if row.stretch is None:
        return
    took = format_rounded("ns", row.stretch.end_ns - row.stretch.start_ns)
    comma = "" if row.stretch.kind == "wait" else ","
    text = f"{shorten_name(row.stretch.label, _MOST_NAME)}{comma} {took}"
    begin, end = scale(row.stretch.start_ns - origin), scale(row.stretch.end_ns - origin)
    room = text_width(text, _STEP_FONT + 1) + 8
    if end - begin >= room and row.stretch.kind not in ("comm", "copy"):  # these are neither dark nor light
        colour = "on-compute" if row.stretch.kind == "compute" else "ink"
        weight = {"font_weight": "600"} if row.is_culprit else {}
        drawing.text((begin + end) / 2, y, text, "middle", colour, **weight)
    elif row.is_culprit:
        middle = min(max((begin + end) / 2, scale.start + room / 2), scale.end - room / 2)
        halo = {"stroke": "var(--bg)", "stroke_width": "3", "paint_order": "stroke", "font_weight": "600"}
        drawing.text(middle, y, text, "middle", "ink", **halo)
