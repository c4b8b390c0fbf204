"""rankscope profile: in front of any training command, or behind its launcher, once per rank."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Sequence

from rankscope.capture.plan import FALLBACK_AFTER_S, Plan
from rankscope.capture.rank import SINGLE, Identity, detect
from rankscope.capture.schedule import OnSignal, Schedule, TimeWindow, When, steps_window
from rankscope.capture.selector import FORMS, parse_selector
from rankscope.cli.tool_options import add_tool_options, check_tool_options
from rankscope.errors import CaptureError, UsageError

DESCRIPTION = """\
Capture a training run with torch's profiler. The script is not changed; its exit code, signals, stdin and
stdout stay its own; whatever goes wrong in rankscope, the job goes on and one line says why.
"""

EPILOG = """\
examples:  (in front of a launcher, or behind it)
  rankscope profile torchrun --nproc-per-node 4 train.py
  torchrun --nproc-per-node 4 --no-python rankscope profile python train.py
  mpiexec -n 8 rankscope profile python train.py
  srun -n 8 rankscope profile --ranks 0,4 -o runs/a python train.py
  rankscope profile --steps 20:24 --with-stack bash train.sh
  rankscope profile --on-signal USR2 python train.py        then: kill -USR2 PID, again and again

A step ends when the optimizer has stepped. Steps count from 0, as torch.profiler.schedule counts them: the
defaults skip step 0 (--wait 1), warm up in step 1 and record steps 2, 3 and 4 of each node's first rank.
rankscope's own options end at the first word that is not one of them.
"""


def configure(parser: argparse.ArgumentParser, takes_command: bool = True) -> None:
    """``takes_command`` is False where another command, which has these options too, finds COMMAND itself."""
    parser.usage = "rankscope profile [options] [--] COMMAND..."
    parser.description = DESCRIPTION
    parser.epilog = EPILOG
    # In groups throughout: argparse makes a help formatter for each option outside one, which takes its time.
    add = parser.add_argument_group("what and where").add_argument
    if takes_command:
        add(
            "command",
            nargs=argparse.REMAINDER,
            metavar="COMMAND",
            help="the training command, with its launcher if any",
        )
    add("--tool", choices=["torch", "nsys", "ncu"], default="torch", help="the profiler (default: torch)")
    add(
        "-o",
        "--output",
        metavar="DIR",
        help="the run folder; %%q{VAR} is replaced (default: rankscope-SCRIPT-JOB)",
    )
    add("--ranks", default="local:0", metavar="SEL", help=f"which ranks: {FORMS} (default: local:0)")
    add("-n", "--dry-run", action="store_true", help="print the command that would run, and stop")
    add("--stats", action="store_true", help="print the tables when the job has ended")
    add("-f", "--force", action="store_true", help="replace a run folder that holds another job")
    add("-q", "--quiet", action="store_true", help="only say what went wrong")
    add("-v", "--verbose", action="store_true", help="every captured rank says what it does")
    _configure_when(parser)
    _configure_recording(parser)
    add_tool_options(parser)
    group = parser.add_argument_group(
        "which rank this is, where no launcher rankscope knows says it (%q{VAR} works)"
    )
    for name in ("rank", "local-rank", "node-rank", "world-size"):
        group.add_argument(f"--{name}", metavar="N")
    # Set in the commands that rankscope inserts into a launcher's: somebody in front speaks, and has named
    # the job.
    add("--inner", action="store_true", help=argparse.SUPPRESS)
    add("--job", help=argparse.SUPPRESS)


def _configure_when(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("when (one of: a schedule, --steps, a time window, a signal)")
    add = group.add_argument
    defaults = Schedule()
    add(
        "--skip-first",
        type=int,
        metavar="N",
        help=f"steps before the first cycle (default: {defaults.skip_first})",
    )
    add("--wait", type=int, metavar="N", help=f"idle steps of a cycle (default: {defaults.wait})")
    add("--warmup", type=int, metavar="N", help=f"steps the profiler warms up (default: {defaults.warmup})")
    add("--active", type=int, metavar="N", help=f"recorded steps of a cycle (default: {defaults.active})")
    add("--repeat", type=int, metavar="N", help=f"cycles; 0 is for ever (default: {defaults.repeat})")
    add("--steps", metavar="A:B", help="record steps A to B, both included, counted from 0")
    add("--after", metavar="TIME", help="record by the clock: so long after torch was imported (default: 0s)")
    add("--for", dest="for_", metavar="TIME", help="... and for so long (default: 10s)")
    add("--on-signal", metavar="NAME", help="record the next steps each time this signal comes, such as USR2")
    add(
        "--step-on",
        metavar="NAME",
        help="count only this class of optimizer (default: the one that steps least often)",
    )
    add(
        "--fallback-after",
        metavar="TIME",
        help=f"no optimizer step for so long: record 5 s; 0 is never (default: {FALLBACK_AFTER_S:.0f}s)",
    )


def _configure_recording(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("what torch's profiler records")
    add = group.add_argument
    add("--record-shapes", action="store_true", help="the shapes of every operator's inputs")
    add("--profile-memory", action="store_true", help="allocations")
    add("--with-stack", action="store_true", help="Python stacks (makes steps slower and traces larger)")
    add("--with-flops", action="store_true", help="estimated FLOPs of matrix products and convolutions")
    add("--with-modules", action="store_true", help="the module hierarchy (TorchScript modules only)")
    add("--activities", metavar="LIST", help="cpu, cuda, xpu, ... (default: all that torch finds here)")
    add("--max-size", metavar="SIZE", help="end a rank's file after a whole event at this size, such as 2GB")
    add(
        "--tensorboard-dir",
        metavar="DIR",
        help="write the traces there, under the names TensorBoard's plug-in wants",
    )


def main(args: argparse.Namespace) -> int:
    command = args.command[1:] if args.command[:1] == ["--"] else args.command
    plan = plan_of(args, tuple(command))
    if not command:
        raise UsageError("no COMMAND to profile", hint="For example: rankscope profile torchrun train.py")
    if not _on_path(command[0]):
        raise UsageError(
            f"'{command[0]}' is not a command",
            why="No program of that name is on PATH.",
            hint="For a script without #! or x-bit name its interpreter: python train.py, bash train.sh.",
        )
    identity = detect(os.environ, plan.identity)
    wraps = args.per_node and starts_ranks_here(command)
    if (_is_launcher(command) and not wraps) or (identity.source == SINGLE and not args.inner):
        from rankscope.cli import profile_run

        return profile_run.in_front(plan, command, option_words(args), args)
    return _behind(plan, identity, args)


def _is_launcher(command: Sequence[str]) -> bool:
    """Whether to look closer (capture/launch.py): an unselected rank must not pay for that."""
    name = command[0].rpartition("/")[2]
    if name.startswith("python") and list(command[1:2]) == ["-m"]:
        return command[2:3] in (["torch.distributed.run"], ["accelerate.commands.launch"])
    return name in ("torchrun", "srun", "deepspeed", "accelerate") or name.startswith(
        ("mpiexec", "mpirun", "orterun")
    )


def starts_ranks_here(command: Sequence[str]) -> bool:
    """Whether a launcher's ranks are its own children: torchrun, which --per-node can stand around."""
    return _is_launcher(command) and not command[0].rpartition("/")[2].startswith(("mpi", "orterun", "srun"))


