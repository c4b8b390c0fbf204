"""SQL of users, in a process of its own with a limit on time and memory.

`ConfinedSql` rules out that a query changes anything. It cannot bound what a query needs: `SELECT range(100000000)`
takes 7 GB and half a minute in which DuckDB does not react to an interrupt. A process can be limited by the system and
killed: when the time is over, and when the client leaves. The next query starts another one.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import selectors
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import IO, Any

from rankscope.errors import QueryError
from rankscope.host import physical_memory_bytes
from rankscope.store.database import PlainFolder
from rankscope.text.json_values import plain
from rankscope.timeline.confined_sql import ConfinedSql
from rankscope.units import format_bytes

MOST_ROWS = 1000
MOST_SECONDS = 30
_MOST_MEMORY = 2 << 30
_MOST_THREADS = 8
_MOST_ANSWER_BYTES = 32 << 20
_OUTSIDE_DUCKDB = 1 << 30
"""Bytes that the process may need beside what DuckDB counts: threads, the interpreter, the rows of the answer."""
_POLL_SECONDS = 0.1
_ENDING_SECONDS = 0.2


class SqlProcess:
    """Answers queries one at a time. The process is started by the first, and ends when this one does."""

    def __init__(
        self, definitions: Callable[[], Iterable[str]], store: PlainFolder, seconds: int = MOST_SECONDS
    ) -> None:
        self._definitions, self._store, self._seconds = definitions, store, seconds
        self._memory = min(_MOST_MEMORY, physical_memory_bytes() // 4)
        self._process: subprocess.Popen[bytes] | None = None
        self._one_at_a_time = threading.Lock()

    def query(self, sql: str, stop: threading.Event) -> dict[str, Any]:
        """Names, at most MOST_ROWS rows as JSON types, and whether there are more. `stop` ends it."""
        while not self._one_at_a_time.acquire(timeout=_POLL_SECONDS):
            if stop.is_set():
                raise _stopped()
        try:
            process = self._process = self._process or self._started(stop)
            return self._ask(process, {"sql": sql}, stop)
        except QueryError:
            if self._process is not None and self._process.poll() is not None:
                self._process = None
            raise
        finally:
            self._one_at_a_time.release()

    def close(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            _end(process)

    def _started(self, stop: threading.Event) -> subprocess.Popen[bytes]:
        tables = {
            "definitions": list(self._definitions()),
            "store": str(self._store.path),
            "memory": self._memory,
            "seconds": self._seconds,
        }
        code = (
            f"import sys; sys.path[:] = {sys.path!r}; from rankscope.viewer.sql_process import serve; serve()"
        )
        process = subprocess.Popen(
            [sys.executable, "-c", code],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C is for the viewer
            pass_fds=self._store.descriptors,
        )
        self._ask(process, tables, stop)
        return process

    def _ask(
        self, process: subprocess.Popen[bytes], question: dict[str, Any], stop: threading.Event
    ) -> dict[str, Any]:
        assert process.stdin and process.stdout
        with contextlib.suppress(BrokenPipeError):
            process.stdin.write(json.dumps(question).encode() + b"\n")
            process.stdin.flush()
        line = _line(process.stdout, stop)
        if line is None:
            _end(process)
            raise _stopped()
        if not line:
            why = f"It needed more than {format_bytes(self._memory + _OUTSIDE_DUCKDB)} of memory."
            if _end(process) == -signal.SIGALRM:
                why = f"It took longer than {self._seconds} s."
            hint = "Choose fewer rows, or use `rankscope query`, which has no limit."
            raise QueryError("the query was ended", why=why, hint=hint)
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise QueryError(*answer["error"])
        return answer


def _end(process: subprocess.Popen[bytes]) -> int:
    """Its exit code, if it has ended by itself."""
    assert process.stdin and process.stdout
    process.stdout.close()
    with contextlib.suppress(BrokenPipeError):
        process.stdin.close()
    with contextlib.suppress(subprocess.TimeoutExpired):
        return process.wait(_ENDING_SECONDS)
    process.kill()
    return process.wait()


def _stopped() -> QueryError:
    return QueryError("the query was ended", why="The page that asked has left.")


def _line(pipe: IO[bytes], stop: threading.Event) -> bytes | None:
    """One line; empty when the process has ended, None when `stop` is set before."""
    pieces: list[bytes] = []
    with selectors.DefaultSelector() as ready:
        ready.register(pipe, selectors.EVENT_READ)
        while not stop.is_set():
            if not ready.select(_POLL_SECONDS):
                continue
            pieces.append(os.read(pipe.fileno(), 1 << 20))
            if not pieces[-1]:
                return b""
            if pieces[-1].endswith(b"\n"):
                return b"".join(pieces)
    return None


def serve() -> None:
    """The process: one JSON line with the tables, then one for each query; an answer for each of them."""
    tables = json.loads(sys.stdin.readline())
    definitions = [f"SET threads = {min(os.cpu_count() or 1, _MOST_THREADS)}", *tables["definitions"]]
    with contextlib.suppress(ValueError, OSError):  # a lower limit is set already, or the system has none
        most = tables["memory"] + _OUTSIDE_DUCKDB
        resource.setrlimit(resource.RLIMIT_DATA, (most, most))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    try:
        sql = ConfinedSql(definitions, Path(tables["store"]), tables["memory"])
        _write({})
    except Exception as error:  # noqa: BLE001 - told to the parent
        _write({"error": ["the tables cannot be opened", f"{type(error).__name__}: {error}", ""]})
        return
    for question in sys.stdin:
        signal.alarm(tables["seconds"])  # its default action ends the process
        _write(_answer(sql, json.loads(question)["sql"]))
        signal.alarm(0)


def _answer(sql: ConfinedSql, text: str) -> dict[str, Any]:
    try:
        names, rows, more = sql.query(text, MOST_ROWS)
        answer = {"columns": names, "rows": plain(rows), "more": more}
    except QueryError as error:
        return {"error": [error.message, error.why, error.hint]}
    size = len(json.dumps(answer["rows"]))
    if size > _MOST_ANSWER_BYTES:
        why = f"It has {format_bytes(size)} in {len(rows)} rows."
        return {"error": ["the answer is too large for a page", why, "Choose fewer rows or columns."]}
    return answer


def _write(answer: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(answer, allow_nan=False) + "\n")
    sys.stdout.flush()
