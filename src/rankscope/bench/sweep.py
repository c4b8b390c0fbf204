"""seqpar over a grid of sizes, precisions and rank counts. Standard library and torch only.

The points of a sweep: the seqpar command of each, their runs on this machine, and the reports of a job. The results:
one row per point, shown as a table, as CSV or JSON, and as a Vega-Lite chart.
"""

from __future__ import annotations

import csv
import io
import itertools
import json
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from rankscope.bench.seqpar.report_text import figure
from rankscope.errors import RankscopeError, ReadError
from rankscope.text.plain_table import plain_table

Report = dict[str, Any]

_REPORT_FILES = "point-*.json"


class Point(NamedTuple):
    """One combination of the grid."""

    sequence: int
    hidden: int
    precision: str
    ranks: int

    def __str__(self) -> str:
        return f"S {self.sequence}, H {self.hidden}, {self.precision}, {count_of_ranks(self.ranks)}"

    def words(self) -> list[str]:
        """The seqpar command line of this point, without the options that all points share."""
        words = ["bench", "seqpar", "--json", "-p", self.precision]
        return [*words, "-s", str(self.sequence), "-d", str(self.hidden)]


def count_of_ranks(count: int) -> str:
    return "1 rank" if count == 1 else f"{count} ranks"


def grid_points(
    sequences: Iterable[int], hidden_sizes: Iterable[int], precisions: Iterable[str], ranks: Iterable[int]
) -> list[Point]:
    return [Point(*values) for values in itertools.product(sequences, hidden_sizes, precisions, ranks)]


def point_name(number: int) -> str:
    """What a point's files begin with: NAME.json is its report, the folder NAME its profile."""
    return f"point-{number:03d}"


def measure_point(point: Point, shared_words: Sequence[str], profiler: Sequence[str] = ()) -> Report:
    """Run seqpar in fresh processes: memory and threads that one point leaves must not affect the next.

    ``profiler`` is the `profile …` command to put before it, without rankscope itself.
    """
    rankscope = [sys.executable, "-m", "rankscope"]
    words = [*rankscope, *point.words(), *shared_words, "--nproc", str(point.ranks)]
    if profiler:
        words = [*rankscope, *profiler, "--", *words]
    done = subprocess.run(words, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        raise RankscopeError(
            f"seqpar failed with exit code {done.returncode}",
            why="Its own error message is above.",
            hint=f"Run it alone: {shlex.join(words[1:])}",
        )
    report: Report = json.loads(done.stdout)
    return report


def job_steps(
    commands: Iterable[tuple[Sequence[str], int]], *, profiled: bool = False
) -> list[dict[str, Any]]:
    """One launcher start per point (its words and its nodes), all in one job: the queue is waited for once."""
    return [
        {
            "words": ("rankscope", *words),
            "nodes": nodes,
            "profiled": profiled,
            "output": f"{point_name(number)}.json",
            "folder": point_name(number),
        }
        for number, (words, nodes) in enumerate(commands, 1)
    ]


def remove_points(folder: Path) -> None:
    """The reports and profiles of an earlier sweep."""
    for path in folder.glob("point-[0-9][0-9][0-9]*"):
        if path.is_dir():
            shutil.rmtree(path)
        elif path.suffix == ".json":
            path.unlink()


def write_report(folder: Path, number: int, report: Report) -> None:
    (folder / f"{point_name(number)}.json").write_text(json.dumps(report, indent=1), encoding="utf-8")


def read_reports(folder: Path) -> list[Report]:
    """The seqpar reports of a sweep, each with the folder of its profile, if it has one. A failed point has none."""
    reports = []
    for path in sorted(folder.glob(_REPORT_FILES)):
        try:
            report = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            continue  # its launcher failed; the reason is in the job's error file
        if isinstance(report, dict) and {"config", "parts"} <= set(report):
            profile = path.with_suffix("")
            reports.append({**report, **({"profile": str(profile)} if profile.is_dir() else {})})
    if not reports:
        raise ReadError(
            f"no results in {folder}",
            why="It has no point-NNN.json of a finished seqpar run.",
            hint="Look at the job's error file, or run: rankscope bench sweep --job ... -o DIR",
        )
    return reports


# The results

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