def _on_path(program: str) -> bool:
    """shutil.which costs an unselected rank more to import than all the rest of this file."""
    folders = [""] if "/" in program else os.environ.get("PATH", os.defpath).split(os.pathsep)
    paths = [f"{folder}/{program}" if folder else program for folder in folders]
    return any(os.access(path, os.X_OK) and not os.path.isdir(path) for path in paths)  # noqa: PTH112


def _behind(plan: Plan, identity: Identity, args: argparse.Namespace) -> int:
    """One rank of many: become the plain command, or the command that captures itself."""
    from rankscope.capture.supervise import replace_process

    selector = parse_selector(plan.ranks)
    ignored = _signal(plan)
    try:
        if selector.matches_nobody(identity) and identity.rank == 0:
            _say(
                f"--ranks {plan.ranks} selects none of the {identity.world_size} ranks; "
                "the job runs without being captured"
            )
        selected = selector.selects(identity)
    except CaptureError as error:
        _say(str(error) + "\n  The job runs without being captured.")
        selected = False
    if not selected:
        if args.dry_run:
            from shlex import join

            print(f"rank {identity.rank}: {join(plan.command)}")
            return 0
        replace_process(plan.command, os.environ, ignored)
    from rankscope.cli import profile_run

    return profile_run.captured_rank(plan, identity, args)


