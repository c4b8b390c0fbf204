"""Write a recording in a process of its own, so that training goes on after the fork.

Kineto's export holds the GIL, so a thread would not help. The exporter waits for its turn among the ranks, forks once
more for Kineto's save (into a pipe), compresses the output, and renames the finished file. It does nothing else and
ends with os._exit, because it is a copy of a process whose threads do not exist in it.

The job cannot meet it: the exporter is not its child (os.wait() never returns it, no SIGCHLD comes from it), and it
reports through shared memory, not through descriptors that the job may close or take over (os.closerange).
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import json
import mmap
import os
import select
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from rankscope.capture.forked_child import fork_child
from rankscope.capture.process_state import process_state, still_runs
from rankscope.files import open_private
from rankscope.inapp.added_events import AddedEvents
from rankscope.inapp.trace_stream import TraceStream
from rankscope.units import format_bytes

# Ranks begin one after another, so that a node's ranks do not all write at the same moment.
STAGGER_S = 0.25
STAGGER_TURNS = 16
# After SIGTERM a job has some seconds (PBS 10, Slurm and torchrun 30) until SIGKILL.
GRACE_S = 5.0
# After torch has closed the file, the saving process is given this long to end.
SAVER_END_S = 2.0
# An export that has written nothing for this long is stuck (a file system that hangs), and is given up at the exit.
STUCK_S = 5.0
_POLL_S = 0.02

# clone(2) by the names of uname -m: elsewhere a second fork does the same, at three times the pause.
_CLONE = {"x86_64": 56, "aarch64": 220}
_CLONE_VM, _CLONE_VFORK = 0x100, 0x4000

Outcome = dict[str, Any]


class ExportOrder(NamedTuple):
    """One export. ``when_done`` is called in the exporter with the outcome, after the file is in place."""

    save: Callable[[str], object]
    target: Path
    max_size: int | None
    turn: int
    when_done: Callable[[Outcome], None]
    added: AddedEvents | None = None


class _Shared(ctypes.Structure):
    """What the job and the exporter tell each other: shared memory without a descriptor.

    The job writes ``hurry``, the exporter the rest; the length of the outcome is written last.
    """

    hurry: int
    exporter: int
    saver: int
    progress: int
    """Bytes that torch has given and bytes that were written."""
    length: int
    text: bytes
    _TEXT_SIZE = 2**16
    _NUMBERS = ("hurry", "exporter", "saver", "progress", "length")
    _fields_ = [*((name, ctypes.c_int64) for name in _NUMBERS), ("text", ctypes.c_char * _TEXT_SIZE)]

    @property
    def outcome(self) -> Outcome | None:
        return json.loads(self.text[: self.length]) if self.length else None

    def set_outcome(self, outcome: Outcome) -> None:
        text = json.dumps(outcome).encode()
        if len(text) > self._TEXT_SIZE:
            text = json.dumps({**outcome, "why": str(outcome.get("why"))[:1000]}).encode()
        self.text = text
        self.length = len(text)


class Export:
    """A running export, in the training process."""

    def __init__(self, order: ExportOrder) -> None:
        self.outcome: Outcome | None = None
        self.stuck = False
        """It was given up: its folder does not answer."""
        self._target = order.target
        self._shared = _Shared.from_buffer(mmap.mmap(-1, ctypes.sizeof(_Shared)))
        with contextlib.suppress(OSError), _without_sigchld():
            _start_exporter(order, self._shared)
        self._pid = self._shared.exporter
        state = process_state(self._pid)
        self._started = state.started if state else 0
        if not self._pid:
            why = "no process could be started to write it (limit of processes or memory)"
            self.outcome = {"state": "lost", "why": why}
            with contextlib.suppress(OSError):
                order.when_done(self.outcome)

    def poll(self) -> bool:
        """Whether the export has ended."""
        if self.outcome is None:
            self.outcome = self._shared.outcome
        if self.outcome is None and not still_runs(self._pid, self._started):
            lost = {"state": "lost", "why": "the process that wrote the trace was killed"}
            self.outcome = self._shared.outcome or lost  # it may have ended in between
        return self.outcome is not None

    def wait(self, seconds: float, waiting: Callable[[int], object] = lambda _bytes: None) -> None:
        """Start the export now if it waits for its turn, and wait for its end: at most this long, and not for one that
        makes no progress. ``waiting`` is called once, after a while, with the bytes so far."""
        self._shared.hurry = 1
        began = last = time.monotonic()
        progress, told = -1, False
        while not self.poll():
            now = time.monotonic()
            if (current := self._shared.progress) != progress:
                progress, last = current, now
            if now - last > STUCK_S or now - began > seconds:
                self._give_up(now - last)
                return
            if now - began > STUCK_S / 2 and not told:
                waiting(progress)
                told = True
            time.sleep(_POLL_S)

    def _give_up(self, idle_s: float) -> None:
        """End the exporter. One that hangs in the kernel ends later: nothing waits for it."""
        for pid in (self._shared.saver, self._pid):
            if pid and still_runs(self._pid, self._started):
                with contextlib.suppress(OSError):
                    os.kill(pid, signal.SIGKILL)
        left = _part_of(self._target)
        why = f"nothing could be written for {idle_s:.0f} s" if idle_s > STUCK_S else "there was no more time"
        self.outcome = {"state": "lost", "why": f"{why}; {left} may be left"}
        self.stuck = True


def _start_exporter(order: ExportOrder, shared: _Shared) -> None:
    """Copy this process twice: the second copy exports, and is nobody's child once the first has ended.

    The first copy makes the second one in its own memory (CLONE_VM: nothing is copied twice) and is suspended by that
    (CLONE_VFORK). It must not wake up, because its stack is the second one's: the second ends it.
    """

    def detach() -> None:
        number = _CLONE.get(os.uname().machine)
        flags = _CLONE_VM | _CLONE_VFORK
        second = ctypes.CDLL(None).syscall(number, flags, 0, 0, 0, 0) if number is not None else -1
        if second == 0:
            shared.exporter = os.getpid()
            os.kill(os.getppid(), signal.SIGKILL)
            _export_and_end(order, shared)
        elif second < 0:
            shared.exporter = fork_child(lambda: _export_and_end(order, shared))

    first = fork_child(detach)
    with contextlib.suppress(ChildProcessError):  # a job that ignores SIGCHLD has no children to collect
        os.waitpid(first, 0)


@contextlib.contextmanager
def _without_sigchld() -> Iterator[None]:
    """The end of our own child must not call the job's handler; the end of one of the job's must."""
    handler = signal.getsignal(signal.SIGCHLD)
    if not callable(handler) or threading.current_thread() is not threading.main_thread():
        yield
        return
    pid = os.getpid()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    try:
        yield
    finally:
        if os.getpid() == pid:
            signal.signal(signal.SIGCHLD, handler)
            with contextlib.suppress(ChildProcessError):
                if os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None:
                    os.kill(pid, signal.SIGCHLD)


def _export_and_end(order: ExportOrder, shared: _Shared) -> None:
    gc.disable()  # a collection could run the destructors of the job's objects (CUDA, files) here
    try:
        _close_descriptors()
        terminated = _reset_signals()
        with contextlib.suppress(OSError):
            os.nice(10)
        turn = time.monotonic() + order.turn % STAGGER_TURNS * STAGGER_S
        while not shared.hurry and not terminated and time.monotonic() < turn:
            time.sleep(_POLL_S)
        outcome = _export(order, shared, terminated)
        with contextlib.suppress(OSError):
            order.when_done(outcome)
        shared.set_outcome(outcome)
    except BaseException as error:  # noqa: BLE001  (the last frame of this process: report to the job)
        shared.set_outcome({"state": "lost", "why": f"{type(error).__name__}: {error}"})
    finally:
        os._exit(0)  # a clone in the first copy's memory has not been started by fork_child


def _close_descriptors() -> None:
    """Close the job's files and sockets: peers must notice that a rank is dead while its trace is written.

    The descriptor numbers stay in use (/dev/null). libuv, under torch's TCPStore, closes the numbers of its own pipe
    in every forked process: the export's descriptors must not have those numbers. Where Python found stderr closed,
    2 is a file of the job's.
    """
    nothing = os.open(os.devnull, os.O_RDWR)
    last = max(int(entry.name) for entry in Path("/proc/self/fd").iterdir())
    for number in {*range(last + 1)} - ({2} if sys.stderr is not None else set()):
        os.dup2(nothing, number)


def _reset_signals() -> list[float]:
    """SIGTERM alone arrives here, not at the job's handler. Returns a list that receives its time."""
    terminated: list[float] = []
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGTERM, lambda *_: terminated.append(time.monotonic()))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
    return terminated


