"""rankscope job container: a folder that builds and runs an image with the profiler in it."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from pathlib import Path

from rankscope.cli.common import check_target
from rankscope.cli.job.options import TOOL
from rankscope.cli.options import add_groups, add_options, group
from rankscope.errors import StoreError, UsageError
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


_DEFAULTS = container.Container()
_FOLDER = f"""\
-o, --output DIR  the folder to write
-f, --force  overwrite the files in it
--engine {{{",".join(container.ENGINES)}}}  (default: {_DEFAULTS.engine})
--base IMAGE  with torch in it (default: {_DEFAULTS.base})
--image NAME  its name (default: {_DEFAULTS.image})
--tag TAG  (default: {_DEFAULTS.tag})
--registry HOST/PATH  where ./push.sh pushes
"""
_INSTALLED = f"""\
--no-nsys  no Nsight Systems (by default it is installed where the base lacks it)
--mpi  OpenMPI and ssh
--efa  the libraries of AWS's EFA (needs --mpi)
--nccl-tests  NVIDIA's nccl-tests (needs --efa)
--efa-version V  (default: {_DEFAULTS.efa_version})
--nccl-tests-version V  (default: {_DEFAULTS.nccl_tests_version})
"""
_STARTED = f"""\
--gpus N  all, none or a number (default: {_DEFAULTS.gpus})
--shm-size SIZE  (default: {_DEFAULTS.shm_size})
--counters  SYS_ADMIN, which ncu and --gpu-metrics-device need
--reports DIR  the host's folder that is /reports inside: what is written elsewhere is lost with the container
    (default: {_DEFAULTS.reports})
--tool {{{",".join(TOOL["choices"])}}}  the profiler of ./test.sh (default: torch); none: the example without one, to
    compare with
"""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Write a small folder: Dockerfile (or apptainer definition), .env, and build, login, push, run, exec,\n"
        "test and stop as plain sh scripts. Nothing is built or started here."
    )
    parser.epilog = EPILOG
    settings = asdict(_DEFAULTS)
    settings["no_nsys"] = {"action": "store_false", "dest": "nsys"}
    settings["output"] = {"type": Path, "required": True}
    add_options(parser, _FOLDER, **settings)
    groups = {
        "what is installed in addition to rankscope": _INSTALLED,
        "how ./run.sh starts the container": _STARTED,
    }
    add_groups(parser, [group(title, text, **settings) for title, text in groups.items()])


def main(args: argparse.Namespace) -> int:
    if args.command:
        raise UsageError(
            "a container folder takes no COMMAND",
            why="A command is run in the container later: ./exec.sh COMMAND.",
            hint="Leave out what follows --.",
        )
    choices = container.Container(**{name: getattr(args, name) for name in asdict(_DEFAULTS)})
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
