"""rankscope ncu: the costliest kernels of an earlier run, profiled by Nsight Compute."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from pathlib import Path

from rankscope import tools
from rankscope.capture.after_job import after_job
from rankscope.capture.job_name import name_run
from rankscope.capture.kernel_list import (
    LIST_NAME,
    HotKernel,
    KernelList,
    default_folder,
    read_kernels,
    short_name,
    size_text,
    write_kernels,
)
from rankscope.capture.ncu_runs import REPORTS, NcuRuns
from rankscope.capture.ncu_selection import Selection, plan_text, select, why_missed
from rankscope.capture.rank import SINGLE, detect
from rankscope.capture.run_folder import folder_of
from rankscope.capture.selector import FORMS
from rankscope.capture.summary import short_path
from rankscope.cli.common import add_reading_options, say, show_results
from rankscope.cli.options import add_options
from rankscope.cli.store_libraries import missing_libraries
from rankscope.errors import ToolError, UsageError
from rankscope.text.plain_table import plain_table
from rankscope.text.run_words import shell_word
from rankscope.units import choose_scale

# The command to profile follows `--` (see cli/__init__.py).
TAKES_COMMAND = True

DESCRIPTION = """\
Take the costliest kernels of RUN (torch or nsys traces), run COMMAND with ncu on just those, and show what ncu
measured beside what they cost in RUN. Kernels that wait for other ranks (NCCL) are never chosen. ncu filters by name,
not by size: RUN's order of launches tells which to skip, and if ncu does not meet a kernel, COMMAND runs once more.
"""

EPILOG = """\
examples:
  rankscope ncu RUN                                        list the kernels, run nothing
  rankscope ncu RUN --top 3 -- torchrun --nproc-per-node 4 train.py
  rankscope ncu RUN --by calls --runs 1 -- python train.py      the most frequent, and COMMAND runs only once
  rankscope ncu RUN -n -- python train.py                  print the ncu command
  rankscope ncu RUN --kernels-out hot.json                 choose here, run elsewhere:
  srun -n 8 rankscope ncu --kernels hot.json -o NCU -- python train.py
  rankscope ncu NCU                                        what ncu measured, beside that list
