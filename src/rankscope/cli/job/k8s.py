"""rankscope job k8s and fetch: the profile as a job of a Kubernetes cluster, and its reports brought back."""

from __future__ import annotations

import argparse
import re
import sys
import time
from collections.abc import Callable
from pathlib import Path

from rankscope.capture.job_name import script_name
from rankscope.cli import profile
from rankscope.cli.common import check_target
from rankscope.cli.job.options import count, variables
from rankscope.errors import StoreError, UsageError
from rankscope.jobs import k8s, kubectl

DESCRIPTION = """\
Write a Kubernetes manifest with the profiler in it: a Kubeflow MPIJob, a
PyTorchJob, or a plain indexed Job. COMMAND is what one rank runs, without a
launcher. Reports go to a volume that outlives the pods, one file a rank.
"""
EPILOG = """\
examples:
  rankscope job k8s --image IMAGE --nodes 2 --ppn 8 -- python train.py          look at it
  rankscope job k8s --image IMAGE --nodes 2 --ppn 8 --pvc reports --name a --submit \\
      --steps 10:12 -- python train.py
  rankscope job fetch a -o runs/a                                then: rankscope stats runs/a
  rankscope job k8s --image IMAGE --ppn 8 --efa 4 --memory 512Gi -- python train.py
  rankscope job k8s --image IMAGE --kind job --tool ncu --ranks 0 -- python train.py

`rankscope job container --mpi` writes what builds an image for it.
"""
FETCH_EPILOG = """\
examples:
  rankscope job fetch a -o runs/a       the reports of job a, from its volume or from every node's disk
  rankscope job fetch a --kind job --namespace team
"""
# What `profile` can do and a job in a cluster has no use for, or has other words for.
_NOT_IN_A_JOB = ("output", "stats", "dry_run", "rank", "local_rank", "node_rank", "world_size", "run_as")


def configure(parser: argparse.ArgumentParser) -> None:
    profile.configure(parser, takes_command=False)
    of_profile = parser._action_groups[2:]
    for action in parser._actions:
        if action.dest in _NOT_IN_A_JOB:
            action.help = argparse.SUPPRESS
    _add_job_options(parser)
    ours = [group for group in parser._action_groups[2:] if group not in of_profile]
    parser._action_groups[2:] = [*ours, *of_profile]
    parser.usage = "rankscope job k8s --image IMAGE [options] [profile options] -- COMMAND..."
    parser.description = DESCRIPTION
    parser.epilog = EPILOG


def _add_job_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("the job").add_argument
    add("--image", default="", metavar="NAME", help="has rankscope and the training code in it")
    add_kind(add)
    add("--nodes", default=1, metavar="N", help="workers, one a node (default: 1)")
    add("--ppn", default=1, metavar="N", help="ranks on each, and its GPUs (default: 1)")
    add("--name", metavar="NAME", help="the job's name (default: the script's, and the time)")
    add_cluster(add)
    add("--env", metavar="K=V", action="append", default=[], help="a variable of every rank; may be repeated")
    add = parser.add_argument_group("what a worker gets").add_argument
    add("--gpus", metavar="N", help="GPUs, when not one a rank; 0 for none")
    add("--cpu", default="", metavar="N", help="cores")
    add("--memory", default="", metavar="SIZE", help="such as 256Gi")
    add("--shm", default=k8s.K8sJob.shm, metavar="SIZE", help=f"/dev/shm (default: {k8s.K8sJob.shm})")
    add("--efa", default=0, metavar="N", help="AWS's network cards; needs --memory")
    add("--hugepages", default="", metavar="SIZE", help="2 MiB pages (default: 5120Mi with --efa)")
    add("--pvc", default="", metavar="NAME", help="the claim that takes the reports; all nodes write to it")
    add(
        "--host-path",
        default=k8s.HOST_REPORTS,
        metavar="DIR",
        help=f"without --pvc: a folder of each node (default: {k8s.HOST_REPORTS})",
    )
    add = parser.add_argument_group("submitting (default: the manifest goes to stdout)").add_argument
    add("--script", type=Path, metavar="FILE", help="write the manifest there")
    add("--submit", action="store_true", help="create the job through kubectl")


def add_kind(add: Callable[..., object]) -> None:
    add("--kind", dest="job_kind", choices=list(k8s.KINDS), default="mpijob", help="(default: mpijob)")


