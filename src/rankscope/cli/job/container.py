"""rankscope job container: a folder that builds and runs an image with the profiler in it."""

from __future__ import annotations

import argparse
from pathlib import Path

from rankscope.cli.common import check_target
from rankscope.cli.job.options import TOOL
from rankscope.errors import StoreError, UsageError
from rankscope.jobs import container

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
    defaults = container.Container()
    add = parser.add_argument
    add("-o", "--output", type=Path, required=True, metavar="DIR", help="the folder to write")
    add("-f", "--force", action="store_true", help="overwrite the files in it")
    add("--engine", choices=container.ENGINES, default=defaults.engine, help=f"(default: {defaults.engine})")
    add("--base", default=defaults.base, metavar="IMAGE", help=f"with torch in it (default: {defaults.base})")
    add("--image", default=defaults.image, metavar="NAME", help=f"its name (default: {defaults.image})")
    add("--tag", default=defaults.tag, help=f"(default: {defaults.tag})")
    add("--registry", default="", metavar="HOST/PATH", help="where ./push.sh pushes")
    add = parser.add_argument_group("what is installed in addition to rankscope").add_argument
    add(
        "--no-nsys",
        action="store_true",
        help="no Nsight Systems (by default it is installed where the base lacks it)",
    )
    add("--mpi", action="store_true", help="OpenMPI and ssh")
    add("--efa", action="store_true", help="the libraries of AWS's EFA (needs --mpi)")
    add("--nccl-tests", action="store_true", help="NVIDIA's nccl-tests (needs --efa)")
    add("--efa-version", default=defaults.efa_version, metavar="V", help=f"(default: {defaults.efa_version})")
    add(
        "--nccl-tests-version",
        default=defaults.nccl_tests_version,
        metavar="V",
        help=f"(default: {defaults.nccl_tests_version})",
    )
    add = parser.add_argument_group("how ./run.sh starts the container").add_argument
    add(
        "--gpus", default=defaults.gpus, metavar="N", help=f"all, none or a number (default: {defaults.gpus})"
    )
    add("--shm-size", default=defaults.shm_size, metavar="SIZE", help=f"(default: {defaults.shm_size})")
    add("--counters", action="store_true", help="SYS_ADMIN, which ncu and --gpu-metrics-device need")
    add(
        "--reports",
        default=defaults.reports,
        metavar="DIR",
        help=f"the host's folder that is /reports inside: what is written elsewhere is lost with the container "
        f"(default: {defaults.reports})",
    )
    add(
        "--tool",
        choices=TOOL["choices"],
        default=defaults.tool,
        help="the profiler of ./test.sh (default: torch); none: the example without one, to compare with",
    )


def main(args: argparse.Namespace) -> int:
    if args.command:
        raise UsageError(
            "a container folder takes no COMMAND",
            why="A command is run in the container later: ./exec.sh COMMAND.",
            hint="Leave out what follows --.",
        )
    choices = container.Container(
        engine=args.engine,
        base=args.base,
        image=args.image,
        tag=args.tag,
        registry=args.registry,
        nsys=not args.no_nsys,
        mpi=args.mpi,
        efa=args.efa,
        nccl_tests=args.nccl_tests,
        efa_version=args.efa_version,
        nccl_tests_version=args.nccl_tests_version,
        gpus=args.gpus,
        shm_size=args.shm_size,
        counters=args.counters,
        reports=args.reports,
        tool=args.tool,
    )
    container.check(choices)
    check_target(args.output, args.force)
    try:
        files = container.write(choices, args.output)
    except OSError as error:
        raise StoreError(
            f"cannot write {args.output}", why=f"{error.strerror}.", hint="Name another folder: -o DIR"
        ) from error
    print(f"Wrote {args.output}: {', '.join(str(path.relative_to(args.output)) for path in files)}")
    print(f"Next: cd {args.output} && ./test.sh    (build, start, profile an example, stop)")
    print(f"Reports: {args.reports} here is /reports in the container; write them there (-o /reports/NAME)")
    return 0
