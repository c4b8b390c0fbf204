"""rocpd: the sqlite database that rocprofv3 of ROCm 7 and rocprof-sys write.

Each process has its own set of tables, whose names end in the same id (rocpd_region_0000…); files of several processes
have several sets. The views without that ending are not used: what a view computes can take any time. Schema 3 has
times and threads in the rows of events, schema 4 refers to tables of timestamps and tracks.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from rankscope.errors import NotATraceError, ReadError
from rankscope.model import READ_EVENTS
from rankscope.readers.base import EventBatch, Reader, Reading, ReadReport, TraceIdentity, rank_from_name
from rankscope.readers.checked_values import json_object
from rankscope.readers.columns import IN_C, NULL, SQLITE, EventColumns, Numbers
from rankscope.readers.rocprof.records import (
    FORMAT,
    FROM_ENVIRONMENT,
    ROWS_PER_BATCH,
    Allocation,
    Kernel,
    MemoryUse,
    Process,
    Rank,
    call_columns,
    copy_columns,
    counter_row,
    device_properties,
    kernel_columns,
    name_row,
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
from rankscope.readers.sqlite_pages import PageFile, Piece, TablePages, find_table, open_pages
from rankscope.sql import sql_name

_AGAIN = "Record this rank again: rocprofv3 --sys-trace -- PROGRAM. Or leave the file out."
_TABLE = re.compile(r"rocpd_([a-z_]+?)((?:_[0-9a-f]+){5})?")
_RPD_TABLES = {"rocpd_op", "rocpd_api"}
_EVENT_TABLES = ("kernel_dispatch", "memory_copy", "memory_allocate", "region", "sample")
_LONGEST_TEXT = 100_000
_MOST_STRINGS = 5_000_000

_KERNEL_VALUES = {
    "agent": "agent_id",
    "kernel": "kernel_id",
    "queue": "queue_id",
    "stream": "stream_id",
    "private": "private_segment_size",
    "group": "group_segment_size",
    **{f"block_{axis}": f"workgroup_size_{axis}" for axis in "xyz"},
    **{f"items_{axis}": f"grid_size_{axis}" for axis in "xyz"},
}
_COPY_VALUES = {
    "operation": "name_id",
    "source": "src_agent_id",
    "target": "dst_agent_id",
    "queue": "queue_id",
    "stream": "stream_id",
    "bytes": "size",
}
_ALLOCATION_VALUES = {"thread": "tid", "agent": "agent_id", "address": "address", "bytes": "size"}
_OF_EVERY_EVENT = ("start", "end", "correlation", "kind")
_EVENT = "of_event_id"
"""The name of an event's row in SQL."""
_ALLOCATION_FIELDS = ("start", "thread", "agent", "address", "bytes", "text")


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
        short = f"length(CAST(string AS BLOB)) < {_LONGEST_TEXT}"
        return {number: text_of(text) for number, text in self.rows("string", "id", "string", where=short)}

    @cached_property
    def categories(self) -> dict[int, str]:
        """Kinds of events: of schema 4 in a table of their own."""
        told = self.rows("info_category", "id", "name")
        return {number: text_of(name) for number, name in told} if told else self.strings

    @cached_property
    def markers(self) -> str:
        """The categories of roctx, as SQL."""
        numbers = [str(number) for number, name in self.categories.items() if name.startswith("MARKER_")]
        return ", ".join(numbers) or "NULL"

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
        return processes or [RecordedProcess(self, NULL, 0, "", Rank(None), False)]

    @cached_property
    def agents(self) -> list[tuple[int, dict[str, Any]]]:
        """The GPUs: id, and fields as ROCm names them."""
        told = self.rows("info_agent", "id", "type", "type_index", "product_name", "name", "extdata")
        gpus = [row for row in told if text_of(row[1]) == "GPU" and isinstance(row[0], int)]
        return [
            (
                number,
                {
                    **json_object(more),
                    "logical_node_type_id": index,
                    "product_name": text_of(product or name),
                },
            )
            for position, (number, _, index, product, name, more) in enumerate(gpus)
            for index in ([index if isinstance(index, int) else position])
        ]

    @cached_property
    def kernels(self) -> dict[int, Kernel]:
        told = self.rows(
            "info_kernel_symbol",
            "id",
            "display_name",
            "kernel_name",
            "arch_vgpr_count",
            "accum_vgpr_count",
            "sgpr_count",
        )
        return {
            number: Kernel(text_of(shown or name)[:_LONGEST_TEXT], _sum(vector, accumulation), _sum(scalar))
            for number, shown, name, vector, accumulation, scalar in told
        }


