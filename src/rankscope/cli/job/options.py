"""The options that every batch job has. None has a default here: what is not given comes from the site."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Any

from rankscope.cli import profile
from rankscope.cli.options import Group, Option, Settings, add_groups, option
from rankscope.errors import UsageError
from rankscope.jobs.launchers import LAUNCHERS


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
_ABOUT_THE_JOB = ("--quiet", "--verbose")


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
    queue_names = ("--queue", "--partition") if scheduler == "pbs" else ("--partition", "--queue")
    launchers = [name for name in (*LAUNCHERS, "torchrun") if (scheduler, name) != ("pbs", "srun")]
    outputs, example = "default: NAME.oID and NAME.eID", "'-W block=true'"
    gpus: tuple[Option, ...] = ()
    if scheduler == "slurm":
        outputs, example = "default: NAME-%%j.out and NAME-%%j.err", "--exclusive"
        gpus = (
            option("--gres", metavar="LIST", help="generic resources of each node, such as gpu:a100:4"),
            option("--gpus-per-node", metavar="N", help="GPUs of each node: 4, a100:4"),
        )
    return (
        Group(
            "the job",
            (
                option(
                    "--site",
                    metavar="NAME",
                    help="the settings that all jobs of a machine share: polaris, or your own file",
                ),
                option("--nodes", metavar="N", help="how many nodes (default: 1)"),
                option("--ppn", metavar="N", help="ranks on each node (default: 1)"),
                option(
                    "--walltime", metavar="TIME", help="time limit: 0:30:00, 30m, 2h (default: 30 minutes)"
                ),
                option(*queue_names, dest="queue", metavar="NAME", help="the queue or partition"),
                option("--account", metavar="NAME", help="the account that is charged"),
                option(
                    "--filesystems", metavar="A:B", help="file systems the job needs (in Slurm: licences)"
                ),
                option("--name", metavar="NAME", help="the job's name (default: the script's)"),
                option("--stdout", metavar="PATH", help=f"the output file; %%j is the job's id ({outputs})"),
                option("--stderr", metavar="PATH", help="the error file; the same as --stdout joins both"),
                option(
                    "--directive",
                    metavar="TEXT",
                    action="append",
                    help=f"a further directive, such as --directive={example}; may be repeated",
                ),
                *gpus,
                option(
                    "--constraint" if scheduler == "slurm" else "--select",
                    metavar="WORDS",
                    help="which nodes",
                ),
            ),
        ),
        Group(
            "around the command",
            (
                option(
                    "--launcher",
                    choices=launchers,
                    help="what starts the ranks (default: the site's; torchrun is itself started once a node)",
                ),
                option("--modules", metavar="A,B", action="append", help="module load each; may be repeated"),
                option("--conda", metavar="ENV", help="conda activate ENV (empty: not the site's)"),
                option(
                    "--venv",
                    metavar="DIR",
                    help="a Python environment with rankscope in it; after --conda, if both are given",
                ),
                option(
                    "--tmpdir",
                    metavar="DIR",
                    help="a local disk of each node, for the profiler (default: /tmp)",
                ),
                option(
                    "--env",
                    metavar="K=V",
                    action="append",
                    default=[],
                    help="a variable of every rank; may be repeated",
                ),
                option(
                    "--cpu-bind",
                    metavar="WORDS",
                    help="how ranks are bound to cores, as the launcher's option takes it",
                ),
            ),
        ),
        Group(
            "submitting (default: the script goes to stdout)",
            (
                option("--script", metavar="FILE", help="write the script there"),
                option("--submit", action="store_true", help="submit it and print the job's id"),
                option(
                    "--wait",
                    action=Wait,
                    nargs="?",
                    type=int,
                    metavar="N",
                    help="with --submit: wait for the job, exit with its code (with a number: idle steps of a cycle)",
                ),
            ),
        ),
    )
