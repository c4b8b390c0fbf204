"""rankscope job pbs and slurm: the script, and what is done with it."""

from __future__ import annotations

import argparse
import re
import sys
import tempfile
from pathlib import Path

from rankscope.cli import profile
from rankscope.cli.common import check_target
from rankscope.cli.job.manage import SCHEDULERS
from rankscope.cli.job.options import add_job_options, spec_of
from rankscope.errors import RankscopeError, UsageError
from rankscope.jobs import submit as jobs
from rankscope.jobs.script import EXIT_CODE, render
from rankscope.jobs.spec import Spec
from rankscope.jobs.submit import Scheduler

DESCRIPTION = """\
Write a complete job script with the profiler in it. Reports are written on each
node's own disk and collected in the run folder at the end, also after a failure
and when the walltime is over; the tables stand at the end of the job's output.
COMMAND is what one rank runs, without a launcher.
"""

_EPILOG = {
    "slurm": """\
examples:
  rankscope job slurm --nodes 2 --ppn 4 -- python train.py       look at it
  rankscope job slurm --nodes 2 --ppn 4 --venv .venv --ranks 0,4 --steps 10:12 \\
      -o runs/a --submit --wait -- python train.py
  rankscope job slurm --nodes 2 --ppn 4 --launcher torchrun -- python train.py
  rankscope job slurm --nodes 2 --tool nsys -t cuda,nvtx --submit -- python train.py
""",
    "pbs": """\
examples:
  rankscope job pbs --site polaris --account MyProject --nodes 2 -- python train.py
  rankscope job pbs --site polaris --account MyProject --nodes 2 --tool nsys \\
      --ranks local:0 --script job.sh -- python train.py
  rankscope job pbs --nodes 2 --ppn 4 --launcher openmpi --submit -- python train.py
""",
}
# What `profile` can do and a job has no use for.
_NOT_IN_A_JOB = ("stats", "rank", "local_rank", "node_rank", "world_size")


def configure_pbs(parser: argparse.ArgumentParser) -> None:
    _configure(parser, "pbs")


def configure_slurm(parser: argparse.ArgumentParser) -> None:
    _configure(parser, "slurm")


def _configure(parser: argparse.ArgumentParser, scheduler: str) -> None:
    parser.conflict_handler = "resolve"  # --wait, which takes the profile's meaning in (job_options.Wait)
    profile.configure(parser, takes_command=False)
    of_profile = parser._action_groups[2:]
    add_job_options(parser, scheduler)
    parser._action_groups[2:] = [group for group in parser._action_groups[2:] if group not in of_profile]
    parser._action_groups += of_profile
    for action in parser._actions:
        if action.dest in _NOT_IN_A_JOB:
            action.help = argparse.SUPPRESS
        elif action.dest == "dry_run":
            action.help = "print the script, submit nothing"
        elif action.dest == "output":
            action.help = "the run folder; %%q{VAR} is the job's (default: rankscope-NAME-JOBID)"
    parser.usage = f"rankscope job {scheduler} [options] [profile options] -- COMMAND..."
    parser.description = DESCRIPTION
    parser.epilog = _EPILOG[scheduler]


def run(args: argparse.Namespace) -> int:
    scheduler = SCHEDULERS[args.kind]
    command = tuple(args.command)
    if not command:
        raise UsageError(
            "no COMMAND to run",
            why="What one rank runs stands behind --.",
            hint=f"For example: rankscope job {args.kind} --nodes 2 -- python train.py",
        )
    for name in _NOT_IN_A_JOB:
        if getattr(args, name):
            raise UsageError(
                f"--{name.replace('_', '-')} is not for a job",
                why="The launcher in the script says which rank is which, and the tables always come at its end.",
                hint="Leave it out.",
            )
    if args.per_node and args.launcher != "torchrun":
        raise UsageError(
            "--per-node is for torchrun",
            why="It is one report around the process that starts the ranks of a node; here there is none.",
            hint="Add --launcher torchrun, or choose ranks: --ranks local:0",
        )
    profile.plan_of(args, command)  # what is wrong with the profile's options is said here, not in the queue
    # --quiet: where a rank has written to is the node's disk, and the script says where it all went
    spec = spec_of(
        args,
        scheduler,
        [{"words": command}],
        name=args.name or default_name(command),
        profile_words=(*profile.option_words(args), *([] if args.quiet or args.verbose else ["--quiet"])),
        run=args.output,
        force=args.force,
    )
    return deliver(spec, scheduler, args)


def default_name(command: tuple[str, ...]) -> str:
    """The script's name, as far as a scheduler can show it (PBS: 15 characters, a letter first)."""
    scripts = [word for word in command if word.endswith((".py", ".sh"))]
    if not scripts and command[0] == "rankscope" and len(command) > 2:
        scripts = [command[2]]  # rankscope bench seqpar
    stem = Path(scripts[0] if scripts else command[0]).stem
    return re.sub(r"[^A-Za-z0-9_.-]", "-", stem).lstrip("-.0123456789")[:15] or "job"


def deliver(spec: Spec, scheduler: Scheduler, args: argparse.Namespace) -> int:
    """To stdout, to a file, to the scheduler."""
    script = render(spec, scheduler.dialect(spec))
    if args.follow and not args.submit:
        raise UsageError("--wait needs --submit", why="There is no job to wait for.", hint="Add --submit.")
    if args.submit and not args.dry_run:
        jobs.need(scheduler)
    if args.script and not args.dry_run:
        path = Path(args.script)
        check_target(path, args.force)
        try:
            path.write_text(script, encoding="utf-8")
            path.chmod(0o755)
        except OSError as error:
            raise RankscopeError(
                f"cannot write {path}", why=f"{error.strerror}.", hint="Name another: --script FILE"
            ) from error
        print(f"Wrote {path}", file=sys.stderr)
    if args.dry_run or not (args.script or args.submit):
        print(script, end="")
    if args.dry_run or not args.submit:
        return 0
    if args.script:
        return _submitted(scheduler, Path(args.script), spec, args)
    with tempfile.TemporaryDirectory(prefix="rankscope-job-") as folder:
        path = Path(folder) / f"{spec.name}.sh"
        path.write_text(script, encoding="utf-8")
        return _submitted(scheduler, path, spec, args)


def _submitted(scheduler: Scheduler, path: Path, spec: Spec, args: argparse.Namespace) -> int:
    job = jobs.submit(scheduler, path)
    print(job, flush=True)
    if not args.follow:
        return 0
    try:
        state = jobs.follow(scheduler, job, lambda word: _say(args, f"job {job}: {word}"))
    except KeyboardInterrupt:
        print(f"rankscope: job {job} goes on; to end it: rankscope job delete {job}", file=sys.stderr)
        return 130
    code = state.code if state.code is not None else _left_code(spec, job)
    if code is None:
        raise RankscopeError(
            f"how job {job} ended is not known",
            why=f"{scheduler.title} has forgotten it, or does not tell.",
            hint="Its output file and the run folder show it.",
        )
    return code


def _left_code(spec: Spec, job: str) -> int | None:
    """What the script itself noted, where the scheduler does not keep it."""
    folder = spec.run or f"rankscope-{spec.name}-{job}"
    try:
        whose, code = (Path(folder) / EXIT_CODE).read_text().split()
        return int(code) if whose.partition(".")[0] == job.partition(".")[0] else None
    except (OSError, ValueError):
        return None


def _say(args: argparse.Namespace, text: str) -> None:
    if not args.quiet:
        print(f"rankscope: {text}", file=sys.stderr, flush=True)
