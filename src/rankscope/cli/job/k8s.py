"""rankscope job k8s and fetch: the profile as a job in a Kubernetes cluster, and copying its reports."""

from __future__ import annotations

import argparse
import shlex
from pathlib import Path

from rankscope.capture.rank import Identity
from rankscope.capture.selector import parse_selector
from rankscope.cli import profile
from rankscope.cli.common import check_target, say, show
from rankscope.cli.end_tables import end_tables
from rankscope.cli.job.options import NO_TOOL, STATS_HELP, TOOL, check_without_tool, refuse
from rankscope.cli.options import add_options, add_tables, hidden, made_of
from rankscope.errors import StoreError, UsageError
from rankscope.files import open_private
from rankscope.jobs import k8s, kubectl
from rankscope.jobs.spec import parse_variables
from rankscope.text.run_words import shell_word

DESCRIPTION = """\
Write a Kubernetes manifest with the profiler in it: a Kubeflow MPIJob, a
PyTorchJob, or a plain indexed Job. COMMAND is what one rank runs, without a
launcher. Reports go to a volume that outlives the pods, one file a rank, or one
a node with --per-node.
"""
EPILOG = """\
examples:
  rankscope job k8s --image IMAGE --nodes 2 --ppn 8 -- python train.py          print it
  rankscope job k8s --image IMAGE --nodes 2 --ppn 8 --pvc reports --name a --submit \\
      --steps 10:12 -- python train.py
  rankscope job fetch a -o runs/a                                then: rankscope stats runs/a
  rankscope job k8s --image IMAGE --ppn 8 --efa 4 --memory 512Gi -- python train.py
  rankscope job k8s --image IMAGE --nodes 2 --ppn 8 --pvc reports --tool nsys \\
      --launcher torchrun --per-node --stats=nsys:cuda_gpu_kern_sum --submit -- python train.py
      one nsys report a node, and its table in `kubectl logs`
  rankscope job k8s --image IMAGE --kind pytorchjob --nodes 2 --install-operator --submit -- python train.py
  rankscope job k8s --image IMAGE --kind job --tool ncu --ranks 0 -- python train.py

`rankscope job container --mpi` writes what builds an image for it.
"""
FETCH_EPILOG = """\
examples:
  rankscope job fetch a -o runs/a       the reports of job a, from its volume or from every node's disk
  rankscope job fetch a --kind job --namespace team
"""
# Options of `profile` that do not apply in a cluster: hidden, and refused with a reason.
_NOT_IN_A_JOB = ("output", "dry_run", "rank", "local_rank", "node_rank", "world_size", "run_as")
_SUBMITTING = {
    "submitting (default: the manifest goes to stdout)": """\
--script FILE  write the manifest there
--submit  create the job through kubectl
--install-operator  with --submit: install the kind's operator first, if the cluster lacks it
"""
}
_KIND = {"dest": "job_kind", "default": "mpijob"}


def configure(parser: argparse.ArgumentParser) -> None:
    parser.usage = "rankscope job k8s --image IMAGE [options] [profile options] -- COMMAND..."
    parser.description = DESCRIPTION
    parser.epilog = EPILOG
    tables = {**k8s.K8sJob.OPTIONS, **_SUBMITTING}
    add_tables(parser, tables, k8s.K8sJob, kind=_KIND, gpus=int, script=Path)
    stats = {"help": f"{STATS_HELP}; in `kubectl logs` (default: the summary, where rank 0 is recorded)"}
    profile.add_profile_options(parser, {**hidden(_NOT_IN_A_JOB), "tool": TOOL, "stats": stats})


def add_job_name_options(parser: argparse.ArgumentParser) -> None:
    """What finds a job in a cluster, beside its name."""
    add_options(parser, k8s.KIND_OPTION + k8s.CLUSTER_OPTIONS, k8s.K8sJob, kind=_KIND)


