"""The DuckDB connection of a run. Making one takes 20 ms, and Python code runs meanwhile: `connect_early` makes it in a
thread while a command imports its modules.
"""

from __future__ import annotations

from threading import Thread
from typing import TYPE_CHECKING

from rankscope.readers.database import new_database

if TYPE_CHECKING:
    import duckdb

_early: list[_Connecting] = []


class _Connecting(Thread):
    def __init__(self) -> None:
        import duckdb  # noqa: F401 - here: two threads that import at a time take longer than one after the other

        super().__init__()  # no daemon: a thread inside DuckDB must not outlive the interpreter

    def run(self) -> None:
        self._made = new_database(threads=1)

    def result(self) -> duckdb.DuckDBPyConnection:
        self.join()
        return self._made


def connect_early() -> None:
    """Begin to make the connection that the next call of `connect` returns."""
    if not _early:
        _early.append(_Connecting())
        _early[0].start()


def connect(*, one_thread: bool) -> duckdb.DuckDBPyConnection:
    """A new database in memory, with one thread or as many as there are cores."""
    connection = _early.pop().result() if _early else new_database(threads=1)
    if not one_thread:
        connection.execute("RESET threads")
    return connection
