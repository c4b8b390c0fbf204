"""rankscope job status and delete: a job that was submitted before."""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path

from rankscope.cli.job.k8s import add_job_name_options
from rankscope.errors import RankscopeError
from rankscope.jobs import kubectl
from rankscope.jobs.batch import SCHEDULERS, collect, find_scheduler, scheduler_here
from rankscope.jobs.scheduler import delete

KUBERNETES = "k8s"


def configure_status(parser: argparse.ArgumentParser) -> None:
    parser.description = "One line: the job's state, and its exit code once it has ended."
    _configure(parser)


def configure_delete(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "End a job. Its script gets SIGTERM first and collects what was recorded. In Kubernetes the job and its\n"
        "pods are removed; reports stay on their volume."
    )
    _configure(parser, KUBERNETES)
    parser.add_argument("--now", action="store_true", help="PBS, Slurm: at once; what was recorded is lost")
    add_job_name_options(parser)


def _configure(parser: argparse.ArgumentParser, *more: str) -> None:
    parser.add_argument("id", metavar="ID", help="as --submit printed it")
    parser.add_argument("--scheduler", choices=[*SCHEDULERS, *more], help="default: the one on this machine")


def run_status(args: argparse.Namespace) -> int:
    scheduler = find_scheduler(args.scheduler)
    state = scheduler.state(args.id)
    if state.word == "unknown":
        raise RankscopeError(
            f"{scheduler.title} does not know job {args.id}",
            why="The id is wrong, or the job ended long ago.",
            hint="Look for its output file in the folder it was submitted from.",
        )
    print(state.word if state.code is None else f"{state.word}, exit code {state.code}")
    return 0


def run_delete(args: argparse.Namespace) -> int:
    in_cluster = args.scheduler is None and not scheduler_here() and shutil.which("kubectl")
    if args.scheduler == KUBERNETES or in_cluster:
        print(kubectl.delete(args.id, args.job_kind, kubectl.Kubectl(args.namespace, args.context)))
        return 0
    if delete(find_scheduler(args.scheduler), args.id, now=args.now):
        print(f"Asked job {args.id} to end; it collects its reports first")
    else:
        print(f"Deleted job {args.id}")
    return 0


def configure_collect(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Copy what this node's ranks have written to the run folder. Job scripts call it on every node at once: each\n"
        "file has one writer and appears whole. A folder that is not there is a node without captured ranks."
    )
    parser.add_argument("source", type=Path, metavar="FROM", help="a folder on this node's disk")
    parser.add_argument("run", type=Path, metavar="RUN", help="the run folder, which all nodes see")


def run_collect(args: argparse.Namespace) -> int:
    collect(args.source, args.run)
    return 0
