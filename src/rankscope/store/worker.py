"""Processes that read files or compute, one task at a time: pickled tasks on stdin, reports on stdout.

Several processes keep the memory of files apart and use every core; a crash or the out-of-memory killer costs one file
and not the run. A task is a file to read or a function to call; reports are lines of JSON, {"read", "doing"}, then
{"done"} or {"error"}.

Importing the modules takes longer than reading a small file. So `python -m rankscope.store.worker` imports them once,
and forks the processes. It has no threads, and takes requests on stdin, a socket: `LOAD`, `FORK`, `WAIT`.
"""

from __future__ import annotations

import errno
import gc
import json
import os
import pickle
import shutil
import socket
import sys
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

from rankscope import errors
from rankscope.errors import RankscopeError
from rankscope.files import make_private_folder, unique_name
from rankscope.readers import one_file
from rankscope.records import dataclass
from rankscope.store.checksums import read_checked_json
from rankscope.store.incoming import in_use
from rankscope.store.index import SEGMENT_FILE

LOAD = b"L"
"""Import the module of a function, which follows (four bytes with the length, and its pickle), and call its
`load_modules`, if it has one."""
FORK = b"F"
"""Start a process with the three descriptors that come along as stdin, stdout and stderr; answered by its pid."""
WAIT = b"W"
"""Wait for the end of a process, whose pid follows in four bytes; answered by its status."""
_IDLE_S = 10.0
"""Without requests, the process that forks others ends."""

Progress = Callable[[int, str], None]
"""Called with the bytes of the file read so far and the current activity."""
Build = Callable[["Task", Path, Progress], "dict[str, Any]"]
"""Reads the file of a task into an empty folder; returns segment.json."""
Outcome = dict[str, Any] | RankscopeError
"""The content of segment.json or the result of a function, or the error that prevented it."""


@dataclass(frozen=True)
class Task:
    """One file, or one rank's part of it, to read into a folder."""

    build: Build
    path: str
    folder: str
    """Where the finished segment goes; nothing is there before."""
    threads: int
    part: str = ""
    """Which rank's part of the file; empty for the whole file."""
    rank_source: str = ""
    """How its rank is known."""
    sidecar_files: tuple[str, ...] = ()
    """Files that may add to it."""

    @property
    def subject(self) -> str:
        """What a message about its failure names."""
        return self.path


@dataclass(frozen=True)
class Call:
    """A function to be called in a worker process."""

    function: Callable[..., dict[str, Any]]
    """Returns JSON values."""
    arguments: dict[str, Any]
    subject: str


def call(task: Call) -> Outcome:
    """Call it; its result, or the error that it raises."""
    try:
        return task.function(**task.arguments)
    except RankscopeError as error:
        return error


def perform(task: Task, progress: Progress) -> Outcome:
    """Read one file."""
    source, folder = Path(task.path), Path(task.folder)
    try:
        with one_file(source), in_use(folder.parent):
            # By an attempt whose worker was lost before it could report.
            if (folder / SEGMENT_FILE).is_file():
                return read_checked_json(folder / SEGMENT_FILE)
            attempt = folder.with_name(unique_name())
            make_private_folder(attempt)
            manifest = task.build(task, attempt, progress)
            try:
                attempt.rename(folder)
            except OSError as error:
                # A cluster may run a task twice: the first to finish counts, both are equal.
                if error.errno not in (errno.EEXIST, errno.ENOTEMPTY):
                    raise
                shutil.rmtree(attempt)
            return manifest
    except RankscopeError as error:
        return error


def error_to_json(error: RankscopeError) -> list[str]:
    """An error as it crosses the processes: its type and its three parts."""
    return [type(error).__name__, error.message, error.why, error.hint]


def error_from_json(parts: list[str]) -> RankscopeError:
    kind: type[RankscopeError] = getattr(errors, parts[0])
    return kind(*parts[1:])


def _report(**fields: Any) -> None:
    sys.stdout.write(json.dumps(fields) + "\n")
    sys.stdout.flush()


def perform_tasks() -> None:
    while True:
        try:
            task = pickle.load(sys.stdin.buffer)
        except EOFError:
            return
        if isinstance(task, Call):
            outcome = call(task)
        else:
            outcome = perform(task, lambda read, doing: _report(read=read, doing=doing))
        if isinstance(outcome, RankscopeError):
            _report(error=error_to_json(outcome))
        else:
            _report(done=outcome)


def number_bytes(number: int) -> bytes:
    """As numbers are in requests and their answers."""
    return number.to_bytes(4, "little", signed=True)


def receive(control: socket.socket, count: int = 4) -> bytes:
    """So many bytes. Raises EOFError or ConnectionError if the other side is gone."""
    received = b""
    while len(received) < count:
        piece = control.recv(count - len(received))
        if not piece:
            raise EOFError
        received += piece
    return received


def serve() -> None:
    """Answer requests, until the process that makes them has ended, or makes none and its processes have ended."""
    control = socket.socket(fileno=0)
    control.settimeout(_IDLE_S)
    running: set[int] = set()
    while True:
        try:
            request, descriptors, _, _ = socket.recv_fds(control, 1, 3)
        except TimeoutError:
            if running:
                continue
            return
        if request == LOAD:
            name = receive(control, int.from_bytes(receive(control), "little"))
            with suppress(Exception):  # else the task that needs it reports the error
                function = pickle.loads(name)
                getattr(sys.modules[function.__module__], "load_modules", lambda: None)()
        elif request == FORK:
            gc.freeze()  # what is loaded stays shared
            pid = os.fork()
            if pid == 0:
                control.close()
                _begin(descriptors)
            for descriptor in descriptors:
                os.close(descriptor)
            running.add(pid)
            control.sendall(number_bytes(pid))
        elif request == WAIT:
            pid = int.from_bytes(receive(control), "little")
            running.discard(pid)
            control.sendall(number_bytes(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])))
        else:
            return


def _begin(descriptors: list[int]) -> NoReturn:
    """In a new process."""
    code = 1
    try:
        for number, descriptor in enumerate(descriptors):
            os.dup2(descriptor, number)
            os.close(descriptor)
        perform_tasks()
        code = 0
    except BaseException:  # noqa: BLE001 - this process ends here, whatever it is
        traceback.print_exc()
        sys.stderr.flush()
    finally:
        os._exit(code)


if __name__ == "__main__":
    # Under its own name: what is unpickled is of that module, not of __main__.
    from rankscope.store.worker import serve

    serve()
