"""Runs tasks in worker processes, a few at a time, and listens to all of them."""

from __future__ import annotations

import atexit
import contextlib
import json
import os
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
from rankscope.readers.kineto.reader import KINETO
from rankscope.store.worker import Outcome, Task, perform

Key = TypeVar("Key", bound=Hashable)

_SMALL_BYTES = 16_000_000
"""Of all files together. Workers take a second of processor time to start; so much text is read in half of it."""
_GZIP_RATIO = 12
"""How much text a byte of a compressed trace stands for, about."""


def run_tasks(
    tasks: Mapping[Key, Task], jobs: int, advance: Callable[[Key, int, str], None]
) -> Iterator[tuple[Key, Outcome]]:
    """Yield each task's manifest, or the error that ended it, as they finish."""
    if are_small([Path(task.path) for task in tasks.values()]):
        for key, task in tasks.items():
            yield key, perform(task, partial(advance, key))
    else:
        yield from _in_processes(tasks, jobs, advance)


_started: list[_Worker[Any]] = []


def start_early() -> None:
    """A worker begins to load what it needs while the caller still does; the first task will be its."""
    if not _started:
        _started.append(_Worker())
        atexit.register(_end_unused)


def _end_unused() -> None:
    while _started:
        _started.pop().end()


def are_small(paths: Collection[Path]) -> bool:
    """Little text: it needs no process of its own, and nothing in it can end the one it is read in."""
    try:
        return sum(map(_text_bytes, paths)) <= _SMALL_BYTES and all(
            find_reader(path) is KINETO for path in paths
        )
    except (OSError, RankscopeError):
        return False


def _text_bytes(path: Path) -> int:
    return path.stat().st_size * (_GZIP_RATIO if path.suffix == ".gz" else 1)


def _in_processes(
    tasks: Mapping[Key, Task], jobs: int, advance: Callable[[Key, int, str], None]
) -> Iterator[tuple[Key, Outcome]]:
    """A worker that dies takes the task it was at with it, and nothing else: another one takes its place."""
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
                    outcome = worker.listen(advance)
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
    """Ours, with this very package importable however this process came to it (notebooks, sys.path)."""
    here = str(Path(__file__).parents[2])
    paths = [here, *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}


class _Worker(Generic[Key]):
    """One worker process; what it complains about goes to a file, which never fills up as a pipe does."""

    key: Key

    def __init__(self) -> None:
        self._complaints = tempfile.TemporaryFile("w+")  # noqa: SIM115 - lives as long as the process
        self._process = subprocess.Popen(
            [sys.executable, "-m", "rankscope.store.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._complaints,
            bufsize=0,
            env=_environment(),
        )
        assert self._process.stdin is not None and self._process.stdout is not None
        self._input, self.output = self._process.stdin, self._process.stdout
        self._heard = b""
        self.alive = True

    def begin(self, key: Key, task: Task) -> None:
        self.key, self._task = key, task
        self._heard = b""
        with contextlib.suppress(BrokenPipeError):  # it has died; reading its output will say so
            self._input.write(task.to_json().encode() + b"\n")

    def listen(self, advance: Callable[[Key, int, str], None]) -> Outcome | None:
        """Take in what it said: progress is passed on, the task's outcome is returned."""
        heard = os.read(self.output.fileno(), 1 << 16)
        if not heard:
            self.alive = False
            return self._why_it_died()
        *lines, self._heard = (self._heard + heard).split(b"\n")
        for line in lines:
            message = json.loads(line)
            if "done" in message:
                manifest: dict[str, Any] = message["done"]
                return manifest
            if "error" in message:
                return ReadError(*message["error"])
            advance(self.key, message["read"], message["doing"])
        return None

    def end(self, kill: bool = False) -> None:
        """Nothing more to do: it leaves when its input ends."""
        self._input.close()
        if kill:
            self._process.kill()
        self._process.wait()
        self.output.close()
        self._complaints.close()

    def _why_it_died(self) -> RankscopeError:
        code = self._process.wait()
        self._complaints.seek(0)
        lines = self._complaints.read().strip().splitlines()
        if code < 0:
            memory = "The system ends processes that need more memory than there is."
            return StoreError(
                f"reading {self._task.path} was ended by {signal.Signals(-code).name}",
                why=memory if code == -signal.SIGKILL else "The process that read it crashed.",
                hint="Try again with one file at a time: --jobs 1",
            )
        return ReadError(
            f"cannot read {self._task.path}",
            why=f"The reader failed: {lines[-1] if lines else f'exit code {code}'}",
            hint="Please report this, with the file if you can.",
        )
