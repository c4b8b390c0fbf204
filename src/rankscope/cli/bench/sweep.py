"""rankscope bench sweep: seqpar over a grid, on this machine or as one job of a cluster."""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rankscope.bench.seqpar.config import DEFAULT_CHUNKS, PRECISIONS, Config
from rankscope.bench.sweep import (
    Point,
    Row,
    chart,
    csv_text,
    grid_points,
    job_steps,
    json_text,
    measure_point,
    point_name,
    read_reports,
    remove_points,
    row_of,
    table_text,
    write_report,
)
from rankscope.cli.bench.seqpar import add_run_options
from rankscope.cli.common import check_target
from rankscope.cli.job.batch import deliver
from rankscope.cli.job.options import add_job_options
from rankscope.cli.options import add_options, positive, words_of
from rankscope.errors import UsageError
from rankscope.jobs.batch import SCHEDULERS, make_spec
from rankscope.jobs.spec import RUN, parse_count

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
  rankscope bench sweep --profile --job pbs --nodes 1,2 --ppn 4 -s 4608 -d 9216 \\
      -p float32,bfloat16 -o sweep --submit
      four points in one job, and a profile of each: sweep/point-001 and so on
"""

_FORMATS: dict[str, Callable[[list[Row]], str]] = {"table": table_text, "csv": csv_text, "json": json_text}
_GRID = """\
-s, --sequence S,…  sequence lengths
-d, --hidden H,…  hidden sizes
-p, --precision P,…  float32, bfloat16 or both (default: float32)
--nproc N,…  ranks on this machine (default: 1)
"""
_RESULTS = f"""\
--format {{{",".join(_FORMATS)}}}  default: table
--chart FILE  also write chart data: .json (Vega-Lite) or .csv
-f, --force  replace existing files
--read DIR  run nothing: show the results of an earlier sweep in DIR
-o, --output DIR  where the results go: point-001.json, and point-001 for a profile
--profile OPTIONS  `rankscope profile` around each point, one run folder a point; --profile='--tool nsys --ranks all'
    gives it options
--job {{{",".join(SCHEDULERS)}}}  one job that runs the whole grid
"""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.description = DESCRIPTION
    parser.epilog = EPILOG
    numbers = _list_of(positive)
    sizes = {name: {"type": numbers, "default": []} for name in ("sequence", "hidden")}
    precision = {"type": _list_of(str, PRECISIONS), "default": [PRECISIONS[0]]}
    add_options(parser, _GRID, **sizes, precision=precision, nproc=numbers)
    add_run_options(parser)
    add_options(parser, _RESULTS, format="table", chart=Path, read=Path, profile={"nargs": "?", "const": ""})
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
    profiler = _profiler_words(args)
    nodes_by_ranks = _nodes_by_ranks(args) if args.job else {}
    points = grid_points(args.sequence, args.hidden, args.precision, nodes_by_ranks or args.nproc or [1])
    for point in points:  # all of them, before the first one runs for minutes
        chunks = (args.chunks or DEFAULT_CHUNKS) if args.overlap else 0
        Config(sequence=point.sequence, hidden=point.hidden, chunks=chunks).check(point.ranks)
    if args.job:
        return _deliver_job(points, nodes_by_ranks, profiler, args)
    return _show(_measure(points, profiler, args), args)


def _measure(points: list[Point], profiler: list[str] | None, args: argparse.Namespace) -> list[Row]:
    """Run the points on this machine, one after the other."""
    folder = Path(args.output) if args.output else None
    if folder is not None:
        check_target(folder, args.force)
        folder.mkdir(parents=True, exist_ok=True)
        remove_points(folder)  # only with -f are there any
    rows = []
    for number, point in enumerate(points, 1):
        print(f"rankscope: {number} of {len(points)}: {point}", file=sys.stderr, flush=True)
        target = folder / point_name(number) if folder is not None and profiler is not None else None
        around = ["profile", "-o", str(target), *(profiler or ())] if target is not None else []
        report = measure_point(point, words_of(args, add_run_options), around)
        if folder is not None:
            write_report(folder, number, report)
        rows.append(row_of({**report, "profile": str(target)} if target is not None else report))
    return rows


def _profiler_words(args: argparse.Namespace) -> list[str] | None:
    """The options of --profile=OPTIONS, checked before anything runs; None without --profile."""
    if args.profile is None:
        return None
    if args.output is None and not args.job:
        raise UsageError(
            "--profile needs -o DIR",
            why="Every point has a run folder of its own in it.",
            hint="For example: rankscope bench sweep --profile -o sweep -s 256 -d 512",
        )
    from rankscope.cli import command_parser, profile

    parser, _ = command_parser("profile")
    given = parser.parse_args(shlex.split(args.profile))
    if given.command or given.output or given.dry_run or given.per_node or given.stats:
        raise UsageError(
            f"--profile={shlex.quote(args.profile)} cannot be used",
            why="Its options choose the tool, the ranks and the steps; the sweep itself starts and shows the points.",
            hint="For example: --profile='--tool nsys --ranks all'",
        )
    profile.plan_of(given, ("rankscope",))
    return [*profile.option_words(given), *([] if given.verbose else ["--quiet"])]


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


def _deliver_job(
    points: list[Point], nodes_by_ranks: dict[int, int], profiler: list[str] | None, args: argparse.Namespace
) -> int:
    """The whole grid as one job."""
    shared_words = words_of(args, add_run_options)
    scheduler = SCHEDULERS[args.job]
    spec = make_spec(
        scheduler,
        vars(args),
        job_steps(
            (([*point.words(), *shared_words], nodes_by_ranks[point.ranks]) for point in points),
            profiled=profiler is not None,
        ),
        profile_words=tuple(profiler or ()),
        name=args.name or "sweep",
        run=args.output,
        force=args.force,
        summaries=(("rankscope", "bench", "sweep", "--format", args.format, "--read", RUN),),
    )
    return deliver(spec, scheduler, args)


def _check_chart(path: Path, force: bool) -> None:
    if path.suffix not in (".json", ".csv"):
        raise UsageError(
            f"--chart {path} is neither .json nor .csv",
            why="The ending selects the format: a Vega-Lite chart, or the data alone.",
            hint="For example: --chart sweep.json",
        )
    check_target(path, force)


def _list_of(item: Callable[[str], Any], choices: Sequence[str] = ()) -> Callable[[str], list[Any]]:
    """Parse a comma-separated list; a value that is repeated counts once."""

    def parse(text: str) -> list[Any]:
        parts = [part.strip() for part in text.split(",")]
        for part in parts:
            if choices and part not in choices:
                raise argparse.ArgumentTypeError(f"'{part}' is not one of {', '.join(choices)}")
        return list(dict.fromkeys(map(item, parts)))

    return parse
