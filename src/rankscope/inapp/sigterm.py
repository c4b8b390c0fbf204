"""A job that is told to stop while a trace is being taken still leaves a readable file, and stops as it would
have.

SIGINT needs nothing here: Python raises KeyboardInterrupt, the script unwinds, and the exit handler does the
rest. SIGTERM kills a Python process on the spot, so while a recording is open or being written we answer it
first.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

# Python runs a signal handler when the main thread is back in Python. If a collective holds it longer than
# this, the job dies as it would have without us, and the window is lost.
STUCK_S = 5.0


class TerminationGuard:
    """Between ``on`` and ``off`` SIGTERM first calls ``finish``, then does what it did before.

    ``finish`` is told whether the script answers the signal itself: then the process may well live on.
    """

    def __init__(self, finish: Callable[[bool], None]) -> None:
        self._finish = finish
        self._previous: Any = None
        self._installed = False
        self._wakeup: int | None = None

    def on(self) -> None:
        if self._installed or threading.current_thread() is not threading.main_thread():
            return
        previous = signal.getsignal(signal.SIGTERM)
        if previous is None or previous is signal.SIG_IGN:
            return  # set outside Python, or ignored on purpose: not ours to change
        self._previous = previous
        signal.signal(signal.SIGTERM, self._on_term)
        self._installed = True
        self._watch()

    def off(self) -> None:
        if not self._installed or threading.current_thread() is not threading.main_thread():
            return
        if signal.getsignal(signal.SIGTERM) == self._on_term:  # the script may have put its own in meanwhile
            signal.signal(signal.SIGTERM, self._previous)
        self._installed = False
        self._unwatch()

    def _on_term(self, number: int, frame: FrameType | None) -> None:
        previous = self._previous
        self.off()
        self._finish(callable(previous))
        if callable(previous):
            previous(number, frame)
        else:
            os.kill(os.getpid(), number)  # with the default action: the exit status is the signal's own

    def _watch(self) -> None:
        """A thread that sees the signal at once, and ends the process if the main thread cannot answer it."""
        if callable(self._previous):
            return
        reader, writer = os.pipe()
        os.set_blocking(writer, False)
        before = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
        if before != -1:  # an event loop uses it already
            signal.set_wakeup_fd(before)
            os.close(reader)
            os.close(writer)
            return
        self._wakeup = writer
        threading.Thread(target=_end_if_stuck, args=(reader,), name="rankscope-term", daemon=True).start()

    def _unwatch(self) -> None:
        if self._wakeup is None:
            return
        writer, self._wakeup = self._wakeup, None
        current = signal.set_wakeup_fd(-1)
        if current != writer:  # somebody else's by now
            signal.set_wakeup_fd(current)
        os.close(writer)


def _end_if_stuck(reader: int) -> None:
    """Wait for SIGTERM's number in the pipe; the end of the pipe means that all is well."""
    import ctypes
    import select

    with open(reader, "rb", buffering=0) as pipe:
        while numbers := pipe.read(64):
            if signal.SIGTERM in numbers and not select.select([pipe], [], [], STUCK_S)[0]:
                # signal.signal is for the main thread, which does not answer; libc's own is for any.
                ctypes.CDLL(None).signal(int(signal.SIGTERM), None)
                os.kill(os.getpid(), signal.SIGTERM)
