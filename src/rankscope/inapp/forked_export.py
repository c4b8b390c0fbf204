"""Write a recording in a forked child, so that training goes on after the fork.

Kineto's export holds the GIL, so a thread would not help. The child waits for its turn among the ranks, forks once
more for Kineto's save (into a pipe), compresses the output, and renames the finished file. It does nothing else and
ends with os._exit, because it is a copy of a process whose threads do not exist in it.
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

# Ranks begin one after another, so that a node's ranks do not all write at the same moment.
STAGGER_S = 0.25
STAGGER_TURNS = 16
# After SIGTERM a job has some seconds (PBS 10, Slurm and torchrun 30) until SIGKILL.
GRACE_S = 5.0
# After torch has closed the file, the saving process is given this long to end.
SAVER_END_S = 2.0

Outcome = dict[str, Any]


class ExportOrder(NamedTuple):
    """One export. ``when_done`` is called in the child with the outcome, after the file is in place."""

    save: Callable[[str], object]
    target: Path
    max_size: int | None
    turn: int
    when_done: Callable[[Outcome], None]


class Export:
    """A running export, in the training process."""

    def __init__(self, order: ExportOrder) -> None:
        self.outcome: Outcome | None = None
        self._result, result_end = os.pipe()
        hurry_end, self._hurry = os.pipe()
        with warnings.catch_warnings():
            # Python 3.12 warns about fork in a process with threads; the child does only what is safe there.
            warnings.simplefilter("ignore", DeprecationWarning)
            self._pid = os.fork()
        if self._pid == 0:
            _child(order, result_end, hurry_end)
        os.close(result_end)
        os.close(hurry_end)

    def poll(self) -> bool:
        """Whether the export has ended. One system call."""
        if self.outcome is None and select.select([self._result], [], [], 0)[0]:
            self._collect()
        return self.outcome is not None

    def wait(self, seconds: float) -> None:
        """Start the export now if it waits for its turn, and wait for its end."""
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
        with contextlib.suppress(ChildProcessError):  # the script may have waited for it
            os.waitpid(self._pid, 0)
        lost = {"state": "lost", "why": "the process that wrote the trace was killed"}
        self.outcome = json.loads(text) if text else lost


def _child(order: ExportOrder, result_end: int, hurry_end: int) -> None:
    gc.disable()  # a collection could run the destructors of the job's objects (CUDA, files) here
    try:
        _keep_only({result_end, hurry_end})
        terminated = _reset_signals()
        with contextlib.suppress(OSError):
            os.nice(10)
        select.select([hurry_end], [], [], order.turn % STAGGER_TURNS * STAGGER_S)
        outcome = _export(order, terminated)
        with contextlib.suppress(OSError):
            order.when_done(outcome)
        os.write(result_end, json.dumps(outcome).encode())
    except BaseException as error:  # noqa: BLE001  (the last frame of this process: report to the parent)
        os.write(
            result_end, json.dumps({"state": "lost", "why": f"{type(error).__name__}: {error}"}).encode()
        )
    finally:
        os._exit(0)


def _keep_only(kept: set[int]) -> None:
    """Close the job's files and sockets: peers must notice that a rank is dead while its trace is written.

    The descriptor numbers stay in use (/dev/null). libuv, under torch's TCPStore, closes the numbers of its own pipe
    in every forked process: the export's descriptors must not have those numbers.
    """
    nothing = os.open(os.devnull, os.O_RDWR)
    last = max(int(entry.name) for entry in Path("/proc/self/fd").iterdir())
    for number in {*range(last + 1)} - kept - {2}:
        os.dup2(nothing, number)


def _reset_signals() -> list[float]:
    """Remove the job's signal handlers. Returns a list that receives the time of a SIGTERM."""
    terminated: list[float] = []
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGQUIT):
        signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGTERM, lambda *_: terminated.append(time.monotonic()))
    return terminated


def _export(order: ExportOrder, terminated: list[float]) -> Outcome:
    """Save, compress, rename. Errors are part of the outcome."""
    began = time.monotonic_ns()
    part = order.target.with_name(f".{order.target.name}.part")
    try:
        with part.open("wb", buffering=0) as file:
            compress = order.target.suffix == ".gz"
            stream = TraceStream(_writer(file.fileno()), order.max_size, compress=compress)
            why = _stream_save(order, stream, terminated)
            if not stream.received and not terminated:
                why = _stream_save(order, stream, terminated)  # try again: a recording cannot be repeated
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
    """Run Kineto's save in its own process and compress its output. Returns why the trace is not whole."""
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


def _compress(order: ExportOrder, source: int, stream: TraceStream, terminated: list[float]) -> str | None:
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
        stream.feed(data)


def _save_into(order: ExportOrder, folder: Path, sink: int) -> None:
    """Kineto opens NAME or NAME.tmp, depending on the version: both are links to the pipe."""
    try:
        name = folder / order.target.name.removesuffix(".gz")
        for path in (name, name.with_name(name.name + ".tmp")):
            path.symlink_to(f"/proc/self/fd/{sink}")
        order.save(str(name))
    except BaseException as error:  # noqa: BLE001  (the last frame of this process: print it)
        sys.stderr.write(f"rankscope: torch's export failed: {error}\n")
    finally:
        os._exit(0)
