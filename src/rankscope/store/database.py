"""The DuckDB connection of a run. Making one takes 30 ms, and Python code runs meanwhile: `connect_early` makes it in a
thread while a command imports its modules.
"""

from __future__ import annotations

from threading import Thread
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import duckdb

_ONE_THREAD: dict[str, Any] = {"threads": 1}
_early: list[_Connecting] = []


class _Connecting(Thread):
    def __init__(self) -> None:
        import duckdb  # here: two threads that import at a time take longer than one after the other

        super().__init__()  # no daemon: a thread inside DuckDB must not outlive the interpreter
        self._connect = duckdb.connect

    def run(self) -> None:
        self._made = self._connect(config=_ONE_THREAD)

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
    import duckdb

    if not _early:
        return duckdb.connect(config=_ONE_THREAD if one_thread else {})
    connection = _early.pop().result()
    if not one_thread:
        connection.execute("RESET threads")
    return connection
