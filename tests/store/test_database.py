"""The connection that is made before it is needed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import duckdb
import pytest

from rankscope.files import side_by_side
from rankscope.store import database
from rankscope.store.database import connect, connect_early


def threads(connection: duckdb.DuckDBPyConnection) -> int:
    ((found,),) = connection.execute("SELECT current_setting('threads')").fetchall()
    return int(found)


@pytest.mark.parametrize("early", [False, True])
def test_one_thread_or_all(early: bool) -> None:
    for one_thread in (True, False):
        if early:
            connect_early()
            connect_early()  # the second call has no effect
            assert len(database._early) == 1
        with connect(one_thread=one_thread) as connection:
            assert threads(connection) == (1 if one_thread else threads(duckdb.connect()))
        assert not database._early


def test_each_run_has_its_own() -> None:
    connect_early()
    first, second = connect(one_thread=True), connect(one_thread=True)
    first.execute("CREATE TABLE x AS SELECT 1")
    with pytest.raises(duckdb.CatalogException):
        second.execute("FROM x")


@pytest.mark.slow
def test_one_that_is_not_needed_is_freed_before_python_frees_modules() -> None:
    """DuckDB 2 lists what it calls leaked, as where something in C refers to our function at the end."""
    script = (
        "from ctypes import *; from rankscope.store.database import *;"
        "connect_early(); pythonapi.Py_IncRef(py_object(connect))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stderr == ""


@pytest.mark.parametrize("count", [0, 1, 5])
def test_answers_are_in_the_order_of_the_items(count: int) -> None:
    paths = [Path(str(number)) for number in range(count)]
    assert side_by_side(lambda path: path.name, paths, 2) == [str(number) for number in range(count)]
