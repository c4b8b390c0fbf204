"""rankscope export: the run's tables as files."""

from __future__ import annotations

import argparse
from pathlib import Path

from rankscope.cli.common import (
    add_reading_options,
    add_run_argument,
    add_scope_options,
    check_target,
    open_run,
    scope_of,
)

EXAMPLES = """\
examples:
  rankscope export RUN -t parquet -o tables/       for pandas, Polars, DuckDB, Spark
  rankscope export RUN -t csv -o tables/ --ranks 0 --steps 3:5

Every table of `rankscope query` becomes one file, all ranks in it, times in ns from the run's start.
"""
OPTIONS = {"parquet": "FORMAT parquet, COMPRESSION zstd", "csv": "FORMAT csv, HEADER"}


def configure(parser: argparse.ArgumentParser) -> None:
    parser.description = "Write the run's tables to files that other tools read."
    parser.epilog = EXAMPLES
    add_run_argument(parser)
    parser.add_argument("-t", "--type", choices=tuple(OPTIONS), required=True, help="what to write")
    parser.add_argument(
        "-o", "--output", type=Path, metavar="DIR", help="where to (default: RUN-tables here)"
    )
    parser.add_argument("-f", "--force", action="store_true", help="overwrite what is there")
    add_scope_options(parser)
    add_reading_options(parser)


def main(args: argparse.Namespace) -> int:
    from rankscope.store.run import SEGMENTS, VIEWS, describe

    target = args.output or Path(f"{args.run[0].resolve().name}-tables")
    check_target(target, args.force)
    scope = scope_of(args)
    run = open_run(args)
    scope.check(run)
    target.mkdir(parents=True, exist_ok=True)
    for view in VIEWS:
        has_step = any(field.name == "step" for field in describe(view))
        where = scope.where() if has_step else scope.only_ranks().where()
        path = target / f"{view.name}.{args.type}"
        temporary = path.with_name(f".{path.name}")
        run.export(view, where, temporary, OPTIONS[args.type])
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
