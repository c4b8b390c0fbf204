"""nsys reports exported to sqlite: `nsys export --type sqlite`, of any version.

The C part reads the pages of the file (docs/adr/0138-sqlite-pages.md). Where it cannot, sqlite writes a range of rows
as text in one call, and DuckDB reads the text from memory (docs/adr/0030-reading-nsys.md). Threads do so in parallel.
"""

from __future__ import annotations

import json
import re
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from rankscope.model import Table
from rankscope.readers.base import Batch, ReadReport, TraceIdentity
from rankscope.readers.columns import SQLITE, EventColumns
from rankscope.readers.memory_file import MemoryFile
from rankscope.readers.nsys.events import event_sources
from rankscope.readers.nsys.export import (
    PID,
    NsysExport,
    damaged,
    open_export,
    run_once,
)
from rankscope.readers.nsys.identity import (
    ProcessGroup,
    groups_of,
    processes_with_cuda,
    recorded_environments,
)
from rankscope.readers.nsys.nvtx import nvtx_sources
from rankscope.readers.nsys.paged_events import PagedSource
from rankscope.readers.nsys.table_source import LARGEST_NUMBER, RATE, SUMMED, Source
from rankscope.readers.sql_columns import read_columns
from rankscope.readers.sqlite_file import SQLITE_ERRORS, SQLITE_MAGIC, row_ranges
from rankscope.readers.sqlite_pages import PageFile, Piece, find_table, open_pages
from rankscope.sql import sql_name

ROWS_PER_BATCH = 200_000
_MANY_STRINGS = 50_000
_LONGEST_STRING = 100_000
_IDS_AT_A_TIME = 10_000
_API_VERSION = re.compile(r"^(.+?)(_v\d{4,})$")


class Strings:
    """The strings that events refer to by id, as SQL. The file in memory is freed with the last batch that uses it."""

    def __init__(self, rows: list[tuple[int, str]]) -> None:
        file = MemoryFile()
        weakref.finalize(self, file.close)
        path = file.write(b"\n".join(_string_record(number, text) for number, text in rows) or b"{}")
        columns = "{id: 'BIGINT', text: 'VARCHAR', name: 'VARCHAR', version: 'VARCHAR'}"
        self.sql = f"read_json({path}, format='newline_delimited', columns={columns}, auto_detect=false)"


class StringTable:
    """The strings that a table refers to, looked up when they are needed."""

    def __init__(self, find: Callable[[Sequence[int] | None], list[tuple[int, str]]]) -> None:
        """`find` gives the strings with these ids, or all that the rows of a table refer to."""
        self._find = find
        self._known: dict[int, str | None] = {}

    @cached_property
    def all(self) -> Strings:
        return Strings(self._find(None))

    def of(self, ids: Sequence[int]) -> Strings:
        unseen = [number for number in ids if number not in self._known]
        if unseen:
            rows = self._find(unseen)
            found = dict(rows)
            if len(found) < len(rows):
                raise ValueError("ids of strings are not distinct")
            self._known |= {number: found.get(number) for number in unseen}
        known = ((number, self._known[number]) for number in ids)
        return Strings([(number, text) for number, text in known if text is not None])


def _string_record(number: int, text: str) -> bytes:
    version = _API_VERSION.match(text)
    record = {"id": number, "text": text, "name": version[1] if version else text}
    return json.dumps({**record, "version": version[2] if version else ""}).encode()


