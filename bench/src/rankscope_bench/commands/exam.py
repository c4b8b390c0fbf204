"""rankscope bench exam: plant faults in jobs, and score what rankscope says about them."""

from __future__ import annotations

import argparse
from pathlib import Path

from rankscope.cli.options import add_options

EPILOG = """\
examples:
  rankscope bench exam --list
      the names of the cases
  rankscope bench exam --only link- --keep exam
      some of them; their traces are used again by the next exam
  rankscope bench exam --part tuned
      those that rules may be tuned on
"""
_OPTIONS = """\
--only PATTERN  cases whose name contains this; '|' separates
--part {tuned,held-out,all}  the cases that rules are tuned on, those whose answers nobody looks at meanwhile, or both,
    which shows wrong answers to the former only (default: all)
--seed N  other noise, culprits and sizes: cases that no rule was tuned on (default: 0, those of docs/accuracy.md)
--list  print the names of the cases
--no-gloo  leave out the real processes
--random N  also so many random jobs (default: none)
--keep DIR  keep traces and stores there, and use them again
--write-docs  write docs/accuracy.md of a checkout
--json FILE  write every answer
"""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Plant faults in simulated jobs and in processes on this machine, and score rankscope's answers.\n"
        "The exit status is 3 where the score is below the floor."
    )
    parser.epilog = EPILOG
    number = {"type": int, "default": 0}
    add_options(parser, _OPTIONS, only="", part="all", seed=number, random=number, keep=Path, json=Path)


def run(args: argparse.Namespace) -> int:
    from rankscope_bench.exam.exam import run

    return run(args)
