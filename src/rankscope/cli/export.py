"""rankscope export: the run as files that other tools read."""

from __future__ import annotations

import argparse
from pathlib import Path

from rankscope import units
from rankscope.cli import common
from rankscope.cli.options import add_options
from rankscope.errors import UsageError
from rankscope.text.run_words import shell_word

MAIN_OPTIONS = "run type scrub output gzip no_args force ranks steps"
DESCRIPTION = (
    "Write the run as a trace for timeline viewers, or its tables to files. A part of it can become a page that "
    "needs no server. --scrub removes the environment and secrets from nsys exports."
)
EPILOG = """\
examples:
  rankscope export RUN -t perfetto                 RUN.perfetto-trace, for ui.perfetto.dev: all ranks in one file
  rankscope export RUN -t perfetto --ranks 0-3 --steps 3:5 -o four.perfetto-trace.gz
  rankscope export RUN -t perfetto --archive       RUN.perfetto.tar: a trace for each rank, merged by ui.perfetto.dev
  rankscope export RUN -t chrome --no-args         for chrome://tracing
  rankscope export RUN -t parquet -o tables/       for pandas, Polars, DuckDB, Spark
  rankscope export RUN -t csv -o tables/ --ranks 0 --steps 3:5
  rankscope export RUN -t html --steps 4:4         RUN.html: the viewer with this part in it, to send by mail
  rankscope export --scrub rank_*.sqlite           nsys exports that can be shared: each as REPORT.scrubbed.sqlite

Parquet and CSV: every table of `rankscope query` becomes one file, all ranks in it. Times are ns from the run's
start everywhere.

nsys records every environment variable of the job, keys and tokens included, its command line, and what the program
printed. --scrub removes variables, output and the command line's secrets, and searches the new file's bytes as a check.
The data that rankscope reads is not changed; a rank that only the variables contain is added to the new file's name.
A .nsys-rep cannot be changed: export it, scrub the export, and do not share the report.
"""
TRACES = ("perfetto", "chrome")
TABLES = ("parquet", "csv")
PAGE = "html"
_OPTIONS = f"""\
-t, --type TYPE  what to write: {", ".join((*TRACES, *TABLES, PAGE))}
--scrub  RUN is one nsys export (.sqlite) or several: write them without the recorded environment and secrets
-o, --output PATH  the trace or page, or the folder for tables (default: named after RUN, here)
--gzip  compress the trace (a name that ends in .gz does it too)
--no-args  traces without the events' arguments: smaller, and written faster
--archive  with -t perfetto: a tar file with one trace for each file, on its own clock, and the clock offsets
-f, --force  overwrite existing files
"""


def configure(parser: argparse.ArgumentParser) -> None:
    common.add_run_argument(parser)
    types = {"choices": (*TRACES, *TABLES, PAGE)}
    add_options(parser, _OPTIONS, type=types, output=Path)
    common.add_part_options(parser, "the whole file")
    add_options(parser, common.CLOCKS, clocks="aligned")
    common.add_reading_options(parser)


def main(args: argparse.Namespace) -> int:
    if args.scrub == bool(args.type):
        raise UsageError(
            "--scrub has no --type" if args.scrub else "export: no --type",
            why="--scrub writes an nsys export again." if args.scrub else "It says what to write.",
            hint=f"Give one of them: -t {','.join((*TRACES, *TABLES, PAGE))} or --scrub. See: rankscope export --help",
        )
    if args.scrub:
        return _scrub(args)
    if args.archive and args.type != "perfetto":
        raise UsageError(
            "--archive is for Perfetto",
            why=f"-t {args.type} has no manifest.",
            hint="Use it with -t perfetto.",
        )
    if args.type in TRACES:
        return _trace(args)
    if args.gzip or args.no_args:
        raise UsageError(
            f"--{'gzip' if args.gzip else 'no-args'} is for traces",
            why=f"-t {args.type} writes {'a page' if args.type == PAGE else 'tables'}.",
            hint="Use it with -t perfetto or -t chrome.",
        )
    return _page(args) if args.type == PAGE else _tables(args)


