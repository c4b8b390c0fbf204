"""Which Python functions the training thread is in, sampled while a window is recorded without stacks.

So a pause in which it runs no op has a line. A thread of its own looks 100 times a second, less often where that takes
too much CPU time, and waits in C in between. It keeps code objects and offsets, never frames: those would keep the
job's tensors alive. The process that writes the trace makes slices of them. No torch; nothing here fails the job.
"""

from __future__ import annotations

import _thread
import functools
import os
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from itertools import takewhile
from pathlib import Path
from types import CodeType

from rankscope.inapp.added_events import AddedEvents
from rankscope.inapp.main_thread import start_waiting_thread

INTERVAL_NS = 10_000_000
# Of a core. Where it takes more, the interval doubles: in a virtual machine a wake-up took 50 µs.
LARGEST_SHARE = 0.005
_MEASURED_SAMPLES = 20
# A minute and more; and the innermost functions of a sample.
MOST_SAMPLES, MOST_FRAMES = 6_000, 100
_TRACK = "Python, sampled"
_OURS = str(Path(__file__).parents[1]) + os.sep

Stack = tuple[tuple[CodeType, int], ...]
"""Code and the offset of its instruction, the innermost function first."""
Sample = tuple[int, int, Stack]
"""When it was taken, and how long after the last one it was meant to be."""


class PythonSamples:
    """Of one window, and of the thread that begins it. ``off`` ends it."""

    def __init__(self, added: AddedEvents) -> None:
        self._thread = threading.get_ident()
        self._track = 0
        self._samples: list[Sample] = []
        self._interval_ns = self._first = 0
        self._runs = _thread.allocate_lock()
        # Without the GIL, the stack of another thread changes while it is read.
        if getattr(sys, "_is_gil_enabled", lambda: True)():
            self._runs.acquire()
            added.when_written = functools.partial(self._add_slices, added)
            self._look_every(INTERVAL_NS)

    def _look_every(self, interval_ns: int) -> None:
        self._interval_ns, self._first = interval_ns, len(self._samples)
        wait = functools.partial(self._runs.acquire, True, interval_ns / 1e9)
        start_waiting_thread(wait, True, self._sample)

    def off(self) -> None:
        if self._runs.locked():
            self._runs.release()

    def _sample(self, _is_over: bool) -> bool:
        try:
            stack, frame = list[tuple[CodeType, int]](), sys._current_frames().get(self._thread)
            while frame is not None and len(stack) < MOST_FRAMES:
                stack.append((frame.f_code, frame.f_lasti))
                frame = frame.f_back
            self._track = self._track or threading.get_native_id()
            self._samples.append((time.time_ns(), self._interval_ns, tuple(stack)))
            looks = len(self._samples) - self._first
            is_dear = time.thread_time_ns() > LARGEST_SHARE * looks * self._interval_ns
            if is_dear and looks % _MEASURED_SAMPLES == 0:
                self._look_every(2 * self._interval_ns)
                return False
        except Exception:  # noqa: BLE001  (an audit hook of the job may refuse it)
            return False
        return len(self._samples) < MOST_SAMPLES

    def _add_slices(self, added: AddedEvents) -> None:
        for name, start_ns, end_ns in slices_of(self._samples):
            added.add(name, start_ns, end_ns - start_ns, {}, "python_sample", self._track)
        added.add("thread_name", time.time_ns(), 0, {"name": _TRACK}, "", self._track)


def slices_of(samples: Sequence[Sample]) -> Iterator[tuple[str, int, int]]:
    """Name, start and end of the lines, a caller before what it calls.

    A sample stands for the 10 ms around it. If it is late, it stands for its delay too: C code held the GIL.
    """
    slices, open_slices = list[_Slice](), list[_Slice]()
    half, last_ns = INTERVAL_NS // 2, 0
    for time_ns, interval_ns, stack in samples:
        start_ns = last_ns + interval_ns - half if last_ns else time_ns - half
        lines = [
            (code, _line(code, at)) for code, at in reversed(stack) if not code.co_filename.startswith(_OURS)
        ]
        if start_ns > last_ns + half:
            open_slices = []  # what ran in between is not known
        pairs = zip(open_slices, lines, strict=False)
        same = sum(1 for _ in takewhile(lambda pair: pair[0].at == pair[1], pairs))
        open_slices = [*open_slices[:same], *(_Slice(line, start_ns) for line in lines[same:])]
        slices += open_slices[same:]
        for each in open_slices:
            each.end_ns = time_ns + half
        last_ns = time_ns
    return ((_name(*each.at), each.start_ns, each.end_ns) for each in slices)


class _Slice:
    """A line of a function, in samples that follow each other."""

    def __init__(self, at: tuple[CodeType, int], start_ns: int) -> None:
        self.at, self.start_ns, self.end_ns = at, start_ns, start_ns


def _name(code: CodeType, line: int) -> str:
    """As torch names a function, with the line that it is at."""
    folders = [
        folder + os.sep for folder in sys.path if folder and code.co_filename.startswith(folder + os.sep)
    ]
    return f"{code.co_filename.removeprefix(max(folders, key=len, default=''))}({line}): {code.co_name}"


@functools.cache
def _line(code: CodeType, offset: int) -> int:
    lines = (line for start, end, line in code.co_lines() if start <= offset < end and line)
    return next(lines, code.co_firstlineno)
