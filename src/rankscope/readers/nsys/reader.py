"""nsys reports exported to sqlite: `nsys export --type sqlite`, of any version.

The C part reads the pages of the file (docs/adr/0138-sqlite-pages.md); where it cannot, sqlite reads a range of rows
(docs/adr/0166-one-decoder-per-format.md). Threads do so in parallel.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from rankscope.readers.base import EventBatch, Reader, Reading, ReadReport, TraceIdentity
from rankscope.readers.columns import IN_C, NULL, SQLITE, EventColumns
from rankscope.readers.nsys.events import event_sources
from rankscope.readers.nsys.export import AGAIN, PID, NsysExport, open_export
from rankscope.readers.nsys.identity import (
    ProcessGroup,
    groups_of,
    processes_with_cuda,
    recorded_environments,
)
from rankscope.readers.nsys.table_source import LARGEST_NUMBER, SUMMED, RowEvents, Source
from rankscope.readers.sqlite_file import SQLITE_MAGIC, read_columns, refused_by_sqlite, row_ranges, text_of
from rankscope.readers.sqlite_pages import PageFile, Piece, TablePages, TextColumn, find_table, open_pages

ROWS_PER_BATCH = 200_000
_LONGEST_STRING = 100_000
_IDS_AT_A_TIME = 10_000
_API_VERSION = re.compile(r"^(.+?)(_v\d{4,})$")


class StringTable:
    """The strings that a table refers to, looked up when they are needed."""

    def __init__(self, find: Callable[[Sequence[int]], list[tuple[int, str]]]) -> None:
        """`find` gives the strings with these ids."""
        self._find = find
        self._texts: dict[int, str | None] = {}

    def of(self, ids: Sequence[int]) -> dict[str, Any]:
        """Columns: id, text, and the text of a call as its name and version."""
        unseen = [number for number in ids if number not in self._texts]
        if unseen:
            self._texts |= {**dict.fromkeys(unseen), **dict(self._find(unseen))}
        rows = [
            (number, text, *(version.groups() if (version := _API_VERSION.match(text)) else (text, "")))
            for number in ids
            if (text := self._texts[number]) is not None
        ]
        columns = zip(*rows, strict=True) if rows else ((),) * 4
        return {
            name: np.array(column, np.int64 if name == "id" else object)
            for name, column in zip(("id", "text", "name", "version"), columns, strict=True)
        }


@dataclass(frozen=True)
class NsysBatch(EventBatch):
    """A range of rows of one table."""

    path: Path
    events: RowEvents
    values: dict[str, str]
    """Name of each value, and its SQL in sqlite."""
    rows: tuple[int, int]
    where: str
    """SQL with names of values in braces."""
    report: ReadReport
    plain: dict[str, str | None] | None
    """Source.plain_columns."""
    pages: TablePages | None
    piece: Piece | None

    def columns(self) -> EventColumns:
        columns = self.columns_from_pages()
        return self.columns_from_sqlite() if columns is None else columns

    def columns_from_pages(self) -> EventColumns | None:
        """None if sqlite has to read the same rows: it is no such table, a value is unusual, or a page is damaged."""
        import duckdb

        if self.pages is None or self.piece is None or self.plain is None:
            return None
        where = self.where.format(**{name: f"r.{name}" for name in self.values})
        columns = {name: column for name, column in self.plain.items() if column is not None}
        texts = {name: column for name, column in columns.items() if name in self.events.source.texts}
        with suppress(ValueError, duckdb.Error):
            read_numbers, read_texts = self.pages.read(
                self.piece, sorted({*columns.values()} - {*texts.values()}), sorted({*texts.values()})
            )
            numbers = {name: read_numbers[column] for name, column in columns.items() if name not in texts}
            if any((np.abs(numbers[name]) > LARGEST_NUMBER).any() for name in SUMMED & numbers.keys()):
                return None  # that of NULL is negative
            events = self.events.repeated(
                numbers, {name: read_texts[column] for name, column in texts.items()}, self.plain, where
            )
            return replace(events, read_by=IN_C)
        return None

    def columns_from_sqlite(self) -> EventColumns:
        """Values that are not numbers become null, and times that are out of range."""
        import duckdb

        source = self.events.source
        where = self.where.format(**self.values) or "true"
        sql = f"SELECT {', '.join(self.values.values())} FROM {source.table} WHERE rowid BETWEEN ? AND ?"
        with refused_by_sqlite(self.path, AGAIN):
            numbers, others = read_columns(
                self.path, f"{sql} AND {where}", self.rows, [*self.values], source.texts
            )
        texts = {name: TextColumn.of(numbers.pop(name)) for name in source.texts & numbers.keys()}
        for name in SUMMED & numbers.keys():
            far = (np.abs(numbers[name]) > LARGEST_NUMBER) & (numbers[name] != NULL)
            numbers[name][far] = NULL
            others += [name] * int(far.any())
        if others:
            self.report.repaired(f"{source.table}: values that are not numbers")
        if self.plain is not None:
            with suppress(ValueError, duckdb.Error):
                events = self.events.repeated(numbers, texts, {name: name for name in self.plain})
                return replace(events, read_by=SQLITE)
        return replace(self.events.each(numbers, texts), read_by=SQLITE)


class NsysReading(Reading):
    """One pass over one export, or over the processes of one rank in it."""

    def __init__(self, path: Path, part: str = "", shown_as: Path | None = None) -> None:
        super().__init__(path)
        self._shown_bytes = (shown_as or path).stat().st_size
        self._done = self._total = 0
        self._export = open_export(path)
        self._pages = open_pages(path)
        self._group = _group(self._export, part)
        self.header = _header(self._export, self._group)
        self._clock_base_ns = self._export.start_unix_ns

    def batches(self) -> Iterator[NsysBatch]:
        export = self._export
        every = event_sources(export)
        sources = [source for source in every if source.found_in(export)]
        strings = {source.table: _string_table(export, source) for source in sources}
        for source in every:
            columns, count = source.lacking_in(export)
            if count:
                self.report.events_lost += count
                self.report.damage = (
                    f"{source.table} has no column {', '.join(columns)}: its rows are not read"
                )
        pieces = [(source, *piece) for source in sources for piece in _pieces(export, source, self._pages)]
        self._total = len(pieces)
        processes = tuple(pid for pid in processes_with_cuda(export) if pid in self._group.pids)
        for source, plain, pages, piece, rows in pieces:
            values = source.sqlite_values(export)
            where = [source.where] if source.where else []
            where += self._of_process(source, values)
            events = RowEvents(source, strings[source.table].of, processes)
            yield NsysBatch(
                self._path, events, values, rows, " AND ".join(where), self.report, plain, pages, piece
            )
            self._done += 1
        export.close()

    def position(self) -> int:
        return self._shown_bytes * self._done // self._total if self._total else self._shown_bytes

    def clock_base_ns(self) -> int:
        return self._clock_base_ns

    def _of_process(self, source: Source, values: dict[str, str]) -> list[str]:
        """A condition for the rank's processes. Names of threads and processes are limited to those with events."""
        if values.get(source.process, "NULL") == "NULL":
            return []
        if self._group.whole and source.table not in ("ThreadNames", "PROCESSES"):
            return []
        pids = ", ".join(map(str, sorted(self._group.pids)))
        return [f"({PID.format(f'{{{source.process}}}')}) IN ({pids})"]


