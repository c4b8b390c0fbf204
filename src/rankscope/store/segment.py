"""Builds one segment of the store from one trace file: a folder of Parquet tables and segment.json.

The folder has a temporary name until it is complete, so that a partial segment is never opened.
"""

from __future__ import annotations

import json
import shutil
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rankscope.atomic_files import sync_folder
from rankscope.errors import ReadError, StoreError
from rankscope.model import FORMAT_VERSION
from rankscope.private_files import close_to_others, make_private_folder
from rankscope.readers import Batch, Reading, find_reader, open_part
from rankscope.sql import sql_text
from rankscope.store.checksums import checksums, write_checked_json
from rankscope.store.layout import SEGMENT_FILE
from rankscope.store.plain_folder import PlainFolder
from rankscope.store.tables import write_tables
from rankscope.store.workspace import PARQUET_OPTIONS, Workspace
from rankscope.version import __version__

if TYPE_CHECKING:
    import duckdb

_LARGEST_HEADER_VALUE = 100_000
_SPILL = "spill"
"""The folder for what does not fit into memory while the tables are made."""

Progress = Callable[[int, str], None]
"""Called with the bytes of the file read so far and the current activity."""


def build_segment(
    path: Path,
    folder: Path,
    threads: int,
    memory_bytes: int,
    progress: Progress,
    part: str = "",
    rank_source: str = "",
) -> dict[str, Any]:
    """Read `path`, or a part of it, into the empty folder `folder`; writes and returns the content of segment.json."""
    import duckdb

    before = path.stat()
    plain = PlainFolder(folder)
    reader = find_reader(path)
    reading = open_part(reader, path, part)
    connection = duckdb.connect(config={"threads": threads, "memory_limit": f"{memory_bytes // 1_000_000}MB"})
    try:
        connection.execute(f"SET temp_directory = {sql_text(plain.path / _SPILL)}")
        events = _write_events(reading, plain.path, threads, memory_bytes, progress)
        if not (folder / "events").is_dir():
            raise ReadError(
                f"{path} has no events",
                why=f"{reading.report.damage or 'None of its tables has rows'}.",
                hint="Capture this rank again, or leave the file out.",
            )
        progress(before.st_size, "links and nesting")
        workspace = Workspace(connection, plain.path)
        facts = write_tables(workspace) | {"further": _write_further(reading, workspace)}
        if facts["misplaced"] and not facts["timed"]:
            raise ReadError(
                f"no event of {path} has a usable time",
                why=f"{facts['misplaced']:,} events have none, or one that no other event is near.",
                hint="Capture this rank again, or leave the file out.",
            )
        if reading.report.events_lost and not events and not any(facts["further"].values()):
            raise ReadError(
                f"nothing in {path} could be read",
                why=f"{reading.report.events_lost:,} events are damaged: {reading.report.examples[0]}.",
                hint="Capture this rank again, or leave the file out.",
            )
    except duckdb.Error as error:
        raise _storage_error(error, folder) from error
    finally:
        connection.close()
        plain.close()
    shutil.rmtree(folder / _SPILL, ignore_errors=True)
    for table in folder.rglob("*.parquet"):  # DuckDB leaves them as open as the umask says
        close_to_others(table)
    manifest = {
        "format": FORMAT_VERSION,
        "written_by": f"rankscope {__version__}",
        "reader": reader.name,
        "rank_source": rank_source,
        "source": {"path": str(path), "bytes": before.st_size, "mtime_ns": before.st_mtime_ns, "part": part},
        "clock_base_ns": reading.clock_base_ns(),
        "events": events,
        **facts,
        "reading": asdict(reading.report),
        "header": _small_fields(reading.header),
        "files": checksums(folder),
    }
    write_checked_json(folder / SEGMENT_FILE, manifest)
    sync_folder(folder)
    return manifest


def _write_events(reading: Reading, folder: Path, threads: int, memory_bytes: int, progress: Progress) -> int:
    """Write every event in file order, one Parquet file per batch; returns their number.

    Each thread has its own DuckDB and works on one batch at a time, so that no thread waits for another.
    """
    import duckdb

    count = 0
    memory = f"{memory_bytes // threads // 1_000_000}MB"
    idle = [duckdb.connect(config={"threads": 1, "memory_limit": memory}) for _ in range(threads)]

    def write(number: int, batch: Batch) -> int:
        connection = idle.pop()
        try:
            return _write_batch(connection, batch, folder / "events" / f"part={number}")
        finally:
            batch.close()
            idle.append(connection)

    with ThreadPoolExecutor(threads) as pool:
        pending: deque[Future[int]] = deque()
        for number, batch in enumerate(reading.batches()):
            pending.append(pool.submit(write, number, batch))
            if len(pending) > threads:  # one batch is read while the others are written
                count += pending.popleft().result()
                progress(reading.position(), "reading")
        count += sum(future.result() for future in pending)
    for connection in idle:
        connection.close()
    return count


def _write_batch(connection: duckdb.DuckDBPyConnection, batch: Batch, part: Path) -> int:
    import duckdb

    make_private_folder(part.parent)
    make_private_folder(part)
    copy = f"COPY ({{}}) TO {sql_text(part / 'events.parquet')} ({PARQUET_OPTIONS})"
    try:
        written = connection.execute(copy.format(batch.select()))
    except (duckdb.IOException, duckdb.OutOfMemoryException):
        raise
    except duckdb.Error:
        written = connection.execute(copy.format(batch.select_repaired()))
    row = written.fetchone()
    return int(row[0]) if row else 0


def _write_further(reading: Reading, workspace: Workspace) -> dict[str, int]:
    """Write the tables that only this format has; returns the number of rows of each."""
    written = {}
    for table, batch in reading.further():
        try:
            written[table.name] = workspace.copy_batch(batch, table)
        finally:
            batch.close()
    return written


def _small_fields(header: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in header.items() if len(json.dumps(value)) < _LARGEST_HEADER_VALUE}


def _storage_error(error: Exception, folder: Path) -> StoreError:
    text = str(error).partition("\n")[0]
    hint = "Read again with fewer ranks at a time: --jobs 1" if "memory" in text.lower() else ""
    if "space" in text.lower() or "write" in text.lower():
        hint = "Make room, or put the store elsewhere: --cache DIR"
    return StoreError(
        f"cannot build the store in {folder.parent}", why=f"{text}.", hint=hint or "See the message above."
    )
