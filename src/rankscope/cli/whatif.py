"""rankscope whatif: estimate the gain of a change."""

from __future__ import annotations

import argparse

from rankscope.cli import common
from rankscope.cli.options import add_options, made_of

DESCRIPTION = """\
Replay the run with changed durations, and show how long a step would take.
Without an option: the common changes, one by one. With several options: each
alone, and all together. The assumptions are printed.
"""
MAIN_OPTIONS = "run hide_comm bandwidth rank kernel balance no_gaps steps format"
EPILOG = """\
examples:
  rankscope whatif RUN
  rankscope whatif RUN --hide-comm
  rankscope whatif RUN --rank 2=median --kernel gelu=2x
  rankscope whatif RUN --balance ranks
      what uneven work costs (stats -r faults.imbalance: whose it is)
  rankscope whatif RUN --bandwidth 2x --steps 3:5 --format json
"""


def configure(parser: argparse.ArgumentParser) -> None:
    common.add_run_argument(parser)
    from rankscope.analysis.critical_path.changes import Changes

    add_options(parser, Changes.OPTIONS)
    common.add_scope_options(parser)
    add_options(parser, "--format {table,csv,json,markdown}  default: table", format="table")
    common.add_reading_options(parser)


def main(args: argparse.Namespace) -> int:
    from rankscope.analysis.critical_path.changes import Changes
    from rankscope.analysis.critical_path.scenarios import scenarios_of
    from rankscope.analysis.critical_path.whatif import whatif

    scenarios = scenarios_of(made_of(Changes, args))
    args.bandwidth = None  # a factor here; for other commands it is a peak of the machine
    result = whatif(*common.open_part(args), scenarios)
    common.show_results(result, args.format, common.question_of(args))
    return 0
