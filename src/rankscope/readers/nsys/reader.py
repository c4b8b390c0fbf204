"""nsys reports exported to sqlite: `nsys export --type sqlite`, of any version.

The C part reads the pages of the file; where it cannot, sqlite reads a range of rows (docs/adr/0138-sqlite-pages.md).
Threads do so in parallel.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from rankscope.readers.base import EventBatch, Reader, Reading, ReadReport, TraceIdentity
from rankscope.readers.columns import NULL, Codes, EventColumns, Numbers
from rankscope.readers.nsys.events import RATE, ROW, SUMMED, Source, event_sources, process_of
from rankscope.readers.nsys.export import NsysExport, open_export
from rankscope.readers.nsys.identity import (
    ProcessGroup,
    groups_of,
    processes_with_cuda,
    recorded_environments,
)
from rankscope.readers.records import record_columns, usable_times
from rankscope.readers.sqlite_file import ROWID, SQLITE_MAGIC, text_of
from rankscope.readers.sqlite_pages import TablePiece, TextColumn, open_pages, table_pieces

_CORRELATION_BITS = 32
"""Width of CUPTI's correlation ids; the bits above hold the process."""
_LONGEST_STRING = 100_000
_IDS_AT_A_TIME = 10_000
_MILLION = 1_000_000
_EXACT = 1 << 53


@dataclass(frozen=True)
class Strings:
    """The strings that tables refer to, looked up when they are needed: with CPU sampling most are symbols."""

    path: Path
    texts: dict[int, str] = field(default_factory=dict)
    """By id."""
    complete: bool = False

    def of(self, ids: Sequence[int]) -> list[str]:
        """'' for what is no string."""
        unseen = {*ids} - {*self.texts, NULL}
        if unseen and not self.complete:
            self.texts.update(dict.fromkeys(unseen, "") | _event_strings(self.path, sorted(unseen)))
        return [self.texts.get(number, "") for number in ids]


@dataclass(frozen=True)
class NsysBatch(EventBatch):
    """Some rows of one table."""

    source: Source
    piece: TablePiece
    strings: Strings
    processes: Sequence[int]
    """Processes of this rank that use CUDA."""
    only: frozenset[int] | None
    """The processes whose rows are read; None for all."""
    report: ReadReport

    def columns(self) -> EventColumns:
        source = self.source
        read = self.piece.read()
        count = len(next(iter(read.numbers.values())))
        rows = {
            name: read.numbers.get(column, np.full(count, NULL))
            for name, column in source.columns.items()
            if name not in source.texts
        }
        no_texts = TextColumn.of([None] * count)
        texts = {name: read.texts.get(source.columns[name], no_texts) for name in source.texts}
        rows |= {name: column.codes.astype(np.int64) for name, column in texts.items()}
        far = 0
        for name in SUMMED & rows.keys():
            usable = usable_times(rows[name])
            far += int((usable != rows[name]).any())
            rows[name] = usable
        if far or read.others:
            self.report.repaired(f"{source.table}: values that are not numbers")
        kept = np.ones(count, bool)
        if source.keep:
            kept &= np.isin(rows["kind"], source.keep)
        if self.only is not None:
            process = rows[source.process]
            kept &= (process != NULL) & np.isin(process_of(process), [*self.only])
        rows = {name: column[kept] for name, column in rows.items()}
        texts = {name: replace(column, codes=column.codes[kept]) for name, column in texts.items()}
        return replace(self._events(rows, texts), read_by=read.read_by)

    def _events(self, rows: dict[str, Numbers], texts: dict[str, Any]) -> EventColumns:
        """Values that are no columns of the table are null."""
        source, absent = self.source, np.full(len(next(iter(rows.values()))), NULL)
        for name in ("start", "end"):
            rows.setdefault(name, absent)
        more = source.prepare(rows)
        own_numbers = rows.pop(ROW, None)
        if source.own_number == RATE:
            own_numbers = _rates(rows["size"], rows["start"], rows["end"])
            rows[RATE] = (own_numbers != NULL).astype(np.int64)
        correlation = rows.pop("correlation", absent)
        values: dict[str, Callable[[Codes], Sequence[Any]]]
        values = {name: column.at for name, column in texts.items()}
        if "correlation" in source.columns:
            # Ids and streams are numbered per process: those of all but the first get distinct ids and tracks.
            process = process_of(rows["thread"])
            index = sum((index * (process == pid) for index, pid in enumerate(self.processes)), 0 * process)
            correlation = np.where(correlation == NULL, NULL, correlation + (index << _CORRELATION_BITS))
            others = ["", *(f" of process {pid}" for pid in self.processes[1:])]
            values["of_process"] = lambda at: [others[number] for number in index[at].tolist()]
        if "name" in rows:
            ids = rows["name"]
            values["name"] = lambda at: self.strings.of(ids[at].tolist())
        keys = [name for name in rows if name not in ("start", "end")]
        is_rate = source.own_number == RATE
        return record_columns(
            rows, keys, source.event, correlation, own_numbers, millionths=is_rate, texts=values, **more
        )


