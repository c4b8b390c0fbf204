"""The roofline: FLOP/s against FLOP/byte, below the roofs of the device."""

from __future__ import annotations

from rankscope.analysis.core.ceilings import ceilings
from rankscope.analysis.core.result import Result, Row
from rankscope.analysis.core.scope import Scope
from rankscope.devices import Ceilings
from rankscope.text.names import shorten_names
from rankscope.timeline.run import Run
from rankscope.units import format_ns, format_plain, format_value
from rankscope.views.charts.chart import Chart, nothing_to_draw
from rankscope.views.charts.plots import SCATTER_HEIGHT, WIDTH, Line, Point, scatter

_MOST_POINTS = 200
_LABEL_CHARACTERS = 24
_DECADES = 3
"""Of both axes, at least: the slope and the flat part of a roof can be seen."""


def roofline(
    result: Result, roofs: Ceilings | None = None, width: float = WIDTH, height: float = SCATTER_HEIGHT
) -> Chart:
    """FLOP/s against FLOP/byte: ops or kernels as marks below their roofs; the area of a mark is its device time."""
    rows = [row for row in result.rows if row.get("intensity") and row.get("flop_s")][:_MOST_POINTS]
    if not rows:
        raise nothing_to_draw(result, "has no rows with known FLOPs and bytes")
    kinds = [(row.get("dtype") or "", row.get("source") or "shapes") for row in rows]
    series = sorted(set(kinds))
    keys = [
        f"{dtype or 'unknown type'}{', measured by ncu' if source == 'ncu' else ', from shapes'}"
        for dtype, source in series
    ]
    longest = max(row.get("device_ns") or 0 for row in rows) or 1
    labels = shorten_names([str(row["name"]) for row in rows], _LABEL_CHARACTERS)
    points = []
    for row, kind, label in zip(rows, kinds, labels, strict=True):
        share = f", {row['pct_of_roof']:.1f} % of its roof" if row.get("pct_of_roof") else ""
        bound = f", bound by {row['bound']}" if row.get("bound") else ""
        time = f"\n{format_ns(row['device_ns'])} in {row['calls']:,} calls" if row.get("device_ns") else ""
        tip = (
            f"{row['name']}\n{format_value('flop/s', row['flop_s'])}{share}{bound}\n"
            f"{format_plain(row['intensity'])} FLOP/byte{time}"
        )
        weight = (row.get("device_ns") or 0) / longest
        points.append(Point(row["intensity"], row["flop_s"], series.index(kind), tip, weight, label))
    curves = _roof_lines(roofs or _roofs_in(rows), {dtype for dtype, _ in series}, points)
    subtitle = f"{result.window}; the area of a mark is its device time"
    subtitle += "" if curves else "; the peaks of the device are unknown: set --peak and --bandwidth"
    x, y = ("Intensity (FLOP/byte)", ""), ("Rate", "flop/s")
    title = "Roofline"
    return scatter(result.name, title, subtitle, keys, points, curves, x, y, _DECADES, width, height)


def known_roofs(run: Run, scope: Scope) -> Ceilings | None:
    """The peaks of the first rank whose device is known."""
    of_ranks = ceilings(run, scope).values()
    return next((ceiling for ceiling in of_ranks if ceiling.peaks or ceiling.bandwidth), None)


def _roofs_in(rows: list[Row]) -> Ceilings:
    """The roofs derived from the rows: rate divided by share of the roof."""
    peaks: dict[str, float] = {}
    bandwidth = None
    for row in rows:
        if row.get("pct_of_roof") and row.get("bound"):
            top = 100 * row["flop_s"] / row["pct_of_roof"]
            if row["bound"] == "compute":
                peaks[row["dtype"]] = top
            else:
                bandwidth = top / row["intensity"]
    return Ceilings(peaks, bandwidth=bandwidth)


def _roof_lines(roofs: Ceilings, dtypes: set[str], points: list[Point]) -> list[Line]:
    """The roofs of the types in use, and the ridge of the highest: left of it, memory is the limit."""
    left, right = min(point.x for point in points) / 2, max(point.x for point in points) * 2
    peaks = {dtype: peak for dtype, peak in roofs.peaks.items() if dtype in dtypes}
    highest = max(peaks.values(), default=None)
    curves: list[Line] = []
    for dtype, peak in sorted(peaks.items(), key=lambda item: -item[1]):
        knee = peak / roofs.bandwidth if roofs.bandwidth else left
        label = f"{dtype} {format_value('flop/s', peak)}"
        line = [(knee, peak), (max(right, knee * 10), peak)]
        curves.append(Line(label, line, dashed=bool(len(curves) % 2)))
    if roofs.bandwidth is None:
        return curves
    end = highest / roofs.bandwidth if highest else right
    begin = min(left, end / 100)
    line = [(begin, begin * roofs.bandwidth), (end, end * roofs.bandwidth)]
    label = f"memory {format_value('GB/s', roofs.bandwidth / 1e9)}"
    curves.append(Line(label, line, label_beside=True))
    if highest:
        floor = min(min(point.y for point in points), highest / 100)
        ridge = [(end, highest), (end, floor)]
        label = f"ridge {format_plain(end)} FLOP/byte"
        curves.append(Line(label, ridge, dashed=True, colour="ink-3", label_beside=True))
    return curves
