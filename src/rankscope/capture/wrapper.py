"""The quick part of `rankscope profile`: is this the command in front of a job or one of its ranks, and is that
rank selected. An unselected rank needs nothing beyond this module, so it imports as little as possible.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Sequence
from typing import NamedTuple

from rankscope.capture.plan import Plan
from rankscope.capture.rank import SINGLE, Identity
from rankscope.capture.schedule import OnSignal
from rankscope.capture.selector import parse_selector
from rankscope.errors import CaptureError, UsageError


class Output(NamedTuple):
    """How text leaves the wrapper; the command line supplies both functions."""

    message: Callable[[str], None]
    """A message about the capture: stderr."""
    line: Callable[[str], None]
    """A line of the result of --dry-run: stdout."""


def find_program(program: str) -> str | None:
    """Its path, as exec finds it. (shutil.which would double the import time of an unselected rank.)"""
    folders = [""] if "/" in program else os.environ.get("PATH", os.defpath).split(os.pathsep)
    paths = (f"{folder}/{program}" if folder else program for folder in folders)
    return next((path for path in paths if os.access(path, os.X_OK) and not os.path.isdir(path)), None)  # noqa: PTH112


def check_program(program: str) -> None:
    """Refuse a program that is not on PATH."""
    if find_program(program) is None:
        raise UsageError(
            f"'{program}' is not a command",
            why="No program of that name is on PATH.",
            hint="For a script without execute permission, name its interpreter: python train.py, bash train.sh.",
        )


def is_in_front(command: Sequence[str], identity: Identity, *, per_node: bool, inserted: bool) -> bool:
    """Whether this process starts the whole job, as opposed to one rank of it.

    ``inserted`` marks the command that rankscope itself has put into a launcher's command line.
    """
    wraps_launcher = per_node and starts_ranks_here(command)
    return (is_launcher_name(command) and not wraps_launcher) or (identity.source == SINGLE and not inserted)


def starts_ranks_here(command: Sequence[str]) -> bool:
    """Whether the command is a launcher whose ranks are its own children (torchrun): --per-node can wrap it."""
    return is_launcher_name(command) and not _name(command).startswith(("mpi", "orterun", "srun"))


def is_launcher_name(command: Sequence[str]) -> bool:
    """By name alone; launcher_command.py parses the command, which an unselected rank need not do."""
    name = _name(command)
    if name.startswith("python") and list(command[1:2]) == ["-m"]:
        return command[2:3] in (["torch.distributed.run"], ["accelerate.commands.launch"])
    return name in ("torchrun", "srun", "deepspeed", "accelerate", "accelerate-launch") or name.startswith(
        ("mpiexec", "mpirun", "orterun")
    )


def _name(command: Sequence[str]) -> str:
    return command[0].rpartition("/")[2]


def is_selected(plan: Plan, identity: Identity, message: Callable[[str], None]) -> bool:
    """Whether --ranks selects this rank; False, with a message, where that cannot be found out."""
    selector = parse_selector(plan.ranks)
    try:
        if selector.matches_none(identity) and identity.rank == 0:
            message(
                f"--ranks {plan.ranks} selects none of the {identity.world_size} ranks; "
                "the job runs without being captured"
            )
        return selector.selects(identity)
    except CaptureError as error:
        message(f"{error}\n  The job runs without being captured.")
        return False


def requested_signal(plan: Plan) -> signal.Signals | None:
    """The signal of --on-signal, which starts a recording."""
    return signal.Signals[f"SIG{plan.when.signal}"] if isinstance(plan.when, OnSignal) else None