def add_cluster(add: Callable[..., object]) -> None:
    add("--namespace", default="", metavar="NAME", help="(default: kubectl's)")
    add("--context", default="", metavar="NAME", help="which cluster (default: kubectl's)")


def run(args: argparse.Namespace) -> int:
    job = _job(args)
    text = k8s.manifest(job)
    if args.script:
        check_target(args.script, args.force)
    cluster = kubectl.Kubectl(args.namespace, args.context) if args.submit else None
    if args.script:
        _write(args.script, text)
    if cluster is None:
        if not args.script:
            print(text, end="")
        return 0
    print(kubectl.submit(job, text, cluster))
    if not args.quiet:
        where = f" --namespace {job.namespace}" if job.namespace else ""
        print(
            f"Its output: kubectl{where} logs -f -l {k8s.JOB_LABEL}={job.name} --all-containers\n"
            f"Its reports: rankscope job fetch {job.name} --kind {job.kind}{where}",
            file=sys.stderr,
        )
    return 0


def _job(args: argparse.Namespace) -> k8s.K8sJob:
    command = tuple(args.command)
    for name in _NOT_IN_A_JOB:
        if getattr(args, name):
            raise UsageError(
                f"--{name.replace('_', '-')} is not for a job in a cluster",
                why="The reports go to the volume, under the job's name; the launcher says which rank is which.",
                hint="Leave it out.",
            )
    if command:
        profile.plan_of(args, command)
    return k8s.K8sJob(
        name=args.name if args.name is not None else default_name(command),
        image=args.image,
        command=command,
        kind=args.job_kind,
        nodes=count("--nodes", args.nodes),
        ppn=count("--ppn", args.ppn),
        profile=(*profile.option_words(args), *(["-f"] if args.force else [])),
        gpus=None if args.gpus is None else _whole("--gpus", args.gpus),
        efa=_whole("--efa", args.efa),
        hugepages=args.hugepages,
        cpu=args.cpu,
        memory=args.memory,
        shm=args.shm,
        pvc=args.pvc,
        host_path=args.host_path,
        namespace=args.namespace,
        counters=args.tool == "ncu" or args.gpu_metrics_device is not None,
        env=variables(args.env),
    )


def default_name(command: tuple[str, ...]) -> str:
    """The script's name and the time: two jobs of one script do not write to one folder."""
    stem = re.sub(r"[^a-z0-9]+", "-", script_name(command).lower()).strip("-") if command else ""
    stem = stem if stem[:1].isalpha() else f"job-{stem}".rstrip("-")
    return f"{stem[:30].rstrip('-')}-{time.strftime('%m%d-%H%M%S')}"


def _whole(option: str, value: object) -> int:
    text = str(value)
    if not text.isascii() or not text.isdecimal():
        raise UsageError(
            f"{option} {text} is not a number", why="It counts devices.", hint=f"For example: {option} 4"
        )
    return int(text)


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise StoreError(
            f"cannot write {path}", why=f"{error.strerror}.", hint="Name another: --script FILE"
        ) from error
    print(f"Wrote {path}", file=sys.stderr)


def configure_fetch(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Copy the reports of a job that `rankscope job k8s` made, also when its pods have ended: a small pod\n"
        "mounts the volume (one on every node, where the reports are on the nodes' disks) and goes again."
    )
    parser.epilog = FETCH_EPILOG
    parser.add_argument("id", metavar="NAME", help="the job's name")
    parser.add_argument("-o", "--output", type=Path, metavar="DIR", help="to here (default: NAME)")
    parser.add_argument("-f", "--force", action="store_true", help="also into a folder with files in it")
    add_kind(parser.add_argument)
    add_cluster(parser.add_argument)


def run_fetch(args: argparse.Namespace) -> int:
    if args.command:
        raise UsageError("this takes the name of a job, and no COMMAND", hint="Leave out what follows --.")
    target = args.output or Path(args.id)
    check_target(target, args.force)
    cluster = kubectl.Kubectl(args.namespace, args.context)
    files = kubectl.fetch(
        args.id, args.job_kind, target, cluster, args.namespace, lambda text: print(text, file=sys.stderr)
    )
    print(f"Copied {len(files)} file{'s' * (len(files) != 1)} to {target}")
    print(f"Next: rankscope stats {target}")
    return 0