def _part_of(target: Path) -> Path:
    return target.with_name(f".{target.name}.part")


def _export(order: ExportOrder, shared: _Shared, terminated: list[float]) -> Outcome:
    """Save, compress, rename. Errors are part of the outcome."""
    began = time.monotonic_ns()
    part = _part_of(order.target)
    try:
        with open_private(part, "wb", buffering=0) as file:
            compress = order.target.suffix == ".gz"
            write = _writer(file.fileno(), shared)
            stream = TraceStream(write, order.max_size, compress=compress, added=order.added)
            why = _stream_save(order, stream, shared, terminated)
            if not stream.received and not terminated:
                why = _stream_save(order, stream, shared, terminated)  # a recording cannot be repeated
            os.fsync(file.fileno())
        if stream.raw_bytes == 0:
            part.unlink(missing_ok=True)
            return {"state": "lost", "why": why or "torch wrote nothing"}
        part.replace(order.target)
    except OSError as error:
        part.unlink(missing_ok=True)
        return {"state": "lost", "why": f"cannot write {order.target}: {error.strerror or error}"}
    return {
        "state": "partial" if why else "whole",
        "why": why,
        "bytes": stream.bytes,
        "raw_bytes": stream.raw_bytes,
        "export_ns": time.monotonic_ns() - began,
    }


