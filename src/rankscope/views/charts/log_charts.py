"""Charts on two logarithmic axes: roofline, and bandwidth against size."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from rankscope.analysis.core.result import Result, Row
from rankscope.units import format_bytes, format_ns, format_plain, format_value
from rankscope.views.charts.chart import Chart
from rankscope.views.charts.report_charts import nothing
from rankscope.views.charts.scatter import Curve, Point, scatter
from rankscope.views.charts.theme import SERIES
from rankscope.views.text import shorten_name

_MOST_POINTS = 200
_MOST_FITS = 4


@dataclass(frozen=True)
class Roofs:
    """What the device can do: FLOP/s by data type, bytes/s of its memory."""

    peaks: Mapping[str, float] = field(default_factory=dict)
    bandwidth: float | None = None


def roofline(result: Result, roofs: Roofs | None = None) -> Chart:
    """Ops or kernels below their roofs; the area of a mark is its time."""
    rows = [row for row in result.rows if row.get("intensity") and row.get("flop_s")][:_MOST_POINTS]
    if not rows:
        raise nothing(result, "has nothing with known FLOPs and bytes")
    roofs = roofs or roofs_in(rows)
    series = sorted({(row.get("dtype") or "", row.get("source") or "shapes") for row in rows})
    keys = [
        (f"{dtype or 'unknown type'}{', measured by ncu' if source == 'ncu' else ', from shapes'}",
         SERIES[number % len(SERIES)])
        for number, (dtype, source) in enumerate(series)
    ]  # fmt: skip
    longest = max(row.get("device_ns") or 0 for row in rows) or 1
    points = [
        Point(
            row["intensity"],
            row["flop_s"],
            series.index((row.get("dtype") or "", row.get("source") or "shapes")),
            _tip(row),
            (row.get("device_ns") or 0) / longest,
            shorten_name(str(row["name"]), 32),
        )
        for row in rows
    ]
    left = min(point.x for point in points) / 2
    right = max(point.x for point in points) * 2
    dtypes = {dtype for dtype, _ in series}
    curves = _roof_lines(roofs, dtypes, left, right)
    unknown = "" if curves else "; the device's peaks are not known: give --peak and --bandwidth"
    return scatter(
        result.name,
        "Roofline",
        f"{result.window}; the area of a mark is its time on the device{unknown}",
        keys,
        points,
        curves,
        ("Intensity (FLOP/byte)", ""),
        ("Rate", "flop/s"),
    )


def roofs_in(rows: list[Row]) -> Roofs:
    """The roofs that the rows' own figures tell: rate over share of the roof."""
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


def collectives(result: Result) -> Chart:
    """Bus bandwidth against size; where a fit is known, its curve."""
    rows = [row for row in result.rows if row.get("bytes") and row.get("busbw_gb_s")][:_MOST_POINTS]
    if not rows:
        raise nothing(result, "has no collective with a known size and transfer time")
    kinds = sorted({str(row["kind"]) for row in rows})
    keys = [(kind, SERIES[number % len(SERIES)]) for number, kind in enumerate(kinds)]
    most = max(row.get("count") or 1 for row in rows)
    points = [
        Point(row["bytes"], row["busbw_gb_s"], kinds.index(str(row["kind"])), _transfer(row),
              0.25 * (row.get("count") or 1) / most)
        for row in rows
    ]  # fmt: skip
    return scatter(
        result.name,
        "Bandwidth of collectives",
        f"{result.window}; median transfer of each kind, size and group; dashed: fitted t = a + S/b",
        keys,
        points,
        _fits(rows, dict(keys)),
        ("Size", "bytes"),
        ("Bus bandwidth", "GB/s"),
    )


def _fits(rows: list[Row], colours: dict[str, str]) -> list[Curve]:
    """The fitted lines, from what they give of two of their rows: fit_pct is the fit's share of the transfer."""
    found: dict[tuple[str, str], dict[int, tuple[float, float]]] = {}
    for row in rows:
        if row.get("fit_pct") and row.get("algbw_gb_s"):
            time_ns = row["fit_pct"] / 100 * row["bytes"] / row["algbw_gb_s"]  # GB/s is bytes a ns
            factor = row["busbw_gb_s"] / row["algbw_gb_s"]
            found.setdefault((str(row["group"]), str(row["kind"])), {})[row["bytes"]] = (time_ns, factor)
    curves = []
    for (_, kind), known in sorted(found.items())[:_MOST_FITS]:
        low, high = min(known), max(known)
        rise = known[high][0] - known[low][0]
        if low == high or rise <= 0:
            continue
        bandwidth, factor = (high - low) / rise, known[high][1]
        latency = max(0.0, known[low][0] - low / bandwidth)
        sizes = [low * (high / low) ** (step / 24) for step in range(25)]
        line = [(size, factor * size / (latency + size / bandwidth)) for size in sizes]
        curves.append(
            Curve(
                f"fit: {format_ns(latency, 1)} + S / {format_value('GB/s', bandwidth)}",
                line,
                colours[kind],
                True,
            )
        )
    return curves


def _transfer(row: Row) -> str:
    group = f" in group {row['group']}" if row.get("group") not in (None, "") else ""
    return (
        f"{row['kind']}{group}, {row.get('ranks', '?')} ranks\n{format_bytes(row['bytes'])} in "
        f"{format_ns(row['transfer_ns'])}, {row['count']:,} times\nbusbw {format_value('GB/s', row['busbw_gb_s'])}"
    )
