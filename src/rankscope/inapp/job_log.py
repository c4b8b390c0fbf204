"""This process as part of the job: its rank, and the lines that rankscope prints on its stderr."""

from __future__ import annotations

import contextlib
import os
import sys
from typing import Any

from rankscope.capture.rank import Identity, detect
from rankscope.files import file_identity, line_break
from rankscope.text.visible_text import visible


def joined_distributed() -> Any:
    """torch.distributed, once this process has joined a process group; else None."""
    torch = sys.modules.get("torch")
    distributed = getattr(torch, "distributed", None)  # None while torch is being imported
    joined = distributed is not None and distributed.is_available() and distributed.is_initialized()
    return distributed if joined else None


def process_groups() -> list[tuple[str, str, list[int]]]:
    """The name, description and ranks of each group that this process is in."""
    distributed = joined_distributed()
    if distributed is None:
        return []
    try:
        world = distributed.distributed_c10d._world
        members = [
            (group, ranks) for group, ranks in world.pg_group_ranks.items() if hasattr(group, "group_desc")
        ]
        return [(world.pg_names[group], group.group_desc, [*ranks]) for group, ranks in members]
    except Exception:  # noqa: BLE001  (private names of torch)
        return []


def current_identity() -> Identity:
    """The rank of this process: from torch.distributed where it is initialized, else from the launcher."""
    launched = detect(os.environ)
    distributed = joined_distributed()
    if distributed is None:
        return launched
    rank, world = distributed.get_rank(), distributed.get_world_size()
    if (launched.rank, launched.world_size) == (rank, world):
        return launched
    return Identity(rank, None, world, None, None, "torch.distributed")


class JobLog:
    """One line per message, on stderr; printing never raises.

    ``leads`` is true of the one process of the job that prints ``info`` and ``progress``; without ``reports`` it does
    not print ``info``.
    """

    def __init__(
        self, rank: int, *, reports: bool = True, quiet: bool = False, verbose: bool = False
    ) -> None:
        self.rank = rank
        self.leads = True
        self.reports = reports and not quiet
        self._quiet = quiet
        self.verbose = verbose
        self._stderr = file_identity(2)

    def warning(self, text: str) -> None:
        """Printed on every rank, even with --quiet."""
        self._print(text)

    def info(self, text: str) -> None:
        if (self.leads and self.reports) or self.verbose:
            self._print(text)

    def progress(self, text: str) -> None:
        """While training goes on: printed by one rank, also where the process in front sums up the end."""
        if self.verbose or (self.leads and not self._quiet):
            self._print(text)

    def debug(self, text: str) -> None:
        if self.verbose:
            self._print(text)

    def _print(self, text: str) -> None:
        # The script may have closed stderr, and 2 be the number of a file of its own.
        if sys.stderr is sys.__stderr__ and file_identity(2) != self._stderr:
            return
        # It may have replaced sys.stderr, or its disk may be full: the job must not fail for that.
        with contextlib.suppress(OSError, ValueError, AttributeError):
            line = f"rankscope: rank {self.rank}: {visible(' '.join(text.split()))}\n"
            sys.stderr.write(line_break(sys.stderr) + line)
            sys.stderr.flush()
