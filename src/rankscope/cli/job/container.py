"""rankscope job container: a folder that builds and runs an image with the profiler in it."""

from __future__ import annotations

import argparse
from pathlib import Path

from rankscope.cli.common import check_target
from rankscope.cli.options import add_options, add_tables, made_of
from rankscope.errors import StoreError
from rankscope.jobs import container
from rankscope.text.run_words import shell_word

EPILOG = """\
examples:
  rankscope job container -o image
      then: cd image && ./test.sh        build, start, profile a language model, stop
  rankscope job container --base pytorch/pytorch:2.6.0-cuda12.4-cudnn9-devel --mpi -o image
      OpenMPI and ssh in it: what an MPIJob needs
  rankscope job container --mpi --efa --nccl-tests --registry registry.example.org/team -o image
      ./build.sh && ./login.sh && ./push.sh
  rankscope job container --engine apptainer -o image
"""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Write a small folder: Dockerfile (or apptainer definition), .env, and build, login, push, run, exec,\n"
        "test and stop as plain sh scripts. Nothing is built or started here."
    )
    parser.epilog = EPILOG
    add_options(parser, "-o, --output DIR  the folder to write", output={"type": Path, "required": True})
    add_options(parser, "-f, --force  overwrite the files in it")
    no_nsys = {"action": "store_false", "dest": "nsys"}
    add_tables(parser, container.Container.OPTIONS, container.Container, no_nsys=no_nsys)


def main(args: argparse.Namespace) -> int:
    choices = made_of(container.Container, args)
    container.check(choices)
    check_target(args.output, args.force)
    try:
        files = container.write(choices, args.output)
    except OSError as error:
        raise StoreError(
            f"cannot write {args.output}", why=f"{error.strerror}.", hint="Name another folder: -o DIR"
        ) from error
    print(f"Wrote {args.output}: {', '.join(str(path.relative_to(args.output)) for path in files)}")
    print(f"Next: cd {shell_word(args.output)} && ./test.sh    (build, start, profile an example, stop)")
    print(f"Reports: {args.reports} here is /reports in the container; write them there (-o /reports/NAME)")
    return 0
