"""Run an action on the training thread: when a frame returns, or after some seconds; and threads that wait.

torch's profiler records the thread that starts it, so a timer thread cannot start it for the training thread.
"""

from __future__ import annotations

import _thread
import functools
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

_keep_alive: list[Any] = []


def when_returning(frame: FrameType, action: Callable[[], None]) -> None:
    """Call ``action`` when this frame returns.

    An optimizer's hooks run inside its profiled range; a recording that began or ended there would cut the
    range. Under another tracer (a debugger, coverage) the action runs at once, and the range is cut.
    """
    if sys.gettrace() is not None:
        action()
        return

    def on_event(_frame: FrameType, event: str, _value: Any) -> Any:
        if event != "return":
            return on_event
        sys.settrace(None)
        action()
        return None

    frame.f_trace = on_event
    frame.f_trace_lines = False
    sys.settrace(lambda *_: None)


def run_on_main_thread(action: Callable[[], None]) -> None:
    """Have the main thread call ``action`` between two bytecodes, as it runs signal handlers."""
    import ctypes

    prototype = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)

    def call(_: Any) -> int:
        action()
        return 0

    callback = prototype(call)
    _keep_alive.append(callback)
    add = ctypes.pythonapi.Py_AddPendingCall
    add.argtypes = [prototype, ctypes.c_void_p]
    add(callback, None)


def start_waiting_thread(wait: Callable[[], Any], last: Any, act: Callable[[Any], bool]) -> None:
    """In a thread, call ``act`` with each result of ``wait`` until that is ``last`` or ``act`` returns False.

    ``wait`` is a function in C. The thread has no Python frame while it waits, so profilers that record the stacks of
    all threads (with_stack) do not count its waiting as the job's time.
    """

    def unrecorded(result: Any) -> bool:
        sys.setprofile(None)  # of this thread alone
        return act(result)

    _thread.start_new_thread(all, (map(unrecorded, iter(wait, last)),))


class Timer:
    """Calls ``action`` on the main thread after some seconds, unless cancelled before."""

    def __init__(self, seconds: float, action: Callable[[], None]) -> None:
        self._running = _thread.allocate_lock()
        self._running.acquire()
        self._cancelled = False
        self._action = action
        start_waiting_thread(functools.partial(self._running.acquire, True, seconds), True, self._over)

    def cancel(self) -> None:
        if not self._cancelled:
            self._cancelled = True
            self._running.release()

    def _over(self, _cancelled: bool) -> bool:
        run_on_main_thread(self._act)
        return False

    def _act(self) -> None:
        if not self._cancelled:
            self._action()
