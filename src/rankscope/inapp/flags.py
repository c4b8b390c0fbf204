"""Command-line flags for profiling in a training script, and the profiler they configure.

rankscope.add_profile_arguments(parser)
args = parser.parse_args()
with rankscope.profiler_from_args(args, model=model) as prof:
    ...
"""

from __future__ import annotations

import argparse
import sys
from typing import Any

from rankscope.capture.job_name import script_name
from rankscope.capture.schedule import Schedule
from rankscope.inapp.operator_table import Summary
from rankscope.inapp.profiler import DEFAULT_FOLDER, profile, schedule
from rankscope.inapp.window_handlers import ChromeTrace, Handler, TensorBoard

_DEFAULTS = Schedule()
_SWITCHES = {
    "with-flops": "estimate FLOPs of matrix products and convolutions",
    "profile-memory": "record allocations",
    "with-stack": "record Python stacks",
    "with-modules": "record the module hierarchy",
    "record-shapes": "record the shapes of operators' inputs",
}
_CYCLE = {
    "wait": "idle steps of a cycle",
    "warmup": "steps the profiler warms up",
    "active": "recorded steps of a cycle",
    "repeat": "cycles; 0 is unlimited",
    "skip-first": "steps before the first cycle",
}


def add_profile_arguments(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    """Add the flags. One that the script defines already is kept, and its value is used."""
    add = _Adder(parser)
    add.group("profiling (rankscope)")
    add("--profiling", action="store_true", help="record some steps with torch's profiler, with summaries")
    add("--ptensorboard", action="store_true", help="write the trace for TensorBoard instead of as JSON")
    add("--prof_dir", default=DEFAULT_FOLDER, metavar="DIR", help="traces and summaries (default: ./prof)")
    add("--prof_table", action="store_true", help="print the table of operators at the end")
    add(
        "--debug",
        action="store_true",
        help="print what happens, and the memory before and after forward and backward",
    )
    add.group("torch profiler (rankscope, Megatron's names)")
    add("--torch-profile", action="store_true", help="record with the schedule and on the ranks below")
    add("--torch-profile-ranks", nargs="+", type=int, default=[0], metavar="N", help="default: 0")
    for name, text in _CYCLE.items():
        default = getattr(_DEFAULTS, name.replace("-", "_"))
        add(
            f"--torch-profile-{name}",
            type=int,
            default=default,
            metavar="N",
            help=f"{text} (default: {default})",
        )
    for name, text in _SWITCHES.items():
        add(f"--torch-profile-{name}", action="store_true", help=text)
    add("--tensorboard-dir", metavar="DIR", help="with --torch-profile: the traces go there, for TensorBoard")
    return parser


def profiler_from_args(
    args: argparse.Namespace, *, model: Any = None, name: str | None = None, **options: Any
) -> profile:
    """The profiler that the flags configure. Without --profiling or --torch-profile it does nothing.

    ``options`` are keywords of rankscope.profile (handlers, schedule, region …), and win over the flags.
    """
    megatron = bool(getattr(args, "torch_profile", False))
    enabled = megatron or bool(getattr(args, "profiling", False))
    chosen = {key.replace("-", "_"): _megatron(args, key) for key in _SWITCHES}
    cycle: dict[str, int] = {key.replace("-", "_"): _megatron(args, key) for key in _CYCLE}
    flags = {
        "folder": getattr(args, "prof_dir", DEFAULT_FOLDER),
        "enabled": enabled,
        "schedule": schedule(**cycle),
        "ranks": args.torch_profile_ranks if megatron else "all",
        "handlers": _handlers(args, megatron, name),
        "debug": bool(getattr(args, "debug", False)),
        **chosen,
    }
    return profile(model=model, name=name, **{**flags, **options})


def _megatron(args: argparse.Namespace, key: str) -> Any:
    return getattr(args, f"torch_profile_{key.replace('-', '_')}")


def _handlers(args: argparse.Namespace, megatron: bool, name: str | None) -> list[Handler]:
    folder = getattr(args, "tensorboard_dir", None) if megatron else None
    summary = Summary(prints=bool(getattr(args, "prof_table", False)))
    if folder or getattr(args, "ptensorboard", False):
        return [TensorBoard(folder), summary]
    return [ChromeTrace(name or script_name(sys.argv)), summary]


class _Adder:
    """add_argument, but flags that the script defines itself are kept (Megatron has --tensorboard-dir)."""

    def __init__(self, parser: argparse.ArgumentParser) -> None:
        self._parser = parser
        self._group: argparse._ArgumentGroup | None = None
        self._title = ""

    def group(self, title: str) -> None:
        self._title, self._group = title, None

    def __call__(self, flag: str, **options: Any) -> None:
        spellings = {flag, flag.replace("_", "-"), "--" + flag[2:].replace("-", "_")}
        if spellings & set(self._parser._option_string_actions):
            return
        if self._group is None:
            self._group = self._parser.add_argument_group(self._title)
        self._group.add_argument(flag, **options)
