"""A capture that is asked for in words, by the environment variable RANKSCOPE or by a framework's callback, without a
command in front of the job.

    RANKSCOPE=watch torchrun train.py
    RANKSCOPE="profile --steps 20:24 -o runs/a" torchrun train.py

The words are those of `rankscope profile`; `watch` is `profile --watch`. The variable is read by frameworks
(rankscope.lightning, …) or by torch itself (the distribution rankscope-autoload), and goes before the words in the
code. It stays set: a process without a rank may start those that have one.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from collections.abc import Sequence
from typing import Any

from rankscope.capture.plan import PLAN_VARIABLE, Plan
from rankscope.capture.rank import Identity
from rankscope.errors import RankscopeError, UsageError

VARIABLE = "RANKSCOPE"
_EXAMPLES = "Write watch, or profile and its options: profile --steps 20:24"


def asked_words(words: str = "") -> str:
    """What the variable asks for, else these words; nothing with `rankscope profile` in front of the job."""
    return "" if PLAN_VARIABLE in os.environ else os.environ.get(VARIABLE) or words


def start(words: str = "") -> None:
    """Capture this process as the variable asks, else as these words do, if it is a selected rank."""
    plan = asked_plan(words)
    if plan is not None:
        capture(plan)


def asked_plan(words: str) -> Plan | None:
    """What the variable asks for, else these words; None for neither, and with `rankscope profile` in front of the job.

    It never fails: the job goes on, and one line gives the reason.
    """
    asked = asked_words(words)
    if not asked:
        return None
    try:
        return plan_of(asked)
    except RankscopeError as error:
        from rankscope.inapp.job_log import JobLog, current_identity

        if current_identity().rank == 0:
            JobLog(0).warning(f"not captured, the job goes on: {error.message}. {error.hint}")
        return None


def capture(plan: Plan, identity: Identity | None = None) -> None:
    """Capture this process so, if it is a selected rank; nothing happens where it is captured already."""
    from rankscope.inapp.engine import current_engine
    from rankscope.inapp.start_capture import capture_this_process

    if current_engine() is None:
        capture_this_process(plan, identity)


def framework_class(modules: Sequence[str], name: str) -> type:
    """A framework's class: of the module that is imported already, else installed; elsewhere a plain one, for trainers
    that call the same methods."""
    for module in sorted(modules, key=lambda module: module.partition(".")[0] not in sys.modules):
        if importlib.util.find_spec(module.partition(".")[0]) is not None:
            base: type = getattr(importlib.import_module(module), name)
            return base
    return object


def open_range(name: str) -> Any:
    """Begin a range of this name, where a profiler records; None elsewhere."""
    import torch

    if not torch.autograd._profiler_enabled():
        return None
    opened = torch.profiler.record_function(name)
    opened.__enter__()
    return opened


def close_range(opened: Any) -> None:
    """End a range that open_range has begun; a step may have ended the window meanwhile."""
    if opened is not None:
        opened.__exit__(None, None, None)


def plan_of(text: str) -> Plan:
    """The plan that these words ask for."""
    import shlex

    from rankscope.cli import Parser
    from rankscope.cli import profile as profile_command

    words = shlex.split(text)
    if words[:1] not in (["watch"], ["profile"]):
        raise UsageError(
            f"'{text}' is neither watch nor profile",
            why="They are the two ways to capture a job.",
            hint=_EXAMPLES,
        )
    parser = Parser(prog="rankscope profile", allow_abbrev=False)
    profile_command.configure(parser)
    args = parser.parse_args(["--watch"] * (words[0] == "watch") + words[1:])
    if args.command:
        raise UsageError(
            f"'{args.command[0]}' is not an option of rankscope profile",
            why="No command belongs here: the job runs already.",
            hint=_EXAMPLES,
        )
    if args.tool != "torch":
        raise UsageError(
            f"--tool {args.tool} cannot start inside a running program",
            why="Nsight must start the program itself.",
            hint=f"Put it in front: rankscope profile --tool {args.tool} COMMAND",
        )
    return profile_command.plan_of(args, tuple(sys.orig_argv))
