"""The options of `rankscope profile` that belong to nsys or ncu, under their own names; checked before anything
starts."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from rankscope.capture.schedule import OnSignal, Schedule, TimeWindow, When
from rankscope.cli.options import READING, Group, OnOff, group, made_of, names, positive
from rankscope.errors import UsageError

if TYPE_CHECKING:
    from rankscope.capture.under_tool.tool_rank import ToolRequest
    from rankscope.tools import NcuOptions, NsysOptions

_SCHEDULES = ("skip_first", "wait", "warmup", "active", "repeat", "steps", "after", "for_", "on_signal")
# How many launches ncu profiles without -c: all of them would take hundreds of times the job's walltime.
NCU_LAUNCHES = 32
# -c: the range that the program itself opens with cudaProfilerStart.
OWN_RANGE = "cudaProfilerApi"


_NSYS = """\
-t, --trace LIST  what is traced (default: cuda,nvtx)
-c, --capture-range RANGE  cudaProfilerApi or nvtx:RANGE[@DOMAIN]: record only inside it; for ncu: cudaProfilerApi, or
    how many launches
-s, --sample {process-tree,system-wide,none}  CPU samples (default: none)
--gpu-metrics-devices, --gpu-metrics-device ID  sample the GPU's counters: all, or a GPU's number
--cuda-memory-usage  record every allocation on the GPU
--nic-metrics  sample the network cards
--show-output  =false: the job's output is only in the report (default: true)
--per-node  one report around torchrun, with all ranks of the node
--run-as USER  run the job as this user, nsys as root (with sudo, where what is asked for needs it)
--tool-arg X ...  pass X to nsys or ncu unchanged, in place of rankscope's own option of that name; may be
    repeated: --tool-arg=-X
