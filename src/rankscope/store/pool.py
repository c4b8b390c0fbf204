"""Runs tasks in worker processes, a few at a time, and collects their reports."""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import pickle
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import IO, Any, Generic, TypeVar

from rankscope.errors import RankscopeError, ReadError, StoreError
from rankscope.readers import find_reader
from rankscope.store.discover import text_bytes
from rankscope.store.worker import (
    FORK,
    LOAD,
    WAIT,
    Call,
    Outcome,
    Task,
    call,
    error_from_json,
    number_bytes,
    perform,
    receive,
)

Key = TypeVar("Key", bound=Hashable)

_SMALL_BYTES = 32_000_000
"""Total size of files read without workers: reading this much text takes as long as starting two of them."""
_WITHOUT_WORKERS = ("kineto", "gpu-counters", "nccl_inspector", "nccl_prometheus", "nccl_plugin")
"""Formats that may be read in this process: their readers run no other program and need little memory."""
_FOR_WORKERS = {
    "OPENBLAS_NUM_THREADS": "1",
    "MALLOC_TRIM_THRESHOLD_": str(1 << 28),
    "MALLOC_MMAP_THRESHOLD_": str(1 << 25),
}
"""A worker has one core, and uses the memory of one file for the next: a third of the time in the system is saved."""
_PROCESS_BYTES = 400_000_000
"""Memory of a process that reads a file, besides the columns of its events: some blocks of text."""


def run_tasks(
    tasks: Mapping[Key, Task], jobs: int, advance: Callable[[Key, int, str], None]
) -> Iterator[tuple[Key, Outcome]]:
    """Yield the manifest or the error of each task as it finishes."""
    if need_no_worker([Path(task.path) for task in tasks.values()]):
        for key, task in tasks.items():
            yield key, perform(task, partial(advance, key))
    else:
        yield from _in_processes(tasks, jobs, advance)


def run_calls(calls: Mapping[Key, Call], jobs: int) -> Iterator[tuple[Key, Outcome]]:
    """Yield the result or the error of each call as it finishes; a single one is made in this process."""
    if len(calls) == 1:
        yield from ((key, call(task)) for key, task in calls.items())
    else:
        yield from _in_processes(calls, jobs, lambda key, read, doing: None)


def start_early(function: Callable[..., object]) -> None:
    """Start the process that forks workers before the first task is known, so that it loads the modules of this
    function in the meantime."""
    _forker().load(function)


def need_no_worker(paths: Collection[Path]) -> bool:
    """True for one file of such a format, and for little text in several: they are read faster without workers."""
    try:
        few = len(paths) <= 1 or sum(map(text_bytes, paths)) <= _SMALL_BYTES
        return few and all(find_reader(path).name in _WITHOUT_WORKERS for path in paths)
    except (OSError, RankscopeError):
        return False


def needed_bytes(path: Path) -> int:
    """The memory that reading a file takes, about."""
    return _PROCESS_BYTES + (text_bytes(path) // 2 if path.is_file() else 0)


def _in_processes(
    tasks: Mapping[Key, Task | Call], jobs: int, advance: Callable[[Key, int, str], None]
) -> Iterator[tuple[Key, Outcome]]:
    """A worker that dies fails its current task only; a new worker takes the next task."""
    waiting = list(tasks)
    workers: list[_Worker[Key]] = []
    with selectors.DefaultSelector() as selector:
        try:
            while waiting or workers:
                while waiting and len(workers) < jobs:
                    workers.append(_Worker(tasks[waiting[0]]))
                    workers[-1].begin(waiting[0], tasks[waiting.pop(0)])
                    selector.register(workers[-1].output, selectors.EVENT_READ, workers[-1])
                for ready, _ in selector.select():
                    worker: _Worker[Key] = ready.data
                    key = worker.key
                    outcome = worker.receive(advance)
                    if outcome is None:
                        continue
                    if waiting and worker.alive:
                        worker.begin(waiting[0], tasks[waiting.pop(0)])
                    else:
                        selector.unregister(worker.output)
                        workers.remove(worker)
                        worker.end()
                    yield key, outcome
        finally:
            for worker in workers:
                worker.end(kill=True)


def _environment() -> dict[str, str]:
    """This process's environment, with this package on PYTHONPATH (it may come from sys.path, as in notebooks), and
    with what suits a worker."""
    here = str(Path(__file__).parents[2])
    paths = [here, *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**_FOR_WORKERS, **os.environ, "PYTHONPATH": os.pathsep.join(paths)}


def _last_line(file: IO[str]) -> str:
    file.seek(0)
    return (file.read().strip().splitlines() or [""])[-1]


class _Forker:
    """The process that workers are forked from. It ends with this one, or after some idle seconds."""

    def __init__(self) -> None:
        self.environment = _environment()
        self.stderr = tempfile.TemporaryFile("w+")  # noqa: SIM115 - lives as long as the process
        self._control, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "rankscope.store.worker"],
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                stderr=self.stderr,
                env=self.environment,
            )
        self._loaded: set[bytes] = set()

    def load(self, function: Callable[..., object]) -> None:
        """Import the module of a function, and what else it says that it needs."""
        name = pickle.dumps(function)
        if name not in self._loaded:
            self._loaded.add(name)
            self._control.sendall(LOAD + number_bytes(len(name)) + name)

    def fork(self, descriptors: list[int]) -> int:
        """The pid of a new worker. Raises ConnectionError or EOFError if this process has ended."""
        socket.send_fds(self._control, [FORK], descriptors)
        return int.from_bytes(receive(self._control), "little")

    def wait(self, pid: int) -> int:
        """The exit code of a worker that ends; that of this process where it has ended."""
        try:
            self._control.sendall(WAIT + number_bytes(pid))
            return int.from_bytes(receive(self._control), "little", signed=True)
        except (OSError, EOFError):
            return self._process.wait()

    def end(self) -> None:
        self._control.close()
        self._process.wait()
        self.stderr.close()