@dataclass(frozen=True)
class RecordedProcess:
    """A process in a file. `number` is its id there, NULL if the file names no process."""

    tables: TableSet
    number: int
    pid: int
    command: str
    rank: Rank
    has_environment: bool


@dataclass(frozen=True)
class RankProcesses:
    """The processes of one rank."""

    rank: Rank
    processes: tuple[RecordedProcess, ...]
    part: str = ""


def ranks_in(file: RocpdFile) -> list[RankProcesses]:
    """The ranks of a file: one with all processes, or one for each rank that the processes tell."""
    processes = tuple(process for tables in file.sets for process in tables.processes)
    told = {process.rank.rank for process in processes} - {None}
    if len(told) > 1:
        return [
            RankProcesses(of_rank[0].rank, of_rank, f"rank {rank}")
            for rank in sorted(rank for rank in told if rank is not None)
            if (of_rank := tuple(process for process in processes if process.rank.rank == rank))
        ]
    the_rank = next((process.rank for process in processes if process.rank.rank is not None), Rank(None))
    if the_rank.rank is None and (named := rank_from_name(file.path)) is not None:
        the_rank = Rank(named, "file name")
    return [RankProcesses(the_rank, processes)]


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
    parameters: tuple[int, ...]
    names: tuple[str, ...]
    """Of the columns that the SQL selects."""
    absent: tuple[str, ...]
    """Columns that the tables do not have."""
    events: Callable[[dict[str, Any]], EventColumns]
    report: ReadReport

    def columns(self) -> EventColumns:
        with refused_by_sqlite(self.path, _AGAIN):
            columns, others = read_columns(self.path, self.sql, self.parameters, self.names, ("text",))
        for value in others:
            self.report.repaired(f"a value that is not a whole number: {str(value)[:40]}")
        nothing = np.full(max(map(len, columns.values()), default=0), NULL)
        return self.events({**dict.fromkeys(self.absent, nothing), **columns})


@dataclass(frozen=True)
class PagedBatch(EventBatch):
    """The same rows read from the pages of the file, several times faster; what refers to other rows is joined here."""

    sql: RocpdBatch
    """Reads the rows where a page or a value is unusual."""
    table: TablePages
    piece: Piece
    joined: Joined
    places: Mapping[str, ColumnSource]

    def columns(self) -> EventColumns:
        with suppress(ValueError):
            return replace(self.sql.events(self._values()), read_by=IN_C)
        return self.sql.columns()

    def _values(self) -> dict[str, Any]:
        read = dict.fromkeys(source.key or source.column for source in self.places.values())
        numbers, _ = self.table.read(self.piece, list(read), [])
        count = len(next(iter(numbers.values())))
        values: dict[str, Any] = dict.fromkeys(self.sql.absent, np.full(count, NULL))
        for name, source in self.places.items():
            values[name] = self.joined.values(source, numbers) if source.key else numbers[source.column]
        if "text" in self.sql.names:
            values["text"] = self.joined.messages(numbers["event_id"])
        return values