def _rates(size: Numbers, start: Numbers, end: Numbers) -> Numbers:
    """Millionths of bytes per ns; halves are rounded away from zero."""
    timed = (size != NULL) & (start != NULL) & (end != NULL) & (start != end)
    millionths = size[timed] / (end - start)[timed] * _MILLION
    whole = np.trunc(millionths)
    whole += np.copysign(np.abs(millionths - whole) >= 0.5, millionths)
    rates = np.full(len(size), NULL)
    rates[timed] = np.where(np.abs(whole) <= _EXACT, whole, NULL).astype(np.int64)
    return rates


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
        strings, found = Strings(self._path), []
        processes = tuple(pid for pid in processes_with_cuda(export) if pid in self._group.pids)
        for source in event_sources(export):
            there = export.tables.get(source.table, frozenset())
            if source.found_in(export):
                columns = {
                    name: column for name, column in source.columns.items() if column in {*there, ROWID}
                }
                numbers = dict.fromkeys(
                    column for name, column in columns.items() if name not in source.texts
                )
                texts = [column for name, column in columns.items() if name in source.texts]
                pieces = table_pieces(export, self._pages, source.table, [*numbers], texts, source.whole)
                only = self._only(source) if source.process in columns else None
                of_table = _metric_names(export) if source.table == "GPU_METRICS" else strings
                found += [
                    NsysBatch(source, piece, of_table, processes, only, self.report) for piece in pieces
                ]
            elif there and (rows := export.rows(f"SELECT count(*) FROM {source.table}")[0][0]):
                lacking = ", ".join(column for column in source.needs if column not in there)
                self.report.events_lost += rows
                self.report.damage = f"{source.table} has no column {lacking}: its rows are not read"
        self._total = len(found)
        for batch in found:
            yield batch
            self._done += 1
        export.close()

    def position(self) -> int:
        return self._shown_bytes * self._done // self._total if self._total else self._shown_bytes

    def clock_base_ns(self) -> int:
        return self._clock_base_ns

    def _only(self, source: Source) -> frozenset[int] | None:
        """The rank's processes. Names of threads and processes are limited to those with events."""
        whole = self._group.whole and source.table not in ("ThreadNames", "PROCESSES")
        return None if whole else self._group.pids


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


def _group(export: NsysExport, part: str) -> ProcessGroup:
    """The processes of a part; for a file of several ranks that is read as one (--rank N=FILE), all of them."""
    groups = groups_of(export)
    of_part = next((group for group in groups if group.part == part), None)
    if of_part is not None:
        return of_part
    return ProcessGroup(None, "", None, frozenset().union(*(g.pids for g in groups)), merged=len(groups))


def _metric_names(export: NsysExport) -> Strings:
    if not export.has("TARGET_INFO_GPU_METRICS", "metricId", "metricName"):
        return Strings(export.path, complete=True)
    rows = export.rows("SELECT metricId, min(metricName) FROM TARGET_INFO_GPU_METRICS GROUP BY metricId")
    return Strings(export.path, {number: text_of(name) for number, name in rows}, complete=True)


def _event_strings(path: Path, ids: Sequence[int]) -> dict[int, str]:
    """Names of events. Recorded environments and program output are left out."""
    with closing(open_export(path)) as export:
        where = f"length(CAST(value AS BLOB)) < {_LONGEST_STRING} AND instr(CAST(value AS BLOB), x'00') = 0"
        if export.has("ProcessStreams", "contentId"):
            where += " AND id NOT IN (SELECT contentId FROM ProcessStreams WHERE contentId IS NOT NULL)"
        return {
            number: text_of(value)
            for start in range(0, len(ids), _IDS_AT_A_TIME)
            for number, value in export.rows(
                f"SELECT id, value FROM StringIds WHERE {where} AND id IN "
                f"({', '.join(map(str, ids[start : start + _IDS_AT_A_TIME]))})"
            )
        }


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
