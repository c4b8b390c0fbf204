"""Reading an nsys export: rankscope ingest against `nsys stats` for two of its traces, in one run, as a ratio.

    python benchmarks/nsys.py                     an export of 1 GB
    python benchmarks/nsys.py --megabytes 100     a smaller one
    python benchmarks/nsys.py --source FILE       made from another export

The export is a real one whose rows are repeated, each copy later by the recording's length and with correlation
ids of its own; it is kept in .bench for the next time. nsys is looked for on PATH and in .venv/nsight.
"""

from __future__ import annotations

import argparse
import lzma
import os
import shutil
import sqlite3
import sys
from contextlib import closing
from pathlib import Path

from measure import Cost, measure
from rankscope.readers.nsys.reader import NSYS

ROOT = Path(__file__).parents[1]
WORK = ROOT / ".bench"
SOURCE = ROOT / "tests" / "data" / "nsys" / "gpt-h200" / "gpt.sqlite.xz"
RANKSCOPE = [sys.executable, "-m", "rankscope"]
REPORTS = "cuda_gpu_trace,cuda_api_trace"
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


def find_nsys() -> str | None:
    return shutil.which("nsys") or shutil.which(ROOT / ".venv" / "nsight" / "bin" / "nsys")


def show(what: str, cost: Cost, note: str) -> None:
    print(
        f"{what:<52} {cost.seconds:>8.1f} s {cost.cpu_seconds:>8.1f} s CPU {cost.peak_bytes / 1e9:>7.2f} GB   {note}",
        flush=True,
    )


def compare(path: Path) -> None:
    print(
        f"{path.name}: {path.stat().st_size / 1e9:.2f} GB; load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores\n"
    )
    reading = measure([sys.executable, __file__, "--read", path])
    show(
        "the reader alone, in one thread", reading, f"{path.stat().st_size / 1e6 / reading.seconds:.0f} MB/s"
    )
    shutil.rmtree(WORK / "nsys-store", ignore_errors=True)
    ours = measure([*RANKSCOPE, "ingest", path, "-o", WORK / "nsys-store", "--rank", f"0={path}"])
    show("rankscope ingest (everything)", ours, f"{path.stat().st_size / 1e6 / ours.seconds:.0f} MB/s")
    asked = measure([*RANKSCOPE, "stats", WORK / "nsys-store", "-r", "kernels,api"])
    show("rankscope stats -r kernels,api, afterwards", asked, "")
    nsys = find_nsys()
    if nsys is None:
        print("nsys is neither on PATH nor in .venv/nsight: not compared")
        return
    shutil.rmtree(WORK / "nsys-tables", ignore_errors=True)
    (WORK / "nsys-tables").mkdir()
    tables = WORK / "nsys-tables" / "t"
    theirs = measure([nsys, "stats", "-r", REPORTS, "--format", "csv", "--output", tables, "-q", path])
    written = sum(file.stat().st_size for file in tables.parent.iterdir())
    if written < path.stat().st_size // 100:  # it exits with 0 when it writes nothing
        sys.exit(f"nsys stats wrote only {written:,} bytes")
    show(f"nsys stats -r {REPORTS}", theirs, f"ours needs {ours.seconds / theirs.seconds:.2f} of that")
    print(f"\nload afterwards: {os.getloadavg()[0]:.1f}")


def read(path: Path) -> None:
    """All events of an export as columns, which are thrown away."""
    for batch in NSYS.open(path).batches():
        with closing(batch):
            batch.columns()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--megabytes", type=int, default=1000, help="size of the export (default: 1000)")
    parser.add_argument("--source", type=Path, default=SOURCE, help="the export whose rows are repeated")
    parser.add_argument("--read", type=Path, metavar="FILE", help="only read the events of this export")
    args = parser.parse_args()
    WORK.mkdir(exist_ok=True)
    if args.read:
        read(args.read)
    elif args.source.is_file():
        compare(make_export(args.source, args.megabytes))
    else:
        print(f"there is no {args.source}: nothing to measure; name an nsys export with --source")
