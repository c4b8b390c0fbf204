"""DuckDB's databases in memory."""

from __future__ import annotations

from pathlib import Path

from rankscope.readers.database import new_database


def test_a_database_of_one_thread_starts_no_other() -> None:
    before = len(list(Path("/proc/self/task").iterdir()))
    connection = new_database(threads=1)
    assert connection.execute("SELECT 42").fetchall() == [(42,)]
    assert len(list(Path("/proc/self/task").iterdir())) == before
    connection.close()
