"""rankscope whatif: estimate the gain of a change."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from rankscope.cli.common import (
    add_reading_options,
    add_run_argument,
    add_scope_options,
    open_run,
    scope_of,
    show,
    window_words,
)

if TYPE_CHECKING:
    from rankscope.analysis.critical_path.scenarios import Scenario

DESCRIPTION = """\
Replay the run with changed durations, and show how long a step would take.
Without an option: the common changes, one by one. With several options: each
alone, and all together. The assumptions are printed.
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
    add("--hide-comm", action="store_true", help="collectives take no time once all ranks have arrived")
    add("--bandwidth", metavar="2x", help="transfers are this many times as fast; latency stays")
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
        help="kernels with NAME in their name are this many times as fast (may be repeated)",
    )
    add("--no-gaps", action="store_true", help="the host and its data are always ready")
    add("--data-ready", action="store_true", help="no step waits for its batch")
    add("--no-sync", action="store_true", help="synchronising calls do not wait")
    add_scope_options(parser)
    add("--format", choices=("table", "csv", "json", "markdown"), default="table", help="default: table")
    add_reading_options(parser)


def main(args: argparse.Namespace) -> int:
    from rankscope.analysis.critical_path.whatif import whatif
    from rankscope.text.run_words import RunWords, shell_words
    from rankscope.views import render, terminal_width, use_color
    from rankscope.views.envelope import Question

    scenarios = _scenarios(args)
    scope = scope_of(args)
    run = open_run(args)
    scope.check(run)
    result = whatif(run, scope, scenarios)
    question = Question({"RUN": RunWords(shell_words(args.run), window_words(args))})
    show(render(result, args.format, terminal_width(sys.stdout), use_color(sys.stdout), question=question))
    return 0


def _scenarios(args: argparse.Namespace) -> list[Scenario]:
    from rankscope.analysis.critical_path.scenarios import Changes, scenarios_of

    return scenarios_of(
        Changes(
            hide_comm=args.hide_comm,
            bandwidth=args.bandwidth,
            ranks=tuple(args.rank),
            kernels=tuple(args.kernel),
            no_gaps=args.no_gaps,
            data_ready=args.data_ready,
            no_sync=args.no_sync,
        )
    )
