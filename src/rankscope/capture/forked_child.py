"""A forked child that cannot go on with the work of the process that it is a copy of."""

from __future__ import annotations

import os
import signal
import warnings
from collections.abc import Callable


def fork_child(work: Callable[[], object]) -> int:
    """Call ``work`` in a copy of this process, which ends there; return the copy's id. OSError: no copy was made.

    Whatever is raised in the copy, from the fork itself on, ends it with status 1. All signals are blocked in it, so
    that no handler of this process runs there: ``work`` unblocks those that it handles.
    """
    parent, status = os.getpid(), 1
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    try:
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())  # may raise what a handler raises
        with warnings.catch_warnings():
            # Python 3.12 warns about a fork beside threads; the copy does only what is safe there.
            warnings.simplefilter("ignore", DeprecationWarning)
            child = os.fork()
            if child == 0:
                work()
                status = 0
    finally:
        if os.getpid() != parent:
            os._exit(status)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    return child