def plan_of(args: argparse.Namespace, command: tuple[str, ...]) -> Plan:
    """The options as a plan; what is wrong with them alone is found here, before anything starts."""
    parse_selector(args.ranks)
    check_tool_options(args)
    recording = ("record_shapes", "profile_memory", "with_stack", "with_flops", "with_modules")
    return Plan(
        when=_when(args),
        tool=args.tool,
        ranks=args.ranks,
        output=args.output,
        job=args.job,
        command=command,
        identity=_identity(args),
        activities=tuple(args.activities.split(",")) if args.activities else (),
        max_size=_bytes(args.max_size) if args.max_size else None,
        # os.path because pathlib would double what an unselected rank imports
        tensorboard_dir=args.tensorboard_dir and os.path.abspath(args.tensorboard_dir),  # noqa: PTH100
        step_on=args.step_on,
        fallback_after_s=_seconds(args.fallback_after) if args.fallback_after else FALLBACK_AFTER_S,
        force=args.force,
        quiet=args.quiet,
        verbose=args.verbose,
        speaks=not args.inner,
        **{name: getattr(args, name) for name in recording},
    )


def _when(args: argparse.Namespace) -> When:
    cycle = {name: getattr(args, name) for name in Schedule._fields if getattr(args, name) is not None}
    lengths = {name: cycle[name] for name in ("warmup", "active") if name in cycle}
    kinds = {
        "--steps": args.steps is not None,
        "--after/--for": args.after is not None or args.for_ is not None,
        "--on-signal": args.on_signal is not None,
    }
    given = [name for name, is_given in kinds.items() if is_given]
    allowed = {"--steps": {"warmup"}, "--after/--for": set(), "--on-signal": {"warmup", "active"}}
    surplus = sorted(set(cycle) - allowed[given[0]]) if given else []
    if len(given) > 1 or surplus:
        names = [*given, *(f"--{name.replace('_', '-')}" for name in surplus)]
        raise UsageError(
            f"{' and '.join(names)} are two schedules at once",
            why="Each of them says alone when to record.",
            hint="Keep one: the cycle (--wait, --warmup, ...), --steps, --after/--for or --on-signal.",
        )
    if args.steps is not None:
        return steps_window(args.steps, **lengths)
    if args.after is not None or args.for_ is not None:
        return TimeWindow(_seconds(args.after or "0s"), _seconds(args.for_ or "10s"))
    schedule = Schedule(**cycle)
    schedule.validate()
    if args.on_signal is not None:
        return OnSignal(_signal_name(args.on_signal), schedule.warmup, schedule.active)
    return schedule


def _seconds(text: str) -> float:
    from rankscope.units import parse_seconds  # few need it, and an unselected rank should start quickly

    return parse_seconds(text)


def _bytes(text: str) -> int:
    from rankscope.units import parse_bytes

    return parse_bytes(text)


def _signal_name(text: str) -> str:
    name = text.upper().removeprefix("SIG")
    if name not in ("USR1", "USR2", "HUP", "ALRM", "WINCH", "URG"):
        raise UsageError(
            f"--on-signal {text} cannot be used",
            why="A signal that ends, stops or reports on a job has its own meaning there.",
            hint="Use USR2 or USR1.",
        )
    return name


def _signal(plan: Plan) -> signal.Signals | None:
    return signal.Signals[f"SIG{plan.when.signal}"] if isinstance(plan.when, OnSignal) else None


def _identity(args: argparse.Namespace) -> dict[str, int]:
    given = {
        "rank": args.rank,
        "local_rank": args.local_rank,
        "node": args.node_rank,
        "world_size": args.world_size,
    }
    identity = {}
    for name, text in given.items():
        if text is None:
            continue
        value = os.environ.get(text[3:-1], text) if text.startswith("%q{") and text.endswith("}") else text
        if not value.isdecimal():
            raise UsageError(
                f"'{text}' is not a rank, a size or a variable that is set", hint="Give a number."
            )
        identity[name] = int(value)
    if identity and "rank" not in identity:
        raise UsageError("--local-rank, --node-rank and --world-size need --rank", hint="Give --rank N too.")
    return identity


def option_words(args: argparse.Namespace) -> list[str]:
    """This command's own options again, for the command that is inserted into a launcher's."""
    from rankscope.cli import command_parser

    parser, _ = command_parser("profile")
    words = []
    for action in parser._actions:
        if not action.option_strings or action.dest in (
            "help",
            "dry_run",
            "stats",
            "output",
            "inner",
            "job",
            "force",
        ):
            continue
        value = getattr(args, action.dest)
        if value == action.default:
            continue
        name = action.option_strings[-1]
        if isinstance(value, list):
            words += [f"{name}={item}" for item in value]
        else:
            words += [name, *([] if value is True else [str(value)])]
    return words


def _say(text: str) -> None:
    print(f"rankscope: {text}", file=sys.stderr, flush=True)
