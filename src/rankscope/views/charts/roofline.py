"""The roofline chart: FLOP/s against FLOP/byte, on logarithmic axes, below the peaks of the device."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from rankscope.analysis.core.ceilings import ceilings
from rankscope.analysis.core.result import Result, Row
from rankscope.analysis.core.scope import Scope
from rankscope.timeline.run import Run
from rankscope.units import format_ns, format_plain, format_value
from rankscope.views.charts.chart import Chart, nothing_to_draw
from rankscope.views.charts.scatter import Curve, Point, scatter
from rankscope.views.charts.theme import SERIES
from rankscope.views.text import shorten_names

_MOST_POINTS = 200
_LABEL_CELLS = 32


@dataclass(frozen=True)
class Roofs:
    """The peaks of the device: FLOP/s by data type, bytes/s of its memory."""

    peaks: Mapping[str, float] = field(default_factory=dict)
    bandwidth: float | None = None


def roofline(result: Result, roofs: Roofs | None = None) -> Chart:
    """Ops or kernels as marks below their roofs; the area of a mark is its device time."""
    rows = [row for row in result.rows if row.get("intensity") and row.get("flop_s")][:_MOST_POINTS]
    if not rows:
        raise nothing_to_draw(result, "has no rows with known FLOPs and bytes")
    roofs = roofs or roofs_in(rows)
    series = sorted({(row.get("dtype") or "", row.get("source") or "shapes") for row in rows})
    keys = [
        (f"{dtype or 'unknown type'}{', measured by ncu' if source == 'ncu' else ', from shapes'}",
         SERIES[number % len(SERIES)])
        for number, (dtype, source) in enumerate(series)
    ]  # fmt: skip
    longest = max(row.get("device_ns") or 0 for row in rows) or 1
    labels = shorten_names([str(row["name"]) for row in rows], _LABEL_CELLS)
    points = [
        Point(
            row["intensity"],
            row["flop_s"],
            series.index((row.get("dtype") or "", row.get("source") or "shapes")),
            _tip(row),
            (row.get("device_ns") or 0) / longest,
            label,
        )
        for row, label in zip(rows, labels, strict=True)
    ]
    left = min(point.x for point in points) / 2
    right = max(point.x for point in points) * 2
    dtypes = {dtype for dtype, _ in series}
    curves = _roof_lines(roofs, dtypes, left, right)
    unknown = "" if curves else "; the peaks of the device are unknown: set --peak and --bandwidth"
    return scatter(
        result.name,
        "Roofline",
        f"{result.window}; the area of a mark is its device time{unknown}",
        keys,
        points,
        curves,
        ("Intensity (FLOP/byte)", ""),
        ("Rate", "flop/s"),
    )


def known_roofs(run: Run, scope: Scope) -> Roofs | None:
    """The peaks of the first rank whose device is known."""

    for ceiling in ceilings(run, scope).values():
        if ceiling.peaks or ceiling.bandwidth:
            return Roofs(ceiling.peaks, ceiling.bandwidth)
    return None


def roofs_in(rows: list[Row]) -> Roofs:
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
    return Roofs(peaks, bandwidth)


def _roof_lines(roofs: Roofs, dtypes: set[str], left: float, right: float) -> list[Curve]:
    curves: list[Curve] = []
    for dtype, peak in sorted(roofs.peaks.items(), key=lambda item: -item[1]):
        if dtype not in dtypes:
            continue
        knee = peak / roofs.bandwidth if roofs.bandwidth else left
        label = f"{dtype} {format_value('flop/s', peak)}"
        curves.append(
            Curve(label, [(knee, peak), (max(right, knee * 3), peak)], dashed=bool(len(curves) % 2))
        )
    if roofs.bandwidth:
        highest = max((peak for dtype, peak in roofs.peaks.items() if dtype in dtypes), default=None)
        end = highest / roofs.bandwidth if highest else right
        line = [(min(left, end / 10), min(left, end / 10) * roofs.bandwidth), (end, end * roofs.bandwidth)]
        label = f"memory {format_value('GB/s', roofs.bandwidth / 1e9)}"
        curves.append(Curve(label, line, label_beside=True))
    return curves


def _tip(row: Row) -> str:
    share = f", {row['pct_of_roof']:.1f} % of its roof" if row.get("pct_of_roof") else ""
    time = f"\n{format_ns(row['device_ns'])} in {row['calls']:,} calls" if row.get("device_ns") else ""
    bound = f", bound by {row['bound']}" if row.get("bound") else ""
    return (
        f"{row['name']}\n{format_value('flop/s', row['flop_s'])}{share}{bound}\n"
        f"{format_plain(row['intensity'])} FLOP/byte{time}"
    )