class Joined:
    """Columns of the tables that the rows of events refer to, by id."""

    def __init__(self, tables: TableSet, pages: PageFile) -> None:
        self._tables, self._pages = tables, pages
        self._columns: dict[tuple[str, str], tuple[Numbers, Numbers]] = {}
        self._extdata: dict[int, Any] = {}

    def load(self, table: str, column: str) -> bool:
        """False if the column cannot be read from pages."""
        if (table, column) in self._columns:
            return True
        name = f"rocpd_{table}{self._tables.ending}"
        pages = find_table(self._pages, self._tables.file.rows, name, ["id", column])
        if pages is None:
            return False
        try:
            read = [pages.read(piece, ["id", column], [])[0] for piece in pages.pieces()]
        except ValueError:
            return False
        ids, values = (np.concatenate([piece[name] for piece in read]) for name in ("id", column))
        if (np.diff(ids) <= 0).any():
            return False
        self._columns[table, column] = ids, values
        return True

    def load_messages(self) -> None:
        """The data of roctx events."""
        of_roctx = f"category_id IN ({self._tables.markers})"
        self._extdata.update(self._tables.rows("event", "id", "extdata", where=of_roctx))

    def values(self, source: ColumnSource, numbers: Mapping[str, Numbers]) -> Numbers:
        ids, values = self._columns[source.table, source.column]
        wanted = numbers[source.key]
        at = np.minimum(np.searchsorted(ids, wanted), len(ids) - 1)
        return np.where(ids[at] == wanted, values[at], NULL)

    def messages(self, events: Numbers) -> list[Any]:
        """For each event its data if it is of roctx, else None."""
        return (
            [self._extdata.get(event) for event in events.tolist()] if self._extdata else [None] * len(events)
        )


class RocpdReading(Reading):
    """One pass over the processes of one rank. Times count from the boot of the machine, and the file does not say when
    that was."""

    def __init__(self, path: Path, part: str = "") -> None:
        super().__init__(path)
        self._file = RocpdFile(path)
        ranks = ranks_in(self._file)
        merged = RankProcesses(Rank(None), tuple(chain.from_iterable(rank.processes for rank in ranks)))
        self._rank = next((rank for rank in ranks if rank.part == part), merged)
        self._done, self._total = 0, 1
        self.header = _header(self._file, self._rank)

    def batches(self) -> Iterator[EventBatch]:
        sources = [
            source
            for number, process in enumerate(self._rank.processes)
            for source in _Sources(self._path, process, number, self.report).every()
        ]
        self._total = max(1, len(sources))
        for source in sources:
            yield from source()
            self._done += 1
        self._file.close()

    def position(self) -> int:
        return self._path.stat().st_size * self._done // self._total