def _writer(descriptor: int, shared: _Shared) -> Callable[[bytes], None]:
    def write(data: bytes) -> None:
        view = memoryview(data)
        while view:
            count = os.write(descriptor, view)
            shared.progress += count
            view = view[count:]

    return write


def _stream_save(
    order: ExportOrder, stream: TraceStream, shared: _Shared, terminated: list[float]
) -> str | None:
    """Run Kineto's save in its own process and compress its output. Returns why the trace is not whole."""
    source, sink = os.pipe()
    folder = tempfile.mkdtemp(prefix="rankscope-")

    def save() -> None:
        os.close(source)
        _save_into(order, Path(folder), sink)

    try:
        saver = fork_child(save)
    except OSError as error:
        shutil.rmtree(folder, ignore_errors=True)
        return f"no process could be started for torch's export: {error.strerror}"
    shared.saver = saver
    os.close(sink)
    why: str | None = "the export was interrupted"
    try:
        why = _compress(order, source, stream, shared, terminated)
    finally:
        os.close(source)
        status = _wait_or_kill(saver, 0 if why else SAVER_END_S)
        shutil.rmtree(folder, ignore_errors=True)
    if why is None and not stream.received:
        return f"torch's export wrote nothing{_how_it_ended(status)}"
    if why is None and not stream.finish():
        return f"torch's export ended early{_how_it_ended(status)}"
    return why


def _wait_or_kill(process: int, seconds: float) -> int:
    """Wait this long for the process to end, then kill it. Returns its status."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        ended, status = os.waitpid(process, os.WNOHANG)
        if ended:
            return status
        time.sleep(0.01)
    os.kill(process, signal.SIGKILL)
    return os.waitpid(process, 0)[1]


def _how_it_ended(status: int) -> str:
    return f" (ended by {signal.Signals(os.WTERMSIG(status)).name})" if os.WIFSIGNALED(status) else ""


def _compress(
    order: ExportOrder, source: int, stream: TraceStream, shared: _Shared, terminated: list[float]
) -> str | None:
    """Compress until torch closes the pipe. Returns why it stopped before that."""
    while True:
        why = None
        if stream.full:
            why = f"it reached --max-size ({format_bytes(order.max_size or 0)})"
        elif terminated and time.monotonic() - terminated[0] > GRACE_S:
            why = "SIGTERM arrived while it was written"
        if why is not None:
            stream.close_early()
            return why
        if not select.select([source], [], [], 0.5)[0]:
            continue
        data = os.read(source, 1 << 20)
        if not data:
            return None
        shared.progress += len(data)
        stream.feed(data)


def _save_into(order: ExportOrder, folder: Path, sink: int) -> None:
    """Kineto opens NAME or NAME.tmp, depending on the version: both are links to the pipe."""
    try:
        name = folder / order.target.name.removesuffix(".gz")
        for path in (name, name.with_name(name.name + ".tmp")):
            path.symlink_to(f"/proc/self/fd/{sink}")
        order.save(str(name))
    except BaseException as error:  # noqa: BLE001  (the last frame of this process: print it)
        if sys.stderr is not None:
            sys.stderr.write(f"rankscope: torch's export failed: {error}\n")
