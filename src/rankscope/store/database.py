"""The DuckDB connection of a run. Making one takes 30 ms, and Python code runs meanwhile: `connect_early` makes it in a
thread while a command imports its modules.
"""

from __future__ import annotations

from contextlib import suppress
from threading import Thread
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import duckdb

_ONE_THREAD: dict[str, Any] = {"threads": 1}
_early: list[_Connecting] = []


class _Connecting(Thread):
    _made: duckdb.DuckDBPyConnection | None = None

    def run(self) -> None:
        with suppress(ImportError):  # `connect` reports it
            import duckdb

            self._made = duckdb.connect(config=_ONE_THREAD)

    def result(self) -> duckdb.DuckDBPyConnection | None:
        """The connection, once it is made; None if that failed."""
        self.join()
        return self._made


def connect_early() -> None:
    """Begin to make the connection that the next call of `connect` returns."""
    if not _early:
        _early.append(_Connecting())  # no daemon: one that is inside DuckDB must not outlive the interpreter
        _early[0].start()


def connect(*, one_thread: bool) -> duckdb.DuckDBPyConnection:
    """A new database in memory, with one thread or as many as there are cores."""
    connection = _early.pop().result() if _early else None
    if connection is None:
        import duckdb

        return duckdb.connect(config=_ONE_THREAD if one_thread else {})
    if not one_thread:
        connection.execute("RESET threads")
    return connection
