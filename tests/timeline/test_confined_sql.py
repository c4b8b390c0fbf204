"""SQL of users: what reads is answered, nothing else is done; and the process with limits that the viewer uses."""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from conftest import ROOT, kernel_event, open_trace, slice_event, write_kineto
from rankscope.cli import main
from rankscope.errors import QueryError
from rankscope.timeline.confined_sql import ConfinedSql
from rankscope.timeline.run import Run
from rankscope.viewer.sql_process import MOST_ROWS, SqlProcess
from sql_statements import HARMFUL, HARMLESS


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("sql")
    events = [
        slice_event("aten::mm", 10, 5),
        kernel_event("gemm", 12, 5),
        slice_event("ProfilerStep#1", 0, 50),
    ]
    write_kineto(folder / "rank-0.json", events)
    return open_trace(folder)


def _contents(folder: Path) -> dict[Path, str]:
    files = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return {path: hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


@pytest.mark.parametrize("sql", HARMLESS)
def test_what_reads_is_answered(sql: str, run: Run) -> None:
    assert run.query(sql).names


def test_nothing_else_is_done(run: Run) -> None:
    before = _contents(run.store)
    segments = run.query("SELECT * FROM segments").rows
    for sql in HARMFUL:
        with pytest.raises(QueryError):
            run.query(sql.format(store=run.store))
    assert _contents(run.store) == before
    assert run.query("SELECT * FROM segments").rows == segments


@pytest.mark.parametrize(
    "sql", ["EXPLAIN " * 1500 + "SELECT 1", "EXPLAIN EXPLAIN SELECT 1", "(" * 3000 + "SELECT 1"]
)
def test_statements_that_are_nested_too_deeply(sql: str, run: Run) -> None:
    with pytest.raises(QueryError):
        run.query(sql)


def test_times_of_day_need_no_further_package(run: Run) -> None:
    """DuckDB's Python objects for them need pytz, which is not installed."""
    (row,) = run.query("SELECT now(), [now()], now() - INTERVAL 1 DAY AS yesterday; -- with a comment").rows
    assert all(isinstance(value, str) and value[:2] in ("20", "['") for value in row)


def test_rows_beyond_the_limit_are_not_computed(run: Run) -> None:
    answer = run.query("SELECT * FROM range(1000000000000)", most_rows=10)
    assert len(answer.rows) == 10 and answer.more
    assert not run.query("SELECT * FROM range(10)", most_rows=10).more


@pytest.mark.slow
def test_control_c_ends_a_query(run: Run, tmp_path: Path) -> None:
    """DuckDB 2.0 does not return to Python for a signal."""
    words = [
        "query",
        str(run.store.parent),
        "SELECT count(*) FROM range(100000000000) a, range(1000) b",
        "-q",
    ]
    process = subprocess.Popen(
        [sys.executable, "-c", f"import sys; sys.argv[0] = 'rankscope'; from rankscope.cli import main; "
         f"print('started', flush=True); sys.exit(main({words!r}))"],
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert process.stdout and process.stdout.readline() == "started\n"
        while "duckdb" not in Path(f"/proc/{process.pid}/maps").read_text() and process.poll() is None:
            time.sleep(0.05)  # it is still importing
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(1.0)
        process.send_signal(signal.SIGINT)
        _, error = process.communicate(timeout=30)
    finally:
        process.kill()
    assert process.returncode == 130 and "interrupted" in error and "Traceback" not in error, error


@pytest.mark.slow
def test_the_process_has_limits(run: Run) -> None:
    """Too long, too much memory, a client that leaves: the query ends, and the next one is answered."""
    sql = SqlProcess(run.definitions, run.folder, seconds=1)
    stays, leaves = threading.Event(), threading.Event()
    endless = "SELECT count(*) FROM range(100000000000) a, range(1000) b"

    def question(text: str) -> None:
        with pytest.raises(QueryError) as refused:
            sql.query(text, stays)
        reasons.append(refused.value.why)

    reasons: list[str] = []
    question(endless)
    question("SELECT repeat('x', 4000000000)")  # not counted by DuckDB's memory_limit
    question("SELECT * FROM nowhere")
    threading.Timer(0.3, leaves.set).start()
    with pytest.raises(QueryError, match="ended"):
        sql.query(endless, leaves)
    assert reasons[0] == "It took longer than 1 s."
    assert reasons[1].startswith(
        ("It may use", "It took longer")
    )  # a slow machine needs more than the second
    answer = sql.query("SELECT range, 'nan'::DOUBLE AS x, 'inf'::DOUBLE AS y FROM range(100000)", stays)
    assert answer["rows"][0] == [0, None, None] and len(answer["rows"]) == MOST_ROWS and answer["more"]
    sql.close()


def test_control_c_while_the_tables_are_made(
    monkeypatch: pytest.MonkeyPatch, run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(self: ConfinedSql, *_: object) -> None:
        raise RuntimeError("Query interrupted")  # as DuckDB does where Ctrl-C ends a statement

    monkeypatch.setattr(ConfinedSql, "__init__", interrupted)
    assert main(["query", str(run.store.parent), "SELECT 1", "-q"]) == 130
    assert "interrupted" in capsys.readouterr().err
