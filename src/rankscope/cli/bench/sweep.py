"""rankscope bench sweep: seqpar over a grid, as one table and as data for a chart."""

from __future__ import annotations

import argparse
import csv
import io
import itertools
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from rankscope.bench.seqpar.config import DEFAULT_CHUNKS, PRECISIONS, Config
from rankscope.cli.bench import sweep_job
from rankscope.cli.bench.seqpar import add_run_options, positive
from rankscope.cli.bench.seqpar_text import figure
from rankscope.cli.plain_table import plain_table
from rankscope.errors import RankscopeError, UsageError

DESCRIPTION = """\
Run seqpar for every combination of the lists given, each in fresh processes on
this machine, and compare. With --job the grid is one job of a cluster.
"""

EPILOG = """\
examples:
  rankscope bench sweep -s 256,512 -d 512,1024 --nproc 1,2
  rankscope bench sweep -s 2304,4608 -d 9216 -p float32,bfloat16 --chart s.json
      s.json is a Vega-Lite chart with its data inside; .csv is the data alone
  rankscope bench sweep -s 512 -d 1024 --nproc 1,2 --format csv
  rankscope bench sweep --job slurm --nodes 1,2 --ppn 4 -s 4608 -d 9216 \\
      -p float32,bfloat16 -o sweep --submit --wait
      the table stands at the end of the job's output; later: --read sweep
"""

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
)
Row = dict[str, Any]


class Point(NamedTuple):
    """One place in the grid."""

    sequence: int
    hidden: int
    precision: str
    ranks: int


def configure(parser: argparse.ArgumentParser) -> None:
    parser.description = DESCRIPTION
    parser.epilog = EPILOG
    add = parser.add_argument
    add("-s", "--sequence", type=list_of(positive), default=[], metavar="S,…", help="sequence lengths")
    add("-d", "--hidden", type=list_of(positive), default=[], metavar="H,…", help="hidden sizes")
    add(
        "-p",
        "--precision",
        type=list_of(_precision),
        default=[PRECISIONS[0]],
        metavar="P,…",
        help="float32, bfloat16 or both (default: float32)",
    )
    add("--nproc", type=list_of(positive), metavar="N,…", help="ranks on this machine (default: 1)")
    add_run_options(parser)
    add("--format", choices=("table", "csv", "json"), default="table", help="default: table")
    add("--chart", type=Path, metavar="FILE", help="also write chart data: .json (Vega-Lite) or .csv")
    add("-f", "--force", action="store_true", help="replace files that are there")
    add("--read", type=Path, metavar="DIR", help="no run: the results that a job has left in DIR")
    sweep_job.add_options(parser)


def run(args: argparse.Namespace) -> int:
    if args.chart is not None:
        _check_chart(args.chart, args.force)
    if args.read is not None:
        return _show([row_of(report) for report in sweep_job.read_reports(args.read)], args)
    for option, values in (("-s", args.sequence), ("-d", args.hidden)):
        if not values:
            raise UsageError(
                f"{option} is missing",
                why="A grid needs lengths and sizes.",
                hint="For example: rankscope bench sweep -s 256,512 -d 512",
            )
    ranks = sweep_job.ranks_of_nodes(args) if args.job else dict.fromkeys(args.nproc or [1], 0)
    points = [Point(*one) for one in itertools.product(args.sequence, args.hidden, args.precision, ranks)]
    for point in points:  # all of them, before the first one runs for minutes
        chunks = (args.chunks or DEFAULT_CHUNKS) if args.overlap else 0
        Config(sequence=point.sequence, hidden=point.hidden, chunks=chunks).check(point.ranks)
    if args.job:
        return sweep_job.run([(seqpar_words(point, args), ranks[point.ranks]) for point in points], args)
    rows = []
    for number, point in enumerate(points, 1):
        size = f"S {point.sequence}, H {point.hidden}, {point.precision}, {_ranks(point.ranks)}"
        print(f"rankscope: {number} of {len(points)}: {size}", file=sys.stderr, flush=True)
        rows.append(row_of(_measure(point, args)))
    return _show(rows, args)


