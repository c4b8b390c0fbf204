"""rankscope whatif: what would it be worth?"""

from __future__ import annotations

import argparse
import re
import sys
from typing import TYPE_CHECKING

from rankscope.cli.common import add_reading_options, add_run_argument, add_scope_options, open_run, scope_of
from rankscope.errors import UsageError

if TYPE_CHECKING:
    from rankscope.analysis.critical_path.scenarios import Scenario

DESCRIPTION = """\
Play the run again with something different, and say how long a step would take.
Without an option: the usual questions, one by one. Several options: each alone,
and all together. What is assumed is printed.
"""
EPILOG = """\
examples:
  rankscope whatif RUN
  rankscope whatif RUN --hide-comm
  rankscope whatif RUN --rank 2=median --kernel gelu=2x
  rankscope whatif RUN --bandwidth 2x --steps 3:5 --format json
"""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.description = DESCRIPTION
    parser.epilog = EPILOG
    add_run_argument(parser)
    add = parser.add_argument
    add("--hide-comm", action="store_true", help="collectives take no time once all ranks are there")
    add("--bandwidth", metavar="2x", help="transfers are so many times as fast; latency stays")
    add(
        "--rank",
        metavar="R=median",
        action="append",
        default=[],
        help="rank R computes, copies and launches as fast as the median rank (may be repeated)",
    )
    add(
        "--kernel",
        metavar="NAME=2x",
        action="append",
        default=[],
        help="kernels with NAME in their name are so many times as fast (may be repeated)",
    )
    add("--no-gaps", action="store_true", help="the host and its data are always ready")
    add_scope_options(parser)
    add("--format", choices=("table", "csv", "json", "markdown"), default="table", help="default: table")
    add_reading_options(parser)


def main(args: argparse.Namespace) -> int:
    from rankscope.analysis.critical_path.whatif import whatif
    from rankscope.views import render, terminal_width, use_color

    scenarios = _scenarios(args)
    scope = scope_of(args)
    run = open_run(args)
    scope.check(run)
    result = whatif(run, scope, scenarios)
    sys.stdout.write(render(result, args.format, terminal_width(sys.stdout), use_color(sys.stdout)))
    return 0


def _scenarios(args: argparse.Namespace) -> list[Scenario]:
    from rankscope.analysis.critical_path import scenarios

    found = []
    if args.hide_comm:
        found.append(scenarios.hide_comm())
    if args.bandwidth is not None:
        found.append(scenarios.bandwidth(_factor("--bandwidth", args.bandwidth)))
    for text in args.rank:
        match = re.fullmatch(r"([0-9]+)=median", text)
        if not match:
            raise UsageError(
                f"--rank {text} is not R=median",
                why="A rank can be put at the median of all ranks.",
                hint="Write it like --rank 2=median",
            )
        found.append(scenarios.rank_at_median(int(match[1])))
    for text in args.kernel:
        name, equals, factor = text.rpartition("=")
        if not equals or not name:
            raise UsageError(
                f"--kernel {text} is not NAME=FACTOR",
                why="NAME is a part of a kernel's name.",
                hint="Write it like --kernel gelu=2x",
            )
        found.append(scenarios.kernel(name, _factor("--kernel", factor)))
    if args.no_gaps:
        found.append(scenarios.no_gaps())
    return found


def _factor(option: str, text: str) -> float:
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)x?", text.strip().lower())
    value = float(match[1]) if match else 0.0
    if value <= 0:
        raise UsageError(
            f"{option}: '{text}' is not a factor",
            why="It is a number above 0.",
            hint="Write it like 2x or 1.5x.",
        )
    return value