@dataclass(frozen=True)
class NsysBatch:
    """A range of rows of one table."""

    path: Path
    source: Source
    values: dict[str, str]
    """Name of each value, and its SQL in sqlite."""
    rows: tuple[int, int]
    where: str
    """SQL with names of values in braces."""
    strings: StringTable
    report: ReadReport
    file: MemoryFile
    processes: tuple[int, ...]
    """Processes of this rank that use CUDA."""
    paged: PagedSource | None
    piece: Piece | None

    def select(self) -> str:
        return self.source.select(self._rows(lenient=False), self.strings.all.sql, self.processes)

    def select_repaired(self) -> str:
        self.report.repaired(f"{self.source.table}: values that are not numbers")
        return self.source.select(self._rows(lenient=True), self.strings.all.sql, self.processes)

    def columns(self) -> EventColumns:
        columns = self.columns_from_pages()
        return replace(read_columns(self), read_by=SQLITE) if columns is None else columns

    def columns_from_pages(self) -> EventColumns | None:
        """None if sqlite has to read the same rows: it is no such table, a value is unusual, or a page is damaged."""
        import duckdb

        if self.paged is None or self.piece is None:
            return None
        where = self.where.format(**{name: f"r.{name}" for name in self.values})
        with suppress(ValueError, duckdb.Error):
            rows = self.paged.distinct_rows(self.piece)
            strings = self.strings.of(rows.name_ids)
            return self.paged.events(rows, where, strings.sql, self.processes)
        return None

    def close(self) -> None:
        self.file.close()

    def _rows(self, lenient: bool) -> str:
        """SQL for the values of the source, and what is computed from them."""
        rows = self._values(lenient)
        if not self.source.rate:
            return rows
        return f"(SELECT *, round(size / nullif(stop - start, 0), 6) AS {RATE} FROM {rows})"

    def _values(self, lenient: bool) -> str:
        """SQL for the values. If lenient, values that are not numbers become null, and times that are out of range."""
        as_objects = lenient or bool(self.source.texts)
        path = self.file.write(self._text(as_objects))
        kinds = {name: "VARCHAR" if name in self.source.texts else "BIGINT" for name in self.values}
        declared = {name: "VARCHAR" if lenient else kind for name, kind in kinds.items()}
        if as_objects:
            columns = ", ".join(f"{name}: '{kind}'" for name, kind in declared.items())
            table = f"read_json({path}, format='newline_delimited', columns={{{columns}}}, auto_detect=false)"
        else:
            # The brackets of each row's array end up in the unused columns before and behind.
            columns = ", ".join(f"'{name}': '{kind}'" for name, kind in declared.items())
            table = (
                f"read_csv({path}, header=false, delim=',', quote='', escape='', nullstr='null', parallel=false, "
                f"columns={{'before': 'VARCHAR', {columns}, 'behind': 'VARCHAR'}}, auto_detect=false)"
            )
        if not lenient:
            return table
        tried = {name: f"TRY_CAST({name} AS {kind})" for name, kind in kinds.items()}
        tried |= {
            name: f"(CASE WHEN {value} BETWEEN -{LARGEST_NUMBER} AND {LARGEST_NUMBER} THEN {value} END)"
            for name, value in tried.items()
            if kinds[name] == "BIGINT" and name in SUMMED
        }
        return f"(SELECT {', '.join(f'{value} AS {name}' for name, value in tried.items())} FROM {table})"

    def _text(self, as_objects: bool) -> bytes:
        """One line per row: an array of numbers, or an object if there is text."""
        if as_objects:
            pairs = ", ".join(f"'{name}', {sql}" for name, sql in self.values.items())
            row = f"json_object({pairs})"
        else:
            row = f"json_array(0, {', '.join(self.values.values())}, 0)"
        sql = f"SELECT group_concat({row}, char(10)) FROM {self.source.table} WHERE rowid BETWEEN ? AND ?"
        try:
            where = self.where.format(**self.values) or "true"
            content = run_once(self.path, f"{sql} AND {where}", self.rows) or b""
        except SQLITE_ERRORS as error:
            raise damaged(self.path, error) from error
        if not as_objects:
            return bytes(content)
        return bytes(content).decode("utf-8", "replace").encode()


class NsysReading:
    """One pass over one export, or over the processes of one rank in it."""

    def __init__(self, path: Path, part: str = "", shown_as: Path | None = None) -> None:
        self.report = ReadReport()
        self._path = path
        self._shown_bytes = (shown_as or path).stat().st_size
        self._done = self._total = 0
        self._export = open_export(path)
        self._pages = open_pages(path)
        self._group = _group(self._export, part)
        self.header: dict[str, Any] = _header(self._export, self._group)
        self._clock_base_ns = self._export.start_unix_ns

    def batches(self) -> Iterator[NsysBatch]:
        export = self._export
        every = [*event_sources(export), *nvtx_sources(export)]
        sources = [source for source in every if source.found_in(export)]
        strings = {source.table: _string_table(export, source) for source in sources}
        for source in every:
            columns, count = source.lacking_in(export)
            if count:
                self.report.events_lost += count
                self.report.damage = (
                    f"{source.table} has no column {', '.join(columns)}: its rows are not read"
                )
        pieces = [
            (source, paged, piece, rows)
            for source in sources
            for paged, piece, rows in _pieces(export, source, self._pages)
        ]
        self._total = len(pieces)
        processes = tuple(pid for pid in processes_with_cuda(export) if pid in self._group.pids)
        for source, paged, piece, rows in pieces:
            values = source.sqlite_values(export)
            where = [source.where] if source.where else []
            where += self._of_process(source, values)
            yield NsysBatch(
                self._path,
                source,
                values,
                rows,
                " AND ".join(where),
                strings[source.table],
                self.report,
                MemoryFile(),
                processes,
                paged,
                piece,
            )
            self._done += 1
        export.close()

    def position(self) -> int:
        return self._shown_bytes * self._done // self._total if self._total else self._shown_bytes

    def clock_base_ns(self) -> int:
        return self._clock_base_ns

    def further(self) -> Iterator[tuple[Table, Batch]]:
        return iter(())

    def _of_process(self, source: Source, values: dict[str, str]) -> list[str]:
        """A condition for the rank's processes. Names of threads and processes are limited to those with events."""
        if values.get(source.process, "NULL") == "NULL":
            return []
        if self._group.whole and source.table not in ("ThreadNames", "PROCESSES"):
            return []
        pids = ", ".join(map(str, sorted(self._group.pids)))
        return [f"({PID.format(f'{{{source.process}}}')}) IN ({pids})"]


