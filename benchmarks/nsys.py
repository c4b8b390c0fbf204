"""nsys exports of any size for benchmarks, and what nsys is asked about them.

The export is a real one whose rows are repeated, each copy later by the recording's length and with correlation
ids of its own; it is kept in .bench for the next time.
"""

from __future__ import annotations

import lzma
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

from traces import ROOT, WORK

SOURCE = ROOT / "tests" / "data" / "nsys" / "gpt-h200" / "gpt.sqlite.xz"
TABLES = WORK / "nsys-tables"
REPORTS = "cuda_gpu_trace,cuda_api_trace"
STATS = f"nsys stats -r {REPORTS}"
_SPAN_NS = 160_000_000
_CORRELATIONS = 30_000
_REPEATED = (
    "CUPTI_ACTIVITY_KIND_RUNTIME",
    "CUPTI_ACTIVITY_KIND_KERNEL",
    "CUPTI_ACTIVITY_KIND_MEMCPY",
    "CUPTI_ACTIVITY_KIND_MEMSET",
    "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION",
    "NVTX_EVENTS",
)


def make_export(source: Path, megabytes: int) -> Path:
    """`source` with its rows repeated until the file has the size."""
    target = WORK / f"nsys-{megabytes}mb.sqlite"
    if target.is_file():
        return target
    unfinished = target.with_suffix(".unfinished")
    content = source.read_bytes()
    unfinished.write_bytes(lzma.decompress(content) if source.suffix == ".xz" else content)
    with closing(sqlite3.connect(unfinished)) as connection:
        connection.execute("PRAGMA journal_mode = OFF")
        connection.execute("PRAGMA synchronous = OFF")
        tables = [name for (name,) in connection.execute("SELECT name FROM sqlite_master")]
        for table in (name for name in _REPEATED if name in tables):
            connection.execute(f"CREATE TEMP TABLE first_{table} AS SELECT * FROM {table}")
        copies = 0
        while unfinished.stat().st_size < megabytes * 1_000_000:
            for table in (name for name in _REPEATED if name in tables):
                connection.execute(_more_copies(connection, table, copies + 1, copies + 200))
            connection.commit()
            copies += 200
    unfinished.replace(target)
    return target


def _more_copies(connection: sqlite3.Connection, table: str, first: int, last: int) -> str:
    columns = [row[1] for row in connection.execute(f"PRAGMA table_info({table})")]
    shifted = {
        "start": f"+ k * {_SPAN_NS}",
        "end": f"+ k * {_SPAN_NS}",
        "correlationId": f"+ k * {_CORRELATIONS}",
    }
    values = ", ".join(f'"{name}" {shifted.get(name, "")}' for name in columns)
    ranges = "WHERE eventType = 59" if table == "NVTX_EVENTS" else ""
    return (
        f"WITH RECURSIVE n(k) AS (SELECT {first} UNION ALL SELECT k + 1 FROM n WHERE k < {last}) "
        f"INSERT INTO {table} SELECT {values} FROM n, first_{table} {ranges}"
    )


def count_events(path: Path) -> int:
    """Rows of the tables that were repeated."""
    with closing(sqlite3.connect(path)) as connection:
        tables = [name for (name,) in connection.execute("SELECT name FROM sqlite_master")]
        counts = [
            connection.execute(f"SELECT count(*) FROM {name}").fetchone()[0]
            for name in _REPEATED
            if name in tables
        ]
    return sum(counts)


def stats_command(nsys: str, path: Path) -> list[object]:
    shutil.rmtree(TABLES, ignore_errors=True)
    TABLES.mkdir()
    target = TABLES / "t"
    return [
        nsys,
        "stats",
        "-r",
        REPORTS,
        "--format",
        "csv",
        "--output",
        target,
        "--force-overwrite",
        "true",
        "-q",
        path,
    ]


def wrote_tables(path: Path) -> bool:
    """nsys stats also exits with 0 when it writes nothing."""
    return sum(file.stat().st_size for file in TABLES.iterdir()) >= path.stat().st_size // 100
