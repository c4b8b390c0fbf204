"""rankscope export: the run as files that other tools read."""

from __future__ import annotations

import argparse
from pathlib import Path

from rankscope import units
from rankscope.cli import common
from rankscope.cli.options import add_options
from rankscope.errors import UsageError

EXAMPLES = """\
examples:
  rankscope export RUN -t perfetto                 RUN.perfetto-trace, for ui.perfetto.dev: all ranks in one file
  rankscope export RUN -t perfetto --ranks 0-3 --steps 3:5 -o four.perfetto-trace.gz
  rankscope export RUN -t perfetto --archive       RUN.perfetto.tar: a trace for each rank, merged by ui.perfetto.dev
  rankscope export RUN -t chrome --no-args         for chrome://tracing
  rankscope export RUN -t parquet -o tables/       for pandas, Polars, DuckDB, Spark
  rankscope export RUN -t csv -o tables/ --ranks 0 --steps 3:5
  rankscope export RUN -t html --steps 4:4         RUN.html: the viewer with this part in it, to send by mail

Parquet and CSV: every table of `rankscope query` becomes one file, all ranks in it. Times are ns from the run's
start everywhere.
"""
TRACES = ("perfetto", "chrome")
TABLES = ("parquet", "csv")
PAGE = "html"
_OPTIONS = f"""\
-t, --type TYPE  what to write: {", ".join((*TRACES, *TABLES, PAGE))}
-o, --output PATH  the trace or page, or the folder for tables (default: named after RUN, here)
--gzip  compress the trace (a name that ends in .gz does it too)
--no-args  traces without the events' arguments: smaller, and written faster
--archive  with -t perfetto: a tar file with a trace for each file of the run, on its own clock, and a manifest with the
    clock offsets
-f, --force  overwrite existing files
"""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Write the run as a trace for timeline viewers, its tables to files, or a part of it as a page that needs "
        "no server."
    )
    parser.epilog = EXAMPLES
    common.add_run_argument(parser)
    types = {"choices": (*TRACES, *TABLES, PAGE), "required": True}
    add_options(parser, _OPTIONS, type=types, output=Path)
    common.add_part_options(parser, "the whole file")
    common.add_clocks(parser)
    common.add_reading_options(parser)


def main(args: argparse.Namespace) -> int:
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
