"""rankscope ncu: the costliest kernels of an earlier run, profiled by Nsight Compute."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from rankscope.capture.kernel_list import (
    LIST_NAME,
    HotKernel,
    default_folder,
    ncu_words,
    read_kernels,
    replay_ns,
    write_kernels,
)
from rankscope.capture.rank import SINGLE, detect
from rankscope.capture.run_folder import expand
from rankscope.capture.selector import FORMS
from rankscope.cli.common import add_reading_options
from rankscope.cli.store_libraries import missing_libraries
from rankscope.errors import UsageError
from rankscope.plain_table import plain_table
from rankscope.units import format_ns

# The command to profile follows `--` (see cli/__init__.py).
TAKES_COMMAND = True

DESCRIPTION = """\
Take the costliest kernels of RUN (torch or nsys traces), run COMMAND with ncu on just those, and show what ncu
measured beside what they cost in RUN. Kernels that wait for other ranks (NCCL) are never chosen.
"""

EPILOG = """\
examples:
  rankscope ncu RUN                                        list the kernels, run nothing
  rankscope ncu RUN --top 3 -- torchrun --nproc-per-node 4 train.py
  rankscope ncu RUN -n -- python train.py                  print the ncu command
  rankscope ncu RUN --kernels-out hot.json                 choose here, run elsewhere:
  srun -n 8 rankscope ncu --kernels hot.json -o NCU -- python train.py
  rankscope ncu NCU                                        what ncu measured, beside that list