@dataclass
class _Sources:
    """The events of one process, table by table."""

    path: Path
    of: RecordedProcess
    number: int
    report: ReadReport
    process: Process = field(init=False)

    def __post_init__(self) -> None:
        tables = self.of.tables
        self.process = Process(
            pid=self.of.pid,
            number=self.number,
            devices={number: agent["logical_node_type_id"] for number, agent in tables.agents},
            kernels=tables.kernels,
            rccl_arguments=_rccl_arguments(tables),
            read_by=SQLITE,
        )

    def every(self) -> list[Callable[[], Iterator[EventBatch]]]:
        strings = self.of.tables.strings

        def copies(columns: dict[str, Any]) -> EventColumns:
            return copy_columns(self.process, columns, lambda number: strings.get(number, ""))

        kernels = partial(kernel_columns, self.process)
        calls = {"operation": "name_id", "thread": "tid"}
        return [
            self._names,
            partial(self._batches, "kernel_dispatch", _KERNEL_VALUES, kernels),
            partial(self._batches, "memory_copy", _COPY_VALUES, copies),
            partial(self._batches, "region", calls, self._call_events, with_text=True),
            self._marks,
            self._memory,
            self._counters,
        ]

    def _names(self) -> Iterator[EventBatch]:
        rows = [name_row("process_name", self.of.pid, 0, self.of.command)] if self.of.command else []
        threads = self.of.tables.rows("info_thread", "pid", "tid", "name")
        rows += [
            name_row("thread_name", self.of.pid, tid, text_of(name))
            for pid, tid, name in threads
            if name and (pid == self.of.number or self.of.number == NULL)
        ]
        if rows:
            yield RowBatch(READ_EVENTS, rows)

    def _marks(self) -> Iterator[EventBatch]:
        """Calls that take no time: roctx marks. Other samples belong to counters."""
        if "kind" not in self._places("sample", {}):
            return
        named = self.of.tables.has("sample", "name_id")
        yield from self._batches(
            "sample",
            {"thread": "tid", **({"operation": "name_id"} if named else {})},
            self._call_events,
            with_text=True,
            where=f"{_EVENT}.category_id IN ({self.of.tables.markers})",
        )

    def _call_events(self, columns: dict[str, Any]) -> EventColumns:
        """A sample of schema 3 does not name its call; it is roctxMarkA."""
        columns.setdefault("operation", np.full(len(columns["start"]), NULL))
        tables = self.of.tables
        messages: dict[str, int] = {}
        columns["message"] = np.array(
            [
                NULL if text is None else messages.setdefault(_message(text), len(messages))
                for text in columns.pop("text", [None] * len(columns["start"]))
            ],
            dtype=np.int64,
        )

        def told(kind: int, operation: int) -> tuple[str, str]:
            return tables.categories.get(kind, ""), tables.strings.get(operation, "roctxMarkA")

        return call_columns(self.process, columns, told, list(messages))

    def _memory(self) -> Iterator[EventBatch]:
        tables = self.of.tables
        if not tables.has("memory_allocate", "type", "address", "size"):
            return
        where = "r.level IS NOT 'SCRATCH' AND r.type IN ('ALLOC', 'FREE')"
        places = self._places("memory_allocate", _ALLOCATION_VALUES)
        sql, names = self._select("memory_allocate", places, "r.type = 'FREE'", where)
        if "start" not in names:
            return
        use = MemoryUse(self.process)
        at = {name: position for position, name in enumerate(names)}
        ordered = self._sorted(f"{sql} ORDER BY {at['start'] + 1}")
        rows = (
            tuple(row[at[name]] if name in at else None for name in _ALLOCATION_FIELDS) for row in ordered
        )
        yield from row_batches(
            row for allocation in self._usable(rows) if (row := use.row(allocation)) is not None
        )

    def _usable(self, rows: Iterable[tuple[Any, ...]]) -> Iterator[Allocation]:
        for row in rows:
            if isinstance(row[0], int) and isinstance(row[4], int):
                yield Allocation(*row)
            else:
                self.report.lose("an allocation without a usable time or size")

    def _counters(self) -> Iterator[EventBatch]:
        """Hardware counters of dispatches, and samples of counters."""
        tables = self.of.tables
        if not tables.has("pmc_event", "event_id", "pmc_id", "value"):
            return
        described = {
            number: (text_of(name), self.process.devices.get(agent))
            for number, name, agent in tables.rows("info_pmc", "id", "name", "agent_id")
        }
        for table in ("kernel_dispatch", "sample"):
            places = self._places(table, {})
            if not tables.has(table, "event_id") or "start" not in places:
                continue
            sql, _ = self._select(table, {"start": places["start"], "event": ColumnSource("event_id")})
            joined = (
                f'SELECT p.pmc_id, p.value, k."start" FROM {tables.name("pmc_event")} p '
                f'JOIN ({sql}) k ON k."event" = p.event_id'
            )
            rows = (
                counter_row(*described.get(counter, (f"counter {counter}", None)), time, value)
                for counter, value, time in self._sorted(joined)
                if isinstance(value, (int, float)) and isinstance(time, int)
            )
            yield from row_batches(rows)

    def _batches(
        self,
        table: str,
        values: dict[str, str],
        events: Callable[[dict[str, Any]], EventColumns],
        with_text: bool = False,
        where: str = "",
    ) -> Iterator[EventBatch]:
        """The rows of a table, from pages where that is possible."""
        tables = self.of.tables
        if not tables.columns(table):
            return
        places = self._places(table, values)
        text = ""
        if with_text and any(source.table == "event" for source in places.values()):
            text = f"CASE WHEN {_EVENT}.category_id IN ({tables.markers}) THEN {_EVENT}.extdata END"
        sql, names = self._select(table, places, text, where)
        absent = tuple(name for name in (*_OF_EVERY_EVENT, *values) if name not in names)
        whole = f"rocpd_{table}{tables.ending}"

        def batch(rows: tuple[int, int]) -> RocpdBatch:
            between = f"{sql} AND r.rowid BETWEEN ? AND ?"
            return RocpdBatch(self.path, between, rows, names, absent, events, self.report)

        if not where and self._own(table) == "true" and (paged := self._paged(whole, places)) is not None:
            pages, joined = paged
            if text:
                joined.load_messages()
            for piece in pages.pieces():
                yield PagedBatch(batch(piece.rows), pages, piece, joined, places)
            return
        for rows in row_ranges(tables.file.rows, whole, ROWS_PER_BATCH):
            yield batch(rows)

    def _paged(self, table: str, places: Mapping[str, ColumnSource]) -> tuple[TablePages, Joined] | None:
        """The pages of a table and the columns that its rows refer to; None if sqlite has to read them."""
        pages = open_pages(self.path)
        if pages is None:
            return None
        columns = [source.key or source.column for source in places.values()]
        table_pages = find_table(pages, self.of.tables.file.rows, table, columns)
        joined = Joined(self.of.tables, pages)
        wanted = {(source.table, source.column) for source in places.values() if source.table}
        return (
            (table_pages, joined)
            if table_pages is not None and all(joined.load(*column) for column in wanted)
            else None
        )

    def _places(self, table: str, values: dict[str, str]) -> dict[str, ColumnSource]:
        """Where the values of a table's rows are; those that this version does not have are left out.

        In schema 4 times are in a table of their own, and threads and streams belong to tracks.
        """
        tables, columns = self.of.tables, self.of.tables.columns(table)
        times = (
            {"start": "timestamp", "end": "timestamp"}
            if table == "sample"
            else {"start": "start", "end": "end"}
        )
        places: dict[str, ColumnSource] = {}
        for name, column in times.items():
            if column in columns:
                places[name] = ColumnSource(column)
            elif f"{column}_id" in columns and tables.has("timestamp", "value"):
                places[name] = ColumnSource("value", "timestamp", f"{column}_id")
        if "event_id" in columns and tables.has("event", "stack_id", "category_id", "extdata"):
            places["correlation"] = ColumnSource("stack_id", "event", "event_id")
            places["kind"] = ColumnSource("category_id", "event", "event_id")
        for name, column in values.items():
            if column in columns:
                places[name] = ColumnSource(column)
            elif "track_id" in columns and tables.has("track", column):
                places[name] = ColumnSource(column, "track", "track_id")
        return places

    def _select(
        self, table: str, places: Mapping[str, ColumnSource], text: str = "", where: str = ""
    ) -> tuple[str, tuple[str, ...]]:
        """SQL for the rows of a table, with what they refer to, and the names of its columns."""
        tables = self.of.tables
        keys = {source.key: source.table for source in places.values() if source.key}
        joins = "".join(
            f" LEFT JOIN {tables.name(other)} of_{key} ON of_{key}.id = r.{sql_name(key)}"
            for key, other in keys.items()
        )
        selected = {
            name: f"{f'of_{source.key}' if source.key else 'r'}.{sql_name(source.column)}"
            for name, source in places.items()
        } | ({"text": text} if text else {})
        sql = (
            f"SELECT {', '.join(f'{value} AS {sql_name(name)}' for name, value in selected.items())} "
            f"FROM {tables.name(table)} r{joins} "
            f"WHERE {where or 'true'} AND {self._own(table)}"
        )
        return sql, tuple(selected)

    def _own(self, table: str) -> str:
        """SQL: the row is of this process."""
        tables = self.of.tables
        if self.of.number == NULL or len(tables.processes) == 1:
            return "true"
        if "pid" in tables.columns(table):
            return f"r.pid = {self.of.number}"
        if tables.has(table, "track_id"):
            return f"r.track_id IN (SELECT id FROM {tables.name('track')} WHERE pid = {self.of.number})"
        return "true"

    def _sorted(self, sql: str) -> Iterator[tuple[Any, ...]]:
        with refused_by_sqlite(self.path, _AGAIN), closing(connect(self.path)) as connection:
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
                if not file.sets and _RPD_TABLES & set(file.tables):
                    raise _rpd(path)
                return bool(file.sets)
        except ReadError:
            if b"rocpd_" in head:
                raise
            return False  # damaged, and of another program

    def identify_parts(self, path: Path) -> list[TraceIdentity]:
        with closing(RocpdFile(path)) as file:
            return [
                TraceIdentity(
                    processes.rank.rank,
                    processes.rank.source,
                    processes.rank.world_size,
                    _capture_id(processes),
                    processes.part,
                )
                for processes in ranks_in(file)
            ]

    def open(self, path: Path, part: str = "") -> RocpdReading:
        return RocpdReading(path, part)


