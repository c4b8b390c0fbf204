"""rankscope doctor: check whether a trace can be trusted."""

from __future__ import annotations

import argparse

from rankscope.cli import common
from rankscope.cli.options import add_options

DESCRIPTION = (
    "What was lost, cut, mixed up or inferred in a recording, and whether its figures can be trusted."
)
EPILOG = """\
examples:
  rankscope doctor RUN
  rankscope doctor RUN --fail-on warning     exit code 3 when something is at least a warning
"""


def configure(parser: argparse.ArgumentParser) -> None:
    common.add_run_argument(parser)
    add_options(parser, common.FAIL_ON)
    add_options(parser, "--format {table,csv,json,markdown}  default: table", format="table")
    common.add_reading_options(parser)


def main(args: argparse.Namespace) -> int:
    from rankscope.analysis.core.scope import Scope
    from rankscope.analysis.health.doctor import doctor
    from rankscope.views.findings import result_with_paths

    question = common.question_of(args)
    result = doctor(common.open_run(args), Scope())
    if args.format != "json":
        result = result_with_paths(result, question.runs)
    common.show_results(result, args.format, question)
    return common.exit_code(args.fail_on, [result])
