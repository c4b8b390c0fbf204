"""rankscope doctor: check whether a trace can be trusted."""

from __future__ import annotations

import argparse
import sys

from rankscope.cli.common import add_fail_on, add_reading_options, add_run_argument, exit_code, open_run, show
from rankscope.cli.options import add_options

EXAMPLES = """\
examples:
  rankscope doctor RUN
  rankscope doctor RUN --fail-on warning     exit code 3 when something is at least a warning
"""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "What was lost, cut, mixed up or inferred in a recording, and whether its figures can be trusted."
    )
    parser.epilog = EXAMPLES
    add_run_argument(parser)
    add_fail_on(parser)
    add_options(parser, "--format {table,csv,json,markdown}  default: table", format="table")
    add_reading_options(parser)


def main(args: argparse.Namespace) -> int:
    from rankscope.analysis.core.scope import Scope
    from rankscope.analysis.health.doctor import doctor
    from rankscope.text.run_words import RunWords, shell_words
    from rankscope.views import render, terminal_width, use_color
    from rankscope.views.commands import result_with_paths
    from rankscope.views.envelope import Question

    run = RunWords(shell_words(args.run))
    question = Question({"RUN": run})
    result = doctor(open_run(args), Scope())
    if args.format != "json":
        result = result_with_paths(result, question.runs)
    show(render(result, args.format, terminal_width(sys.stdout), use_color(sys.stdout), question=question))
    return exit_code(args.fail_on, [result])
