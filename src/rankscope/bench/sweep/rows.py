"""The results of a sweep: one row per point, shown as a table, as CSV or JSON, and as a Vega-Lite chart."""

from __future__ import annotations

import csv
import io
import json
import shlex
from typing import Any

from rankscope.bench.seqpar.report_text import figure
from rankscope.bench.sweep.grid import Report, count_of_ranks
from rankscope.text.plain_table import plain_table

COLUMNS = (
    "sequence",
    "hidden",
    "precision",
    "ranks",
    "iteration_ns",
    "matmul_tflop_s",
    "pct_of_peak",
    "allgather_busbw_gb_s",
    "reduce_scatter_busbw_gb_s",
    "overlap_speedup",
    "profile",
)
Row = dict[str, Any]


def row_of(report: Report) -> Row:
    config = report["config"]
    point = (config["sequence"], config["hidden"], config["precision"], config["ranks"])
    parts = {part["name"]: part for part in report["parts"]}
    matmuls = [parts["matmul1"], parts["matmul2"]]
    flops, nanoseconds = (sum(part[key] for part in matmuls) for key in ("flops", "p50_ns"))
    rate = flops / nanoseconds / 1e3
    peak = matmuls[0]["peak_tflop_s"]
    overlap = report.get("overlap")
    values = (
        report["time_to_solution_ns"] // config["iterations"],
        rate,
        100 * rate / peak if peak else None,
        parts["ALLGATHER"]["busbw_gb_s"],
        parts["REDUCE_SCATTER"]["busbw_gb_s"],
        overlap["speedup"] if overlap else None,
    )
    return dict(zip(COLUMNS, (*point, *values, report.get("profile")), strict=True))


def table_text(rows: list[Row]) -> str:
    """The comparison, then the series of the chart as a second table."""
    headings = ["S", "H", "Precision", "W", "Iter. ms", "TFLOP/s", "of peak", "AG GB/s", "RS GB/s"]
    overlapped = any(row["overlap_speedup"] is not None for row in rows)
    cells = []
    for row in rows:
        percent = row["pct_of_peak"]
        cells.append(
            [
                *(str(row[key]) for key in COLUMNS[:4]),
                f"{row['iteration_ns'] / 1e6:,.3f}",
                figure(row["matmul_tflop_s"]),
                "-" if percent is None else f"{percent:.1f} %",
                figure(row["allgather_busbw_gb_s"]),
                figure(row["reduce_scatter_busbw_gb_s"]),
                *([f"{row['overlap_speedup']:.2f}x"] if overlapped else []),
            ]
        )
    table = plain_table([*headings, *(["Overlap"] if overlapped else [])], cells, left=0)
    notes = (
        "W: ranks. TFLOP/s: both matmuls of one rank, median.\n"
        "AG, RS: bus bandwidth of all-gather and reduce-scatter."
    )
    notes += _profiles_text(rows)
    return f"{table}\n{notes}\n\nChart data: TFLOP/s by sequence length\n{_series_text(rows)}\n"


def _profiles_text(rows: list[Row]) -> str:
    """Where the profiles of the points are."""
    profiled = [row for row in rows if row["profile"]]
    if not profiled:
        return ""
    lines = [
        f"  rankscope stats {shlex.quote(row['profile'])}    S {row['sequence']}, {series_name(row)}"
        for row in profiled
    ]
    heading = "Profiled, which costs time: compare these figures with each other only."
    return "\n".join(["", "", heading, *lines])


def _series_text(rows: list[Row]) -> str:
    lengths = sorted({row["sequence"] for row in rows})
    series: dict[str, dict[int, float]] = {}
    for row in rows:
        series.setdefault(series_name(row), {})[row["sequence"]] = row["matmul_tflop_s"]
    cells = [[name, *(figure(points.get(length)) for length in lengths)] for name, points in series.items()]
    return plain_table(["Series", *(f"S {length}" for length in lengths)], cells)


def series_name(row: Row) -> str:
    return f"{row['precision']}, H {row['hidden']}, {count_of_ranks(row['ranks'])}"


def csv_text(rows: list[Row]) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def json_text(rows: list[Row]) -> str:
    return json.dumps({"rows": rows, "chart": chart(rows)}, indent=1) + "\n"


def chart(rows: list[Row]) -> dict[str, Any]:
    """A Vega-Lite chart with its data inside: TFLOP/s over sequence length, one line per series."""
    return {
        "$schema": "https://vega.github.io/schema/vega-lite/v5.json",
        "title": "seqpar: matmul rate by sequence length",
        "data": {"values": [{**row, "series": series_name(row)} for row in rows]},
        "mark": {"type": "line", "point": True},
        "encoding": {
            "x": {"field": "sequence", "type": "quantitative", "title": "Sequence length"},
            "y": {"field": "matmul_tflop_s", "type": "quantitative", "title": "TFLOP/s per rank"},
            "color": {"field": "series", "type": "nominal", "title": None},
        },
    }