def _page(args: argparse.Namespace) -> int:
    from rankscope.viewer.session import Session
    from rankscope.viewer.shared_file import page, steps_window
    from rankscope.viewer.startup import routes_of

    name = common.run_name(args.run[0])
    target = args.output or Path(f"{name}.html")
    run, scope = common.open_part(args, target)
    session = Session(run, name, path=args.run[0])
    text = page(session, routes_of(session), window := steps_window(session, scope), "")
    with common.replacing(target) as temporary:
        temporary.write_text(text, encoding="utf-8")
    size = units.format_bytes(target.stat().st_size)
    time = units.format_ns(window.end - window.begin)
    print(f"Wrote {time} of {len(window.ranks)} rank{'s' * (len(window.ranks) > 1)} to {target} ({size})")
    return 0


def _trace(args: argparse.Namespace) -> int:
    from rankscope.views.export.files import ARCHIVE, TRACE_ENDINGS, write_trace

    kind = ARCHIVE if args.archive else args.type
    target = args.output or Path(common.run_name(args.run[0]) + TRACE_ENDINGS[kind] + ".gz" * args.gzip)
    if args.gzip and target.suffix != ".gz":
        target = target.with_name(target.name + ".gz")
    run, scope = common.open_part(args, target)
    compress = target.suffix == ".gz"
    with common.replacing(target) as temporary:
        slices = write_trace(run, scope, temporary, kind, with_args=not args.no_args, compress=compress)
    ranks = scope.ranks_in(run)
    size = units.format_bytes(target.stat().st_size)
    print(f"Wrote {slices:,} slices of {len(ranks)} rank{'s' * (len(ranks) > 1)} to {target} ({size})")
    if args.type == "perfetto":
        print("Open it at https://ui.perfetto.dev (the file stays on your machine), or with trace_processor.")
    return 0


def _tables(args: argparse.Namespace) -> int:
    from rankscope.views.export.files import tables_without_steps, write_tables

    target = args.output or Path(f"{args.run[0].resolve().name}-tables")
    run, scope = common.open_part(args, target)
    names = write_tables(run, scope, target, args.type)
    if scope.steps is not None:
        print(f"{', '.join(tables_without_steps())} have no steps and are whole.")
    print(f"Wrote {len(names)} tables to {target}/")
    return 0


def _scrub(args: argparse.Namespace) -> int:
    from rankscope.readers.nsys.scrub import scrub

    if args.output and len(args.run) > 1:
        raise UsageError(
            "-o names one file, but there are several reports", hint="Leave -o out, or scrub them one by one."
        )
    targets = {report: args.output or _scrubbed(report) for report in args.run}
    for target in targets.values():
        common.check_target(target, args.force)
    for report, target in targets.items():
        done = scrub(report, target)
        counts = {"variable": done.variables, "printed text": done.outputs, "secret argument": done.arguments}
        removed = [f"{number} {noun}{'s' * (number > 1)}" for noun, number in counts.items() if number]
        outcome = f"{', '.join(removed)} removed" if removed else "no variables were recorded"
        print(f"Wrote {target} ({outcome})")
    return 0


def _scrubbed(report: Path) -> Path:
    """REPORT.scrubbed.sqlite, with the rank in its name where only the recorded variables contain it."""
    from rankscope.readers.base import rank_from_name
    from rankscope.readers.nsys.identity import FROM_ENVIRONMENT
    from rankscope.readers.nsys.reader import NSYS

    if not report.is_file():
        raise UsageError(f"there is no {report}", why="No such file.", hint="Check the path.")
    if report.suffix == ".nsys-rep":
        raise UsageError(
            f"{report} cannot be scrubbed",
            why="Only nsys can write its own reports.",
            hint=f"Scrub its export instead: nsys export --type sqlite {shell_word(report.name)}",
        )
    identity = NSYS.identify(report)
    only_recorded = identity.rank_source == FROM_ENVIRONMENT and rank_from_name(report) != identity.rank
    rank = f".rank-{identity.rank}" if only_recorded else ""
    return report.with_name(f"{report.stem}{rank}.scrubbed.sqlite")