ROCPD = RocpdReader()


def _rpd(path: Path) -> NotATraceError:
    return NotATraceError(
        f"{path} is a database of rocmProfileData (RPD)",
        why="It has rocpd_api and rocpd_op. rankscope reads the rocpd databases of rocprofv3.",
        hint=f"Convert it, with rocmProfileData's own tool: rpd2tracing.py {path} {path.stem}.json",
    )


def _capture_id(rank: RankProcesses) -> str:
    return " ".join(f"{process.tables.ending}{process.pid}" for process in rank.processes)


def _header(file: RocpdFile, rank: RankProcesses) -> dict[str, Any]:
    """The metadata for segment.json. No recorded variables."""
    tables = [process.tables for process in rank.processes]
    header: dict[str, Any] = {"processes": [process.pid for process in rank.processes]}
    if not tables:
        return header
    told = {text_of(tag): text_of(value) for tag, value in tables[0].rows("metadata", "tag", "value")}
    header["rocprof"] = {"format": "rocpd", "schema": told.get("schema_version", "")}
    header["deviceProperties"] = device_properties(agent for _, agent in tables[0].agents)
    hosts = [text_of(host) for (host,) in tables[0].rows("info_node", "hostname") if host]
    if hosts:
        header["host_name"] = hosts[0]
    if len(rank.processes) > 1 and rank.rank.source != FROM_ENVIRONMENT:
        header["mergedProcesses"] = len(rank.processes)
    header["recordedEnvironment"] = any(process.has_environment for process in rank.processes)
    if rank.rank.rank is not None and rank.rank.world_size is not None:
        header["distributedInfo"] = {"rank": rank.rank.rank, "world_size": rank.rank.world_size}
    return header


