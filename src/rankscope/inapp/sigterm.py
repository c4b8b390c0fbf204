"""SIGTERM while a window is open or being written: save the trace first, then end as the job would have.

SIGINT needs nothing: Python raises KeyboardInterrupt, the script unwinds, and the exit handler saves the trace.
SIGTERM would end the Python process at once.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

# Python runs a signal handler once the main thread is back in Python code. If a collective holds it longer than
# this, the process is ended without the handler, and the window is lost.
STUCK_S = 5.0


class SigtermGuard:
    """Between ``on`` and ``off`` SIGTERM first calls ``finish``, then the previous handler or default.

    The argument of ``finish`` is whether the script has its own handler: then the process may continue.
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
            return  # set outside Python, or ignored on purpose: left as it is
        self._previous = previous
        signal.signal(signal.SIGTERM, self._on_term)
        self._installed = True
        self._watch()

    def off(self) -> None:
        if not self._installed or threading.current_thread() is not threading.main_thread():
            return
        if signal.getsignal(signal.SIGTERM) == self._on_term:  # the script may have set its own since
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
            os.kill(os.getpid(), number)  # by the default action, so that the exit status shows the signal

    def _watch(self) -> None:
        """Start a thread that ends the process if the main thread cannot run the handler in time."""
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
        if current != writer:  # replaced since
            signal.set_wakeup_fd(current)
        os.close(writer)


def _end_if_stuck(reader: int) -> None:
    """Wait for SIGTERM in the wakeup pipe. The pipe is closed once the handler has run."""
    import ctypes
    import select

    with open(reader, "rb", buffering=0) as pipe:
        while numbers := pipe.read(64):
            if signal.SIGTERM in numbers and not select.select([pipe], [], [], STUCK_S)[0]:
                # signal.signal works only in the main thread, which is stuck; libc's signal works in any.
                ctypes.CDLL(None).signal(int(signal.SIGTERM), None)
                os.kill(os.getpid(), signal.SIGTERM)
