"""rankscope export: the run as files that other tools read."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rankscope import units
from rankscope.cli.common import (
    add_clocks,
    add_reading_options,
    add_run_argument,
    add_scope_options,
    check_target,
    open_run,
    replacing,
    scope_of,
)
from rankscope.errors import UsageError

if TYPE_CHECKING:
    from rankscope.analysis.core.scope import Scope
    from rankscope.store.run import Run

EXAMPLES = """\
examples:
  rankscope export RUN -t perfetto                 RUN.perfetto-trace, for ui.perfetto.dev: all ranks in one file
  rankscope export RUN -t perfetto --ranks 0-3 --steps 3:5 -o four.perfetto-trace.gz
  rankscope export RUN -t chrome --no-args         for chrome://tracing
  rankscope export RUN -t parquet -o tables/       for pandas, Polars, DuckDB, Spark
  rankscope export RUN -t csv -o tables/ --ranks 0 --steps 3:5

Parquet and CSV: every table of `rankscope query` becomes one file, all ranks in it. Times are ns from the run's
start everywhere.
"""
TABLE_OPTIONS = {"parquet": "FORMAT parquet, COMPRESSION zstd", "csv": "FORMAT csv, HEADER"}
TRACE_ENDINGS = {"perfetto": ".perfetto-trace", "chrome": ".trace.json"}


def configure(parser: argparse.ArgumentParser) -> None:
    parser.description = "Write the run as a trace for timeline viewers, or its tables to files."
    parser.epilog = EXAMPLES
    add_run_argument(parser)
    kinds = (*TRACE_ENDINGS, *TABLE_OPTIONS)
    parser.add_argument("-t", "--type", choices=kinds, required=True, help="what to write")
    parser.add_argument(
        "-o",
        "--output",
        type=Path,
        metavar="PATH",
        help="the trace, or the folder for tables (default: named after RUN, here)",
    )
    parser.add_argument(
        "--gzip", action="store_true", help="compress the trace (a name that ends in .gz does it too)"
    )
    parser.add_argument(
        "--no-args", action="store_true", help="traces without the events' arguments: smaller, sooner written"
    )
    parser.add_argument("-f", "--force", action="store_true", help="overwrite what is there")
    add_scope_options(parser)
    add_clocks(parser)
    add_reading_options(parser)


def main(args: argparse.Namespace) -> int:
    if args.type in TRACE_ENDINGS:
        return _trace(args)
    if args.gzip or args.no_args:
        raise UsageError(
            f"--{'gzip' if args.gzip else 'no-args'} is for traces",
            why=f"-t {args.type} writes tables.",
            hint="Use it with -t perfetto or -t chrome.",
        )
    target = args.output or Path(f"{args.run[0].resolve().name}-tables")
    check_target(target, args.force)
    scope = scope_of(args)
    run = open_run(args)
    scope.check(run)
    return _tables(run, scope, target, args.type)


def _trace(args: argparse.Namespace) -> int:
    target = args.output or Path(_stem(args.run[0]) + TRACE_ENDINGS[args.type] + ".gz" * args.gzip)
    if args.gzip and target.suffix != ".gz":
        target = target.with_name(target.name + ".gz")
    check_target(target, args.force)
    scope = scope_of(args)
    run = open_run(args)
    scope.check(run)
    slices = _write_trace(run, scope, target, args.type, not args.no_args)
    size = units.format_bytes(target.stat().st_size)
    print(f"Wrote {slices:,} slices of {_counted(run, scope)} to {target} ({size})")
    if args.type == "perfetto":
        print("Open it at https://ui.perfetto.dev (the file stays on your machine), or with trace_processor.")
    return 0


def _write_trace(run: Run, scope: Scope, target: Path, kind: str, with_args: bool) -> int:
    from isal import igzip

    from rankscope.views.export.chrome import write_chrome
    from rankscope.views.export.perfetto import write_perfetto

    write = write_perfetto if kind == "perfetto" else write_chrome
    with replacing(target) as temporary, temporary.open("wb") as raw:
        if target.suffix != ".gz":
            return write(run, scope, raw, with_args)
        packer: Any = igzip.IGzipFile  # it has no types
        with packer(filename="", mode="wb", fileobj=raw, mtime=0) as packed:
            return write(run, scope, packed, with_args)


def _stem(path: Path) -> str:
    """'rank-0' of rank-0.pt.trace.json.gz; a folder's whole name."""
    path = path.resolve()
    return path.name if path.is_dir() else path.name.split(".")[0]


def _counted(run: Run, scope: Scope) -> str:
    ranks = [rank for rank in run.ranks if scope.ranks is None or rank in scope.ranks]
    return f"{len(ranks)} rank{'s' * (len(ranks) > 1)}"


def _tables(run: Run, scope: Scope, target: Path, kind: str) -> int:
    from rankscope.store.run import SEGMENTS, VIEWS, describe

    target.mkdir(parents=True, exist_ok=True)
    for view in VIEWS:
        has_step = any(field.name == "step" for field in describe(view))
        where = scope.where() if has_step else scope.only_ranks().where()
        path = target / f"{view.name}.{kind}"
        temporary = path.with_name(f".{path.name}")
        run.export(view, where, temporary, TABLE_OPTIONS[kind])
        temporary.replace(path)
    whole = [
        view.name
        for view in VIEWS
        if view is not SEGMENTS and not any(f.name == "step" for f in describe(view))
    ]
    if scope.steps is not None:
        print(f"{', '.join(whole)} have no steps and are whole.")
    print(f"Wrote {len(VIEWS)} tables to {target}/")
    return 0
