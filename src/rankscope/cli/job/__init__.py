"""rankscope job: the profile as a batch job. A kind of job is one line in JOBS."""

from __future__ import annotations

import argparse
from functools import partial

from rankscope.cli import Parser, Subcommand
from rankscope.cli.job import batch, container, k8s, manage
from rankscope.errors import UsageError

TAKES_COMMAND = True
DESCRIPTION = "Write a batch job with the profiler in it, submit it, follow it."
EPILOG = """\
examples:
  rankscope job slurm --nodes 2 --ppn 4 --submit --wait -- python train.py
  rankscope job pbs --site polaris --account MyProject --nodes 2 -- python train.py
  rankscope job k8s --image IMAGE --nodes 2 --ppn 8 --pvc reports --submit -- python train.py
  rankscope job container -o image          a folder that builds such an image

Each has its own help: rankscope job slurm --help
"""


def configure(parser: Parser) -> None:
    parser.add_subcommands("kind", JOBS)


def main(args: argparse.Namespace) -> int:
    if args.command and args.kind not in ("pbs", "slurm", "k8s"):
        raise UsageError(
            f"rankscope job {args.kind} takes no COMMAND",
            why="It starts none: a container runs one later, a job was given its own.",
            hint="Leave out what follows --.",
        )
    return JOBS[args.kind].run(args)


JOBS = {
    "pbs": Subcommand("a script for PBS Pro or OpenPBS", partial(batch.configure, "pbs"), batch.run),
    "slurm": Subcommand("a script for Slurm", partial(batch.configure, "slurm"), batch.run),
    "k8s": Subcommand("a manifest for Kubernetes: MPIJob, PyTorchJob or Job", k8s.configure, k8s.run),
    "container": Subcommand(
        "a folder that builds and runs an image with the profiler in it", container.configure, container.main
    ),
    "fetch": Subcommand("copy the reports of a job in Kubernetes", k8s.configure_fetch, k8s.run_fetch),
    "collect": Subcommand(
        "copy one node's files to the run folder (job scripts do this)",
        manage.configure_collect,
        manage.run_collect,
    ),
    "status": Subcommand("the state of a submitted job", manage.configure_status, manage.run_status),
    "delete": Subcommand("end a submitted job", manage.configure_delete, manage.run_delete),
}
