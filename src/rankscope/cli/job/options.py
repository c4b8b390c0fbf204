"""The options every batch job has, and how they, a site and the defaults become one Spec."""

from __future__ import annotations

import argparse
from typing import Any

from rankscope.errors import UsageError
from rankscope.jobs.launchers import LAUNCHERS
from rankscope.jobs.sites import load_site
from rankscope.jobs.spec import Spec, Step, parse_walltime
from rankscope.jobs.submit import Scheduler

_DEFAULTS: dict[str, Any] = {"nodes": 1, "ppn": 1, "walltime": "0:30:00", "tmpdir": "/tmp"}
_TEXTS = (
    "queue",
    "account",
    "filesystems",
    "select",
    "place",
    "keep",
    "constraint",
    "conda",
    "venv",
    "tmpdir",
    "cpu_bind",
)


def add_job_options(parser: argparse.ArgumentParser, scheduler: str) -> None:
    """Not one of them has a default: what is not given comes from the site."""
    group = parser.add_argument_group("the job")
    add = group.add_argument
    add(
        "--site", metavar="NAME", help="what is the same in every job of a machine: polaris, or your own file"
    )
    add("--nodes", metavar="N", help="how many nodes (default: 1)")
    add("--ppn", metavar="N", help="ranks on each node (default: 1)")
    add("--walltime", metavar="TIME", help="at most so long: 0:30:00, 30m, 2h (default: 30 minutes)")
    names = ("--queue", "--partition") if scheduler == "pbs" else ("--partition", "--queue")
    add(*names, dest="queue", metavar="NAME", help="the queue or partition")
    add("--account", metavar="NAME", help="whose hours")
    add("--filesystems", metavar="A:B", help="file systems the job needs (in Slurm: licences)")
    add("--name", metavar="NAME", help="the job's name (default: the script's)")
    add("--constraint" if scheduler == "slurm" else "--select", metavar="WORDS", help="which nodes")
    group = parser.add_argument_group("around the command")
    add = group.add_argument
    add(
        "--launcher",
        choices=[name for name in (*LAUNCHERS, "torchrun") if (scheduler, name) != ("pbs", "srun")],
        help="what starts the ranks (default: the site's; torchrun is itself started once a node)",
    )
    add("--modules", metavar="A,B", action="append", help="module load each; may be repeated")
    add("--conda", metavar="ENV", help="conda activate ENV")
    add("--venv", metavar="DIR", help="a Python environment with rankscope in it")
    add("--tmpdir", metavar="DIR", help="a disk of each node's own, for the profiler (default: /tmp)")
    add("--env", metavar="K=V", action="append", default=[], help="a variable of every rank; may be repeated")
    add("--cpu-bind", metavar="WORDS", help="how ranks are bound to cores, in the launcher's words")
    group = parser.add_argument_group("submitting (default: the script goes to stdout)")
    add = group.add_argument
    add("--script", metavar="FILE", help="write the script there")
    add("--submit", action="store_true", help="submit it and print the job's id")
    add(
        "--wait",
        action=Wait,
        nargs="?",
        type=int,
        metavar="N",
        help="with --submit: follow the job, exit with its code (with a number: idle steps of a cycle)",
    )
    parser.set_defaults(follow=False)


class Wait(argparse.Action):
    """--wait is a job's word and, with a number, torch.profiler.schedule's; a job may want both."""

    def __call__(
        self, parser: object, namespace: argparse.Namespace, values: Any, option: Any = None
    ) -> None:
        if values is None:
            namespace.follow = True
        else:
            namespace.wait = values


def spec_of(args: argparse.Namespace, scheduler: Scheduler, steps: list[dict[str, Any]], **more: Any) -> Spec:
    """``steps`` as keywords of Step; one that does not say its nodes and ranks gets the job's."""
    site = load_site(args.site) if args.site else {"env": {}}
    if site.get("scheduler", scheduler.name) != scheduler.name:
        raise UsageError(
            f"--site {args.site} is a machine with {site['scheduler']}",
            why=f"The script asked for is one for {scheduler.title}.",
            hint=f"Write: rankscope job {site['scheduler']} --site {args.site} ...",
        )

    def chosen(name: str) -> Any:
        given = getattr(args, name, None)
        return given if given is not None else site.get(name, _DEFAULTS.get(name))

    nodes, ppn = count("--nodes", chosen("nodes")), count("--ppn", chosen("ppn"))
    launcher, outer = _launchers(args.launcher, site, scheduler)
    given = [name for text in args.modules or [] for name in text.split(",") if name.strip()]
    spec = Spec(
        nodes=nodes,
        ppn=ppn,
        walltime_s=parse_walltime(chosen("walltime")),
        launcher=launcher,
        launcher_outer=outer,
        modules=tuple(given or site.get("modules", ())),
        env={**site["env"], **variables(args.env)},
        login=site.get("login", False),
        steps=tuple(Step(**{"nodes": nodes, "ppn": ppn, **step}) for step in steps),
        **{name: chosen(name) for name in _TEXTS if not (name == "conda" and args.venv)},
        **more,
    )
    spec.check()
    return spec


def _launchers(given: str | None, site: dict[str, Any], scheduler: Scheduler) -> tuple[str, str]:
    """What starts the ranks, and what starts one process on every node."""
    outer = site.get("launcher", scheduler.launcher)
    launcher = given or outer
    if launcher != "torchrun" and launcher not in LAUNCHERS:
        raise UsageError(
            f"the site's launcher '{launcher}' is not known",
            why=f"There are: {', '.join(LAUNCHERS)}, torchrun.",
            hint="Mend the site's file.",
        )
    if launcher != "torchrun":
        return launcher, launcher
    return launcher, scheduler.launcher if outer == "torchrun" else outer


def count(option: str, value: object) -> int:
    text = str(value)
    if not text.isascii() or not text.isdecimal() or int(text) == 0:
        raise UsageError(
            f"{option} {text} is not a number of anything",
            why="A job has at least one node and one rank on it.",
            hint=f"For example: {option} 2",
        )
    return int(text)


def variables(pairs: list[str]) -> dict[str, str]:
    found = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals:
            raise UsageError(
                f"--env {pair} says no value",
                why="The job has no other place for it.",
                hint="--env NAME=VALUE",
            )
        found[name] = value
    return found
