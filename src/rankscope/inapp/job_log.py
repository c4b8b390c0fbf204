"""What rankscope says inside somebody else's job: one line at a time, on stderr, and never an exception."""

from __future__ import annotations

import contextlib
import sys


class Voice:
    """Failures are always said; news only where this process is the one that speaks."""

    def __init__(self, rank: int, *, speaks: bool, quiet: bool, verbose: bool) -> None:
        self.rank = rank
        self.speaks = speaks and not quiet
        self.verbose = verbose

    def fail(self, text: str) -> None:
        self._line(text)

    def tell(self, text: str) -> None:
        if self.speaks or self.verbose:
            self._line(text)

    def detail(self, text: str) -> None:
        if self.verbose:
            self._line(text)

    def _line(self, text: str) -> None:
        # The script may have closed or replaced stderr, or the disk behind it may be full: not our job to
        # stop it.
        with contextlib.suppress(OSError, ValueError, AttributeError):
            sys.stderr.write(f"rankscope: rank {self.rank}: {' '.join(text.split())}\n")
            sys.stderr.flush()
