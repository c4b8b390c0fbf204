"""rankscope bench sweep --job: the grid as one job of a cluster, its results in one table."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from rankscope.cli.job.batch import deliver
from rankscope.cli.job.options import add_job_options
from rankscope.errors import ReadError, UsageError
from rankscope.jobs.batch import SCHEDULERS, make_spec
from rankscope.jobs.spec import parse_count

_POINT = "point-{:03d}.json"


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--job", choices=list(SCHEDULERS), help="one job that runs the whole grid")
    parser.add_argument("-o", "--output", metavar="DIR", help="with --job: where the results are left")
    nodes = {"help": "with --job: numbers of nodes (default: 1)", "metavar": "N,…"}
    add_job_options(parser, "slurm", {"nodes": nodes})
    parser.set_defaults(dry_run=False, quiet=False)


def ranks_of_nodes(args: argparse.Namespace) -> dict[int, int]:
    """How many nodes each number of ranks needs."""
    if args.nproc is not None:
        raise UsageError(
            "--nproc is for this machine",
            why="In a job the ranks are those of the nodes.",
            hint="Give --nodes 1,2 --ppn 4.",
        )
    nodes = [parse_count("--nodes", text) for text in (args.nodes or "1").split(",")]
    # The site may say how many ranks a node has, so it is asked first.
    args.nodes = str(max(nodes))
    ppn = make_spec(SCHEDULERS[args.job], vars(args), [], name="sweep").ppn
    return {one * ppn: one for one in dict.fromkeys(nodes)}


def run(points: list[tuple[list[str], int]], args: argparse.Namespace) -> int:
    """One start of the launcher for each point, in one job: nobody waits in the queue more than once."""
    steps = [
        {"words": ("rankscope", *words), "nodes": nodes, "profiled": False, "output": _POINT.format(number)}
        for number, (words, nodes) in enumerate(points, 1)
    ]
    scheduler = SCHEDULERS[args.job]
    spec = make_spec(
        scheduler,
        vars(args),
        steps,
        name=args.name or "sweep",
        run=args.output,
        force=args.force,
        summary=("rankscope", "bench", "sweep", "--format", args.format, "--read"),
    )
    return deliver(spec, scheduler, args)


def read_reports(folder: Path) -> list[dict[str, Any]]:
    """What seqpar wrote for each point; one that failed is missing, not guessed."""
    found = []
    for path in sorted(folder.glob("point-*.json")):
        try:
            report = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            continue  # its launcher failed, and the job's error file says how
        if isinstance(report, dict) and {"config", "parts"} <= set(report):
            found.append(report)
    if not found:
        raise ReadError(
            f"no results in {folder}",
            why="There is no point-NNN.json that seqpar has finished.",
            hint="Look at the job's error file, or run: rankscope bench sweep --job ... -o DIR",
        )
    return found
