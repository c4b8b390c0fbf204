"""Files made to hurt: reading them takes bounded time and memory, says what is wrong, and the other files are read."""

from __future__ import annotations

import gzip
import json
import resource
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from conftest import kineto_text, open_trace, slice_event, write_kineto
from gpu_logs import evenly, query_csv
from nsys_files import ExportFile
from rankscope.analysis.core.scope import Scope
from rankscope.analysis.health.doubts import doubts
from rankscope.errors import NotATraceError, ReadError
from rankscope.readers import byte_stream, sqlite_file
from rankscope.readers.base import NodePart
from rankscope.readers.gpu_counters.reader import GPU_COUNTERS
from rankscope.readers.kineto import reader as kineto
from rankscope.readers.nsys import export
from rankscope.timeline.reading import ingest
from rankscope.timeline.run import Run

GOOD = kineto_text([slice_event(f"good {i}", 10.0 * i, 5.0) for i in range(4)]).encode()
END = GOOD.rindex(b"]")
MIB = 1 << 20


def reading(run: Run) -> dict[str, Any]:
    found: dict[str, Any] = run.segments[0].manifest["reading"]
    return found


def names(run: Run) -> set[str]:
    return {name for (name,) in run.rows("SELECT name FROM slices")}


@pytest.fixture
def small_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """A bomb of some MiB is then as large as one of some GiB."""
    monkeypatch.setattr(kineto, "BLOCK_BYTES", MIB)
    monkeypatch.setattr(kineto, "_MOST_WITHOUT_CUT", 4 * MIB)
    monkeypatch.setattr(byte_stream, "_ALWAYS_ALLOWED", 16 * MIB)


