"""SIGTERM while a window is open or being written: save the trace first, then end as the job would have.

SIGINT needs nothing: Python raises KeyboardInterrupt, the script unwinds, and the exit handler saves the trace.
SIGTERM would end the Python process at once.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import resource
import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

# Python runs a signal handler once the main thread is back in Python code. If a collective holds it longer than
# this, the process is ended without the handler, and the window is lost.
STUCK_S = 5.0
# The wakeup pipe's numbers: this many below the process's limit, or below 1024, which every select(2) can take.
_ROOM, _HIGHEST = 8, 1024


class SigtermGuard:
    """Between ``on`` and ``off`` SIGTERM first calls ``finish``, then the previous handler or default.

    The argument of ``finish`` is whether the script has its own handler: then the process may continue.
    """

    def __init__(self, finish: Callable[[bool], None]) -> None:
        self._finish = finish
        self._previous: Any = None
        self._installed = False
        self._pipe: _HighPipe | None = None

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

    def check(self) -> None:
        """Forget the wakeup pipe if the script has closed it (os.closerange), before a signal is written elsewhere."""
        if self._pipe is not None and not self._pipe.whole:
            self._unwatch()

    def _watch(self) -> None:
        """Start a thread that ends the process if the main thread cannot run the handler in time."""
        if callable(self._previous):
            return
        pipe = _HighPipe()
        before = signal.set_wakeup_fd(pipe.writer, warn_on_full_buffer=False)
        if before != -1:  # an event loop uses it already
            signal.set_wakeup_fd(before)
            pipe.close(pipe.writer)
            pipe.close(pipe.reader)
            return
        self._pipe = pipe
        threading.Thread(target=_end_if_stuck, args=(pipe,), name="rankscope-term", daemon=True).start()

    def _unwatch(self) -> None:
        if self._pipe is None:
            return
        pipe, self._pipe = self._pipe, None
        current = signal.set_wakeup_fd(-1)
        if current != pipe.writer:  # replaced since
            signal.set_wakeup_fd(current)
        pipe.close(pipe.writer)


class _HighPipe:
    """A pipe whose numbers are the highest that the process may have.

    A script may close descriptors that are not its own. Numbers are given out from the lowest, so these are not taken
    by a file of the script's, into which a signal would then be written.
    """

    def __init__(self) -> None:
        ends = os.pipe()
        highest = min(resource.getrlimit(resource.RLIMIT_NOFILE)[0], _HIGHEST)
        self.reader, self.writer = (_moved(end, highest - _ROOM) for end in ends)
        os.set_blocking(self.writer, False)
        self._file = _identity(self.writer)

    @property
    def whole(self) -> bool:
        return _identity(self.reader) == _identity(self.writer) == self._file

    def close(self, end: int) -> None:
        if _identity(end) == self._file:
            os.close(end)


def _moved(descriptor: int, least: int) -> int:
    try:
        number = fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, least)
    except OSError:  # none is free there
        return descriptor
    os.close(descriptor)
    return number


def _identity(descriptor: int) -> tuple[int, int] | None:
    try:
        found = os.fstat(descriptor)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _end_if_stuck(pipe: _HighPipe) -> None:
    """Wait for SIGTERM in the wakeup pipe. The pipe is closed once the handler has run."""
    import ctypes
    import select

    with contextlib.suppress(OSError):  # the script has closed the pipe
        while numbers := os.read(pipe.reader, 64):
            if signal.SIGTERM in numbers and not select.select([pipe.reader], [], [], STUCK_S)[0]:
                # signal.signal works only in the main thread, which is stuck; libc's signal works in any.
                ctypes.CDLL(None).signal(int(signal.SIGTERM), None)
                os.kill(os.getpid(), signal.SIGTERM)
        pipe.close(pipe.reader)
