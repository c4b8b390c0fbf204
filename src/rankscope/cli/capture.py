"""rankscope capture: record the next steps of a running job."""

from __future__ import annotations

import argparse

from rankscope.cli.common import add_remote_options, add_run_argument
from rankscope.cli.options import positive
from rankscope.cli.remote import WATCHED_RUN, path_or_remote, run_there
from rankscope.text.run_words import shell_word

DESCRIPTION = "Record the next steps of a running job, the same ones on all its ranks."
EPILOG = """\
examples:
  rankscope capture RUN                    the next 3 steps of all ranks
  rankscope capture RUN --steps 5 --ranks local:0
  rankscope capture ssh://login/~/runs/a   of a job on a cluster

The job must have been started with --watch. No signal is sent and no process is looked for: a file in the run folder
names the steps, and every rank looks for such files once a second. Afterwards: rankscope stats RUN.
"""
_OPTIONS = """\
--steps N  how many (default: 3)
--ranks SEL  which ranks: 0,8-15 | local:0 | node:0-1 | local:0@nodes:0-1 | local:0@ranks:0-7 | all; local:0 is the
    first of each node, @ takes some nodes or ranks (default: all)
"""


def configure(parser: argparse.ArgumentParser) -> None:
    add_run_argument(parser, WATCHED_RUN + _OPTIONS, run=path_or_remote, steps=positive, ranks="all")
    add_remote_options(parser, "ssh://host/path")


def main(args: argparse.Namespace) -> int:
    if isinstance(args.run, str):
        return run_there(args, "capture", configure)
    from rankscope.watch.ask_capture import ask_capture

    for asked in ask_capture(args.run, steps=args.steps, ranks=args.ranks, reason="rankscope capture"):
        print(f"{asked}".capitalize())
    print(f"Then: rankscope stats {shell_word(args.run)}")
    return 0