def run(args: argparse.Namespace) -> int:
    job = _job(args)
    text = k8s.manifest(job)
    if args.install_operator:
        text = _operator_note(job) + text
    if args.script:
        check_target(args.script, args.force)
    cluster = kubectl.Kubectl(args.namespace, args.context) if args.submit else None
    if args.script:
        _write(args.script, text)
    if cluster is not None:
        print(kubectl.submit(job, text, cluster, install=args.install_operator, log=say))
    elif args.script:
        say(f"Next: kubectl apply -f {shlex.quote(str(args.script))}")
    else:
        show(text)
        return 0
    if not args.quiet and job.profiled:
        where = f" --namespace {job.namespace}" if job.namespace else ""
        say(f"Its output: kubectl{where} logs -f -l {k8s.JOB_LABEL}={job.name} --all-containers")
        say(f"Its reports: rankscope job fetch {job.name} --kind {job.job_kind}{where}")
    return 0


def _operator_note(job: k8s.K8sJob) -> str:
    """A comment at the top of the manifest: what --submit applies first, for whoever applies it by hand."""
    operator = k8s.KINDS[job.job_kind].operator
    if operator is None:
        raise UsageError(
            "--install-operator is not for a plain Job",
            why="Kubernetes itself runs it.",
            hint="Leave it out.",
        )
    return f"# First, unless the cluster has it: {operator.title}\n# kubectl {' '.join(operator.apply)}\n"


def _stats_words(stats: str | None, ranks: str, world_size: int) -> list[str]:
    """--stats for the profiler: rank 0 prints the tables, so that they are in the log of the job."""
    recorded = parse_selector(ranks).selects(Identity(0, 0, world_size, None, 0, "job"))
    if stats is None:
        return ["--stats=true"] if recorded else []
    if stats == "false":
        return []
    end_tables(stats)  # finds wrong names now
    if not recorded:
        raise UsageError(
            f"--stats needs rank 0, and --ranks {ranks} leaves it out",
            why="The process of rank 0 prints the tables.",
            hint="Add rank 0, or leave --stats out and use: rankscope job fetch, rankscope stats",
        )
    return [f"--stats={stats}"]


def _job(args: argparse.Namespace) -> k8s.K8sJob:
    command = tuple(args.command)
    why = "The reports go to the volume, under the job's name, and the launcher numbers the ranks."
    refuse(args, _NOT_IN_A_JOB, "a job in a cluster", why)
    options: list[str] = []
    if args.tool == NO_TOOL:
        check_without_tool(args)
    else:
        plan = profile.plan_of(args, command)
        options = [
            *profile.option_words(args),
            *_stats_words(args.stats, plan.ranks, args.nodes * args.ppn),
            *(["-f"] if args.force else []),
        ]
    return made_of(
        k8s.K8sJob,
        args,
        name=args.name if args.name is not None else k8s.default_name(command),
        command=command,
        profile=tuple(options),
        profiled=args.tool != NO_TOOL,
        counters=args.tool == "ncu" or args.gpu_metrics_device is not None,
        env=parse_variables(args.env),
    )


def _write(path: Path, text: str) -> None:
    try:
        with open_private(path, "w", encoding="utf-8") as file:
            file.write(text)  # for its owner: what --env NAME=SECRET gives must be in it
    except OSError as error:
        raise StoreError(
            f"cannot write {path}", why=f"{error.strerror}.", hint="Name another: --script FILE"
        ) from error
    say(f"Wrote {path}")


def configure_fetch(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Copy the reports of a job that `rankscope job k8s` made, also when its pods have ended. A small pod\n"
        "mounts the volume, and is then removed. Where reports are on the nodes' disks, each node gets one."
    )
    parser.epilog = FETCH_EPILOG
    parser.add_argument("id", metavar="NAME", help="the job's name")
    add_options(parser, "-o, --output DIR  to here (default: NAME)", output=Path)
    add_options(parser, "-f, --force  also into a folder with files in it")
    add_job_name_options(parser)


def run_fetch(args: argparse.Namespace) -> int:
    target = args.output or Path(args.id)
    check_target(target, args.force)
    cluster = kubectl.Kubectl(args.namespace, args.context)
    files = kubectl.fetch(args.id, args.job_kind, target, cluster, args.namespace, say)
    print(f"Copied {len(files)} file{'s' * (len(files) != 1)} to {target}")
    print(f"Next: rankscope stats {shell_word(target)}")
    return 0
