"""rocpd: the sqlite database that rocprofv3 of ROCm 7 and rocprof-sys write.

Each process has its own set of tables, whose names end in the same id (rocpd_region_0000…); files of several processes
have several sets. The views without that ending are not used: what a view computes can take any time. Schema 3 has
times and threads in the rows of events, schema 4 refers to tables of timestamps and tracks.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from rankscope.errors import NotATraceError, ReadError
from rankscope.model import READ_EVENTS
from rankscope.readers.base import EventBatch, Reader, Reading, ReadReport, TraceIdentity, identity_from_name
from rankscope.readers.checked_values import json_object
from rankscope.readers.columns import IN_C, NULL, SQLITE, EventColumns, Numbers
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
    Values,
    header_of,
    numbered_gpus,
    rank_of,
)
from rankscope.readers.row_batch import RowBatch, row_batches
from rankscope.readers.sqlite_file import (
    SQLITE_MAGIC,
    SqliteFile,
    connect,
    read_columns,
    refused_by_sqlite,
    row_ranges,
    text_of,
)
from rankscope.readers.sqlite_pages import Piece, TablePages, find_table, open_pages
from rankscope.sql import sql_name

_AGAIN = "Record this rank again: rocprofv3 --sys-trace -- PROGRAM. Or leave the file out."
_TABLE = re.compile(r"rocpd_([a-z_]+?)((?:_[0-9a-f]+){5})?")
_EVENT_TABLES = ("kernel_dispatch", "memory_copy", "memory_allocate", "region", "sample")
_MOST_STRINGS = 5_000_000
_ROWS_PER_BATCH = 100_000
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

    def of_kind(self, prefix: str) -> str:
        """SQL: the category of an event has a name that begins like this."""
        numbers = [str(number) for number, name in self.categories.items() if name.startswith(prefix)]
        return f"category_id IN ({', '.join(numbers) or 'NULL'})"

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
            messages = self.rows("event", "id", "extdata", where=self.of_kind("MARKER_"))
        return Process(
            0,
            0,
            self.gpus,
            {key: Kernel.of(text_of(shown or name), *counts) for key, shown, name, *counts in symbols},
            # A sample of schema 3 does not name its call; it is roctxMarkA.
            lambda kind, call: (categories.get(kind, ""), strings.get(call, "roctxMarkA")),
            {event: text_of(json_object(data).get("message", ""))[:LONGEST_TEXT] for event, data in messages},
            {key: text_of(name) for key, name in self.rows("info_pmc", "id", "name")},
            self._rccl_arguments(),
        )

    def _rccl_arguments(self) -> dict[int, dict[str, str]]:
        """By correlation id: the arguments of calls of RCCL, where the file has them."""
        arguments: dict[int, dict[str, str]] = {}
        if not self.has("arg", "event_id", "name", "value") or not self.has("event", *_OF_EVENT):
            return arguments
        event, wanted = self.name("event"), self.of_kind("RCCL_API")
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


@dataclass(frozen=True)
class RocpdBatch(EventBatch):
    """A range of rows of one table, joined with what they refer to."""

    path: Path
    sql: str
    rows: tuple[int, int]
    kind: RecordKind
    process: Process
    sources: Mapping[str, ColumnSource]
    """Of the columns that the SQL selects."""
    report: ReadReport

    def columns(self) -> EventColumns:
        with refused_by_sqlite(self.path, _AGAIN):
            columns, others = read_columns(self.path, self.sql, self.rows, [*self.sources], ())
        for value in others:
            self.report.repaired(f"a value that is not a whole number: {str(value)[:40]}")
        return self.events(columns, SQLITE)

    def events(self, columns: dict[str, Numbers], read_by: str) -> EventColumns:
        """Values that the tables do not have are null."""
        nothing = np.full(max(map(len, columns.values()), default=0), NULL)
        values = {**dict.fromkeys(self.kind.values, nothing), **columns}
        return replace(self.kind.columns(self.process, values), read_by=read_by)


@dataclass(frozen=True)
class PagedBatch(EventBatch):
    """The same rows read from the pages of the file, several times faster; what refers to other rows is joined here."""

    sql: RocpdBatch
    """Reads the rows where a page or a value is unusual."""
    table: TablePages
    piece: Piece
    joined: Mapping[tuple[str, str], tuple[Numbers, Numbers]]
    """By table and column: ids and values of what the rows refer to."""

    def columns(self) -> EventColumns:
        with suppress(ValueError):
            return self.sql.events(self._values(), IN_C)
        return self.sql.columns()

    def _values(self) -> dict[str, Numbers]:
        sources = self.sql.sources
        read = dict.fromkeys(source.key or source.column for source in sources.values())
        numbers, _ = self.table.read(self.piece, list(read), [])
        values = {}
        for name, source in sources.items():
            values[name] = numbers[source.key or source.column]
            if source.key:
                ids, column = self.joined[source.table, source.column]
                at = np.minimum(np.searchsorted(ids, values[name]), len(ids) - 1)
                values[name] = np.where(ids[at] == values[name], column[at], NULL)
        return values


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
            for source in _Sources(process, number, self.report).every()
        ]
        self._total = max(1, len(sources))
        for source in sources:
            yield from source
            self._done += 1
        self._file.close()

    def position(self) -> int:
        return self._path.stat().st_size * self._done // self._total


class _Sources:
    """The events of one process, table by table."""

    def __init__(self, recorded: RecordedProcess, number: int, report: ReadReport) -> None:
        self._recorded, self._tables, self._report = recorded, recorded.tables, report
        self._path = recorded.tables.file.path
        self._process = replace(recorded.tables.process, pid=recorded.pid, number=number)

    def every(self) -> list[Iterator[EventBatch]]:
        return [
            self._names(),
            self._batches("kernel_dispatch", KERNELS),
            self._batches("memory_copy", COPIES),
            self._batches("region", CALLS),
            self._marks(),
            self._memory(),
            self._counters(),
        ]

    def _names(self) -> Iterator[EventBatch]:
        process, recorded = self._process, self._recorded
        rows = [process.name_row("process_name", 0, recorded.command)] if recorded.command else []
        rows += [
            process.name_row("thread_name", tid, text_of(name))
            for pid, tid, name in self._tables.rows("info_thread", "pid", "tid", "name")
            if name and recorded.number in (pid, NULL)
        ]
        if rows:
            yield RowBatch(READ_EVENTS, rows)

    def _marks(self) -> Iterator[EventBatch]:
        """Calls that take no time: roctx marks. Other samples belong to counters."""
        if "kind" in self._sources("sample", CALLS.values):
            yield from self._batches("sample", CALLS, f"of_event_id.{self._tables.of_kind('MARKER_')}")

    def _memory(self) -> Iterator[EventBatch]:
        sources = self._sources("memory_allocate", {**ALLOCATIONS, "type": ("type", "")})
        if not sources.keys() >= {"type", "address", "bytes", "start"}:
            return
        where = "r.level IS NOT 'SCRATCH' AND r.type IN ('ALLOC', 'FREE')"
        rows = self._rows(self._select("memory_allocate", sources, where))
        records = (dict(zip(sources, row, strict=True)) for row in rows)
        allocations = ({**record, "frees": record["type"] == b"FREE"} for record in records)
        yield from row_batches(self._process.memory_rows(allocations, self._report))

    def _counters(self) -> Iterator[EventBatch]:
        """Hardware counters of dispatches, and samples of counters."""
        tables = self._tables
        if not tables.has("pmc_event", "event_id", "pmc_id", "value"):
            return
        agents = dict(tables.rows("info_pmc", "id", "agent_id"))
        for table in ("kernel_dispatch", "sample"):
            sources = self._sources(table, {"start": EVERY_EVENT["start"], "event": CALLS.values["event"]})
            if len(sources) < 2:
                continue
            rows = self._rows(
                f'SELECT p.pmc_id, p.value, k."start" FROM {tables.name("pmc_event")} p '
                f'JOIN ({self._select(table, sources)}) k ON k."event" = p.event_id'
            )
            yield from row_batches(
                self._process.counter_row(counter, agents.get(counter, NULL), time, value)
                for counter, value, time in rows
                if isinstance(value, (int, float)) and isinstance(time, int)
            )

    def _batches(self, table: str, kind: RecordKind, where: str = "true") -> Iterator[EventBatch]:
        """The rows of a table, from pages where that is possible."""
        if not self._tables.columns(table):
            return
        sources = self._sources(table, kind.values)
        sql = f"{self._select(table, sources, where)} AND r.rowid BETWEEN ? AND ?"
        whole = f"rocpd_{table}{self._tables.ending}"

        def batch(rows: tuple[int, int]) -> RocpdBatch:
            return RocpdBatch(self._path, sql, rows, kind, self._process, sources, self._report)

        if (where, self._own(table)) == ("true", "true") and (paged := self._paged(whole, sources)):
            pages, joined = paged
            for piece in pages.pieces():
                yield PagedBatch(batch(piece.rows), pages, piece, joined)
            return
        for rows in row_ranges(self._tables.file.rows, whole, _ROWS_PER_BATCH):
            yield batch(rows)

    def _paged(
        self, table: str, sources: Mapping[str, ColumnSource]
    ) -> tuple[TablePages, dict[tuple[str, str], tuple[Numbers, Numbers]]] | None:
        """The pages of a table and the columns that its rows refer to; None if sqlite has to read them."""
        file, rows = open_pages(self._path), self._tables.file.rows
        columns = [source.key or source.column for source in sources.values()]
        if file is None or (pages := find_table(file, rows, table, columns)) is None:
            return None
        joined = {}
        for other, column in {(source.table, source.column) for source in sources.values() if source.key}:
            names = ["id", column]
            other_pages = find_table(file, rows, f"rocpd_{other}{self._tables.ending}", names)
            if other_pages is None:
                return None
            try:
                read = [other_pages.read(piece, names, [])[0] for piece in other_pages.pieces()]
            except ValueError:
                return None
            ids, values = (np.concatenate([piece[name] for piece in read]) for name in names)
            if (np.diff(ids) <= 0).any():
                return None
            joined[other, column] = ids, values
        return pages, joined

    def _sources(self, table: str, values: Values) -> dict[str, ColumnSource]:
        """Where the values of a table's rows are; those that this version does not have are left out.

        In schema 4 times are in a table of their own, and threads and streams belong to tracks. The name of a track is
        not that of an operation.
        """
        tables, columns = self._tables, self._tables.columns(table)
        has_event = "event_id" in columns and tables.has("event", *_OF_EVENT, "extdata")
        sources: dict[str, ColumnSource] = {}
        for name, (column, _) in values.items():
            if table == "sample" and name in ("start", "end"):
                column = "timestamp"
            if column in columns:
                sources[name] = ColumnSource(column)
            elif f"{column}_id" in columns and tables.has("timestamp", "value"):
                sources[name] = ColumnSource("value", "timestamp", f"{column}_id")
            elif column in _OF_EVENT and has_event:
                sources[name] = ColumnSource(column, "event", "event_id")
            elif "track_id" in columns and tables.has("track", column) and name != "operation":
                sources[name] = ColumnSource(column, "track", "track_id")
        return sources

    def _select(self, table: str, sources: Mapping[str, ColumnSource], where: str = "true") -> str:
        """SQL for the rows of a table, with what they refer to."""
        keys = {source.key: source.table for source in sources.values() if source.key}
        joins = "".join(
            f" LEFT JOIN {self._tables.name(other)} of_{key} ON of_{key}.id = r.{sql_name(key)}"
            for key, other in keys.items()
        )
        values = ", ".join(
            f"{f'of_{source.key}' if source.key else 'r'}.{sql_name(source.column)} AS {sql_name(name)}"
            for name, source in sources.items()
        )
        rows = f"{self._tables.name(table)} r{joins}"
        return f"SELECT {values} FROM {rows} WHERE {where} AND {self._own(table)}"

    def _own(self, table: str) -> str:
        """SQL: the row is of this process."""
        tables, number = self._tables, self._recorded.number
        if number == NULL or len(tables.processes) == 1:
            return "true"
        if "pid" in tables.columns(table):
            return f"r.pid = {number}"
        if tables.has(table, "track_id"):
            return f"r.track_id IN (SELECT id FROM {tables.name('track')} WHERE pid = {number})"
        return "true"

    def _rows(self, sql: str) -> Iterator[tuple[Any, ...]]:
        with refused_by_sqlite(self._path, _AGAIN), closing(connect(self._path)) as connection:
            yield from connection.execute(sql)


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
