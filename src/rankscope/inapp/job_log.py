"""This process as part of the job: its rank, and the lines that rankscope prints on its stderr."""

from __future__ import annotations

import contextlib
import os
import sys

from rankscope.capture.rank import Identity, detect
from rankscope.text.visible_text import visible


def current_identity() -> Identity:
    """The rank of this process: from torch.distributed where it is initialized, else from the launcher."""
    import torch

    found = detect(os.environ)
    if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        return found
    rank, world = torch.distributed.get_rank(), torch.distributed.get_world_size()
    if (found.rank, found.world_size) == (rank, world):
        return found
    return Identity(rank, None, world, None, None, "torch.distributed")


class JobLog:
    """One line per message, on stderr; printing never raises.

    ``reports`` selects the one process of the job that prints ``info`` messages.
    """

    def __init__(
        self, rank: int, *, reports: bool = True, quiet: bool = False, verbose: bool = False
    ) -> None:
        self.rank = rank
        self.reports = reports and not quiet
        self._quiet = quiet
        self.verbose = verbose
        self._stderr = _stderr_file()

    def warning(self, text: str) -> None:
        """Printed on every rank, even with --quiet."""
        self._print(text)

    def info(self, text: str) -> None:
        if self.reports or self.verbose:
            self._print(text)

    def progress(self, text: str) -> None:
        """While training goes on: printed by rank 0, also where the process in front sums up the end."""
        if self.verbose or (self.rank == 0 and not self._quiet):
            self._print(text)

    def debug(self, text: str) -> None:
        if self.verbose:
            self._print(text)

    def _print(self, text: str) -> None:
        # The script may have closed stderr, and 2 be the number of a file of its own.
        if sys.stderr is sys.__stderr__ and _stderr_file() != self._stderr:
            return
        # It may have replaced sys.stderr, or its disk may be full: the job must not fail for that.
        with contextlib.suppress(OSError, ValueError, AttributeError):
            sys.stderr.write(f"rankscope: rank {self.rank}: {visible(' '.join(text.split()))}\n")
            sys.stderr.flush()


def _stderr_file() -> tuple[int, int] | None:
    try:
        found = os.fstat(2)
    except OSError:
        return None
    return found.st_dev, found.st_ino