--nvtx LIST  mark also ops, modules or both (ops,modules) as NVTX ranges; steps are always marked
--nsys PATH  where nsys is, when it is not on PATH
"""
_NCU = """\
-k, --kernel-name NAME ...  which kernels: a name, or regex:…; may be repeated (default: all but NCCL's)
--kernel-name-base {function,demangled,mangled}  which name -k is compared with (default: function)
--launch-count N  how many launches, 0 for all (default: 32)
--launch-skip N  skip this many of the launches that match
--filter-mode {global,per-gpu,per-launch-config}  skip and count for all launches, each GPU, or each grid and block
    (default: global)
--set {roofline,detailed,full}  which sections (default: roofline)
--clock-control {base,none}  lock the clocks or not (default: lock them where the machine allows it)
--ncu PATH  where ncu is, when it is not on PATH
"""
_FROM = """\
--from RUN  measure only the costliest kernels of RUN (torch or nsys traces) in COMMAND, beside their cost in RUN.
    Without COMMAND: list them, or show what was measured in RUN
--top N  how many kernels (default: 3)
--by {time,calls}  the costliest or the most frequent (default: time)
--kernels FILE  read the list from FILE; needs no RUN and no libraries
--kernels-out FILE  write the list to FILE
--runs N  run COMMAND at most this often, until every kernel is measured (default: 2)
--format {table,csv,json,markdown}  of what ncu measured (default: table)
"""
_ON_OFF = {"action": OnOff}
_BOTH = ("true", "false")
# Values of options of these names as only the tool has them, or has them behind a blank too.
_ITS_VALUES: dict[str, dict[str, tuple[str, ...]]] = {
    "nsys": {
        **dict.fromkeys(("force-overwrite", "show-output", "stats", "cuda-memory-usage"), _BOTH),
        "nic-metrics": (*_BOTH, "lf", "hf"),
        "sample": ("cpu",),
        "wait": ("primary", "all"),
    },
    "ncu": {"set": ("basic", "nvlink", "pmsampling", "source")},
}
TOOL_GROUPS = (
    group(
        "--tool nsys, with nsys's option names (docs/nsight.md)",
        _NSYS,
        gpu_metrics_devices={"dest": "gpu_metrics_device"},
        cuda_memory_usage=_ON_OFF,
        nic_metrics=_ON_OFF,
        show_output={**_ON_OFF, "default": None},
        nvtx=names,
    ),
    group("--tool ncu, with ncu's option names", _NCU, launch_count=int, launch_skip=int),
)
FROM_GROUP = group(
    "--tool ncu --from RUN: the costliest kernels of an earlier run",
    _FROM + READING,
    top=positive,
    runs=positive,
    jobs=positive,
    **{"from": {"dest": "from_run"}},
)
# The options of nsys above that ncu has too.
_OF_BOTH = dict.fromkeys(("capture_range", "tool_arg", "nvtx"), ("nsys", "ncu"))


def with_tool_options(words: Sequence[str], parser: argparse.ArgumentParser) -> list[str]:
    """The words with each option of nsys or ncu that is not ours, or not in our form, as one of ours."""
    pairs = zip(words, [*words[1:], ""], strict=False)
    tools = (
        value if word == "--tool" else word[7:] for word, value in pairs if word.split("=")[0] == "--tool"
    )
    tool = next(tools, "torch")
    if tool not in ("nsys", "ncu"):
        return list(words)
    from rankscope.nsight_options import first_option, is_option_of, take

    actions = {name: action for action in parser._actions for name in action.option_strings}
    done: list[str] = []
    rest = list(words)
    while rest and rest[0].startswith("-") and rest[0] not in ("-", "--"):
        action = actions.get(rest[0].partition("=")[0])
        if (action is None and is_option_of(tool, rest[0])) or _has_another_form(tool, rest):
            following = first_option(tool, rest)[2]
            taken = take(tool, rest[: len(rest) - len(following)])
            for name, reason in taken.refused:
                raise UsageError(f"{name} of {tool} is not possible", why=f"{reason}.", hint="Leave it out.")
            done, rest = [*done, *taken.words], following
        else:
            count = 2 if action is not None and action.nargs is None and "=" not in rest[0] else 1
            done, rest = [*done, *rest[:count]], rest[count:]
    return [*done, *rest]


def _has_another_form(tool: str, words: list[str]) -> bool:
    """Whether the first is an option of ours as only the tool writes it: -f true, a bare --nvtx, -s N of ncu."""
    from rankscope.nsight_options import first_option

    name, value, _ = first_option(tool, words)
    if name == "nvtx":  # a flag of ncu
        return tool == "ncu" and not set("".join(words[1:2]).split(",")) <= {"ops", "modules"}
    return name == "launch-skip" or value in _ITS_VALUES[tool].get(name, ())


def tool_path(args: argparse.Namespace) -> list[str]:
    """--nsys or --ncu, for a command that reads the reports."""
    return [f"--{name}={path}" for name in ("nsys", "ncu") if (path := getattr(args, name))]


def is_ranged(args: argparse.Namespace) -> bool:
    """Whether a schedule was asked for; without one, nsys and ncu record the whole run."""
    return any(getattr(args, name) is not None for name in _SCHEDULES)


def check_tool_options(args: argparse.Namespace, torch_groups: Iterable[Group]) -> None:
    """Refuse options of another tool, and values that cannot be parsed."""
    all_groups = {"torch": torch_groups, "nsys": TOOL_GROUPS[:1], "ncu": (*TOOL_GROUPS[1:], FROM_GROUP)}
    by_tool = (
        (tool, option) for tool, groups in all_groups.items() for each in groups for option in each.options
    )
    for tool, option in by_tool:
        given, of_tools = getattr(args, option.dest, None), _OF_BOTH.get(option.dest, (tool,))
        is_given = given or (given is False and option.dest == "show_output")
        if is_given and args.tool not in of_tools:
            raise UsageError(
                f"{option.names[-1]} is an option of --tool {of_tools[0]}",
                why=f"The tool here is {args.tool}.",
                hint=f"Leave it out, or give --tool {of_tools[0]}.",
            )
    if unused := [each.names[-1] for each in FROM_GROUP.options if getattr(args, each.dest, None)]:
        raise UsageError(
            f"{unused[0]} needs --from RUN or --kernels FILE",
            why="It is about kernels that are chosen from a run.",
            hint="Give one of them, or leave it out.",
        )
    if unknown := set(args.nvtx or ()) - {"ops", "modules"}:
        raise UsageError(
            f"--nvtx {', '.join(sorted(unknown))} is not known", hint="Give ops, modules or both."
        )
    if args.tool_arg:
        from rankscope.tools import NOT_REPLACED, given_options  # late: most unselected ranks do not get here

        given = given_options(args.tool, args.tool_arg)
        for name in NOT_REPLACED.get(args.tool, ()):
            if name in given:
                raise UsageError(
                    f"--tool-arg {name} is not possible",
                    why="rankscope looks for the report where it told the tool to write it.",
                    hint="Name the run folder: -o DIR",
                )
    given = args.capture_range
    if given is None:
        return
    if args.tool == "ncu" and not given.isdecimal() and given != OWN_RANGE:
        raise UsageError(
            f"-c {given} is neither a number of launches nor {OWN_RANGE}",
            hint=f"For example: -c 10; 0 is all of them. Or -c {OWN_RANGE}, and --launch-count 10.",
        )
    kind, _, name = given.partition(":")
    known_range = kind in (OWN_RANGE, "nvtx", "none") and (kind == "nvtx") == bool(name)
    if args.tool == "nsys" and not known_range:
        raise UsageError(
            f"-c {given} is not a capture range",
            why="nsys waits for cudaProfilerStart, or for an NVTX range of a name.",
            hint="Write -c cudaProfilerApi or -c nvtx:RANGE (nvtx:RANGE@DOMAIN).",
        )
    if is_ranged(args) and not given.isdecimal():
        raise UsageError(
            f"-c {given} and a schedule are two schedules at once",
            why="A schedule records between cudaProfilerStart and cudaProfilerStop, which rankscope calls itself.",
            hint="Keep one of them.",
        )


def tool_request(args: argparse.Namespace, when: When) -> ToolRequest:
    from rankscope.capture.under_tool.tool_rank import ToolRequest

    options = nsys_options(args, when) if args.tool == "nsys" else ncu_options(args)
    return ToolRequest(
        options=options,
        program=args.nsys if args.tool == "nsys" else args.ncu,
        per_node=args.per_node,
        ranged=is_ranged(args),
        clock_control=args.clock_control,
        dry_run=args.dry_run,
    )


def nsys_options(args: argparse.Namespace, when: When) -> NsysOptions:
    from rankscope.tools import NsysOptions

    window = when if isinstance(when, TimeWindow) and is_ranged(args) else None
    capture_range = None if args.capture_range == "none" else args.capture_range
    captures = 1
    if is_ranged(args) and window is None:  # 0 where the number of windows is not known in advance
        assert isinstance(when, OnSignal | Schedule)
        capture_range, captures = OWN_RANGE, 0 if isinstance(when, OnSignal) else when.repeat
    return made_of(
        NsysOptions,
        args,
        capture_range=capture_range,
        captures=captures,
        delay_s=round(window.after_s) if window else 0,
        duration_s=max(1, round(window.for_s)) if window else 0,
        overwrite=args.force,
        extra=tuple(args.tool_arg),
    )


def ncu_options(args: argparse.Namespace) -> NcuOptions:
    from rankscope.tools import NcuOptions, any_kernel

    count = int(args.capture_range) if (args.capture_range or "").isdecimal() else NCU_LAUNCHES
    return made_of(
        NcuOptions,
        args,
        kernels=any_kernel(args.kernel_name),
        launch_count=count if args.launch_count is None else args.launch_count,
        clock_control="base",
        ranged=is_ranged(args) or args.capture_range == OWN_RANGE,
        overwrite=args.force,
        extra=tuple(args.tool_arg),
    )
