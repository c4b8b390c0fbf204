"""rocpd: the sqlite database that rocprofv3 of ROCm 7 and rocprof-sys write.

Each process has its own set of tables, whose names end in the same id (rocpd_region_0000…); files of several processes
have several sets. The views without that ending are not used: what a view computes can take any time. Schema 3 has
times and threads in the rows of events, schema 4 refers to tables of timestamps and tracks.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rankscope.errors import NotATraceError, ReadError
from rankscope.model import READ_EVENTS
from rankscope.readers.base import EventBatch, Reader, Reading, ReadReport, TraceIdentity, identity_from_name
from rankscope.readers.checked_values import json_object
from rankscope.readers.columns import NULL, EventColumns, Numbers
from rankscope.readers.records import Rows
from rankscope.readers.rocprof.records import (
    ALLOCATIONS,
    CALLS,
    COPIES,
    EVERY_EVENT,
    FORMAT,
    FROM_ENVIRONMENT,
    KERNELS,
    LONGEST_TEXT,
    REGISTERS,
    Kernel,
    Process,
    RecordKind,
    header_of,
    numbered_gpus,
    rank_of,
)
from rankscope.readers.row_batch import RowBatch, row_batches
from rankscope.readers.sqlite_file import SQLITE_MAGIC, SqliteFile, text_of
from rankscope.readers.sqlite_pages import RowColumns, TablePiece, open_pages, table_pieces
from rankscope.sql import sql_name

_AGAIN = "Record this rank again: rocprofv3 --sys-trace -- PROGRAM. Or leave the file out."
_TABLE = re.compile(r"rocpd_([a-z_]+?)((?:_[0-9a-f]+){5})?")
_EVENT_TABLES = ("kernel_dispatch", "memory_copy", "memory_allocate", "region", "sample")
_MOST_STRINGS = 5_000_000
_OF_EVENT = ("stack_id", "category_id")
"""Columns of the table of events that the rows refer to."""


class RocpdFile(SqliteFile):
    """One database, open for reading only."""

    again = _AGAIN

    def _find_tables(self) -> dict[str, frozenset[str]]:
        names = self._connection.execute(
            "SELECT name FROM sqlite_master WHERE type = 'table' AND rootpage > 0 AND name LIKE 'rocpd%'"
        )
        tables = (text_of(name) for (name,) in names.fetchall())
        return {name: self.columns_of(name) for name in tables if _TABLE.fullmatch(name)}

    @cached_property
    def sets(self) -> list[TableSet]:
        """The sets of tables that have events or processes, in the order of their ids."""
        endings = {match[2] or "" for name in self.tables if (match := _TABLE.fullmatch(name))}
        sets = (TableSet(self, ending) for ending in sorted(endings))
        return [tables for tables in sets if tables.has("string") and any(map(tables.has, _EVENT_TABLES))]


@dataclass(frozen=True)
class TableSet:
    """The tables whose names end in the same id."""

    file: RocpdFile
    ending: str
    _lookups: dict[tuple[str, str], tuple[Numbers, Numbers]] = field(default_factory=dict)

    def name(self, table: str) -> str:
        return sql_name(f"rocpd_{table}{self.ending}")

    def columns(self, table: str) -> frozenset[str]:
        return self.file.tables.get(f"rocpd_{table}{self.ending}", frozenset())

    def has(self, table: str, *columns: str) -> bool:
        there = self.columns(table)
        return bool(there) and there.issuperset(columns)

    def rows(self, table: str, *columns: str, where: str = "true") -> list[tuple[Any, ...]]:
        """Rows of a small table; a column that it does not have is null, and no row if it does not exist."""
        there = self.columns(table)
        if not there:
            return []
        values = ", ".join(sql_name(column) if column in there else "NULL" for column in columns)
        return self.file.rows(f"SELECT {values} FROM {self.name(table)} WHERE {where} LIMIT {_MOST_STRINGS}")

    @cached_property
    def strings(self) -> dict[int, str]:
        """By id."""
        short = f"length(CAST(string AS BLOB)) < {LONGEST_TEXT}"
        return {number: text_of(text) for number, text in self.rows("string", "id", "string", where=short)}

    @cached_property
    def categories(self) -> dict[int, str]:
        """Kinds of events: of schema 4 in a table of their own."""
        told = self.rows("info_category", "id", "name")
        return {number: text_of(name) for number, name in told} if told else self.strings

    def of_kind(self, prefix: str) -> list[int]:
        """The categories whose names begin like this."""
        return [number for number, name in self.categories.items() if name.startswith(prefix)]

    def _events_of_kind(self, prefix: str) -> str:
        """SQL for those in the table of events."""
        return f"category_id IN ({', '.join(map(str, self.of_kind(prefix))) or 'NULL'})"

    def pieces(self, table: str, numbers: Sequence[str], texts: Sequence[str] = ()) -> Iterator[TablePiece]:
        whole = f"rocpd_{table}{self.ending}"
        return table_pieces(self.file, open_pages(self.file.path), whole, numbers, texts)

    def lookup(self, table: str, column: str) -> tuple[Numbers, Numbers]:
        """Ids and values of a table that others refer to; at least one row."""
        if (table, column) not in self._lookups:
            read = [piece.read().numbers for piece in self.pieces(table, ["id", column])]
            ids, values = (
                np.concatenate([[NULL], *(piece[name] for piece in read)]) for name in ("id", column)
            )
            order = np.argsort(ids, kind="stable")
            self._lookups[table, column] = ids[order], values[order]
        return self._lookups[table, column]

    @cached_property
    def processes(self) -> list[RecordedProcess]:
        told = self.rows("info_process", "id", "pid", "command", "environment", "extdata")
        processes = [
            RecordedProcess(
                self, number, pid, text_of(command), rank_of(variables, json_object(config)), bool(variables)
            )
            for number, pid, command, environment, config in told
            if isinstance(number, int) and isinstance(pid, int)
            for variables in [json_object(environment)]
        ]
        return processes or [RecordedProcess(self, NULL, 0, "", TraceIdentity(None, ""), False)]

    @cached_property
    def gpus(self) -> list[tuple[int, dict[str, Any]]]:
        told = self.rows("info_agent", "id", "type", "type_index", "product_name", "name", "extdata")
        return numbered_gpus(
            (
                number,
                json_object(more) | {"logical_node_type_id": index, "product_name": text_of(product or name)},
            )
            for number, kind, index, product, name, more in told
            if text_of(kind) == "GPU" and isinstance(number, int)
        )

    @cached_property
    def process(self) -> Process:
        """What records refer to. It has no pid yet: several processes may share the tables."""
        categories, strings = self.categories, self.strings  # read now: batches outlive the connection
        symbols = self.rows("info_kernel_symbol", "id", "display_name", "kernel_name", *REGISTERS)
        messages = []
        if self.has("event", "id", "extdata", "category_id"):
            messages = self.rows("event", "id", "extdata", where=self._events_of_kind("MARKER_"))
        return Process(
            0,
            0,
            self.gpus,
            {key: Kernel.of(text_of(shown or name), *counts) for key, shown, name, *counts in symbols},
            # A sample of schema 3 does not name its call; it is roctxMarkA.
            lambda kind, call: (categories.get(kind or 0, ""), strings.get(call or 0, "roctxMarkA")),
            {event: text_of(json_object(data).get("message", ""))[:LONGEST_TEXT] for event, data in messages},
            {key: text_of(name) for key, name in self.rows("info_pmc", "id", "name")},
            self._rccl_arguments(),
        )

    def _rccl_arguments(self) -> dict[int, dict[str, str]]:
        """By correlation id: the arguments of calls of RCCL, where the file has them."""
        arguments: dict[int, dict[str, str]] = {}
        if not self.has("arg", "event_id", "name", "value") or not self.has("event", *_OF_EVENT):
            return arguments
        event, wanted = self.name("event"), self._events_of_kind("RCCL_API")
        if self.file.rows(f"SELECT 1 FROM {event} WHERE {wanted} LIMIT 1"):
            rows = self.file.rows(
                f"SELECT e.stack_id, a.name, a.value FROM {self.name('arg')} a JOIN {event} e "
                f"ON e.id = a.event_id WHERE e.{wanted}"
            )
            for call, name, value in rows:
                if isinstance(call, int):
                    arguments.setdefault(call, {})[text_of(name)] = text_of(value)
        return arguments


@dataclass(frozen=True)
class RecordedProcess:
    """A process in a file. `number` is its id there, NULL if the file names no process."""

    tables: TableSet
    number: int
    pid: int
    command: str
    identity: TraceIdentity
    has_environment: bool


def ranks_in(file: RocpdFile) -> list[tuple[TraceIdentity, list[RecordedProcess]]]:
    """The ranks of a file: one with all processes, or one for each rank that the processes tell."""
    processes = [process for tables in file.sets for process in tables.processes]
    ranks = sorted({process.identity.rank for process in processes if process.identity.rank is not None})
    parts = {"": processes}
    if len(ranks) > 1:
        parts = {f"rank {rank}": [each for each in processes if each.identity.rank == rank] for rank in ranks}
    by_name = identity_from_name(file.path)
    return [
        (
            replace(
                next((each.identity for each in of_rank if each.identity.rank is not None), by_name),
                trace_id=" ".join(f"{process.tables.ending}{process.pid}" for process in of_rank),
                part=part,
            ),
            of_rank,
        )
        for part, of_rank in parts.items()
    ]


class ColumnSource(NamedTuple):
    """Where a value is: in a column of the row, or in that of another table whose row `key` refers to."""

    column: str
    table: str = ""
    key: str = ""


class JoinedTable:
    """The rows of a table that are of one process, with what they refer to."""

    def __init__(
        self,
        process: RecordedProcess,
        table: str,
        values: Iterable[tuple[str, str]],
        report: ReadReport,
        *texts: str,
    ) -> None:
        """`values` are pairs of names and columns; those that this version does not have are left out. `texts` are
        columns of texts that are read too.

        In schema 4 times are in a table of their own, and threads and streams belong to tracks. The name of a track is
        not that of an operation.
        """
        self.process, self.table, self.report, self.texts = process, table, report, texts
        self._referred: dict[str, tuple[Numbers, Numbers]] = {}
        """Ids and values of what the rows refer to, by the name of the value."""
        tables, columns = process.tables, process.tables.columns(table)
        has_event = "event_id" in columns and tables.has("event", *_OF_EVENT, "extdata")
        self.sources: dict[str, ColumnSource] = {}
        shared = process.number != NULL and len(tables.processes) > 1
        for name, column in (*values, *((("process", "pid"),) if shared else ())):
            if table == "sample" and name in ("start", "end"):
                column = "timestamp"
            if column in columns:
                self.sources[name] = ColumnSource(column)
            elif f"{column}_id" in columns and tables.has("timestamp", "value"):
                self.sources[name] = ColumnSource("value", "timestamp", f"{column}_id")
            elif column in _OF_EVENT and has_event:
                self.sources[name] = ColumnSource(column, "event", "event_id")
            elif "track_id" in columns and tables.has("track", column) and name != "operation":
                self.sources[name] = ColumnSource(column, "track", "track_id")

    def pieces(self) -> Iterator[TablePiece]:
        tables = self.process.tables
        columns = dict.fromkeys(source.key or source.column for source in self.sources.values())
        for piece in tables.pieces(self.table, [*columns], self.texts) if columns else ():
            for name, source in self.sources.items():
                if source.key and name not in self._referred:  # now: pieces are read when the file is closed
                    self._referred[name] = tables.lookup(source.table, source.column)
            yield piece

    def read(self, piece: TablePiece) -> RowColumns:
        read = piece.read()
        for value in read.others:
            self.report.repaired(f"a value that is not a whole number: {str(value)[:40]}")
        values = {}
        for name, source in self.sources.items():
            values[name] = read.numbers[source.key or source.column]
            if source.key:
                ids, column = self._referred[name]
                at = np.minimum(np.searchsorted(ids, values[name]), len(ids) - 1)
                values[name] = np.where(ids[at] == values[name], column[at], NULL)
        return read._replace(numbers=values)

    def own(self, values: Rows) -> NDArray[np.bool_]:
        """Which rows are of the process."""
        first = next(iter(values.values()))
        return values["process"] == self.process.number if "process" in values else np.ones(len(first), bool)


@dataclass(frozen=True)
class RocpdBatch(EventBatch):
    """A piece of a table."""

    table: JoinedTable
    piece: TablePiece
    kind: RecordKind
    process: Process
    only_kinds: Sequence[int] | None = None
    """The kinds of records that are events; None for all."""

    def columns(self) -> EventColumns:
        """Values that the tables do not have are null."""
        read = self.table.read(self.piece)
        nothing = np.full(max(map(len, read.numbers.values())), NULL)
        values = {**dict.fromkeys(self.kind.values, nothing), **read.numbers}
        kept = self.table.own(values)
        if self.only_kinds is not None:
            kept &= np.isin(values["kind"], self.only_kinds)
        events = self.kind.columns(self.process, {name: column[kept] for name, column in values.items()})
        return replace(events, read_by=read.read_by)


class RocpdReading(Reading):
    """One pass over the processes of one rank. Times count from the boot of the machine, and the file does not say when
    that was."""

    def __init__(self, path: Path, part: str = "") -> None:
        super().__init__(path)
        self._file = RocpdFile(path)
        ranks = ranks_in(self._file)
        merged = TraceIdentity(None, ""), [process for _, processes in ranks for process in processes]
        self._rank = next((rank for rank in ranks if rank[0].part == part), merged)
        self._done, self._total = 0, 1
        self.header = _header(*self._rank)

    def batches(self) -> Iterator[EventBatch]:
        sources = [
            source
            for number, process in enumerate(self._rank[1])
            for source in self._sources(
                process, replace(process.tables.process, pid=process.pid, number=number)
            )
        ]
        self._total = max(1, len(sources))
        for source in sources:
            yield from source
            self._done += 1
        self._file.close()

    def position(self) -> int:
        return self._path.stat().st_size * self._done // self._total

    def _sources(self, recorded: RecordedProcess, process: Process) -> list[Iterator[EventBatch]]:
        tables = recorded.tables
        return [
            self._names(recorded, process),
            self._batches(recorded, process, "kernel_dispatch", KERNELS),
            self._batches(recorded, process, "memory_copy", COPIES),
            self._batches(recorded, process, "region", CALLS),
            # Calls that take no time: roctx marks. Other samples belong to counters.
            self._batches(recorded, process, "sample", CALLS, tables.of_kind("MARKER_")),
            row_batches(process.memory_rows(self._allocations(recorded), self.report)),
            row_batches(self._counters(recorded, process)),
        ]

    def _names(self, recorded: RecordedProcess, process: Process) -> Iterator[EventBatch]:
        rows = [process.name_row("process_name", 0, recorded.command)] if recorded.command else []
        rows += [
            process.name_row("thread_name", tid, text_of(name))
            for pid, tid, name in recorded.tables.rows("info_thread", "pid", "tid", "name")
            if name and recorded.number in (pid, NULL)
        ]
        if rows:
            yield RowBatch(READ_EVENTS, rows)

    def _batches(
        self,
        recorded: RecordedProcess,
        process: Process,
        name: str,
        kind: RecordKind,
        only_kinds: Sequence[int] | None = None,
    ) -> Iterator[EventBatch]:
        values = ((value, column) for value, (column, _) in kind.values.items())
        table = JoinedTable(recorded, name, values, self.report)
        if only_kinds is None or "kind" in table.sources:
            for piece in table.pieces():
                yield RocpdBatch(table, piece, kind, process, only_kinds)

    def _allocations(self, recorded: RecordedProcess) -> Iterator[dict[str, Any]]:
        there = recorded.tables.columns("memory_allocate")
        texts = [name for name in ("type", "level") if name in there]
        values = ((value, column) for value, (column, _) in ALLOCATIONS.items())
        table = JoinedTable(recorded, "memory_allocate", values, self.report, *texts)
        if "type" not in there or not table.sources.keys() >= {"address", "bytes", "start"}:
            return
        for piece in table.pieces():
            numbers, told, *_ = table.read(piece)
            rows = np.flatnonzero(table.own(numbers)).astype(np.int32)
            kinds = told["type"].at(rows)
            levels = told["level"].at(rows) if "level" in told else [None] * len(rows)
            columns = (numbers[name][rows].tolist() for name in table.sources)
            for kind, level, *row in zip(kinds, levels, *columns, strict=True):
                if kind in ("ALLOC", "FREE") and level != "SCRATCH":
                    yield {**dict(zip(table.sources, row, strict=True)), "frees": kind == "FREE"}

    def _counters(self, recorded: RecordedProcess, process: Process) -> Iterator[dict[str, Any]]:
        """Hardware counters of dispatches, and samples of counters."""
        tables = recorded.tables
        if not tables.has("pmc_event", "event_id", "pmc_id", "value"):
            return
        agents = dict(tables.rows("info_pmc", "id", "agent_id"))
        for name in ("kernel_dispatch", "sample"):
            values = (("start", EVERY_EVENT["start"][0]), ("event", CALLS.values["event"][0]))
            table = JoinedTable(recorded, name, values, ReadReport())  # its batches report
            if not table.sources.keys() >= {"start", "event"}:
                continue
            times: dict[int, int] = {}
            for piece in table.pieces():
                numbers = table.read(piece).numbers
                own = np.flatnonzero(table.own(numbers) & (numbers["start"] != NULL))
                times.update(zip(numbers["event"][own].tolist(), numbers["start"][own].tolist(), strict=True))
            counted = tables.rows("pmc_event", "event_id", "pmc_id", "value") if times else ()
            for event, counter, value in counted:
                if event in times and isinstance(value, (int, float)):
                    yield process.counter_row(counter, agents.get(counter, NULL), times[event], value)


class RocpdReader(Reader):
    """rocpd databases."""

    name = FORMAT

    def recognises(self, path: Path, head: bytes) -> bool:
        """Raises an error for a damaged database, and for one of rocmProfileData, which has other tables."""
        if not head.startswith(SQLITE_MAGIC):
            return False
        try:
            with closing(RocpdFile(path)) as file:
                if not file.sets and {"rocpd_op", "rocpd_api"} & file.tables.keys():
                    raise NotATraceError(
                        f"{path} is a database of rocmProfileData (RPD)",
                        why="It has rocpd_api and rocpd_op. rankscope reads the rocpd databases of rocprofv3.",
                        hint=f"Convert it, with rocmProfileData's own tool: rpd2tracing.py {path} {path.stem}.json",
                    )
                return bool(file.sets)
        except ReadError:
            if b"rocpd_" in head:
                raise
            return False  # damaged, and of another program

    def identify_parts(self, path: Path) -> list[TraceIdentity]:
        with closing(RocpdFile(path)) as file:
            return [identity for identity, _ in ranks_in(file)]

    def open(self, path: Path, part: str = "") -> RocpdReading:
        return RocpdReading(path, part)


ROCPD = RocpdReader()


def _header(identity: TraceIdentity, processes: list[RecordedProcess]) -> dict[str, Any]:
    """The metadata for segment.json. No recorded variables."""
    if not processes:
        return {"processes": []}
    tables = processes[0].tables
    told = {text_of(tag): text_of(value) for tag, value in tables.rows("metadata", "tag", "value")}
    form = {"format": "rocpd", "schema": told.get("schema_version", "")}
    hosts = [text_of(host) for (host,) in tables.rows("info_node", "hostname") if host]
    header = header_of(form, [process.pid for process in processes], tables.gpus, hosts[0] if hosts else "")
    if len(processes) > 1 and identity.rank_source != FROM_ENVIRONMENT:
        header["mergedProcesses"] = len(processes)
    header["trace_id"] = identity.trace_id
    header["recordedEnvironment"] = any(process.has_environment for process in processes)
    if identity.rank is not None and identity.world_size is not None:
        header["distributedInfo"] = {"rank": identity.rank, "world_size": identity.world_size}
    return header
