"""rankscope profile: in front of any training command, or behind its launcher, once per rank.

An unselected rank runs through this file too, so it imports late whatever only a captured command needs.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING

from rankscope.capture.plan import FALLBACK_AFTER_S, HANG_AFTER_S, WATCH_BUDGET_PCT, Front, Plan
from rankscope.capture.rank import detect, parse_identity
from rankscope.capture.schedule import MOST_ACTIVE, OnRequest, Schedule, TimeWindow, When, choose_when
from rankscope.capture.selector import AUTO, AUTO_ALL, FORMS, parse_selector
from rankscope.capture.wrapper import Output, check_program, is_in_front, is_selected, requested_signal
from rankscope.cli.options import (
    Group,
    ValueWithEquals,
    add_groups,
    group,
    made_of,
    names,
    option,
    seconds,
    size,
    words_of,
)
from rankscope.cli.tool_options import (
    FROM_GROUP,
    TOOL_GROUPS,
    check_tool_options,
    tool_path,
    tool_request,
    with_tool_options,
)
from rankscope.errors import UsageError
from rankscope.text.option_table import Settings, option_table

if TYPE_CHECKING:
    from pathlib import Path

DESCRIPTION = """\
Capture a training run with torch's profiler. The script is not changed; its exit code, signals, stdin and
stdout stay its own. If something fails in rankscope, the job continues and one line gives the reason.
"""

EPILOG = """\
examples:  (in front of a launcher, or behind it)
  rankscope profile torchrun --nproc-per-node 4 train.py
  torchrun --nproc-per-node 4 --no-python rankscope profile python train.py
  mpiexec -n 8 rankscope profile python train.py
  srun -n 8 rankscope profile --ranks 0,4 -o runs/a python train.py
  rankscope profile --steps 20:24 --with-stack bash train.sh
  rankscope profile --watch -o runs/b torchrun train.py      then: rankscope watch runs/b
  rankscope profile --on-signal USR2 python train.py        then: kill -USR2 PID, as often as you like

A step ends when the optimizer has stepped. Steps count from 0, as torch.profiler.schedule counts them. By
default, step 0 is skipped (--wait 1), step 1 is the warm-up, and steps 2 to 7 are recorded. It is steps 2 to 4
where six might pause training for more than 2 s. All ranks are recorded; of more than 16, the first of each node.
nsys and ncu record the whole run, with every step marked.
rankscope's own options end at the first word that is not one of them.
"""

_WHAT = f"""\
--tool {{torch,nsys,ncu}}  the profiler (default: torch)
-o, --output DIR  the run folder; %%q{{VAR}} is the variable VAR of the job (default: rankscope-SCRIPT-JOB)
--ranks SEL  which ranks: {FORMS}; local:0 is the first of each node, @ takes some nodes or ranks
    (default: all of at most {AUTO_ALL}, else local:0; ncu: local:0)
-n, --dry-run  print the command that would run, and stop
--stats =LIST  print the summary when the job has ended, or the tables in LIST: names of `rankscope stats -r`,
    nsys:REPORT for nsys's own, false for none
-f, --force  replace a run folder that holds another job
--group-readable  let the group read the run folder (default: only its owner, unless the folder around it is shared by
    set-group-ID)
--from-wrapper FILE  print the `rankscope profile` line that does what a bash wrapper around nsys or ncu does (which
    ranks, which options, which folder), and stop. The file is read, not run; what is not taken over is said on stderr
-q, --quiet  print only errors
-v, --verbose  print what every captured rank does
"""
_WHEN = """\
--skip-first N  steps before the first cycle (default: {0.skip_first})
--wait N  idle steps of a cycle (default: {0.wait})
--warmup N  steps the profiler warms up (default: {0.warmup})
--active N  recorded steps of a cycle (default: {0.active} to {2}, as many as pause training for at most 2 s; {0.active}
    with --repeat or --max-size)
--repeat N  cycles; 0 is without end (default: {0.repeat})
--steps A:B  record steps A to B, both included, counted from 0
--after TIME  record a time window that starts this long after torch is imported (default: 0s)
--for TIME  ... and record for this long (default: 10s)
--on-signal NAME  record the next steps each time this signal comes, such as USR2
--step-on NAME  count only this class of optimizer (default: the one that steps least often)
--fallback-after TIME  without an optimizer step for this long: record 5 s; 0 is never (default: {1:.0f}s)
"""
_TELEMETRY = f"""\
--watch  keep the times of every step of every rank for `rankscope watch`; without a schedule, record only what
    `rankscope capture` requests
--hang-after TIME  with --watch: a rank that makes no step for this long writes the stacks of its threads
    (default: {HANG_AFTER_S:.0f}s)
--watch-budget PCT  with --watch: a rank whose telemetry takes more than this share of the step time for half a minute
    switches it off; 100 is never (default: {WATCH_BUDGET_PCT:g})
