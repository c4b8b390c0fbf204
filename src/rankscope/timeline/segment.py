"""Builds one segment of the store from one trace file: a folder of Parquet tables and segment.json.

The folder has a temporary name until it is complete, so that a partial segment is never opened.
"""

from __future__ import annotations

import errno
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rankscope.errors import RankscopeError, ReadError, StoreError
from rankscope.files import sync_folder
from rankscope.model import EVENTS, FORMAT_VERSION
from rankscope.readers import EventBatch, Reading, find_reader
from rankscope.readers.base import ReadReport, reported_apart
from rankscope.readers.columns import EventColumns
from rankscope.store.checksums import checksums, write_checked_json
from rankscope.store.discover import sidecar_kind, text_bytes
from rankscope.store.event_log import EventLog, ReadBatch, read_batch
from rankscope.store.index import SEGMENT_FILE
from rankscope.store.parquet_writer import ParquetFile
from rankscope.store.selected_tables import write_selected
from rankscope.store.table_files import TableFiles
from rankscope.store.worker import Progress
from rankscope.timeline.collectives.recorded_calls import recorded_calls
from rankscope.timeline.tables import write_tables
from rankscope.version import __version__

watching: list[Callable[[EventColumns], None]] = []
"""Called with each batch of events that this process reads, in the thread that reads it. The viewer draws it."""
_LARGEST_HEADER_VALUE = 100_000
_SMALL_BYTES = 16_000_000
"""Text that one thread reads in a tenth of a second: starting others, or waiting for the disk, takes longer."""
_CANNOT_WRITE = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EFBIG)


def build_segment(
    path: Path,
    folder: Path,
    threads: int,
    progress: Progress,
    part: str = "",
    rank_source: str = "",
    sidecar_files: Sequence[Path] = (),
) -> dict[str, Any]:
    """Read `path`, or a part of it, into the empty folder `folder`; writes and returns the content of segment.json.

    `sidecar_files` are files beside it that may add to it.
    """
    before = path.stat()
    reader = find_reader(path)
    reading = reader.open(path, part)
    is_small = text_bytes(path) <= _SMALL_BYTES
    files = TableFiles(folder, 1 if is_small else threads)
    with _storing(folder), files.pool:
        count, facts = _write(path, before.st_size, reading, files, progress)
        facts["further"] = _write_further(reading, folder, facts["origin_ns"])
        if sidecar_files or facts["replays"] or facts["compiled"]:
            facts["companions"] = _add_sidecar_files(folder, facts, sidecar_files)
    if facts["misplaced"] and not facts["timed"]:
        raise ReadError(
            f"no event of {path} has a usable time",
            why=f"{facts['misplaced']:,} events have none, or one that no other event is near.",
            hint="Capture this rank again, or leave the file out.",
        )
    if reading.report.events_lost and not count and not any(facts["further"].values()):
        raise ReadError(
            f"nothing in {path} could be read",
            why=f"{reading.report.events_lost:,} events are damaged: {reading.report.examples[0]}.",
            hint="Capture this rank again, or leave the file out.",
        )
    manifest = {
        "format": FORMAT_VERSION,
        "written_by": f"rankscope {__version__}",
        "reader": reader.name,
        "rank_source": rank_source,
        "source": {"path": str(path), "bytes": before.st_size, "mtime_ns": before.st_mtime_ns, "part": part},
        "clock_base_ns": reading.clock_base_ns(),
        "events": count,
        **facts,
        "reading": asdict(reading.report),
        "header": _small_fields(reading.header),
        "files": checksums(folder),
    }
    write_checked_json(folder / SEGMENT_FILE, manifest, on_disk=not is_small)
    if not is_small:  # else what a crash of the machine takes is read again: checksums tell
        sync_folder(folder)
    return manifest


@contextmanager
def _storing(folder: Path) -> Iterator[None]:
    """A disk that is full is not the fault of the trace."""
    try:
        yield
    except OSError as error:
        if error.errno not in _CANNOT_WRITE:
            raise
        raise StoreError(
            f"cannot build the store in {folder.parent}",
            why=f"{error.strerror}.",
            hint="Make room, or put the store elsewhere: --cache DIR",
        ) from error


