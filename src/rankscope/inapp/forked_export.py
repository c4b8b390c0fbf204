"""Write a recording in a forked child, so that training goes on after the fork.

Kineto's export holds the GIL, so a thread would gain nothing. The child takes its turn among the ranks, forks
once more for Kineto's own save (into a pipe), compresses what comes out of it, and moves the file into place
whole. It touches nothing else and leaves by os._exit: it has a copy of a process full of threads it did not
start.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import select
import shutil
import signal
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from rankscope.inapp.trace_stream import TraceStream
from rankscope.units import format_bytes

# Ranks take turns, so that a node's ranks do not all begin to write in the same moment.
STAGGER_S = 0.25
STAGGER_TURNS = 16
# After SIGTERM a job has some seconds (PBS 10, Slurm and torchrun 30) until SIGKILL.
GRACE_S = 5.0
# Once torch has closed the file, its process has nothing left to do.
SAVER_END_S = 2.0

Outcome = dict[str, Any]


class ExportOrder(NamedTuple):
    """Where a recording goes. ``when_done`` gets the outcome, in the child, once the file is in place."""

    save: Callable[[str], object]
    target: Path
    max_size: int | None
    turn: int
    when_done: Callable[[Outcome], None]


class Export:
    """One running export, seen from the training process."""

    def __init__(self, order: ExportOrder) -> None:
        self.outcome: Outcome | None = None
        self._result, result_end = os.pipe()
        hurry_end, self._hurry = os.pipe()
        with warnings.catch_warnings():
            # Python 3.12 warns about fork in a process with threads: the child does what is safe there.
            warnings.simplefilter("ignore", DeprecationWarning)
            self._pid = os.fork()
        if self._pid == 0:
            _child(order, result_end, hurry_end)
        os.close(result_end)
        os.close(hurry_end)

    def poll(self) -> bool:
        """Whether the export has ended; costs one system call."""
        if self.outcome is None and select.select([self._result], [], [], 0)[0]:
            self._collect()
        return self.outcome is not None

    def wait(self, seconds: float) -> None:
        """Let the export skip its turn, and wait for it."""
        self.hurry()
        if self.outcome is None and select.select([self._result], [], [], seconds)[0]:
            self._collect()

    def hurry(self) -> None:
        if self._hurry >= 0:
            os.close(self._hurry)
            self._hurry = -1

    def _collect(self) -> None:
        text = b""
        while chunk := os.read(self._result, 65536):
            text += chunk
        os.close(self._result)
        self.hurry()
        with contextlib.suppress(ChildProcessError):  # the script may wait for any child there is
            os.waitpid(self._pid, 0)
        lost = {"state": "lost", "why": "the process that wrote the trace was killed"}
        self.outcome = json.loads(text) if text else lost


def _child(order: ExportOrder, result_end: int, hurry_end: int) -> None:
    gc.disable()  # a collection could run the destructors of the job's objects (CUDA, files) here
    try:
        _keep_only({result_end, hurry_end})
        terminated = _quiet_signals()
        with contextlib.suppress(OSError):
            os.nice(10)
        select.select([hurry_end], [], [], order.turn % STAGGER_TURNS * STAGGER_S)
        outcome = _export(order, terminated)
        with contextlib.suppress(OSError):
            order.when_done(outcome)
        os.write(result_end, json.dumps(outcome).encode())
    except BaseException as error:  # noqa: BLE001  (the last frame of this process: tell the parent and end)
        os.write(
            result_end, json.dumps({"state": "lost", "why": f"{type(error).__name__}: {error}"}).encode()
        )
    finally:
        os._exit(0)


def _keep_only(kept: set[int]) -> None:
    """Close the job's files and sockets: peers must see a dead rank as dead while its trace is written.

    Their numbers stay taken. libuv, under torch's TCPStore, closes in every forked process the numbers that its
    own pipe once had: those must never be ours.
    """
    nothing = os.open(os.devnull, os.O_RDWR)
    last = max(int(entry.name) for entry in Path("/proc/self/fd").iterdir())
    for number in {*range(last + 1)} - kept - {2}:
        os.dup2(nothing, number)


def _quiet_signals() -> list[float]:
    """The job's handlers are not for us. Returns a list that gets the moment of a SIGTERM."""
    terminated: list[float] = []
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGQUIT):
        signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGTERM, lambda *_: terminated.append(time.monotonic()))
    return terminated


def _export(order: ExportOrder, terminated: list[float]) -> Outcome:
    """Save, compress, move into place. Whatever goes wrong is part of the outcome."""
    began = time.monotonic_ns()
    part = order.target.with_name(f".{order.target.name}.part")
    try:
        with part.open("wb", buffering=0) as file:
            compress = order.target.suffix == ".gz"
            stream = TraceStream(_writer(file.fileno()), order.max_size, compress=compress)
            why = _stream_save(order, stream, terminated)
            if not stream.received and not terminated:
                why = _stream_save(order, stream, terminated)  # once more: a recording cannot be made again
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


def _writer(descriptor: int) -> Callable[[bytes], None]:
    def write(data: bytes) -> None:
        view = memoryview(data)
        while view:
            view = view[os.write(descriptor, view) :]

    return write


def _stream_save(order: ExportOrder, stream: TraceStream, terminated: list[float]) -> str | None:
    """Run Kineto's save in a process of its own and compress what it writes. Returns why the trace is not
    whole.
    """
    source, sink = os.pipe()
    folder = tempfile.mkdtemp(prefix="rankscope-")
    saver = os.fork()
    if saver == 0:
        os.close(source)
        _save_into(order, Path(folder), sink)
    os.close(sink)
    why: str | None = "the export was interrupted"
    try:
        why = _compress(order, source, stream, terminated)
    finally:
        os.close(source)
        status = _end(saver, 0 if why else SAVER_END_S)
        shutil.rmtree(folder, ignore_errors=True)
    if why is None and not stream.received:
        return f"torch's export wrote nothing{_how_it_ended(status)}"
    if why is None and not stream.finish():
        return f"torch's export broke off{_how_it_ended(status)}"
    return why


def _end(process: int, seconds: float) -> int:
    """Wait so long for its own end, then end it. Returns its status."""
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


def _compress(order: ExportOrder, source: int, stream: TraceStream, terminated: list[float]) -> str | None:
    """Up to the end of what torch writes. Returns why it was left before that."""
    while True:
        why = None
        if stream.full:
            why = f"it reached --max-size ({format_bytes(order.max_size or 0)})"
        elif terminated and time.monotonic() - terminated[0] > GRACE_S:
            why = "SIGTERM came while it was written"
        if why is not None:
            stream.close_early()
            return why
        if not select.select([source], [], [], 0.5)[0]:
            continue
        data = os.read(source, 1 << 20)
        if not data:
            return None
        stream.feed(data)


def _save_into(order: ExportOrder, folder: Path, sink: int) -> None:
    """Kineto opens NAME or NAME.tmp (it depends on the version): both names lead into the pipe."""
    try:
        name = folder / order.target.name.removesuffix(".gz")
        for path in (name, name.with_name(name.name + ".tmp")):
            path.symlink_to(f"/proc/self/fd/{sink}")
        order.save(str(name))
    except BaseException as error:  # noqa: BLE001  (the last frame of this process: say it and end)
        sys.stderr.write(f"rankscope: torch's export failed: {error}\n")
    finally:
        os._exit(0)