--watcher OPTIONS  with --watch: rank 0 starts `rankscope watch RUN OPTIONS` beside the job: --watcher='--on-alarm URL'
"""
_TORCH = """\
--record-shapes  the shapes of every operator's inputs
--profile-memory  allocations
--with-stack  Python stacks (makes steps slower and traces larger)
--with-flops  estimated FLOPs of matrix products and convolutions
--with-modules  the module hierarchy (TorchScript modules only)
--activities LIST  cpu, cuda, xpu, ... (default: all that torch finds here)
--max-size SIZE  end a rank's file after a whole event at this size, such as 2GB
--tensorboard-dir DIR  write the traces there, under the names TensorBoard's plug-in expects
"""
_COMMAND_HELP = "the training command, with its launcher if any"
_NUMBERS = dict.fromkeys(Schedule._fields, int)
_TORCH_GROUPS = (
    group(
        "telemetry while the job runs",
        _TELEMETRY,
        hang_after={"dest": "hang_after_s", "type": seconds},
        watch_budget={"dest": "watch_budget_pct", "type": float},
    ),
    group("what torch's profiler records", _TORCH, activities=names, max_size=size),
)
_GROUPS = (
    Group(
        "what and where",
        (
            option("command", nargs=argparse.REMAINDER, metavar="COMMAND", help=_COMMAND_HELP),
            *option_table(_WHAT, tool="torch", stats={"action": ValueWithEquals}),
            # Set in the command that rankscope inserts into a launcher's: the process in front has named the job
            # and prints the summary.
            option("--inner", action="store_true", help=argparse.SUPPRESS),
            option("--job", help=argparse.SUPPRESS),
            option("--front", help=argparse.SUPPRESS),
        ),
    ),
    group(
        "when (one of: a schedule, --steps, a time window, a signal)",
        _WHEN.format(Schedule(), FALLBACK_AFTER_S, MOST_ACTIVE),
        after=seconds,
        fallback_after={"dest": "fallback_after_s", "type": seconds},
        **{"for": {"dest": "for_", "type": seconds}, **_NUMBERS},
    ),
    *_TORCH_GROUPS,
    *TOOL_GROUPS,
    Group(
        "the rank of this process, for unknown launchers (%q{VAR} works)",
        tuple(option(f"--{name}", metavar="N") for name in ("rank", "local-rank", "node-rank", "world-size")),
    ),
)


# What --help shows; --help-all shows all options.
MAIN_OPTIONS = (
    "command tool output ranks stats dry_run active steps on_signal record_shapes profile_memory with_stack"
)
# Not passed on to the command that is inserted into a launcher's: it gets its own, or must not have them.
_NOT_PASSED_ON = (
    "command",
    "dry_run",
    "stats",
    "output",
    "inner",
    "job",
    "front",
    "force",
    "from_wrapper",
)


def configure(parser: argparse.ArgumentParser) -> None:
    parser.usage = "rankscope profile [options] [--] COMMAND..."
    parser.rewritten = with_tool_options  # type: ignore[attr-defined]
    add_groups(parser, (*_GROUPS, FROM_GROUP))


def add_profile_options(parser: argparse.ArgumentParser, changes: Mapping[str, Settings | None]) -> None:
    """These options for a command that finds COMMAND itself."""
    parser.rewritten = with_tool_options  # type: ignore[attr-defined]
    add_groups(parser, _GROUPS, {"command": None, "from_wrapper": None, **changes})


def main(args: argparse.Namespace) -> int:
    command = tuple(args.command[1:] if args.command[:1] == ["--"] else args.command)
    if args.from_wrapper is not None:
        return _print_wrapper(args.from_wrapper, command)
    plan = plan_of(args, command)
    if not command:
        raise UsageError("no COMMAND to profile", hint="For example: rankscope profile torchrun train.py")
    check_program(command[0])
    tables: list[list[str]] = []
    if args.stats not in (None, "false"):
        from rankscope.cli.end_tables import end_tables

        tables = end_tables(args.stats, tool_path(args))  # wrong names are found before the job starts
    output = Output(message=_message, line=print)
    identity = detect(os.environ, plan.identity)
    in_front = is_in_front(list(command), identity, per_node=args.per_node, inserted=args.inner)
    if not in_front and not plan.watch and not is_selected(plan, identity, output.message):
        if args.dry_run:
            from shlex import join

            print(f"rank {identity.rank}: {join(command)}")
            return 0
        from rankscope.capture.child_process import replace_process

        replace_process(command, os.environ, requested_signal(plan))
    if identity.rank == 0 and plan.speaks and not (args.dry_run or args.quiet):
        _warn_of_container(args.output)
    from rankscope.capture.after_job import after_job
    from rankscope.capture.child_process import end_like
    from rankscope.capture.start import Start

    start = Start(
        plan=plan,
        options=option_words(args),
        output=output,
        tool=tool_request(args, plan.when) if args.tool != "torch" else None,
        inserted=args.inner,
        dry_run=args.dry_run,
        stay=bool(tables),
    )
    ended = start.in_front() if in_front else start.selected_rank(identity)
    if args.dry_run:
        return ended.status
    with after_job(output.message):
        folder = ended.report()
        if tables and folder is not None:
            _print_stats(folder, tables)
    return end_like(ended.status)


def _print_wrapper(file: str, command: tuple[str, ...]) -> int:
    from pathlib import Path

    from rankscope.capture.wrapper_import import import_wrapper

    if command:
        raise UsageError(
            "--from-wrapper takes no COMMAND",
            why="It prints the line that stands in place of the wrapper, and runs nothing.",
            hint=f"Leave out: {' '.join(command)}",
        )
    for line in import_wrapper(Path(file)):
        for note in line.notes:
            _message(note)
        print(" ".join(line.words))
    return 0


def _warn_of_container(output: str | None) -> None:
    from pathlib import Path

    from rankscope.capture.under_tool.temp_folder import lost_with_container

    if warning := lost_with_container(Path(output or "").absolute()):
        _message(warning)


def plan_of(args: argparse.Namespace, command: tuple[str, ...]) -> Plan:
    """The options as a plan; mistakes in the options are found here, before anything starts."""
    # ncu runs a kernel many times, while the other ranks wait: one rank of a node is enough.
    ranks = args.ranks or ("local:0" if args.tool == "ncu" else AUTO)
    parse_selector(ranks)
    check_tool_options(args, _TORCH_GROUPS)
    _check_telemetry(args)
    ranks_given = {"rank": args.rank, "local_rank": args.local_rank, "node": args.node_rank}
    when = _when(args)
    grows = isinstance(when, Schedule) and {args.active, args.steps, args.repeat, args.max_size} == {None}
    return made_of(
        Plan,
        args,
        when=when,
        active_up_to=MOST_ACTIVE if grows and args.tool == "torch" else 0,
        ranks=ranks,
        command=command,
        identity=parse_identity({**ranks_given, "world_size": args.world_size}, os.environ),
        # os.path because pathlib would double what an unselected rank imports
        tensorboard_dir=args.tensorboard_dir and os.path.abspath(args.tensorboard_dir),  # noqa: PTH100
        speaks=not args.inner,
        front=Front.from_text(args.front) if args.front else None,
    )


def _check_telemetry(args: argparse.Namespace) -> None:
    budget = args.watch_budget_pct
    given = {"--hang-after": args.hang_after_s, "--watch-budget": budget, "--watcher": args.watcher}
    for name, value in given.items():
        if value is not None and not args.watch:
            raise UsageError(
                f"{name} needs --watch",
                why="It is about the telemetry, which --watch turns on.",
                hint="Give --watch too.",
            )
    if budget is not None and not 0 < budget <= 100:
        raise UsageError(
            f"--watch-budget {budget:g} is not a share of the step time",
            hint="Give a percentage, such as 0.5; 100 never switches it off.",
        )
    if args.watcher is not None:
        from shlex import split

        try:
            split(args.watcher)
        except ValueError as error:
            raise UsageError(
                f"--watcher={args.watcher} cannot be divided into words",
                why=f"{error}.",
                hint="Quote it as a shell does: --watcher=\"--on-alarm 'mail me'\"",
            ) from error


def _when(args: argparse.Namespace) -> When:
    cycle = {name: getattr(args, name) for name in Schedule._fields if getattr(args, name) is not None}
    by_clock = args.after is not None or args.for_ is not None
    window = TimeWindow(args.after or 0.0, 10.0 if args.for_ is None else args.for_) if by_clock else None
    if args.watch and not cycle and window is None and args.steps is None and args.on_signal is None:
        return OnRequest()
    return choose_when(cycle, steps=args.steps, window=window, signal=args.on_signal)


def option_words(args: argparse.Namespace) -> list[str]:
    """This command's own options again, for the command that is inserted into a launcher's."""
    return words_of(args, lambda parser: add_groups(parser, _GROUPS), *_NOT_PASSED_ON)


def _print_stats(folder: Path, tables: list[list[str]]) -> None:
    """The tables, from processes of their own, as they need libraries that the job may lack."""
    from rankscope.capture.summary import has_traces
    from rankscope.cli.end_tables import missing_libraries
    from rankscope.text.run_words import short_path

    if not has_traces(folder):
        return
    if missing := missing_libraries():
        from shlex import join

        calls = [f"rankscope stats {short_path(folder)} {join(words)}".strip() for words in tables]
        _message(
            f"--stats cannot run here: {', '.join(missing)} is not installed\n"
            f"  Where rankscope is installed in full: {'; '.join(calls)}"
        )
        return
    import subprocess

    from rankscope.capture.launcher_command import own_command

    sys.stdout.flush()
    for words in tables:
        subprocess.run([*own_command(), "stats", str(folder), *words], check=False)


def _message(text: str) -> None:
    from rankscope.files import line_break

    try:
        print(f"{line_break(sys.stderr)}rankscope: {text}", file=sys.stderr, flush=True)
    except OSError:  # a full disk, or a reader that has gone: Python would try again at its end, and fail
        sys.stderr = open(os.devnull, "w")  # noqa: PTH123, SIM115  (pathlib would double what a rank imports)
