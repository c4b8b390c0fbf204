"""SIGTERM while a window is open or being written: save the trace first, then end as the job would have.

SIGINT needs nothing: Python raises KeyboardInterrupt, the script unwinds, and the exit handler saves the trace.
SIGTERM would end the Python process at once.
"""

from __future__ import annotations

import contextlib
import os
import signal
import struct
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import Any

from rankscope.files import file_identity
from rankscope.host import high_descriptor
from rankscope.inapp.main_thread import start_waiting_thread

# Python runs a signal handler once the main thread is back in Python code. If a collective holds it longer than
# this, the process is ended without the handler, and the window is lost.
STUCK_S = 5.0
# struct ucred: process, user, group.
_CREDENTIALS = struct.Struct("3i")


class SigtermGuard:
    """Between ``on`` and ``off`` SIGTERM first calls ``finish``, then the previous handler or default.

    The argument of ``finish`` is whether the script has its own handler: then the process may continue.
    """

    def __init__(self, finish: Callable[[bool], None]) -> None:
        self._finish = finish
        self._handler: _Handler | None = None
        self._wakeup: _Wakeup | None = None
        self._masks = threading.local()

    def watch_forks(self, in_child: Callable[[], object]) -> None:
        """Call ``in_child`` in every forked child, then turn the guard off there.

        Python forgets the signals that reach a child before its hooks have run, because it has our handler: a worker
        that is terminated at once would not end. So SIGTERM is blocked until the child has its own handler again.
        """

        def before() -> None:
            if self._handler is not None and not callable(self._handler.previous):
                self._masks.before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})

        def after() -> None:
            mask, self._masks.before = getattr(self._masks, "before", None), None
            if mask is not None:
                signal.pthread_sigmask(signal.SIG_SETMASK, mask)

        def after_in_child() -> None:
            try:
                in_child()
            finally:
                self.off()
                after()

        os.register_at_fork(before=before, after_in_parent=after, after_in_child=after_in_child)

    def on(self) -> None:
        if self._handler is not None or threading.current_thread() is not threading.main_thread():
            return
        previous = signal.getsignal(signal.SIGTERM)
        while isinstance(previous, _Handler):  # the script has saved it in an earlier window, and restored it
            previous = previous.previous
        if previous is None or previous is signal.SIG_IGN:
            return  # set outside Python, or ignored on purpose: left as it is
        self._handler = _Handler(previous, self._terminated)
        signal.signal(signal.SIGTERM, self._handler)
        if not callable(previous):
            self._watch()

    def off(self) -> None:
        handler = self._handler
        if handler is None or threading.current_thread() is not threading.main_thread():
            return
        self._handler, previous = None, handler.previous
        if signal.getsignal(signal.SIGTERM) is handler:  # the script may have set its own since
            signal.signal(signal.SIGTERM, previous)
        self._unwatch()

    def check(self) -> None:
        """Forget the wakeup socket if the script has closed it (os.closerange), before a signal goes elsewhere."""
        if self._wakeup is not None and not self._wakeup.whole:
            self._unwatch()

    def _terminated(self, lives_on: bool) -> None:
        self.off()
        self._finish(lives_on)

    def _watch(self) -> None:
        """Start a thread that ends the process if the main thread cannot run the handler in time."""
        wakeup = _Wakeup()
        before = signal.set_wakeup_fd(wakeup.writer, warn_on_full_buffer=False)
        if before != -1:  # an event loop uses it already
            signal.set_wakeup_fd(before)
            wakeup.close(wakeup.writer)
            wakeup.close(wakeup.reader)
            return
        self._wakeup = wakeup
        wakeup.watch()

    def _unwatch(self) -> None:
        if self._wakeup is None:
            return
        wakeup, self._wakeup = self._wakeup, None
        current = signal.set_wakeup_fd(-1)
        if current != wakeup.writer:  # replaced since
            signal.set_wakeup_fd(current)
        wakeup.release()


class _Handler:
    """The handler of one window. The script may save it, and restore or call it when the window is long closed."""

    def __init__(self, previous: Any, terminated: Callable[[bool], None]) -> None:
        self.previous = previous
        self._terminated = terminated
        self._pid = os.getpid()

    def __call__(self, number: int, frame: FrameType | None) -> None:
        # The script's own handler may have called this one. Without us that would have found the default, which
        # cannot be called.
        lives_on = callable(self.previous) or signal.getsignal(number) is not self
        if os.getpid() == self._pid:  # not in a young worker, which has nothing to save
            self._terminated(lives_on)
        if callable(self.previous):
            self.previous(number, frame)
        elif not lives_on:
            signal.signal(number, signal.SIG_DFL)  # so that the exit status shows the signal
            os.kill(os.getpid(), number)


class _Wakeup:
    """A pair of sockets for signal.set_wakeup_fd. A forked worker has the writer too, so the kernel names the sender.

    Their numbers are high: a signal must not be written into a file of the script's.
    """

    def __init__(self) -> None:
        import socket

        ends = socket.socketpair()
        ends[0].setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        ends[1].setblocking(False)
        self.reader, self.writer = (high_descriptor(end.detach()) for end in ends)
        self._files = {end: file_identity(end) for end in (self.reader, self.writer)}
        self._pid = os.getpid()

    @property
    def whole(self) -> bool:
        return all(file_identity(end) == file for end, file in self._files.items())

    def close(self, end: int) -> None:
        if file_identity(end) == self._files[end]:
            os.close(end)

    def release(self) -> None:
        """End the thread, which closes the reader. A forked worker has no such thread."""
        if os.getpid() != self._pid:
            self.close(self.reader)
        elif file_identity(self.writer) == self._files[self.writer]:
            import socket

            writer = socket.socket(fileno=self.writer)
            with contextlib.suppress(OSError):  # the script has closed the reader
                writer.shutdown(socket.SHUT_WR)  # closing is not enough: a forked worker may hold it open
            writer.detach()
        self.close(self.writer)

    def watch(self) -> None:
        """In a thread, wait for a SIGTERM of this process. The writer is shut down once the handler has run."""
        import select

        poller = select.poll()
        poller.register(self.reader, select.POLLIN)

        def end_if_stuck(_ready: Any) -> bool:
            terminated = self._receive()
            deadline = time.monotonic() + STUCK_S
            while terminated:
                if not poller.poll(max(deadline - time.monotonic(), 0) * 1000):
                    import ctypes

                    # signal.signal works only in the main thread, which is stuck; libc's signal works in any.
                    ctypes.CDLL(None).signal(int(signal.SIGTERM), None)
                    os.kill(self._pid, signal.SIGTERM)
                elif self._receive() is None:
                    terminated = None
            if terminated is None:
                self.close(self.reader)
            return terminated is not None

        start_waiting_thread(poller.poll, None, end_if_stuck)

    def _receive(self) -> bool | None:
        """Whether the next signal is a SIGTERM of this process; None where one end is closed."""
        import socket

        with contextlib.suppress(OSError):
            reader = socket.socket(fileno=self.reader)
            try:
                numbers, credentials, *_ = reader.recvmsg(1, socket.CMSG_SPACE(_CREDENTIALS.size))
            finally:
                reader.detach()
            if numbers:
                sender = _CREDENTIALS.unpack(credentials[0][2])[0] if credentials else 0
                return bool(sender == self._pid and numbers[0] == signal.SIGTERM)
        return None
