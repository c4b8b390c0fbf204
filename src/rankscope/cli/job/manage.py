"""rankscope job status and delete: a job that was submitted before."""

from __future__ import annotations

import argparse
import shutil

from rankscope.cli.job.k8s import add_cluster, add_kind
from rankscope.errors import RankscopeError, UsageError
from rankscope.jobs import kubectl, pbs, slurm
from rankscope.jobs import submit as jobs
from rankscope.jobs.submit import Scheduler

KUBERNETES = "k8s"
SCHEDULERS = {"pbs": pbs.SCHEDULER, "slurm": slurm.SCHEDULER}


def configure_status(parser: argparse.ArgumentParser) -> None:
    parser.description = "One line: the job's state, and its exit code once it has ended."
    _configure(parser)


def configure_delete(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "End a job. Its script is told, so what was recorded is still collected. In Kubernetes the job and its\n"
        "pods are removed; reports stay on their volume."
    )
    _configure(parser, KUBERNETES)
    parser.add_argument("--now", action="store_true", help="PBS, Slurm: at once; what was recorded is lost")
    add_kind(parser.add_argument)
    add_cluster(parser.add_argument)


def _configure(parser: argparse.ArgumentParser, *more: str) -> None:
    parser.add_argument("id", metavar="ID", help="as --submit printed it")
    parser.add_argument(
        "--scheduler", choices=[*SCHEDULERS, *more], help="default: the one that is on this machine"
    )


def run_status(args: argparse.Namespace) -> int:
    scheduler = _scheduler(args)
    state = scheduler.state(args.id)
    if state.word == "unknown":
        raise RankscopeError(
            f"{scheduler.title} does not know job {args.id}",
            why="It never was, or it ended long ago.",
            hint="Look for its output file beside the script's folder.",
        )
    print(state.word if state.code is None else f"{state.word}, exit code {state.code}")
    return 0


def run_delete(args: argparse.Namespace) -> int:
    if args.scheduler == KUBERNETES or (args.scheduler is None and not _here() and shutil.which("kubectl")):
        print(kubectl.delete(args.id, args.job_kind, kubectl.Kubectl(args.namespace, args.context)))
        return 0
    if jobs.delete(_scheduler(args), args.id, now=args.now):
        print(f"Told job {args.id} to end; it collects what there is first")
    else:
        print(f"Deleted job {args.id}")
    return 0


def _scheduler(args: argparse.Namespace) -> Scheduler:
    if args.command:
        raise UsageError("this takes the id of a job, and no COMMAND", hint="Leave out what follows --.")
    if args.scheduler is not None:
        found = SCHEDULERS[args.scheduler]
        jobs.need(found)
        return found
    if here := _here():
        return here
    raise RankscopeError(
        "there is no scheduler on this machine",
        why="Neither sbatch nor qsub is on PATH.",
        hint="Ask on the machine the job was submitted from.",
    )


def _here() -> Scheduler | None:
    # Slurm first: its qsub, for those who are used to it, is no PBS
    for scheduler in (slurm.SCHEDULER, pbs.SCHEDULER):
        if shutil.which(scheduler.submit[0]):
            return scheduler
    return None
