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
from rankscope.cli.options import add_options

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
_CHANGES = """\
--hide-comm  collectives take no time once all ranks have arrived
--bandwidth 2x  transfers are this many times as fast; latency stays
--rank R=median ...  rank R computes, copies and launches as fast as the median rank (may be repeated)
--kernel NAME=2x ...  kernels with NAME in their name are this many times as fast (may be repeated)
--no-gaps  the host and its data are always ready
--data-ready  no step waits for its batch
--no-sync  synchronising calls do not wait
"""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.description = DESCRIPTION
    parser.epilog = EPILOG
    add_run_argument(parser)
    add_options(parser, _CHANGES, rank=[], kernel=[])
    add_scope_options(parser)
    add_options(parser, "--format {table,csv,json,markdown}  default: table", format="table")
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
