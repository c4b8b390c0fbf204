"""rankscope stats: tables."""

from __future__ import annotations

import argparse
import re
import sys

from rankscope.cli.common import add_reading_options, add_run_argument, add_scope_options, open_run, scope_of
from rankscope.errors import UsageError
from rankscope.units import parse_count

EXAMPLES = """\
examples:
  rankscope stats RUN                              where the time went, and the ten top kernels
  rankscope stats RUN -r list                      every report, and what it answers
  rankscope stats RUN -r kernels --by rank --top 5
  rankscope stats RUN -r ops --by shape --steps 3:5
  rankscope stats RUN -r kernels,memcpy --format csv > tables.csv
"""
DEFAULT_ROWS = 20
SUMMARY = (("breakdown", DEFAULT_ROWS), ("kernels", 10))


def configure(parser: argparse.ArgumentParser) -> None:
    parser.description = "Tables of a run. Raw traces are read first, once; later calls take a moment."
    parser.epilog = EXAMPLES
    add_run_argument(parser)
    parser.add_argument(
        "-r", "--report", metavar="NAME,…", help="which reports: names, all, or list to see them"
    )
    parser.add_argument(
        "--by", metavar="KEY", help="split rows by rank, shape, module or source, where the report can"
    )
    add_scope_options(parser)
    parser.add_argument(
        "--top", metavar="N", help="rows shown, or all (default: 20 in tables, all in csv and json)"
    )
    parser.add_argument(
        "--format", choices=("table", "csv", "json", "markdown"), default="table", help="default: table"
    )
    parser.add_argument(
        "--comm-pattern",
        action="append",
        default=[],
        metavar="REGEX",
        help="kernels whose name matches communicate too (may be given several times)",
    )
    add_reading_options(parser)


def main(args: argparse.Namespace) -> int:
    from rankscope.analysis import REPORTS
    from rankscope.views import render, terminal_width, use_color

    if args.report == "list":
        for report in REPORTS.values():
            keys = f"  (--by {', '.join(report.keys)})" if report.keys else ""
            print(f"{report.name:<12} {report.question}{keys}")
        return 0
    wanted = _wanted(args, list(REPORTS))
    if args.by:
        _check_key(args.by, [name for name, _ in wanted])
    scope = scope_of(args)
    run = open_run(args, tuple(_pattern(text) for text in args.comm_pattern))
    scope.check(run)
    results = []
    for name, rows in wanted:
        report = REPORTS[name]
        result = report.analyse(run, scope, args.by if args.by in report.keys else None)
        results.append(result.head(rows))
    output = render(
        results if len(results) > 1 else results[0],
        args.format,
        terminal_width(sys.stdout),
        use_color(sys.stdout),
    )
    sys.stdout.write(output)
    return 0


def _wanted(args: argparse.Namespace, names: list[str]) -> list[tuple[str, int | None]]:
    """Reports with the number of rows to show of each (None for all)."""
    shown: int | None = DEFAULT_ROWS if args.format in ("table", "markdown") else None
    if args.top:
        shown = None if args.top == "all" else parse_count(args.top)
    if args.report is None:
        return [(name, shown if args.top or shown is None else rows) for name, rows in SUMMARY]
    wanted = names if args.report == "all" else [name.strip() for name in args.report.split(",")]
    for name in wanted:
        if name not in names:
            raise UsageError(
                f"there is no report '{name}'", why=f"There are: {', '.join(names)}.", hint="See: -r list"
            )
    return [(name, shown) for name in wanted]


def _check_key(key: str, names: list[str]) -> None:
    from rankscope.analysis import REPORTS

    if not any(key in REPORTS[name].keys for name in names):
        able = [report.name for report in REPORTS.values() if key in report.keys]
        raise UsageError(
            f"{', '.join(names)} cannot be split by {key}",
            why=f"These can: {', '.join(able)}." if able else "No report can.",
            hint="See: -r list",
        )


def _pattern(text: str) -> str:
    try:
        re.compile(text)
    except re.error as error:
        raise UsageError(
            f"--comm-pattern '{text}' is not a regular expression", why=f"{error}.", hint="See: --help"
        ) from None
    return text
