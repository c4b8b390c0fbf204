"""The options that every batch job has. None has a default here: what is not given comes from the site."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Mapping
from typing import Any

from rankscope.cli import profile
from rankscope.cli.options import Group, add_groups, group
from rankscope.errors import UsageError
from rankscope.jobs.launchers import LAUNCHERS
from rankscope.text.option_table import Settings


class Wait(argparse.Action):
    """--wait alone waits for the job; --wait N is torch.profiler.schedule's option. A job may have both."""

    def __call__(
        self, parser: object, namespace: argparse.Namespace, values: Any, option: Any = None
    ) -> None:
        if values is None:
            namespace.follow = True
        else:
            namespace.wait = values


STATS_HELP = (
    "the tables at the end of the job's output: names of `rankscope stats -r`, nsys:REPORT for nsys's own, "
    "false for none"
)


NO_TOOL = "none"
TOOL: Settings = {
    "choices": ["torch", "nsys", "ncu", NO_TOOL],
    "help": "the profiler (default: torch); none: the same job without one, to compare with",
}
_JOB = """\
--site NAME  the settings that all jobs of a machine share: polaris, or your own file
--nodes N  how many nodes (default: 1)
--ppn N  ranks on each node (default: 1)
--walltime TIME  time limit: 0:30:00, 30m, 2h (default: 30 minutes)
{queue} NAME  the queue or partition
--account NAME  the account that is charged
--filesystems A:B  file systems the job needs (in Slurm: licences)
--name NAME  the job's name (default: the script's)
--stdout PATH  the output file; %%j is the job's id (default: {outputs})
--stderr PATH  the error file; the same as --stdout joins both
--directive TEXT ...  a further directive, such as --directive={example}; may be repeated
"""
_SLURM_NODES = """\
--gres LIST  generic resources of each node, such as gpu:a100:4
--gpus-per-node N  GPUs of each node: 4, a100:4
--constraint WORDS  which nodes
"""
_PBS_NODES = "--select WORDS  which nodes\n"
_AROUND = """\
--launcher LAUNCHERS  what starts the ranks (default: the site's; torchrun is itself started once a node)
--modules A,B ...  module load each; may be repeated
--conda ENV  conda activate ENV (empty: not the site's)
--venv DIR  a Python environment with rankscope in it; after --conda, if both are given
--tmpdir DIR  a local disk of each node, for the profiler (default: /tmp)
--env K=V ...  a variable of every rank; may be repeated
--cpu-bind WORDS  how ranks are bound to cores, as the launcher's option takes it
"""
_SUBMITTING = """\
--script FILE  write the script there
--submit  submit it and print the job's id
--wait N  with --submit: wait for the job, exit with its code (with a number: idle steps of a cycle)
"""
_ABOUT_THE_JOB = ("--quiet", "--verbose")


def refuse(args: argparse.Namespace, names: Iterable[str], what: str, why: str) -> None:
    """Options that are hidden, as they do not apply."""
    for name in names:
        if getattr(args, name):
            raise UsageError(f"--{name.replace('_', '-')} is not for {what}", why=why, hint="Leave it out.")


def check_without_tool(args: argparse.Namespace) -> None:
    """--tool none: refuse options of the profiler, which would have no effect."""
    words = [word for word in profile.option_words(args) if word.startswith("-")]
    words += ["--stats"] if args.stats not in (None, "false") else []
    unused = [word.partition("=")[0] for word in words if word not in ("--tool", *_ABOUT_THE_JOB)]
    if unused:
        raise UsageError(
            f"{unused[0]} is an option of a profiler, and --tool {NO_TOOL} runs without one",
            why="The job would run as if it had not been given.",
            hint=f"Leave it out, or choose a profiler: --tool {' or '.join(TOOL['choices'][:-1])}",
        )


def add_job_options(
    parser: argparse.ArgumentParser, scheduler: str, changes: Mapping[str, Settings | None] | None = None
) -> None:
    add_groups(parser, _groups(scheduler), changes)
    parser.set_defaults(follow=False)


def _groups(scheduler: str) -> tuple[Group, ...]:
    slurm = scheduler == "slurm"
    queue = "--partition, --queue" if slurm else "--queue, --partition"
    outputs = "NAME-%%j.out and NAME-%%j.err" if slurm else "NAME.oID and NAME.eID"
    launchers = [name for name in (*LAUNCHERS, "torchrun") if slurm or name != "srun"]
    job = _JOB.format(queue=queue, outputs=outputs, example="--exclusive" if slurm else "'-W block=true'")
    around = _AROUND.replace("LAUNCHERS", "{" + ",".join(launchers) + "}")
    waits = {"action": Wait, "nargs": "?", "type": int}
    of_queue = {"dest": "queue"}
    nodes = _SLURM_NODES if slurm else _PBS_NODES
    return (
        group("the job", job + nodes, queue=of_queue, partition=of_queue),
        group("around the command", around),
        group("submitting (default: the script goes to stdout)", _SUBMITTING, wait=waits),
    )