def _write(
    path: Path, size: int, reading: Reading, files: TableFiles, progress: Progress
) -> tuple[int, dict[str, Any]]:
    """Write every table of the model; returns the number of events, and facts for segment.json."""
    log = EventLog(files.scratch)
    _write_events(reading, log, files, progress)
    if log.is_empty:
        raise ReadError(
            f"{path} has no events",
            why=f"{reading.report.damage or 'None of its tables has rows'}.",
            hint="Capture this rank again, or leave the file out.",
        )
    events = log.events(files.pool.map)
    progress(size, "links and nesting")
    facts = write_tables(events, files, recorded_calls(reading.header, reading.clock_base_ns()))
    return len(events), {**facts, "read_by": dict(log.read_by), "rows": dict(sorted(files.rows.items()))}


def _write_events(reading: Reading, log: EventLog, files: TableFiles, progress: Progress) -> None:
    """Write every event in file order, one row group a batch. The log keeps them without their arguments."""

    def batches() -> Iterator[EventBatch]:
        for batch in reading.batches():
            progress(reading.position(), "reading")
            yield batch

    with ParquetFile(files.folder / f"{EVENTS.name}.parquet", EVENTS.fields) as file:
        for batch, report in files.in_threads(_read, batches()):
            reading.report.add(report)
            file.append(batch.encoded, batch.count)
            log.add(batch)
            del batch  # else it is held while the next one is waited for


def _read(batch: EventBatch) -> tuple[ReadBatch, ReadReport]:
    with closing(batch), reported_apart() as report:
        columns = batch.columns()
        for look in watching:
            look(columns)
        return read_batch(columns), report


def _write_further(reading: Reading, folder: Path, origin_ns: int) -> dict[str, int]:
    """Write the tables that only this format has; returns the number of rows of each."""
    written = {}
    for table, batch in reading.further():
        try:
            written[table.name] = write_selected(batch, table, folder, origin_ns)
        finally:
            batch.close()
    return written


def _small_fields(header: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in header.items() if len(json.dumps(value)) < _LARGEST_HEADER_VALUE}


def _add_sidecar_files(folder: Path, facts: dict[str, Any], paths: Sequence[Path]) -> list[dict[str, Any]]:
    """Add what files beside the trace know: execution traces, captures of CUDA graphs, logs of torch.compile.

    It works on the tables of the segment, after they have been written: writes EXECUTED_OPS and ORIGINS where there is
    something to say, and returns what segment.json records. Each file has a kind, what was taken from it, and if that
    is nothing the reason in three parts.
    """
    # Late: few traces have any.
    from rankscope.timeline.executed_ops import add_executed_ops
    from rankscope.timeline.origins import write_origins

    by_kind: dict[str, list[dict[str, Any]]] = {}
    records = []
    for path in paths:
        stat = path.stat()
        record: dict[str, Any] = {"path": str(path), "bytes": stat.st_size, "mtime_ns": stat.st_mtime_ns}
        record |= {"kind": "", "used": "", "unused": []}
        try:
            record["kind"] = sidecar_kind(path)
        except RankscopeError as error:
            record["unused"] = [error.message, error.why, error.hint]
        records.append(record)
        by_kind.setdefault(record["kind"], []).append(record)

    def build(path: Path, folder: Path) -> None:
        """For a trace that is read only to look something up in it."""
        build_segment(path, folder, 1, lambda read, doing: None)

    written = facts["further"]
    if traces := by_kind.get("execution trace"):
        written |= add_executed_ops(folder, traces)
    captures, logs = by_kind.get("graph capture", []), by_kind.get("torch.compile log", [])
    if facts["replays"] or facts["compiled"]:
        written |= write_origins(folder, captures, logs, build)
    for record in (*captures, *logs):
        if not record["used"] and not record["unused"]:
            record["unused"] = [
                f"{record['path']} adds nothing",
                "No kernel of the trace is from the graphs or the compiled code that it describes.",
                "Record both in the same run of the job.",
            ]
    return records
