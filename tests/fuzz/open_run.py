"""Targets on a run that is open: the viewer's parameters, and the SQL of users with an oracle beside it."""

from __future__ import annotations

import os
import tempfile
import threading
from functools import cache
from pathlib import Path

import duckdb

from conftest import kernel_event, slice_event, write_kineto
from fuzz.codes import Codes
from rankscope.timeline.confined_sql import ConfinedSql
from rankscope.timeline.reading import ingest
from rankscope.timeline.run import Run
from rankscope.viewer.answers import Route, json_bytes
from rankscope.viewer.session import Session
from rankscope.viewer.startup import routes_of

_PARAMETERS = (
    "rank", "ranks", "segment", "id", "name", "begin", "end", "q", "track", "width", "steps", "level", "index", "at",
    "window", "top", "time", "direction", "by", "run", "clocks", "format",
    "tracks", "text", "sort", "order", "limit", "offset", "slice", "marks", "view",
)  # fmt: skip
_LONGEST_QUERY_S = 2.0
_TABLES = ("slices", "gpu", "segments")


@cache
def _run() -> Run:
    folder = Path(tempfile.mkdtemp(prefix="fuzz-"))
    events = [
        slice_event("ProfilerStep#1", 0.0, 50.0, cat="user_annotation"),
        slice_event("aten::mm", 10.0, 5.0, args={"External id": 1}),
        kernel_event("gemm", 12.0, 4.0, args={"correlation": 7, "stream": 7, "device": 0}),
    ]
    return Run(ingest([write_kineto(folder / "rank-0.json", events)]))


@cache
def _routes() -> dict[str, Route]:
    return routes_of(Session(_run(), "fuzz", path=Path(tempfile.mkdtemp(prefix="fuzz-"))))


def parameters(data: bytes) -> None:
    """Any route with any parameters: an answer that is JSON, or one of the errors that the server turns into a 400."""
    codes = Codes(data)
    routes = {name: route for name, route in _routes().items() if name != "query"}
    route = codes.choice(sorted(routes))
    query = {}
    while not codes.ended:
        name = codes.choice(_PARAMETERS)
        text = codes.text() if codes.number(3) == 0 else str(codes.value())
        query[name] = text.encode("utf-8", "replace").decode()  # as the server decodes an address
    try:
        answer = routes[route](query)
    except (KeyError, ValueError, OverflowError):
        return
    json_bytes(answer[0] if isinstance(answer, tuple) else answer)


@cache
def _confined() -> ConfinedSql:
    return ConfinedSql(_run().definitions(), _run().folder.path)


def sql(data: bytes) -> None:
    """What the check lets through is run on a connection without any wall: nothing there may change."""
    text = data.decode("utf-8", "replace")
    try:
        statement = _confined()._checked(text)
    except duckdb.Error:
        return  # `query` makes a message of it
    with tempfile.TemporaryDirectory(prefix="fuzz-") as folder:
        before = Path.cwd()
        os.chdir(folder)
        connection = duckdb.connect()
        try:
            for table in _TABLES:
                connection.execute(
                    f"CREATE TABLE {table} (id BIGINT, rank INTEGER, name VARCHAR, dur_ns BIGINT)"
                )
                connection.execute(f"INSERT INTO {table} VALUES (1, 0, 'a', 5), (2, 1, 'b', 7)")
            objects = _objects(connection)
            _run_for_a_while(connection, statement)
            assert _objects(connection) == objects, f"the query changed tables or settings: {text!r}"
            assert not list(Path(folder).iterdir()), f"the query wrote a file: {text!r}"
        finally:
            os.chdir(before)
            connection.close()


def _objects(connection: duckdb.DuckDBPyConnection) -> list[object]:
    tables = connection.execute(
        "SELECT table_name, estimated_size FROM duckdb_tables() ORDER BY 1"
    ).fetchall()
    rows = [connection.execute(f"SELECT * FROM {table} ORDER BY ALL").fetchall() for table in _TABLES]
    others = "SELECT (SELECT count(*) FROM duckdb_views()), (SELECT count(*) FROM duckdb_functions())"
    return [tables, rows, connection.execute(others).fetchall()]


def _run_for_a_while(connection: duckdb.DuckDBPyConnection, statement: str) -> None:
    timer = threading.Timer(_LONGEST_QUERY_S, connection.interrupt)
    timer.start()
    try:
        connection.execute(statement).fetchmany(10)
    except duckdb.Error:
        pass  # an answer like any other: the columns are not those of a run
    finally:
        timer.cancel()