def _rccl_arguments(tables: TableSet) -> dict[int, dict[str, str]]:
    """By correlation id: the arguments of calls of RCCL, where the file has them."""
    if not tables.has("arg", "event_id", "name", "value") or not tables.has(
        "event", "stack_id", "category_id"
    ):
        return {}
    kinds = [number for number, name in tables.categories.items() if name.startswith("RCCL_API")]
    wanted = f"category_id IN ({', '.join(map(str, kinds)) or 'NULL'})"
    if not tables.file.rows(f"SELECT 1 FROM {tables.name('event')} WHERE {wanted} LIMIT 1"):
        return {}
    rows = tables.file.rows(
        f"SELECT e.stack_id, a.name, a.value FROM {tables.name('arg')} a JOIN {tables.name('event')} e "
        f"ON e.id = a.event_id WHERE e.{wanted}"
    )
    arguments: dict[int, dict[str, str]] = {}
    for call, name, value in rows:
        if isinstance(call, int):
            arguments.setdefault(call, {})[text_of(name)] = text_of(value)
    return arguments


def _message(extdata: Any) -> str:
    """The text of a roctx range or mark."""
    return text_of(json_object(extdata).get("message", ""))[:_LONGEST_TEXT]


def _sum(*values: Any) -> int | None:
    numbers = [value for value in values if isinstance(value, int)]
    return sum(numbers) if numbers else None