INSIDE = b',\n  {\n    "ph": "X", "cat": "cpu_op", "name": "'
BOMBS: dict[str, tuple[bytes, bytes, bytes]] = {
    "spaces between events": (GOOD[:END] + b",", b" ", b'{"ph": "X"}' + GOOD[END:]),
    "one string": (GOOD[:END] + INSIDE, b"a", b'"\n  }' + GOOD[END:]),
    "brackets": (GOOD[:END] + INSIDE + b'x", "args": ', b"[", b""),
    "backslashes": (GOOD[:END] + INSIDE, b"\\", b""),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", BOMBS)
@pytest.mark.usefixtures("small_limits")
def test_a_gzip_bomb_is_given_up(case: str, tmp_path: Path) -> None:
    begin, piece, end = BOMBS[case]
    path = tmp_path / "rank-0.json.gz"
    with gzip.open(path, "wb") as file:
        file.write(begin)
        for _ in range(32):
            file.write(piece * MIB)
        file.write(end)
    assert path.stat().st_size < MIB
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    run = open_trace(path)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 300_000  # kB; mostly DuckDB itself
    assert {"good 0", "good 1", "good 2"} <= names(run)
    assert reading(run)["events_lost"] <= 1
    assert "expands more than 500-fold" in reading(run)["damage"]
    assert any("cut" in doubt.title for doubt in doubts(run, Scope()))


@pytest.mark.thorough
def test_text_that_python_reads_expands_less(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A line takes Python a hundred times longer than C: what expands far more than any log does is cut off."""
    monkeypatch.setattr(byte_stream, "_TEXT_ALWAYS_ALLOWED", MIB)
    path = tmp_path / "smi.csv.gz"
    path.write_bytes(gzip.compress(query_csv(evenly(0, 10**9, 10**8, [0])).encode() + b"\n" * (64 * MIB)))
    assert path.stat().st_size < MIB // 8
    reading = GPU_COUNTERS.open(path, str(NodePart(("0",), 0, 0, 1 << 62)))
    for batch in reading.batches():
        batch.close()
    assert "expands more than 100-fold" in reading.report.damage


@pytest.mark.slow
@pytest.mark.usefixtures("small_limits")
def test_the_events_after_one_that_is_far_too_long_are_read(tmp_path: Path) -> None:
    path = tmp_path / "rank-0.json"
    after = kineto_text([slice_event(f"after {i}", 100.0 + 10 * i, 5.0) for i in range(3)]).encode()
    rest = after[after.index(b"[") + 1 :]
    path.write_bytes(GOOD[:END].rstrip() + INSIDE + b"a" * (9 * MIB) + b'"\n  },\n  ' + rest.lstrip())
    run = open_trace(path)
    assert names(run) == {*(f"good {i}" for i in range(4)), *(f"after {i}" for i in range(3))}
    assert reading(run)["events_lost"] == 1 and not reading(run)["damage"]
    assert "longer than 4 MiB" in reading(run)["examples"][0]


@pytest.mark.slow
@pytest.mark.usefixtures("small_limits")
def test_a_legal_trace_that_compresses_well_is_read(tmp_path: Path) -> None:
    """As one of an idle loop: the same op again and again. 30 MiB, of which gzip leaves a hundredth."""
    path = tmp_path / "rank-0.json.gz"
    event = json.dumps(slice_event("op", 1.0, 0.5, args={"Call stack": "f;" * 4000})).encode()
    count = 30 * MIB // len(event)
    with gzip.open(path, "wb", compresslevel=3) as file:
        file.write(b'{"traceEvents": [\n')
        for i in range(count):
            file.write((b",\n" if i else b"") + event.replace(b'"ts": 1.0', b'"ts": %d.0' % i))
        file.write(b"\n]}")
    assert 50 * path.stat().st_size < 60 * MIB
    run = open_trace(path)
    assert run.rows("SELECT count(*) FROM events") == [(count,)]
    assert (reading(run)["events_lost"], reading(run)["damage"]) == (0, "")


HOSTILE_TEXT: dict[str, str] = {
    "nested arguments": f'{{"ph": "X", "name": "n", "ts": 1, "dur": 1, "args": {{"a": {"[" * 50_000}{"]" * 50_000}}}}}',
    "nested events": '{"name":' * 50_000,
    "the key of the events a thousand times": '{"x": {' + '"traceEvents": [1], ' * 5_000,
    "ends of lists": '{"ph" oops, "args": [' + '{"a":[{}],"b":' * 20_000,
    "quotes in names": '{"name": "' * 10_000,
}


@pytest.mark.slow
def test_text_that_would_take_the_square_of_its_length(tmp_path: Path) -> None:
    """Each takes minutes to hours if it is parsed again at every place that looks like an event."""
    for number, text in enumerate(HOSTILE_TEXT.values()):
        begun = GOOD[:END].decode() + ",\n" + text + GOOD[END:].decode()
        (tmp_path / f"rank-{2 * number}.json").write_text(begun)
        (tmp_path / f"rank-{2 * number + 1}.json").write_text('{"traceEvents": [' + text)
    run = Run(ingest([tmp_path]))
    for number, case in enumerate(HOSTILE_TEXT):
        found = {name for (name,) in run.rows(f"SELECT name FROM slices WHERE rank = {2 * number}")}
        assert {"good 0", "good 1"} <= found, case
    assert all(isinstance(problem, ReadError) and problem.hint for problem in run.problems)


ODD_HEADERS: dict[str, dict[str, Any]] = {
    "rank beyond int64": {"distributedInfo": {"rank": 10**30, "world_size": 10**30}},
    "negative rank": {"distributedInfo": {"rank": -3, "world_size": -8}},
    "rank that is true": {"distributedInfo": {"rank": True, "world_size": 1e300}},
    "rank beyond any job": {"distributedInfo": {"rank": 2**31, "world_size": 2**31}},
    "base time beyond int64": {"baseTimeNanoseconds": 10**30},
    "base time as text": {"baseTimeNanoseconds": "soon"},
    "base time beyond floats": {"baseTimeNanoseconds": float("inf")},
}


@pytest.mark.slow
def test_ranks_and_times_that_cannot_be(tmp_path: Path) -> None:
    events = [
        slice_event("a", 10.0, 5.0),
        slice_event("long", 11.0, 9e15),
        slice_event("longer", 11.0, 1e300),
    ]
    device = {"device": 10**12, "stream": 10**12, "correlation": 10**25}
    events.append(slice_event("gemm", 12.0, 1.0, cat="kernel", pid=0, tid=7, args=device))
    events.append(slice_event("ProfilerStep#99999999999999999999", 9.0, 50.0, cat="user_annotation"))
    for number, header in enumerate(ODD_HEADERS.values()):
        write_kineto(tmp_path / f"rank-{number}.json", events, **header)
    run = open_trace(tmp_path)
    assert run.ranks == list(range(len(ODD_HEADERS))) and not run.problems
    for rank, case in enumerate(ODD_HEADERS):
        found = {name for (name,) in run.rows(f"SELECT name FROM slices WHERE rank = {rank}")}
        assert {"a", "long", "gemm"} <= found, case
    for entry in run.segments:
        assert entry.unix_origin_ns < 2**62 and entry.manifest["end_ns"] < 2**48


KERNEL = "CUPTI_ACTIVITY_KIND_KERNEL"


def nsys_file(folder: Path, *statements: str, rank: int = 0) -> Path:
    path = folder / f"report_rank{rank}.sqlite"
    file = ExportFile(path)
    file.kernel("gemm", 1000, 2000, 1).kernel("relu", 3000, 4000, 2)
    file._connection.commit()
    file._connection.close()
    with closing(sqlite3.connect(path)) as connection, connection:
        for statement in statements:
            connection.execute(statement)
    connection.close()
    return path


FOREVER = (
    "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) SELECT x AS start, x + 1 AS 'end' FROM n"
)


@pytest.mark.parametrize("table", [KERNEL, "NVTX_EVENTS", "TARGET_INFO_CUDA_CONTEXT_INFO", "StringIds"])
def test_a_view_in_place_of_a_table_is_refused(table: str, tmp_path: Path) -> None:
    path = nsys_file(tmp_path, f"DROP TABLE IF EXISTS {table}", f"CREATE VIEW {table} AS {FOREVER}")
    with pytest.raises(ReadError, match="is not an export of nsys as nsys writes it") as caught:
        open_trace(path)
    assert f"{table} is a view" in caught.value.why and "nsys export" in caught.value.hint


def test_a_statement_that_takes_too_long_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite_file, "_MOST_SECONDS", 0.2)
    found = export.open_export(nsys_file(tmp_path))
    with pytest.raises(ReadError, match="takes too long"):
        found.rows(f"SELECT count(*) FROM ({FOREVER})")
    found.close()


CHANGES = {
    "text": f"UPDATE {KERNEL} SET start = 'soon' WHERE start = 1000",
    "infinity": f"UPDATE {KERNEL} SET start = 9e999 WHERE start = 1000",
    "the smallest number": f"UPDATE {KERNEL} SET start = -9223372036854775807 WHERE start = 1000",
    "a huge device": f"UPDATE {KERNEL} SET deviceId = 1 << 60",
    "rows of any id": f"UPDATE {KERNEL} SET rowid = rowid * (1 << 61)",
    "names that are not UTF-8": "UPDATE StringIds SET value = CAST(x'fffe' AS TEXT)",
    "processes as text": "CREATE TABLE TARGET_INFO_CUDA_CONTEXT_INFO AS SELECT 'me' AS processId UNION SELECT 2.5",
    "a schema that is not UTF-8": "CREATE TABLE odd_table (odd_column)",
    "no usable time": f"UPDATE {KERNEL} SET start = 'a'",
    "no rows": f"DELETE FROM {KERNEL}",
    "no column for the stream": f"ALTER TABLE {KERNEL} RENAME COLUMN streamId TO stream",
}
COPIES = (
    "CREATE TABLE CUPTI_ACTIVITY_KIND_MEMCPY AS "
    "SELECT 5000 AS start, 6000 AS 'end', 0 AS deviceId, 7 AS streamId, 1 AS copyKind"
)
NOT_READ = {
    "no usable time": "has a usable time",
    "no rows": "has no events",
    "processes as text": "reader failed",
}


@pytest.mark.slow
def test_values_that_no_tool_writes(tmp_path: Path) -> None:
    """One file each, read together: what can be read is there, the rest is said, and no file takes another with it."""
    for rank, (case, statement) in enumerate(CHANGES.items()):
        path = nsys_file(tmp_path, statement, *([COPIES] if "column" in case else []), rank=rank)
        if "schema" in case:
            content = path.read_bytes().replace(b"odd_table", b"odd\xff\xfeable")
            path.write_bytes(content.replace(b"odd_column", b"odd\xff\xfeolumn"))
    ingested = ingest([tmp_path])
    run = Run(ingested)
    ranks = {case: rank for rank, case in enumerate(CHANGES)}
    assert set(run.ranks) == {rank for case, rank in ranks.items() if case not in NOT_READ}
    problems = {str(problem) for problem in ingested.problems}
    for case, text in NOT_READ.items():
        assert any(f"rank{ranks[case]}." in problem and text in problem for problem in problems), (
            case,
            problems,
        )
    kernels = dict(run.rows("SELECT rank, list(name ORDER BY name) FROM gpu GROUP BY rank"))
    for case in ("text", "infinity", "the smallest number"):
        assert kernels[ranks[case]] == ["relu"], case
    for case in ("a huge device", "rows of any id", "a schema that is not UTF-8"):
        assert kernels[ranks[case]] == ["gemm", "relu"], case
    assert len(kernels[ranks["names that are not UTF-8"]]) == 2
    (lacking,) = (entry for entry in run.segments if entry.rank == ranks["no column for the stream"])
    assert lacking.manifest["reading"]["events_lost"] == 2
    assert lacking.manifest["reading"]["damage"] == f"{KERNEL} has no column streamId: its rows are not read"
    assert any("cut" in doubt.title for doubt in doubts(run, Scope(ranks=frozenset({lacking.rank}))))


def test_another_sqlite_file_with_odd_names(tmp_path: Path) -> None:
    path = tmp_path / "other.sqlite"
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute('CREATE TABLE "a\'"";--" (x)')
        connection.execute(f"CREATE VIEW v AS {FOREVER}")
    connection.close()
    with pytest.raises(NotATraceError, match="neither an nsys export"):
        open_trace(path)
