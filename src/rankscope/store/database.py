"""The DuckDB connection of a run. Making one takes 20 ms, and Python code runs meanwhile: `connect_early` makes it in a
thread while a command imports its modules.
"""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
import weakref
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Any

from rankscope.host import has_descriptor_paths
from rankscope.readers.database import new_database

if TYPE_CHECKING:
    import duckdb

most_threads: int | None = None
"""In a process beside others, its part of the cores; None: all of them."""
_early: list[Thread] = []
_connections: list[duckdb.DuckDBPyConnection] = []


def connect_early() -> None:
    """Begin to make the connection that the next call of `connect` returns."""
    if not _early:
        import duckdb  # noqa: F401 - here: two threads that import at a time take longer than one after the other

        atexit.register(_connections.clear)  # DuckDB reports one that Python frees with its modules as leaked
        # No daemon: a thread inside DuckDB must not outlive the interpreter.
        _early.append(Thread(target=lambda: _connections.append(new_database(threads=1))))
        _early[0].start()


def connect(*, one_thread: bool) -> duckdb.DuckDBPyConnection:
    """A new database in memory, with one thread or as many as there are cores for this process."""
    if _early:
        _early.pop().join()
    connection = _connections.pop() if _connections else new_database(threads=1)
    if not one_thread and most_threads != 1:
        connection.execute(f"SET threads = {most_threads}" if most_threads else "RESET threads")
    return connection


class PlainFolder:
    """A folder that is kept open: `path` names it within this process, until it is closed or this object is gone."""

    def __init__(self, folder: Path) -> None:
        self.close: weakref.finalize[Any, Any]
        self.descriptors: tuple[int, ...] = ()
        """What a child process must inherit for `path` to be valid there."""
        if has_descriptor_paths():
            descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            self.descriptors = (descriptor,)
            self.path = Path(f"/proc/self/fd/{descriptor}")
            self.close = weakref.finalize(self, os.close, descriptor)
        else:  # macOS
            links = tempfile.mkdtemp(prefix="rankscope-")
            self.path = Path(links) / "folder"
            self.path.symlink_to(folder.resolve())
            self.close = weakref.finalize(self, shutil.rmtree, links, ignore_errors=True)