_forkers: list[_Forker] = []


def _forker() -> _Forker:
    if _forkers and _forkers[0].environment != _environment():
        _end_forker()
    if not _forkers:
        _forkers.append(_Forker())
    return _forkers[0]


@atexit.register
def _end_forker() -> None:
    while _forkers:
        _forkers.pop().end()


class _Worker(Generic[Key]):
    """One worker process. Its stderr goes to a file, which cannot block as a full pipe does."""

    key: Key

    def __init__(self, first: Task | Call) -> None:
        self._stderr = tempfile.TemporaryFile("w+")  # noqa: SIM115 - lives as long as the process
        (input, self._input), (self.output, output) = os.pipe(), os.pipe()
        try:
            try:
                self._start(first, input, output)
            except (ConnectionError, EOFError):  # the forker has ended: it was idle, or was killed
                _end_forker()
                self._start(first, input, output)
        except (ConnectionError, EOFError) as error:
            self._close()
            raise StoreError(
                "cannot start a process that reads files",
                why=f"It ended at once: {_last_line(self._forker.stderr) or 'it gave no reason'}",
                hint="Try again; if it stays so, please report this.",
            ) from error
        finally:
            os.close(input)
            os.close(output)
        self._pending = b""
        self.alive = True

    def _start(self, first: Task | Call, *descriptors: int) -> None:
        self._forker = _forker()
        self._forker.load(first.build if isinstance(first, Task) else first.function)
        self._pid = self._forker.fork([*descriptors, self._stderr.fileno()])

    def begin(self, key: Key, task: Task | Call) -> None:
        self.key, self._task = key, task
        self._pending = b""
        content = memoryview(pickle.dumps(task))
        with contextlib.suppress(BrokenPipeError):  # the worker has died; reading its output reports it
            while content:
                content = content[os.write(self._input, content) :]

    def receive(self, advance: Callable[[Key, int, str], None]) -> Outcome | None:
        """Read the reports that have arrived: pass on progress, return the outcome of the task if it is there."""
        received = os.read(self.output, 1 << 16)
        if not received:
            self.alive = False
            return self._death()
        *lines, self._pending = (self._pending + received).split(b"\n")
        for line in lines:
            message = json.loads(line)
            if "done" in message:
                manifest: dict[str, Any] = message["done"]
                return manifest
            if "error" in message:
                return error_from_json(message["error"])
            advance(self.key, message["read"], message["doing"])
        return None

    def end(self, kill: bool = False) -> None:
        """End the process, which exits when its input is closed."""
        if self.alive and kill:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._pid, signal.SIGKILL)
        self._close()
        if self.alive:
            self._forker.wait(self._pid)

    def _close(self) -> None:
        os.close(self._input)
        os.close(self.output)
        self._stderr.close()

    def _death(self) -> RankscopeError:
        code = self._forker.wait(self._pid)
        if code < 0:
            memory = "The system kills processes when it runs out of memory."
            return StoreError(
                f"reading {self._task.subject} was stopped by {signal.Signals(-code).name}",
                why=memory if code == -signal.SIGKILL else "The process that read it crashed.",
                hint="Try again with one file at a time: --jobs 1",
            )
        return ReadError(
            f"cannot read {self._task.subject}",
            why=f"The reader failed: {_last_line(self._stderr) or f'exit code {code}'}",
            hint="Please report this, with the file if you can.",
        )