"""

DEFAULT_LAUNCHES = 5
NAME_WIDTH = 44


def configure(parser: argparse.ArgumentParser) -> None:
    parser.usage = "rankscope ncu [RUN] [options] [-- COMMAND...]"
    parser.description = DESCRIPTION
    parser.epilog = EPILOG
    add = parser.add_argument
    add(
        "run",
        nargs="?",
        type=Path,
        metavar="RUN",
        help="the run to choose from, or a run that this command made",
    )
    add("--top", type=int, default=3, metavar="N", help="how many kernels, by total time (default: 3)")
    add("--kernels", type=Path, metavar="FILE", help="read the list from FILE; needs no RUN and no libraries")
    add("--kernels-out", type=Path, metavar="FILE", help="write the list to FILE")
    add(
        "-c",
        "--launch-count",
        type=int,
        default=DEFAULT_LAUNCHES,
        metavar="N",
        help="launches of each (default: 5)",
    )
    add(
        "--set",
        choices=["roofline", "detailed", "full"],
        default="roofline",
        help="ncu's sections (default: roofline)",
    )
    add(
        "--clock-control",
        choices=["base", "none"],
        help="lock the clocks or not (default: lock them where the machine allows it)",
    )
    add("--ranks", default="0", metavar="SEL", help=f"which ranks run under ncu: {FORMS} (default: 0)")
    add("-o", "--output", metavar="DIR", help="the folder for the reports")
    add("--tool-arg", action="append", metavar="X", help="pass X to ncu unchanged: --tool-arg=-X")
    add("-n", "--dry-run", action="store_true", help="print the ncu command, and stop")
    add("-f", "--force", action="store_true", help="replace a folder that holds another run")
    add(
        "--format",
        choices=("table", "csv", "json", "markdown"),
        default="table",
        help="of what ncu measured (default: table)",
    )
    add_reading_options(parser)


def main(args: argparse.Namespace) -> int:
    if args.top < 1 or args.launch_count < 1:
        raise UsageError("--top and -c count from 1", hint="For example: --top 3 -c 5")
    made_by_us = args.run is not None and (args.run / LIST_NAME).is_file()
    if made_by_us and not args.command and args.kernels is None:
        return _show(args.run, read_kernels(args.run / LIST_NAME), args)
    kernels = _chosen(args)
    if args.kernels_out is not None:
        write_kernels(args.kernels_out, kernels, str(args.run or args.kernels))
        print(f"Wrote {args.kernels_out}", file=sys.stderr)
    if not args.command:
        _print_list(kernels)
        return 0
    return _profile(kernels, args)


def _chosen(args: argparse.Namespace) -> list[HotKernel]:
    if args.kernels is not None:
        return read_kernels(args.kernels)[: args.top]
    if args.run is None:
        raise UsageError("no RUN to choose kernels from", hint="Name a run, or give a list: --kernels FILE")
    _require_libraries("choosing kernels", f"rankscope ncu {args.run} --top {args.top} --kernels-out FILE")
    from rankscope.analysis.efficiency.hot_kernels import hot_kernels
    from rankscope.cli.common import open_run

    kernels = hot_kernels(open_run(args), args.top)
    if not kernels:
        raise UsageError(
            f"{args.run} has no kernels to choose from",
            why="ncu profiles compute kernels, and the run has none with a grid and a block.",
            hint="See what it has: rankscope stats RUN -r kernels",
        )
    return kernels


def _profile(kernels: Sequence[HotKernel], args: argparse.Namespace) -> int:
    """`rankscope profile --tool ncu` with these kernels, in front of the command or behind its launcher."""
    from rankscope.cli import command_parser

    in_front = detect(os.environ).source == SINGLE
    output = args.output or default_folder(args.command, in_front)
    words = ncu_words(
        kernels, section_set=args.set, launches=args.launch_count, ranks=args.ranks, output=output
    )
    words += ["--clock-control", args.clock_control] if args.clock_control else []
    words += ["--ncu", str(args.ncu)] if args.ncu else []
    words += [f"--tool-arg={word}" for word in args.tool_arg or ()]
    words += ["-n"] * args.dry_run + ["-f"] * args.force + ["-q"] * args.quiet
    if in_front and not args.quiet:
        _print_list(kernels)
        least = format_ns(replay_ns(kernels, args.set, args.launch_count), 2)
        print(
            f"ncu needs at least {least} of kernel time, and about half a second more for each launch.",
            file=sys.stderr,
        )
    parser, profile = command_parser("profile")
    code = profile.main(parser.parse_args([*words, "--", *args.command]))
    folder = Path(expand(output, os.environ))
    if (
        folder.is_dir() and not args.dry_run
    ):  # an unselected rank has become the command and does not get here
        write_kernels(folder / LIST_NAME, kernels, str(args.run or args.kernels))
        if in_front and list(folder.glob("*.ncu-rep")):
            _show_if_possible(folder, kernels, args)
    return code


def _show_if_possible(folder: Path, kernels: Sequence[HotKernel], args: argparse.Namespace) -> None:
    if missing_libraries():
        command = f"rankscope ncu {shlex.quote(str(folder))}"
        print(f"To see the results, where rankscope is installed in full: {command}", file=sys.stderr)
    else:
        _show(folder, kernels, args)


def _show(folder: Path, kernels: Sequence[HotKernel], args: argparse.Namespace) -> int:
    """One table: what the kernels cost in RUN, and what ncu measured."""
    _require_libraries("reading ncu's reports", f"rankscope ncu {folder}")
    from rankscope.analysis.efficiency.hot_kernels import hot_kernels_measured
    from rankscope.cli.common import open_run
    from rankscope.views import render, terminal_width, use_color

    args.run = folder
    result = hot_kernels_measured(open_run(args), kernels)
    sys.stdout.write(render(result, args.format, terminal_width(sys.stdout), use_color(sys.stdout)))
    return 0


def _require_libraries(what: str, command: str) -> None:
    if missing := missing_libraries():
        raise UsageError(
            f"{what} needs {', '.join(missing)}, not installed here",
            why="This environment has only what capturing needs.",
            hint=f"Where rankscope is installed in full: {command}",
        )


def _print_list(kernels: Sequence[HotKernel]) -> None:
    rows = [
        [
            kernel.name if len(kernel.name) <= NAME_WIDTH else f"{kernel.name[: NAME_WIDTH - 1]}…",
            format_ns(kernel.total_ns),
            str(kernel.calls),
            "x".join(map(str, kernel.grid)),
            "x".join(map(str, kernel.block)),
        ]
        for kernel in kernels
    ]
    print(plain_table(["Kernel", "Total", "Calls", "Grid", "Block"], rows))