class NsysReader(Reader):
    """sqlite exports of nsys reports."""

    name = "nsys"

    def recognises(self, path: Path, head: bytes) -> bool:
        """Raises an error for a damaged sqlite file, and for one of another program."""
        if not head.startswith(SQLITE_MAGIC):
            return False
        open_export(path).close()
        return True

    def identify_parts(self, path: Path) -> list[TraceIdentity]:
        with closing(open_export(path)) as export:
            return [
                TraceIdentity(group.rank, group.source, group.world_size, export.capture_id, group.part)
                for group in groups_of(export)
            ]

    def open(self, path: Path, part: str = "") -> NsysReading:
        return NsysReading(path, part)


NSYS = NsysReader()


_Columns = dict[str, str | None]


def _pieces(
    export: NsysExport, source: Source, pages: PageFile | None
) -> Iterator[tuple[_Columns | None, TablePages | None, Piece | None, tuple[int, int]]]:
    """The table in pieces: leaves of its tree, or only ranges of rowids where it cannot be read from pages."""
    columns = source.plain_columns(export)
    table = None
    if pages is not None and columns is not None:
        read = [column for column in columns.values() if column is not None]
        table = find_table(pages, export.rows, source.table, read)
    if table is not None:
        yield from ((columns, table, piece, piece.rows) for piece in table.pieces())
        return
    for rows in row_ranges(export.rows, source.table, 1 << 26 if source.whole else ROWS_PER_BATCH):
        yield columns, None, None, rows