def _show(rows: list[Row], args: argparse.Namespace) -> int:
    sys.stdout.write(_FORMATS[args.format](rows))
    if args.chart is not None:
        args.chart.write_text(
            csv_text(rows) if args.chart.suffix == ".csv" else json.dumps(chart(rows), indent=1)
        )
        print(f"Wrote {args.chart}", file=sys.stderr)
    return 0


def seqpar_words(point: Point, args: argparse.Namespace) -> list[str]:
    """What every rank of one point runs."""
    words = ["bench", "seqpar", "--json", "-p", point.precision]
    words += ["-s", str(point.sequence), "-d", str(point.hidden)]
    words += ["-it", str(args.iterations), "-wit", str(args.warmup)]
    for option, value in (("--chunks", args.chunks), ("--backend", args.backend), ("--device", args.device)):
        words += [option, str(value)] if value is not None else []
    return [*words, *(["--overlap"] if args.overlap else [])]


def _measure(point: Point, args: argparse.Namespace) -> dict[str, Any]:
    """Fresh processes for each point: what one leaves behind (memory, threads) must not show in the next."""
    words = [sys.executable, "-m", "rankscope", *seqpar_words(point, args), "--nproc", str(point.ranks)]
    done = subprocess.run(words, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        raise RankscopeError(
            f"seqpar failed with exit code {done.returncode}",
            why="What it said stands above.",
            hint=f"Run it alone: {' '.join(words[1:])}",
        )
    report: dict[str, Any] = json.loads(done.stdout)
    return report


def row_of(report: dict[str, Any]) -> Row:
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
    return dict(zip(COLUMNS, (*point, *values), strict=True))


def table_text(rows: list[Row]) -> str:
    """The comparison, then the same figures as a chart would draw them: a line for each series."""
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
    return f"{table}\n{notes}\n\nChart data: TFLOP/s by sequence length\n{_series_text(rows)}\n"


def _series_text(rows: list[Row]) -> str:
    lengths = sorted({row["sequence"] for row in rows})
    series: dict[str, dict[int, float]] = {}
    for row in rows:
        series.setdefault(series_name(row), {})[row["sequence"]] = row["matmul_tflop_s"]
    cells = [[name, *(figure(points.get(length)) for length in lengths)] for name, points in series.items()]
    return plain_table(["Series", *(f"S {length}" for length in lengths)], cells)


def series_name(row: Row) -> str:
    return f"{row['precision']}, H {row['hidden']}, {_ranks(row['ranks'])}"


def _ranks(count: int) -> str:
    return "1 rank" if count == 1 else f"{count} ranks"


def csv_text(rows: list[Row]) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def chart(rows: list[Row]) -> dict[str, Any]:
    """A Vega-Lite chart with its data inside: TFLOP/s over sequence length, a line for each series."""
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


_FORMATS: dict[str, Callable[[list[Row]], str]] = {
    "table": table_text,
    "csv": csv_text,
    "json": lambda rows: json.dumps({"rows": rows, "chart": chart(rows)}, indent=1) + "\n",
}


def _check_chart(path: Path, force: bool) -> None:
    if path.suffix not in (".json", ".csv"):
        raise UsageError(
            f"--chart {path} is neither .json nor .csv",
            why="The name decides: a Vega-Lite chart, or the bare data.",
            hint="For example: --chart sweep.json",
        )
    if path.exists() and not force:
        raise UsageError(f"{path} exists already", why="Nothing is overwritten unasked.", hint="Add -f.")


def list_of(item: Callable[[str], Any]) -> Callable[[str], list[Any]]:
    def parse(text: str) -> list[Any]:
        return list(_unique(item(part.strip()) for part in text.split(",")))

    return parse


def _unique(values: Iterator[Any]) -> dict[Any, None]:
    return dict.fromkeys(values)


def _precision(text: str) -> str:
    if text not in PRECISIONS:
        raise argparse.ArgumentTypeError(f"'{text}' is not one of {', '.join(PRECISIONS)}")
    return text
