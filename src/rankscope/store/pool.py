"""Runs tasks in worker processes, a few at a time, and listens to all of them."""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Hashable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

import rankscope
from rankscope.errors import RankscopeError, ReadError, StoreError
from rankscope.store.worker import Task

Key = TypeVar("Key", bound=Hashable)


def run_tasks(
    tasks: Mapping[Key, Task], jobs: int, advance: Callable[[Key, int, str], None]
) -> Iterator[tuple[Key, dict[str, Any] | RankscopeError]]:
    """Yield each task's manifest, or the error that ended it, as they finish."""
    waiting = list(tasks)
    running: dict[Key, _Worker] = {}
    outcomes: dict[Key, dict[str, Any] | RankscopeError] = {}
    with selectors.DefaultSelector() as selector:
        try:
            while waiting or running:
                while waiting and len(running) < jobs:
                    key = waiting.pop(0)
                    running[key] = worker = _Worker(tasks[key])
                    selector.register(worker.stdout, selectors.EVENT_READ, key)
                for ready, _ in selector.select():
                    key = ready.data
                    line = running[key].stdout.readline()
                    if line:
                        _listen(key, json.loads(line), outcomes, advance)
                        continue
                    selector.unregister(ready.fileobj)
                    yield key, running.pop(key).outcome(outcomes.get(key))
        finally:
            for worker in running.values():
                worker.kill()


def _environment() -> dict[str, str]:
    """Ours, with this very package importable however this process came to it (notebooks, sys.path)."""
    here = str(Path(rankscope.__file__).parents[1])
    paths = [here, *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}


class _Worker:
    """One worker process; what it complains about goes to a file, which never fills up as a pipe does."""

    def __init__(self, task: Task) -> None:
        self._task = task
        self._complaints = tempfile.TemporaryFile("w+")  # noqa: SIM115 - lives as long as the process
        self._process = subprocess.Popen(
            [sys.executable, "-m", "rankscope.store.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._complaints,
            text=True,
            env=_environment(),
        )
        assert self._process.stdin is not None and self._process.stdout is not None
        self.stdout = self._process.stdout
        self._process.stdin.write(task.to_json())
        self._process.stdin.close()

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
        self.stdout.close()
        self._complaints.close()

    def outcome(self, said: dict[str, Any] | RankscopeError | None) -> dict[str, Any] | RankscopeError:
        """What the worker said; when it died without a word, why it probably did."""
        code = self._process.wait()
        self.stdout.close()
        with self._complaints as complaints:
            complaints.seek(0)
            lines = complaints.read().strip().splitlines()
        if said is not None and (code == 0 or isinstance(said, RankscopeError)):
            return said
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


def _listen(
    key: Key,
    message: dict[str, Any],
    outcomes: dict[Key, dict[str, Any] | RankscopeError],
    advance: Callable[[Key, int, str], None],
) -> None:
    if "done" in message:
        outcomes[key] = message["done"]
    elif "error" in message:
        outcomes[key] = ReadError(*message["error"])
    else:
        advance(key, message["read"], message["doing"])
