"""Runs tasks in worker processes, a few at a time, and collects their reports."""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import pickle
import selectors
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Generic, TypeVar

from rankscope.errors import RankscopeError, ReadError, StoreError
from rankscope.readers import find_reader
from rankscope.store.worker import Call, Outcome, Task, call, error_from_json, perform

Key = TypeVar("Key", bound=Hashable)

_SMALL_BYTES = 32_000_000
"""Total size of files read without workers: reading this much text takes as long as starting two of them."""
_WITHOUT_WORKERS = ("kineto", "perfetto", "gpu-counters", "nccl_inspector", "nccl_prometheus", "nccl_plugin")
"""Formats that may be read in this process: their readers run no other program and need little memory."""
_GZIP_RATIO = 12
"""Typical compression ratio of a trace."""
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


_started: list[_Worker[Any]] = []


def start_early(load_modules: Callable[[], None]) -> None:
    """Start a worker before the first task is known, so that it loads its modules in the meantime."""
    if not _started:
        _started.append(_Worker())
        _started[0].load(load_modules)
        atexit.register(_end_unused)


def _end_unused() -> None:
    while _started:
        _started.pop().end()


def need_no_worker(paths: Collection[Path]) -> bool:
    """True for one file of such a format, and for little text in several: they are read faster without workers."""
    try:
        few = len(paths) <= 1 or sum(map(text_bytes, paths)) <= _SMALL_BYTES
        return few and all(find_reader(path).name in _WITHOUT_WORKERS for path in paths)
    except (OSError, RankscopeError):
        return False


def text_bytes(path: Path) -> int:
    """The size of a trace when it is decompressed, about."""
    return path.stat().st_size * (_GZIP_RATIO if path.suffix == ".gz" else 1)


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
                    workers.append(_started.pop() if _started else _Worker())
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
    """This process's environment, with this package on PYTHONPATH (it may come from sys.path, as in notebooks)."""
    here = str(Path(__file__).parents[2])
    paths = [here, *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}


class _Worker(Generic[Key]):
    """One worker process. Its stderr goes to a file, which cannot block as a full pipe does."""

    key: Key

    def __init__(self) -> None:
        self._stderr = tempfile.TemporaryFile("w+")  # noqa: SIM115 - lives as long as the process
        self._process = subprocess.Popen(
            [sys.executable, "-m", "rankscope.store.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
            bufsize=0,
            env=_environment(),
        )
        assert self._process.stdin is not None and self._process.stdout is not None
        self._input, self.output = self._process.stdin, self._process.stdout
        self._pending = b""
        self.alive = True

    def load(self, load_modules: Callable[[], None]) -> None:
        with contextlib.suppress(BrokenPipeError):
            self._input.write(pickle.dumps(load_modules))

    def begin(self, key: Key, task: Task | Call) -> None:
        self.key, self._task = key, task
        self._pending = b""
        with contextlib.suppress(BrokenPipeError):  # the worker has died; reading its output reports it
            self._input.write(pickle.dumps(task))

    def receive(self, advance: Callable[[Key, int, str], None]) -> Outcome | None:
        """Read the reports that have arrived: pass on progress, return the outcome of the task if it is there."""
        received = os.read(self.output.fileno(), 1 << 16)
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
        self._input.close()
        if kill:
            self._process.kill()
        self._process.wait()
        self.output.close()
        self._stderr.close()

    def _death(self) -> RankscopeError:
        code = self._process.wait()
        self._stderr.seek(0)
        lines = self._stderr.read().strip().splitlines()
        if code < 0:
            memory = "The system kills processes when it runs out of memory."
            return StoreError(
                f"reading {self._task.subject} was stopped by {signal.Signals(-code).name}",
                why=memory if code == -signal.SIGKILL else "The process that read it crashed.",
                hint="Try again with one file at a time: --jobs 1",
            )
        return ReadError(
            f"cannot read {self._task.subject}",
            why=f"The reader failed: {lines[-1] if lines else f'exit code {code}'}",
            hint="Please report this, with the file if you can.",
        )