"""

NAME_WIDTH = 60
_OPTIONS = f"""\
[RUN]  the run to choose from, or a run that this command made
--top N  how many kernels (default: 3)
--by {{time,calls}}  the costliest or the most frequent (default: time)
--kernels FILE  read the list from FILE; needs no RUN and no libraries
--kernels-out FILE  write the list to FILE
-c, --launch-count N  launches of each (default: 5, fewer where ncu would have to profile hundreds)
--runs N  run COMMAND at most this often, until every kernel is measured (default: 2)
--set {{roofline,detailed,full}}  ncu's sections (default: roofline)
--clock-control {{base,none}}  lock the clocks or not (default: lock them where the machine allows it)
--ranks SEL  which ranks run under ncu: {FORMS} (default: 0)
-o, --output DIR  the folder for the reports
--tool-arg X ...  pass X to ncu unchanged: --tool-arg=-X
-n, --dry-run  print the ncu command, and stop
-f, --force  replace a folder that holds another run
--format {{table,csv,json,markdown}}  of what ncu measured (default: table)
"""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.usage = "rankscope ncu [RUN] [options] [-- COMMAND...]"
    parser.description = DESCRIPTION
    parser.epilog = EPILOG
    defaults = {"by": "time", "set": "roofline", "ranks": "0", "format": "table"}
    numbers = {name: {"type": int, "default": value} for name, value in (("top", 3), ("runs", 2))}
    paths = dict.fromkeys(("run", "kernels", "kernels_out"), Path)
    add_options(parser, _OPTIONS, launch_count=int, **defaults, **numbers, **paths)
    add_reading_options(parser)


def main(args: argparse.Namespace) -> int:
    if min(args.top, args.runs, 1 if args.launch_count is None else args.launch_count) < 1:
        raise UsageError("--top, -c and --runs count from 1", hint="For example: --top 3 -c 5")
    made_by_us = args.run is not None and (args.run / LIST_NAME).is_file()
    if made_by_us and not args.command and args.kernels is None:
        return _show(args.run, read_kernels(args.run / LIST_NAME), args)
    listed = _chosen(args)
    if args.kernels_out is not None:
        write_kernels(args.kernels_out, listed, str(args.run or args.kernels))
        say(f"Wrote {args.kernels_out}")
    if not args.command:
        _print_list(listed.kernels)
        return 0
    return _profile(listed, args)


def _chosen(args: argparse.Namespace) -> KernelList:
    if args.kernels is not None:
        return read_kernels(args.kernels).top(args.top)
    if args.run is None:
        raise UsageError("no RUN to choose kernels from", hint="Name a run, or give a list: --kernels FILE")
    _require_libraries(
        "choosing kernels", f"rankscope ncu {shell_word(args.run)} --top {args.top} --kernels-out FILE"
    )
    from rankscope.analysis.efficiency.hot_kernels import hot_kernels
    from rankscope.cli.common import open_run

    listed = hot_kernels(open_run(args), args.top, args.by)
    if not listed.kernels:
        raise UsageError(
            f"{args.run} has no kernels to choose from",
            why="ncu profiles compute kernels, and the run has none with a grid and a block.",
            hint="See what it has: rankscope stats RUN -r kernels",
        )
    return listed


def _profile(listed: KernelList, args: argparse.Namespace) -> int:
    """`rankscope profile --tool ncu` with these kernels, in front of the command or behind its launcher."""
    identity = detect(os.environ)
    in_front = identity.source == SINGLE
    output = args.output or default_folder(args.command, in_front)
    asked, job = name_run(os.environ, identity, args.command, output, None)
    ncu = _ncu(args)
    by_size = ncu is None or tools.ncu_counts_by_size(str(ncu.path))
    selection = select(listed, args.launch_count, by_size=by_size)
    if in_front and not args.quiet:
        if args.format == "table":
            _print_list(listed.kernels)
        more = f", at most {args.runs} if ncu does not meet every kernel (--runs 1: never)"
        _message(
            f"{plan_text(selection, listed, args.set)}\n  1 run of the command{more if args.runs > 1 else ''}."
        )
    code = _run(selection, asked, job, args)
    folder = folder_of(asked, job)
    if args.dry_run or folder is None:
        return code
    # An unselected rank has become the command and does not get here.
    codes = [code]
    with after_job(_message):
        write_kernels(folder / LIST_NAME, listed, str(args.run or args.kernels))
        if in_front and ncu is not None:
            runs = NcuRuns(
                listed,
                folder,
                ncu,
                args.runs,
                by_size,
                lambda selection, later: _run(selection, later, job, args),
                lambda selection: _message(
                    f"ncu did not meet {len(selection.kernels)} of {len(listed.kernels)} kernels; running the command "
                    f"again\n  {plan_text(selection, listed, args.set)}"
                ),
            )
            codes.append(_until_measured(runs, selection, code, args))
    return codes[-1]


def _ncu(args: argparse.Namespace) -> tools.Tool | None:
    """ncu, if it is on this machine; where it is missing, `profile` says so."""
    try:
        return tools.find_tool("ncu", args.ncu)
    except ToolError:
        return None


def _run(selection: Selection, output: Path, job: str, args: argparse.Namespace) -> int:
    from rankscope.cli import command_parser

    words = [*selection.words(), "--set", args.set, "--ranks", args.ranks, "-o", str(output), "--job", job]
    words += ["--clock-control", args.clock_control] if args.clock_control else []
    words += ["--ncu", str(args.ncu)] if args.ncu else []
    words += [f"--tool-arg={word}" for word in args.tool_arg or ()]
    words += ["-n"] * args.dry_run + ["-f"] * args.force + ["-q"] * args.quiet
    parser, profile = command_parser("profile")
    return profile.main(parser.parse_args([*words, "--", *args.command]))


def _until_measured(runs: NcuRuns, selection: Selection, code: int, args: argparse.Namespace) -> int:
    """Run the command again while a kernel is missing, then show what ncu measured."""
    listed, folder = runs.listed, runs.folder
    measured = runs.until_measured(selection, code)
    times = "1 run" if measured.runs == 1 else f"{measured.runs} runs"
    _message(
        f"ncu measured {len(listed.kernels) - len(measured.missed)} of {len(listed.kernels)} kernels, "
        f"{len(measured.launches)} launches in {times} of the command"
    )
    if list(folder.glob(REPORTS)) and not missing_libraries():
        _show(folder, listed, args)  # its notes name what was missed
        return measured.code
    for kernel in measured.missed:
        _message(f"not measured: {kernel.name} ({kernel.size}): {why_missed(kernel, measured.launches)}")
    if measured.launches:
        _message(
            f"to see the results, where rankscope is installed in full: rankscope ncu {short_path(folder)}"
        )
    return measured.code


def _message(text: str) -> None:
    say(f"rankscope: {text}")


def _show(folder: Path, listed: KernelList, args: argparse.Namespace) -> int:
    """One table: what the kernels cost in RUN, and what ncu measured."""
    _require_libraries("reading ncu's reports", f"rankscope ncu {shell_word(folder)}")
    from rankscope.analysis.efficiency.hot_kernels import hot_kernels_measured
    from rankscope.cli.common import open_run

    args.run = folder
    result = hot_kernels_measured(open_run(args), listed)
    show_results(result, args.format)
    return 0


def _require_libraries(what: str, command: str) -> None:
    if missing := missing_libraries():
        raise UsageError(
            f"{what} needs {', '.join(missing)}, not installed here",
            why="This environment has only what capturing needs.",
            hint=f"Where rankscope is installed in full: {command}",
        )


def _print_list(kernels: Sequence[HotKernel]) -> None:
    rows, scale = [], choose_scale("ns", (kernel.total_ns for kernel in kernels))
    for kernel in kernels:
        name = short_name(kernel.name)
        shown = name if len(name) <= NAME_WIDTH else f"{name[: NAME_WIDTH - 1]}…"
        sizes = size_text(kernel.grid), size_text(kernel.block)
        rows.append([shown, scale.format(kernel.total_ns), str(kernel.calls), *sizes])
    print(plain_table(["Kernel", f"Total ({scale.label})", "Calls", "Grid", "Block"], rows))
