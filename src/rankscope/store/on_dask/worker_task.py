"""A task on a Dask worker: reads a file of the shared file system and writes its tables there."""

from __future__ import annotations

import os
import signal
import socket
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from rankscope.errors import ReadError, RemoteError
from rankscope.host import physical_memory_bytes
from rankscope.store.pool import needed_bytes
from rankscope.store.worker import Outcome, Task, perform
from rankscope.version import __version__


class Memory:
    """The memory of one worker process, shared by its threads."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._reserved = 0

    @contextmanager
    def reserved(self, needed: int, limit: int) -> Iterator[None]:
        """Wait until this much is free. What does not fit at all is done alone."""
        with self._changed:
            self._changed.wait_for(lambda: not self._reserved or self._reserved + needed <= limit)
            self._reserved += needed
        try:
            yield
        finally:
            with self._changed:
                self._reserved -= needed
                self._changed.notify_all()


_MEMORY = Memory()


def dask_setup(worker: object) -> None:
    """Called in the worker processes of this machine. A terminal sends Ctrl-C to all processes: only the one that
    started the workers obeys, and ends them."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def read_on_worker(task: Task, version: str, variables: Mapping[str, str]) -> Outcome:
    """Read one file. Raises what Dask is to try again, on this worker or another."""
    from distributed import get_worker

    host, folder = socket.gethostname(), Path(task.folder).parent
    if version != __version__:
        raise RemoteError(
            f"the Dask worker on {host} has rankscope {__version__}, and this is {version}",
            why="All parts of a store must be written by one version.",
            hint="Start the workers with the Python environment of this command.",
        )
    if not folder.is_dir():
        raise RemoteError(
            f"the Dask worker on {host} does not see {folder}",
            why="Workers read the traces and write the store themselves.",
            hint="Put the run on a file system that all of them share, or the store: --cache DIR",
        )
    os.environ.update(variables)
    limit = get_worker().memory_manager.memory_limit or physical_memory_bytes()
    with _MEMORY.reserved(needed_bytes(Path(task.path)), limit):
        outcome = perform(task, lambda read, doing: None)
    if isinstance(outcome, ReadError) and isinstance(outcome.__cause__, OSError):
        raise outcome  # the file may be readable elsewhere, or in a moment
    return outcome