class NsysReader:
    """sqlite exports of nsys reports."""

    name = "nsys"

    def recognises(self, path: Path, head: bytes) -> bool:
        """Raises an error for a damaged sqlite file, and for one of another program."""
        if not head.startswith(SQLITE_MAGIC):
            return False
        open_export(path).close()
        return True

    def identify(self, path: Path) -> TraceIdentity:
        return self.identify_parts(path)[0]

    def identify_parts(self, path: Path) -> list[TraceIdentity]:
        export = open_export(path)
        try:
            return [
                TraceIdentity(group.rank, group.source, group.world_size, export.capture_id, group.part)
                for group in groups_of(export)
            ]
        finally:
            export.close()

    def open(self, path: Path, part: str = "") -> NsysReading:
        return NsysReading(path, part)


NSYS = NsysReader()


def _pieces(
    export: NsysExport, source: Source, pages: PageFile | None
) -> Iterator[tuple[PagedSource | None, Piece | None, tuple[int, int]]]:
    """The table in pieces: leaves of its tree, or only ranges of rowids where it cannot be read from pages."""
    columns = source.plain_columns(export)
    if pages is not None and columns is not None:
        read = [column for column in columns.values() if column is not None]
        table = find_table(pages, export.rows, source.table, read)
        if table is not None:
            for piece in table.pieces():
                yield PagedSource(source, table, columns), piece, piece.rows
            return
    for rows in row_ranges(export.rows, source.table, 1 << 26 if source.whole else ROWS_PER_BATCH):
        yield None, None, rows


def _group(export: NsysExport, part: str) -> ProcessGroup:
    """The processes of a part; for a file of several ranks that is read as one (--rank N=FILE), all of them."""
    groups = groups_of(export)
    found = next((group for group in groups if group.part == part), None)
    if found is not None:
        return found
    return ProcessGroup(None, "", None, frozenset().union(*(g.pids for g in groups)), merged=len(groups))


def _string_table(export: NsysExport, source: Source) -> StringTable:
    if source.table != "GPU_METRICS":
        return StringTable(partial(_event_strings, export.path, source))
    names = _metric_names(export)
    return StringTable(lambda ids: names)


def _event_strings(path: Path, source: Source, ids: Sequence[int] | None) -> list[tuple[int, str]]:
    """Names of events: those with these ids, or all. Recorded environments and program output are left out."""
    with closing(open_export(path)) as export:
        where = _is_name(export)
        if ids is None:
            ((count,),) = export.rows("SELECT count(*) FROM StringIds")
            if count > _MANY_STRINGS:
                where += f" AND id IN ({_referenced(export, source)})"
            return _strings(export, where)
        pieces = (ids[start : start + _IDS_AT_A_TIME] for start in range(0, len(ids), _IDS_AT_A_TIME))
        return [
            row
            for some in pieces
            for row in _strings(export, f"{where} AND id IN ({', '.join(map(str, some))})")
        ]


def _is_name(export: NsysExport) -> str:
    where = f"length(CAST(value AS BLOB)) < {_LONGEST_STRING} AND instr(CAST(value AS BLOB), x'00') = 0"
    if export.has("ProcessStreams", "contentId"):
        where += " AND id NOT IN (SELECT contentId FROM ProcessStreams WHERE contentId IS NOT NULL)"
    return where


def _strings(export: NsysExport, where: str) -> list[tuple[int, str]]:
    rows = export.rows(f"SELECT id, value FROM StringIds WHERE {where}")
    return [(number, export.text(value)) for number, value in rows]


def _referenced(export: NsysExport, source: Source) -> str:
    """SQL for the ids that a table uses. With CPU sampling most strings are symbols, which are not read."""
    column = source.columns.get("name", "")
    return f"SELECT {sql_name(column)} FROM {source.table}" if export.has(source.table, column) else "NULL"


def _metric_names(export: NsysExport) -> list[tuple[int, str]]:
    if not export.has("TARGET_INFO_GPU_METRICS", "metricId", "metricName"):
        return []
    rows = export.rows("SELECT metricId, min(metricName) FROM TARGET_INFO_GPU_METRICS GROUP BY metricId")
    return [(number, export.text(name)) for number, name in rows]


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
    "name": "name",
    "uuid": "uuid",
    "totalGlobalMem": "totalMemory",
    "computeMajor": "computeMajor",
    "computeMinor": "computeMinor",
    "numSms": "smCount",
    "maxThreadsPerBlock": "maxThreadsPerBlock",
    "regsPerMultiprocessor": "maxRegistersPerSm",
    "warpSize": "threadsPerWarp",
    "sharedMemPerBlock": "maxShmemPerBlock",
    "sharedMemPerMultiprocessor": "maxShmemPerSm",
    "memoryBandwidth": "memoryBandwidth",
}


def _devices(export: NsysExport) -> list[dict[str, Any]]:
    if not export.has("TARGET_INFO_GPU", "id"):
        return []
    facts = {key: column for key, column in _DEVICE_FACTS.items() if export.has("TARGET_INFO_GPU", column)}
    columns = ", ".join(["id", *facts.values()])
    devices = []
    for number, *values in export.rows(f"SELECT {columns} FROM TARGET_INFO_GPU ORDER BY id"):
        named = {
            key: export.text(v) if isinstance(v, bytes) else v for key, v in zip(facts, values, strict=True)
        }
        devices.append({"id": number, **named})
    return devices
