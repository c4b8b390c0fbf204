"""rankscope profile --tool ncu --from RUN: the costliest kernels of an earlier run, profiled by Nsight Compute."""

from __future__ import annotations

import argparse
import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

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
from rankscope.capture.ncu_selection import Selection, plan_text, select, select_again, why_missed
from rankscope.capture.rank import SINGLE, detect
from rankscope.capture.run_folder import folder_of, rank_manifests, write_rank
from rankscope.capture.under_tool.reports import NO_NCU_REPORT
from rankscope.cli import profile
from rankscope.cli.common import say, show_results
from rankscope.cli.end_tables import missing_libraries
from rankscope.cli.tool_options import FROM_GROUP, is_ranged
from rankscope.errors import ToolError, UsageError
from rankscope.text.plain_table import plain_table
from rankscope.text.run_words import shell_word, short_path
from rankscope.units import choose_scale

COMMAND = "rankscope profile --tool ncu --from"
NAME_WIDTH = 60
_REPORTS = "*.ncu-rep"
_DEFAULTS = {"top": 3, "by": "time", "runs": 2, "format": "table", "ranks": "0", "set": "roofline"}


def main(args: argparse.Namespace) -> int:
    """Take the costliest kernels of a run, and run a command with ncu on just those. Kernels that wait for other ranks
    (NCCL) are never chosen. ncu filters by name, not by size: the run's order of launches tells which to skip, and if
    ncu does not meet a kernel, the command runs once more."""
    if args.kernel_name or is_ranged(args):
        raise UsageError(
            "-k and a schedule are not for --from",
            why="Which kernels of which step are profiled is taken from the run.",
            hint="Leave them out, or leave out --from.",
        )
    command = tuple(args.command[1:] if args.command[:1] == ["--"] else args.command)
    given = {name: value for name, value in vars(args).items() if value is not None}
    paths: dict[str, Any] = {
        name: Path(given[name]) for name in ("kernels", "kernels_out", "cache") if name in given
    }
    run = Path(args.from_run) if args.from_run else None
    more: dict[str, Any] = {**_DEFAULTS, **given, **paths, "run": run, "command": command}
    args = argparse.Namespace(**{**vars(args), **more})
    count = args.capture_range if args.launch_count is None else args.launch_count
    if count is not None and (not str(count).isdecimal() or int(count) < 1):
        raise UsageError(f"-c {count} is not a number of launches", hint="For example: -c 5")
    args.launch_count = None if count is None else int(count)
    made_by_us = run is not None and (run / LIST_NAME).is_file()
    if run is not None and made_by_us and not command and args.kernels is None:
        return _show(run, read_kernels(run / LIST_NAME), args)
    listed = _chosen(args)
    if args.kernels_out is not None:
        write_kernels(args.kernels_out, listed, str(run or args.kernels))
        say(f"Wrote {args.kernels_out}")
    if not command:
        _print_list(listed.kernels)
        return 0
    return _profile(listed, args)


