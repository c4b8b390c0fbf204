"""rankscope bench sweep: seqpar over a grid, on this machine or as one job of a cluster."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rankscope.bench.seqpar.config import DEFAULT_CHUNKS, PRECISIONS, Config
from rankscope.bench.sweep.grid import Point, grid_points, job_steps, measure_point, read_reports
from rankscope.bench.sweep.rows import Row, chart, csv_text, json_text, row_of, table_text
from rankscope.cli.bench.seqpar import add_run_options, positive
from rankscope.cli.job.batch import deliver
from rankscope.cli.job.options import add_job_options
from rankscope.errors import UsageError
from rankscope.jobs.batch import SCHEDULERS, make_spec
from rankscope.jobs.spec import parse_count

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
      the table is at the end of the job's output; later: --read sweep
"""

_FORMATS: dict[str, Callable[[list[Row]], str]] = {"table": table_text, "csv": csv_text, "json": json_text}


def configure(parser: argparse.ArgumentParser) -> None:
    parser.description = DESCRIPTION
    parser.epilog = EPILOG
    add = parser.add_argument
    add("-s", "--sequence", type=_list_of(positive), default=[], metavar="S,…", help="sequence lengths")
    add("-d", "--hidden", type=_list_of(positive), default=[], metavar="H,…", help="hidden sizes")
    add(
        "-p",
        "--precision",
        type=_list_of(_precision),
        default=[PRECISIONS[0]],
        metavar="P,…",
        help="float32, bfloat16 or both (default: float32)",
    )
    add("--nproc", type=_list_of(positive), metavar="N,…", help="ranks on this machine (default: 1)")
    add_run_options(parser)
    add("--format", choices=list(_FORMATS), default="table", help="default: table")
    add("--chart", type=Path, metavar="FILE", help="also write chart data: .json (Vega-Lite) or .csv")
    add("-f", "--force", action="store_true", help="replace existing files")
    add("--read", type=Path, metavar="DIR", help="run nothing: show the results of a job in DIR")
    _add_job_options(parser)


def _add_job_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--job", choices=list(SCHEDULERS), help="one job that runs the whole grid")
    parser.add_argument("-o", "--output", metavar="DIR", help="with --job: where the results go")
    nodes = {"help": "with --job: numbers of nodes (default: 1)", "metavar": "N,…"}
    add_job_options(parser, "slurm", {"nodes": nodes})
    parser.set_defaults(dry_run=False, quiet=False)


def run(args: argparse.Namespace) -> int:
    if args.chart is not None:
        _check_chart(args.chart, args.force)
    if args.read is not None:
        return _show([row_of(report) for report in read_reports(args.read)], args)
    for option, values in (("-s", args.sequence), ("-d", args.hidden)):
        if not values:
            raise UsageError(
                f"{option} is missing",
                why="A grid needs sequence lengths and hidden sizes.",
                hint="For example: rankscope bench sweep -s 256,512 -d 512",
            )
    nodes_by_ranks = _nodes_by_ranks(args) if args.job else {}
    points = grid_points(args.sequence, args.hidden, args.precision, nodes_by_ranks or args.nproc or [1])
    for point in points:  # all of them, before the first one runs for minutes
        chunks = (args.chunks or DEFAULT_CHUNKS) if args.overlap else 0
        Config(sequence=point.sequence, hidden=point.hidden, chunks=chunks).check(point.ranks)
    if args.job:
        return _deliver_job(points, nodes_by_ranks, args)
    rows = []
    for number, point in enumerate(points, 1):
        print(f"rankscope: {number} of {len(points)}: {point}", file=sys.stderr, flush=True)
        rows.append(row_of(measure_point(point, _shared_words(args))))
    return _show(rows, args)


def _shared_words(args: argparse.Namespace) -> list[str]:
    """The seqpar options that are the same for every point."""
    words = ["-it", str(args.iterations), "-wit", str(args.warmup)]
    for option, value in (("--chunks", args.chunks), ("--backend", args.backend), ("--device", args.device)):
        words += [option, str(value)] if value is not None else []
    return [*words, *(["--overlap"] if args.overlap else [])]


def _show(rows: list[Row], args: argparse.Namespace) -> int:
    sys.stdout.write(_FORMATS[args.format](rows))
    if args.chart is not None:
        args.chart.write_text(
            csv_text(rows) if args.chart.suffix == ".csv" else json.dumps(chart(rows), indent=1)
        )
        print(f"Wrote {args.chart}", file=sys.stderr)
    return 0


def _nodes_by_ranks(args: argparse.Namespace) -> dict[int, int]:
    """Number of ranks to number of nodes, for each value of --nodes."""
    if args.nproc is not None:
        raise UsageError(
            "--nproc is for this machine",
            why="In a job, the number of ranks follows from --nodes and --ppn.",
            hint="Give --nodes 1,2 --ppn 4.",
        )
    nodes = [parse_count("--nodes", text) for text in (args.nodes or "1").split(",")]
    args.nodes = str(max(nodes))
    # The site file may set the number of ranks per node.
    ppn = make_spec(SCHEDULERS[args.job], vars(args), [], name="sweep").ppn
    return {number * ppn: number for number in dict.fromkeys(nodes)}


def _deliver_job(points: list[Point], nodes_by_ranks: dict[int, int], args: argparse.Namespace) -> int:
    """The whole grid as one job."""
    shared_words = _shared_words(args)
    scheduler = SCHEDULERS[args.job]
    spec = make_spec(
        scheduler,
        vars(args),
        job_steps(([*point.words(), *shared_words], nodes_by_ranks[point.ranks]) for point in points),
        name=args.name or "sweep",
        run=args.output,
        force=args.force,
        summary=("rankscope", "bench", "sweep", "--format", args.format, "--read"),
    )
    return deliver(spec, scheduler, args)


def _check_chart(path: Path, force: bool) -> None:
    if path.suffix not in (".json", ".csv"):
        raise UsageError(
            f"--chart {path} is neither .json nor .csv",
            why="The ending selects the format: a Vega-Lite chart, or the data alone.",
            hint="For example: --chart sweep.json",
        )
    if path.exists() and not force:
        raise UsageError(
            f"{path} exists already", why="Existing files are replaced only with -f.", hint="Add -f."
        )


def _list_of(item: Callable[[str], Any]) -> Callable[[str], list[Any]]:
    """Parse a comma-separated list; a value that is repeated counts once."""

    def parse(text: str) -> list[Any]:
        return list(dict.fromkeys(item(part.strip()) for part in text.split(",")))

    return parse


def _precision(text: str) -> str:
    if text not in PRECISIONS:
        raise argparse.ArgumentTypeError(f"'{text}' is not one of {', '.join(PRECISIONS)}")
    return text
