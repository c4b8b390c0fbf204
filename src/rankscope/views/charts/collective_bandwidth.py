"""The chart of collectives: bus bandwidth against message size, on logarithmic axes."""

from __future__ import annotations

from rankscope.analysis.core.result import Result, Row
from rankscope.units import format_bytes, format_ns, format_value
from rankscope.views.charts.chart import Chart, nothing_to_draw
from rankscope.views.charts.scatter import Curve, Point, scatter
from rankscope.views.charts.theme import SERIES

_MOST_POINTS = 200
_MOST_FITS = 4


def collectives(result: Result) -> Chart:
    """One mark per kind, size and group; a curve where a fit is known."""
    rows = [row for row in result.rows if row.get("bytes") and row.get("busbw_gb_s")][:_MOST_POINTS]
    if not rows:
        raise nothing_to_draw(result, "has no collective with a known size and transfer time")
    kinds = sorted({str(row["kind"]) for row in rows})
    keys = [(kind, SERIES[number % len(SERIES)]) for number, kind in enumerate(kinds)]
    most = max(row.get("count") or 1 for row in rows)
    points = [
        Point(row["bytes"], row["busbw_gb_s"], kinds.index(str(row["kind"])), _transfer(row),
              0.25 * (row.get("count") or 1) / most)
        for row in rows
    ]  # fmt: skip
    fits = _fits(rows, dict(keys))
    dashed = "; dashed: fit t = a + S/b" if fits else ""
    return scatter(
        result.name,
        "Bandwidth of collectives",
        f"{result.window}; median transfer of each kind, size and group{dashed}",
        keys,
        points,
        fits,
        ("Size", "bytes"),
        ("Bus bandwidth", "GB/s"),
    )


def _fits(rows: list[Row], colours: dict[str, str]) -> list[Curve]:
    """The fitted curves, recovered from two rows each: fit_pct is the fitted time in percent of the transfer time."""
    found: dict[tuple[str, str], dict[int, tuple[float, float]]] = {}
    for row in rows:
        if row.get("fit_pct") and row.get("algbw_gb_s"):
            time_ns = row["fit_pct"] / 100 * row["bytes"] / row["algbw_gb_s"]  # 1 GB/s is 1 byte/ns
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
