"""rankscope import-wrapper: a bash wrapper around nsys or ncu as a line of `rankscope profile`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from rankscope.capture.wrapper_import import import_wrapper
from rankscope.cli.common import show
from rankscope.cli.options import add_options

EPILOG = """\
examples:
  rankscope import-wrapper nsys_wrapper.sh
  mpiexec -n 8 ./nsys_wrapper.sh python train.py      becomes, with what it prints:
  mpiexec -n 8 rankscope profile --tool nsys --ranks local:0@ranks:0-7 python train.py

The file is read, not run. What cannot be taken over is said on stderr, with the reason.
"""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "The `rankscope profile` line for a bash wrapper around nsys or ncu: which ranks (PROFRANK, RANKCUTOFF,\n"
        "case, if), which options (NSYS_OPTS, NCU_OPTS), which folder."
    )
    parser.epilog = EPILOG
    add_options(parser, "FILE  the wrapper", file=Path)


def main(args: argparse.Namespace) -> int:
    for line in import_wrapper(args.file):
        for note in line.notes:
            print(f"rankscope: {note}", file=sys.stderr)
        show(" ".join(line.words) + "\n")
    return 0
