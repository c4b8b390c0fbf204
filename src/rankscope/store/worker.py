"""A process that reads files or computes: `python -m rankscope.store.worker`, tasks on stdin, reports on stdout.

A process per file keeps their memory apart and uses every core; a crash or the out-of-memory killer costs one file
and not the run. A task is pickled: a file to read, a function to call, or a function that loads modules; reports are
lines of JSON, {"read", "doing"}, then {"done"} or {"error"}.
"""

from __future__ import annotations

import errno
import json
import pickle
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rankscope import errors
from rankscope.errors import RankscopeError
from rankscope.files import make_private_folder, unique_name
from rankscope.readers import one_file
from rankscope.records import dataclass
from rankscope.store.checksums import read_checked_json
from rankscope.store.incoming import in_use
from rankscope.store.index import SEGMENT_FILE

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
        elif isinstance(task, Task):
            outcome = perform(task, lambda read, doing: _report(read=read, doing=doing))
        else:
            task()
            continue
        if isinstance(outcome, RankscopeError):
            _report(error=error_to_json(outcome))
        else:
            _report(done=outcome)


if __name__ == "__main__":
    # Under its own name: what is unpickled is of that module, not of __main__.
    from rankscope.store.worker import perform_tasks

    perform_tasks()