def _chosen(args: argparse.Namespace) -> KernelList:
    if args.kernels is not None:
        return read_kernels(args.kernels).top(args.top)
    _require_libraries(
        "choosing kernels", f"{COMMAND} {shell_word(args.run)} --top {args.top} --kernels-out FILE"
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
    try:
        ncu = tools.find_tool("ncu", args.ncu)
    except ToolError:  # `profile` says so
        ncu = None
    by_size = ncu is None or tools.ncu_counts_by_size(str(ncu.path))
    selection = select(listed, args.launch_count, by_size=by_size)
    if in_front and not args.quiet:
        if args.format == "table":
            _print_list(listed.kernels)
        more = f", at most {args.runs} if ncu does not meet every kernel (--runs 1: never)"
        _message(
            f"{plan_text(selection, listed, args.set)}\n  1 run of the command{more if args.runs > 1 else ''}."
        )
    none = dict.fromkeys(("capture_range", *(option.dest for option in FROM_GROUP.options)))

    def run(selection: Selection, output: Path) -> int:
        more: dict[str, Any] = {**none, **selection.options(), "output": str(output), "job": job}
        return profile.main(argparse.Namespace(**{**vars(args), **more}))

    code = run(selection, asked)
    folder = folder_of(asked, job)
    if args.dry_run or folder is None:
        return code
    # An unselected rank has become the command and does not get here.
    with after_job(_message):
        write_kernels(folder / LIST_NAME, listed, str(args.run or args.kernels))
        if in_front and ncu is not None:
            code = _until_measured(listed, selection, folder, ncu, by_size, code, run, args)
    return code


def _until_measured(
    listed: KernelList,
    selection: Selection,
    folder: Path,
    ncu: tools.Tool,
    by_size: bool,
    code: int,
    run: Callable[[Selection, Path], int],
    args: argparse.Namespace,
) -> int:
    """Run the command again while ncu has not met every kernel, then show what it measured. A job or an ncu that fails
    would do so again. The exit code of the last run."""

    def launches_in(folder: Path) -> list[tools.Launch]:
        reports = sorted(folder.glob(_REPORTS))
        return [launch for report in reports for launch in tools.ncu_launches(ncu, report)]

    met = last = launches_in(folder)
    runs, latest = 1, folder
    while (missed := listed.missed(met)) and code == 0 and runs < args.runs and not _has_failed(latest):
        selection = select_again(listed, selection, missed, last, by_size=by_size)
        runs += 1
        _message(
            f"ncu did not meet {len(missed)} of {len(listed.kernels)} kernels; running the command again\n"
            f"  {plan_text(selection, listed, args.set)}"
        )
        latest = folder / f"run-{runs}"
        code = run(selection, latest)
        last = launches_in(latest)
        met = [*met, *last]
    for number in range(2, runs + 1):
        _take_reports(folder, folder / f"run-{number}", number)
    _message(
        f"ncu measured {len(listed.kernels) - len(missed)} of {len(listed.kernels)} kernels, "
        f"{len(met)} launches in {runs} run{'s' * (runs > 1)} of the command"
    )
    if list(folder.glob(_REPORTS)) and not missing_libraries():
        _show(folder, listed, args)  # its notes name what was missed
        return code
    for kernel in missed:
        _message(f"not measured: {kernel.name} ({kernel.size}): {why_missed(kernel, met)}")
    if met:
        _message(f"to see the results, where rankscope is installed in full: {COMMAND} {short_path(folder)}")
    return code


def _has_failed(folder: Path) -> bool:
    """Whether ncu itself failed in this run."""
    notes = [note for manifest in rank_manifests(folder) for note in manifest["notes"]]
    return any(note.startswith(NO_NCU_REPORT) for note in notes)


def _take_reports(folder: Path, later: Path, number: int) -> None:
    """Move the reports of a later run into the folder of the first, as rank-00000.2.ncu-rep, with their windows."""
    first = {manifest["rank"]: manifest for manifest in rank_manifests(folder)}
    for manifest in rank_manifests(later):
        target_manifest = first.setdefault(manifest["rank"], {**manifest, "windows": []})
        windows = target_manifest["windows"]
        for window in manifest["windows"]:
            source = later / window["file"]
            target = folder / f"{source.stem}.{number}{source.suffix}"
            source.replace(target)
            windows.append({**window, "index": len(windows), "file": target.name})
        write_rank(folder, target_manifest)
    shutil.rmtree(later, ignore_errors=True)


def _message(text: str) -> None:
    say(f"rankscope: {text}")


def _show(folder: Path, listed: KernelList, args: argparse.Namespace) -> int:
    """One table: what the kernels cost in RUN, and what ncu measured."""
    _require_libraries("reading ncu's reports", f"{COMMAND} {shell_word(folder)}")
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
