"""rankscope job pbs and slurm: print the script, write it, submit it."""

from __future__ import annotations

import argparse
import shlex
import sys
from pathlib import Path

from rankscope.cli import profile
from rankscope.cli.common import check_target, say, show
from rankscope.cli.end_tables import end_tables
from rankscope.cli.job.options import NO_TOOL, STATS_HELP, TOOL, add_job_options, check_without_tool, refuse
from rankscope.cli.options import hidden
from rankscope.cli.tool_options import tool_path
from rankscope.errors import UsageError
from rankscope.jobs.batch import SCHEDULERS, default_name, make_spec, submit_script, wait_for, write_script
from rankscope.jobs.scheduler import Scheduler, require
from rankscope.jobs.script import render
from rankscope.jobs.spec import RUN, Spec

DESCRIPTION = """\
Write a complete job script with the profiler in it. Reports are written on each
node's own disk. At the end they are copied to the run folder, also after a
failure or when the walltime is over. The tables are at the end of the job's
output. COMMAND is what one rank runs, without a launcher.
"""

_EPILOG = {
    "slurm": """\
examples:
  rankscope job slurm --nodes 2 --ppn 4 -- python train.py       print the script
  rankscope job slurm --nodes 2 --ppn 4 --venv .venv --ranks 0,4 --steps 10:12 \\
      -o runs/a --submit --wait -- python train.py
  rankscope job slurm --nodes 2 --ppn 4 --launcher torchrun -- python train.py
  rankscope job slurm --nodes 2 --tool nsys -t cuda,nvtx --submit -- python train.py
  rankscope job slurm --nodes 2 --tool none --submit -- python train.py      without a profiler
""",
    "pbs": """\
examples:
  rankscope job pbs --site polaris --account MyProject --nodes 2 -- python train.py
  rankscope job pbs --site polaris --account MyProject --nodes 2 --tool nsys \\
      --ranks local:0 --script job.sh -- python train.py
  rankscope job pbs --nodes 2 --ppn 4 --launcher openmpi --submit -- python train.py
""",
}
# Options of `profile` that do not apply to a job: hidden, and refused with a reason.
_NOT_IN_A_JOB = ("rank", "local_rank", "node_rank", "world_size")


def configure(scheduler: str, parser: argparse.ArgumentParser) -> None:
    parser.usage = f"rankscope job {scheduler} [options] [profile options] -- COMMAND..."
    parser.description = DESCRIPTION
    parser.epilog = _EPILOG[scheduler]
    add_job_options(parser, scheduler)
    profile.add_profile_options(
        parser,
        {
            **hidden(_NOT_IN_A_JOB),
            "tool": TOOL,
            "wait": None,  # the job's --wait takes its number too
            "stats": {"help": f"{STATS_HELP} (default: the summary)"},
            "dry_run": {"help": "print the script, submit nothing"},
            "output": {"help": "the run folder; %%q{VAR} is the job's (default: rankscope-NAME-JOBID)"},
        },
    )


def run(args: argparse.Namespace) -> int:
    scheduler = SCHEDULERS[args.kind]
    command = tuple(args.command)
    if not command:
        raise UsageError(
            "no COMMAND to run",
            why="The command of one rank comes after --.",
            hint=f"For example: rankscope job {args.kind} --nodes 2 -- python train.py",
        )
    refuse(args, _NOT_IN_A_JOB, "a job", "The launcher in the script numbers the ranks.")
    if args.per_node and args.launcher != "torchrun":
        raise UsageError(
            "--per-node is for torchrun",
            why="It makes one report around the process that starts the ranks of a node; here there is none.",
            hint="Add --launcher torchrun, or choose ranks: --ranks local:0",
        )
    profiled = args.tool != NO_TOOL
    # Finds mistakes in the profile's options now, not after queueing.
    profile.plan_of(args, command) if profiled else check_without_tool(args)
    # --quiet: a rank would name the node's disk as the place of its trace; the script prints the run folder.
    quiet = [] if args.quiet or args.verbose else ["--quiet"]
    # The commands at the end of the script, when all nodes have copied their files.
    with_tables = profiled and args.stats != "false"
    tables = end_tables(args.stats or "true", tool_path(args)) if with_tables else []
    spec = make_spec(
        scheduler,
        vars(args),
        [{"words": command, "profiled": profiled}],
        name=args.name or default_name(command),
        profile_words=(*profile.option_words(args), *quiet),
        run=args.output,
        force=args.force,
        summaries=tuple(("rankscope", "stats", RUN, *words) for words in tables),
    )
    return deliver(spec, scheduler, args)


def deliver(spec: Spec, scheduler: Scheduler, args: argparse.Namespace) -> int:
    """To stdout, to a file, to the scheduler."""
    script = render(spec, scheduler.dialect(spec))
    written = Path(args.script) if args.script and not args.dry_run else None
    if args.follow and not args.submit:
        raise UsageError("--wait needs --submit", why="There is no job to wait for.", hint="Add --submit.")
    if args.submit and not args.dry_run:
        require(scheduler)
    if written is not None:
        check_target(written, args.force)
        write_script(written, script)
        say(f"Wrote {written}")
        if spec.uses_rankscope and not args.quiet:
            say(f"Its reports: {spec.run_folder('JOBID')}, seen from the folder that it is submitted from")
        if not args.submit:
            say(f"Next: {scheduler.submit[0]} {shlex.quote(args.script)}")
    if args.dry_run or not (args.script or args.submit):
        show(script)
    if args.dry_run or not args.submit:
        return 0
    job = submit_script(scheduler, spec, script, written)
    print(job, flush=True)
    if not args.follow:
        return 0

    def show_state(word: str) -> None:
        if not args.quiet:
            print(f"rankscope: job {job}: {word}", file=sys.stderr, flush=True)

    try:
        return wait_for(scheduler, spec, job, show_state)
    except KeyboardInterrupt:
        print(f"rankscope: job {job} continues; to end it: rankscope job delete {job}", file=sys.stderr)
        return 130
