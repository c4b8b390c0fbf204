"""rocpd: the sqlite database that rocprofv3 of ROCm 7 and rocprof-sys write.

Each process has its own set of tables, whose names end in the same id (rocpd_region_0000…); files of several processes
have several sets. The views without that ending are not used: what a view computes can take any time. Schema 3 has
times and threads in the rows of events, schema 4 refers to tables of timestamps and tracks.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import chain, islice
from operator import index
from pathlib import Path
from typing import Any

import numpy as np

from rankscope.errors import NotATraceError, ReadError
from rankscope.model import READ_EVENTS, Table
from rankscope.readers.base import Batch, EventBatch, ReadReport, TraceIdentity, rank_from_name
from rankscope.readers.columns import NULL, EventColumns, Numbers
from rankscope.readers.rocprof.records import (
    FORMAT,
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
from rankscope.readers.row_batch import RowBatch
from rankscope.readers.sqlite_file import (
    SQLITE_ERRORS,
    SQLITE_MAGIC,
    connect,
    damaged_sqlite,
    limit_time,
    refuse_truncated,
    row_ranges,
)
from rankscope.sql import sql_name

READ_BY = "sqlite"
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
_ALLOCATION_FIELDS = ("start", "thread", "agent", "address", "bytes", "text")


class RocpdFile:
    """One database, open for reading only."""

    def __init__(self, path: Path) -> None:
        self.path = path
        refuse_truncated(path, _AGAIN)
        try:
            self._connection = connect(path)
            self.tables = self._find_tables()
        except SQLITE_ERRORS as error:
            raise damaged_sqlite(path, error, _AGAIN) from error

    def close(self) -> None:
        self._connection.close()

    def rows(self, sql: str, parameters: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        try:
            limit_time(self._connection)
            return self._connection.execute(sql, parameters).fetchall()
        except SQLITE_ERRORS as error:
            raise damaged_sqlite(self.path, error, _AGAIN) from error

    def _find_tables(self) -> dict[str, frozenset[str]]:
        names = self._connection.execute(
            "SELECT name FROM sqlite_master WHERE type = 'table' AND rootpage > 0 AND name LIKE 'rocpd%'"
        )
        found = (_text(name) for (name,) in names.fetchall())
        return {name: self._columns(name) for name in found if _TABLE.fullmatch(name)}

    def _columns(self, table: str) -> frozenset[str]:
        described = self._connection.execute(f"PRAGMA table_info({sql_name(table)})").fetchall()
        return frozenset(_text(column[1]) for column in described)

    @cached_property
    def sets(self) -> list[TableSet]:
        """The sets of tables that have events or processes, in the order of their ids."""
        endings = {match[2] or "" for name in self.tables if (match := _TABLE.fullmatch(name))}
        sets = (TableSet(self, ending) for ending in sorted(endings))
        return [one for one in sets if one.has("string") and any(map(one.has, _EVENT_TABLES))]


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
        return {number: _text(text) for number, text in self.rows("string", "id", "string", where=short)}

    @cached_property
    def categories(self) -> dict[int, str]:
        """Kinds of events: of schema 4 in a table of their own."""
        told = self.rows("info_category", "id", "name")
        return {number: _text(name) for number, name in told} if told else self.strings

    @cached_property
    def processes(self) -> list[RecordedProcess]:
        told = self.rows("info_process", "id", "pid", "command", "environment", "extdata")
        found = [
            RecordedProcess(self, number, pid, _text(command), rank_of(_object(environment), _object(config)))
            for number, pid, command, environment, config in told
            if isinstance(number, int) and isinstance(pid, int)
        ]
        return found or [RecordedProcess(self, NULL, 0, "", Rank(None))]

    @cached_property
    def agents(self) -> list[tuple[int, dict[str, Any]]]:
        """The GPUs: id, and fields as ROCm names them."""
        told = self.rows("info_agent", "id", "type", "type_index", "product_name", "name", "extdata")
        gpus = [row for row in told if _text(row[1]) == "GPU" and isinstance(row[0], int)]
        return [
            (number, {**_object(more), "logical_node_type_id": index, "product_name": _text(product or name)})
            for place, (number, _, index, product, name, more) in enumerate(gpus)
            for index in ([index if isinstance(index, int) else place])
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
            number: Kernel(_text(shown or name)[:_LONGEST_TEXT], _sum(vector, accumulation), _sum(scalar))
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
            RankProcesses(own[0].rank, own, f"rank {rank}")
            for rank in sorted(rank for rank in told if rank is not None)
            if (own := tuple(process for process in processes if process.rank.rank == rank))
        ]
    known = next((process.rank for process in processes if process.rank.rank is not None), Rank(None))
    if known.rank is None and (named := rank_from_name(file.path)) is not None:
        known = Rank(named, "file name")
    return [RankProcesses(known, processes)]


@dataclass(frozen=True)
class RocpdBatch:
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
        try:
            with closing(connect(self.path)) as connection:
                rows = connection.execute(self.sql, self.parameters).fetchall()
        except SQLITE_ERRORS as error:
            raise damaged_sqlite(self.path, error, _AGAIN) from error
        columns = zip(*rows, strict=True) if rows else ((),) * len(self.names)
        found = {
            name: values if name == "text" else self._numbers(values)
            for name, values in zip(self.names, columns, strict=True)
        }
        nothing = np.full(len(rows), NULL)
        return self.events({**dict.fromkeys(self.absent, nothing), **found})

    def _numbers(self, values: Sequence[Any]) -> Numbers:
        with suppress(TypeError, ValueError, OverflowError):
            return np.fromiter(map(index, values), np.int64, len(values))
        for value in values:
            if value is not None and not isinstance(value, int):
                self.report.repaired(f"a value that is not a whole number: {str(value)[:40]}")
        clean = [value if isinstance(value, int) else NULL for value in values]
        return np.array(clean, dtype=np.int64)

    def close(self) -> None:
        pass


class RocpdReading:
    """One pass over the processes of one rank."""

    def __init__(self, path: Path, part: str = "") -> None:
        self.report = ReadReport()
        self._path = path
        self._file = RocpdFile(path)
        ranks = ranks_in(self._file)
        merged = RankProcesses(Rank(None), tuple(chain.from_iterable(one.processes for one in ranks)))
        self._rank = next((one for one in ranks if one.part == part), merged)
        self._done, self._total = 0, 1
        self.header: dict[str, Any] = _header(self._file, self._rank)

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

    def clock_base_ns(self) -> int:
        """ROCm's times count from the boot of the machine; the file does not say when that was."""
        return 0

    def further(self) -> Iterator[tuple[Table, Batch]]:
        return iter(())


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
            read_by=READ_BY,
        )

    def every(self) -> list[Callable[[], Iterator[EventBatch]]]:
        return [
            self._names,
            self._kernels,
            self._copies,
            self._calls,
            self._marks,
            self._memory,
            self._counters,
        ]

    def _names(self) -> Iterator[EventBatch]:
        rows = [name_row("process_name", self.of.pid, 0, self.of.command)] if self.of.command else []
        threads = self.of.tables.rows("info_thread", "pid", "tid", "name")
        rows += [
            name_row("thread_name", self.of.pid, tid, _text(name))
            for pid, tid, name in threads
            if name and (pid == self.of.number or self.of.number == NULL)
        ]
        if rows:
            yield RowBatch(READ_EVENTS, rows)

    def _kernels(self) -> Iterator[EventBatch]:
        yield from self._batches("kernel_dispatch", _KERNEL_VALUES, partial(kernel_columns, self.process))

    def _copies(self) -> Iterator[EventBatch]:
        strings = self.of.tables.strings

        def events(columns: dict[str, Any]) -> EventColumns:
            return copy_columns(self.process, columns, lambda number: strings.get(number, ""))

        yield from self._batches("memory_copy", _COPY_VALUES, events)

    def _calls(self) -> Iterator[EventBatch]:
        yield from self._batches(
            "region", {"operation": "name_id", "thread": "tid"}, self._call_events, with_text=True
        )

    def _marks(self) -> Iterator[EventBatch]:
        """Calls that take no time: roctx marks. Other samples belong to counters."""
        if not self.of.tables.has("sample", "track_id", "event_id"):
            return
        markers = [number for number, name in self.of.tables.categories.items() if name.startswith("MARKER_")]
        named = self.of.tables.has("sample", "name_id")
        yield from self._batches(
            "sample",
            {"thread": "tid", **({"operation": "name_id"} if named else {})},
            self._mark_events,
            with_text=True,
            where=f"e.category_id IN ({', '.join(map(str, markers)) or 'NULL'})",
        )

    def _mark_events(self, columns: dict[str, Any]) -> EventColumns:
        """A sample of schema 3 does not name its call; it is roctxMarkA."""
        if "operation" not in columns:
            columns["operation"] = np.full(len(columns["start"]), NULL)
        return self._call_events(columns)

    def _call_events(self, columns: dict[str, Any]) -> EventColumns:
        tables = self.of.tables
        messages: dict[str, int] = {}
        columns["message"] = np.array(
            [
                NULL if text is None else messages.setdefault(_message(text), len(messages))
                for text in columns.pop("text")
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
        sql, names = self._select("memory_allocate", _ALLOCATION_VALUES, more="r.type = 'FREE'", where=where)
        use = MemoryUse(self.process)
        at = {name: place for place, name in enumerate(names)}
        found = (
            Allocation(*(row[at[name]] if name in at else None for name in _ALLOCATION_FIELDS))
            for row in self._sorted(f"{sql} ORDER BY {at['start'] + 1}")
        )
        usable = (one for one in found if isinstance(one.time, int) and isinstance(one.size, int))
        yield from _row_batches(row for one in usable if (row := use.row(one)) is not None)

    def _counters(self) -> Iterator[EventBatch]:
        """Hardware counters of dispatches, and samples of counters."""
        tables = self.of.tables
        if not tables.has("pmc_event", "event_id", "pmc_id", "value"):
            return
        described = {
            number: (_text(name), self.process.devices.get(agent))
            for number, name, agent in tables.rows("info_pmc", "id", "name", "agent_id")
        }
        for table in ("kernel_dispatch", "sample"):
            if not tables.has(table, "event_id"):
                continue
            start, joins = self._time(table, "start" if table == "kernel_dispatch" else "timestamp")
            sql = (
                f"SELECT p.pmc_id, p.value, {start} FROM {tables.name('pmc_event')} p "
                f"JOIN {tables.name(table)} r ON r.event_id = p.event_id {joins} WHERE {self._own(table)}"
            )
            found = (
                counter_row(*described.get(counter, (f"counter {counter}", None)), time, value)
                for counter, value, time in self._sorted(sql)
                if isinstance(value, (int, float)) and isinstance(time, int)
            )
            yield from _row_batches(found)

    def _batches(
        self,
        table: str,
        values: dict[str, str],
        events: Callable[[dict[str, Any]], EventColumns],
        with_text: bool = False,
        where: str = "true",
    ) -> Iterator[RocpdBatch]:
        tables = self.of.tables
        if not tables.columns(table):
            return
        text = ""
        if with_text:
            markers = [n for n, name in tables.categories.items() if name.startswith("MARKER_")]
            text = f"CASE WHEN e.category_id IN ({', '.join(map(str, markers)) or 'NULL'}) THEN e.extdata END"
        sql, names = self._select(table, values, more=text, where=where)
        whole = f"rocpd_{table}{tables.ending}"
        for rows in row_ranges(tables.file.rows, whole, ROWS_PER_BATCH):
            yield RocpdBatch(
                self.path,
                f"{sql} AND r.rowid BETWEEN ? AND ?",
                rows,
                names,
                tuple(name for name in values if name not in names),
                events,
                self.report,
            )

    def _select(
        self, table: str, values: dict[str, str], more: str = "", where: str = "true"
    ) -> tuple[str, tuple[str, ...]]:
        """SQL for rows of a table of events with their times, kinds and correlation ids, and the names of its columns.

        What the rows of schema 4 leave to their track is taken from there.
        """
        tables = self.of.tables
        own, of_track = tables.columns(table), tables.columns("track")
        start, joins = self._time(table, "timestamp" if table == "sample" else "start")
        end, more_joins = self._time(table, "timestamp" if table == "sample" else "end")
        joins += more_joins if more_joins != joins else ""
        event = tables.has("event", "stack_id", "category_id") and "event_id" in own
        if event:
            joins += f" LEFT JOIN {tables.name('event')} e ON e.id = r.event_id"
        else:
            joins += " LEFT JOIN (SELECT NULL AS stack_id, NULL AS category_id, NULL AS extdata) e"
        if "track_id" in own and of_track:
            joins += f" LEFT JOIN {tables.name('track')} t ON t.id = r.track_id"
        selected = {"start": start, "end": end, "correlation": "e.stack_id", "kind": "e.category_id"}
        for name, column in values.items():
            place = "r" if column in own else "t" if "track_id" in own and column in of_track else ""
            if place:
                selected[name] = f"{place}.{sql_name(column)}"
        if more:
            selected["text"] = more
        sql = (
            f"SELECT {', '.join(selected.values())} FROM {tables.name(table)} r{joins} "
            f"WHERE {where} AND {self._own(table)}"
        )
        return sql, tuple(selected)

    def _time(self, table: str, name: str) -> tuple[str, str]:
        """SQL for a time of a row, and the join that it needs."""
        own = self.of.tables.columns(table)
        if name in own or f"{name}_id" not in own:
            return f"r.{sql_name(name)}" if name in own else "NULL", ""
        alias = f"at_{name}"
        joins = f" LEFT JOIN {self.of.tables.name('timestamp')} {alias} ON {alias}.id = r.{sql_name(f'{name}_id')}"
        return f"{alias}.value", joins

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
        try:
            with closing(connect(self.path)) as connection:
                yield from connection.execute(sql)
        except SQLITE_ERRORS as error:
            raise damaged_sqlite(self.path, error, _AGAIN) from error


class RocpdReader:
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

    def identify(self, path: Path) -> TraceIdentity:
        return self.identify_parts(path)[0]

    def identify_parts(self, path: Path) -> list[TraceIdentity]:
        with closing(RocpdFile(path)) as file:
            return [
                TraceIdentity(one.rank.rank, one.rank.source, one.rank.world_size, _capture_id(one), one.part)
                for one in ranks_in(file)
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
    told = {_text(tag): _text(value) for tag, value in tables[0].rows("metadata", "tag", "value")}
    header["rocprof"] = {"format": "rocpd", "schema": told.get("schema_version", "")}
    header["deviceProperties"] = device_properties(agent for _, agent in tables[0].agents)
    hosts = [_text(host) for (host,) in tables[0].rows("info_node", "hostname") if host]
    if hosts:
        header["host_name"] = hosts[0]
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
    found: dict[int, dict[str, str]] = {}
    for call, name, value in rows:
        if isinstance(call, int):
            found.setdefault(call, {})[_text(name)] = _text(value)
    return found


def _row_batches(rows: Iterator[dict[str, Any]]) -> Iterator[RowBatch]:
    while some := list(islice(rows, ROWS_PER_BATCH)):
        yield RowBatch(READ_EVENTS, some)


def _message(extdata: Any) -> str:
    """The text of a roctx range or mark."""
    return _text(_object(extdata).get("message", ""))[:_LONGEST_TEXT]


def _object(value: Any) -> dict[str, Any]:
    """A JSON object in a column; {} if it is none."""
    try:
        found = json.loads(_text(value)) if value else {}
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _text(value: Any) -> str:
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    return "" if value is None else str(value)


def _sum(*values: Any) -> int | None:
    known = [value for value in values if isinstance(value, int)]
    return sum(known) if known else None