def _group(export: NsysExport, part: str) -> ProcessGroup:
    """The processes of a part; for a file of several ranks that is read as one (--rank N=FILE), all of them."""
    groups = groups_of(export)
    of_part = next((group for group in groups if group.part == part), None)
    if of_part is not None:
        return of_part
    return ProcessGroup(None, "", None, frozenset().union(*(g.pids for g in groups)), merged=len(groups))


def _string_table(export: NsysExport, source: Source) -> StringTable:
    if source.table != "GPU_METRICS":
        return StringTable(partial(_event_strings, export.path))
    if not export.has("TARGET_INFO_GPU_METRICS", "metricId", "metricName"):
        return StringTable(lambda ids: [])
    rows = export.rows("SELECT metricId, min(metricName) FROM TARGET_INFO_GPU_METRICS GROUP BY metricId")
    names = [(number, text_of(name)) for number, name in rows]
    return StringTable(lambda ids: names)


def _event_strings(path: Path, ids: Sequence[int]) -> list[tuple[int, str]]:
    """Names of events. Recorded environments and program output are left out."""
    with closing(open_export(path)) as export:
        where = f"length(CAST(value AS BLOB)) < {_LONGEST_STRING} AND instr(CAST(value AS BLOB), x'00') = 0"
        if export.has("ProcessStreams", "contentId"):
            where += " AND id NOT IN (SELECT contentId FROM ProcessStreams WHERE contentId IS NOT NULL)"
        return [
            (number, text_of(value))
            for start in range(0, len(ids), _IDS_AT_A_TIME)
            for number, value in export.rows(
                f"SELECT id, value FROM StringIds WHERE {where} AND id IN "
                f"({', '.join(map(str, ids[start : start + _IDS_AT_A_TIME]))})"
            )
        ]


def _header(export: NsysExport, group: ProcessGroup) -> dict[str, Any]:
    """The metadata for segment.json: devices in Kineto's form, version of nsys. No recorded variables."""
    header: dict[str, Any] = {"nsys": {"version": export.version, "schema": export.schema}}
    header["deviceProperties"] = _devices(export)
    header["processes"] = sorted(group.pids)
    if group.others:
        header["otherProcesses"] = group.others
    if group.merged:
        header["mergedProcesses"] = group.merged
    if export.why_empty:
        header["whyEmpty"] = export.why_empty
    header["recordedEnvironment"] = bool(recorded_environments(export))
    if group.rank is not None and group.world_size is not None:
        header["distributedInfo"] = {"rank": group.rank, "world_size": group.world_size}
    return header


_DEVICE_FACTS = {
    "name": "name", "uuid": "uuid", "totalGlobalMem": "totalMemory", "computeMajor": "computeMajor",
    "computeMinor": "computeMinor", "numSms": "smCount", "maxThreadsPerBlock": "maxThreadsPerBlock",
    "regsPerMultiprocessor": "maxRegistersPerSm", "warpSize": "threadsPerWarp", "sharedMemPerBlock": "maxShmemPerBlock",
    "sharedMemPerMultiprocessor": "maxShmemPerSm", "memoryBandwidth": "memoryBandwidth",
}  # fmt: skip
"""Kineto's names of what describes a device, and those of nsys."""


def _devices(export: NsysExport) -> list[dict[str, Any]]:
    if not export.has("TARGET_INFO_GPU", "id"):
        return []
    facts = {key: column for key, column in _DEVICE_FACTS.items() if export.has("TARGET_INFO_GPU", column)}
    columns = ", ".join(["id", *facts.values()])
    devices = []
    for number, *values in export.rows(f"SELECT {columns} FROM TARGET_INFO_GPU ORDER BY id"):
        named = {key: text_of(v) if isinstance(v, bytes) else v for key, v in zip(facts, values, strict=True)}
        devices.append({"id": number, **named})
    return devices
