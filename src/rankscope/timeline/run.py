"""An open run: SQL views over the Parquet files of its segments, on one time axis.

In Parquet, times count from the start of each file. The views add the offset of the file from the start of the run,
so that times of different ranks can be compared. Only this module and the writers know Parquet.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy
from functools import cached_property
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from rankscope.errors import RankscopeError, StoreError
from rankscope.files import unique_name
from rankscope.model import (
    COLLECTIVE_NAME_PATTERN,
    COLLECTIVES,
    COMPUTING,
    COPY_CATEGORIES,
    COUNTERS,
    EVENTS,
    FURTHER_TABLES,
    GPU,
    INSTANTS,
    LINKS,
    NCCL_FORMATS,
    SLICES,
    STEPS,
    TABLES,
    TIMELINE_FORMATS,
    TIMES,
    TRACKS,
    Field,
    Table,
)
from rankscope.sql import sql_text, sql_texts
from rankscope.store.checksums import damage
from rankscope.store.database import connect
from rankscope.store.ingest import Ingested, Options, Watch
from rankscope.store.layout import SegmentEntry, can_write, shown
from rankscope.store.on_dask.place import Place
from rankscope.store.plain_folder import PlainFolder
from rankscope.store.separate_runs import refuse_mixed, runs_among
from rankscope.timeline.cache import Cache
from rankscope.timeline.clocks import alignment
from rankscope.timeline.clocks.alignment import Clocks
from rankscope.timeline.confined_sql import ConfinedSql, Rows
from rankscope.timeline.reading import ingest

if TYPE_CHECKING:
    import duckdb

    from rankscope.timeline.collectives.entries import Collectives

ClockMode = Literal["aligned", "raw"]

KEY_FIELDS = (
    Field("rank", "INTEGER", ""),
    Field("segment", "INTEGER", "which of the rank's files; 0 is the first"),
)

SEGMENTS = Table(
    "segments",
    "The files of the run.",
    (
        *KEY_FIELDS,
        Field("file", "VARCHAR", "the raw trace"),
        Field("format", "VARCHAR", "what it is: kineto, ncu, …"),
        Field("used", "BOOLEAN", "false: another tool's file of the same rank is in the tables instead"),
        Field("rank_source", "VARCHAR", "how the rank is known"),
        Field("shift_ns", "BIGINT", "from the run's start to this file's first event, clocks aligned"),
        Field("ahead_ns", "BIGINT", "what was taken off its wall clock to align it with the other ranks"),
        Field("unix_ns", "BIGINT", "its first event, nanoseconds since 1970 by its own clock"),
        Field("events", "BIGINT", "read"),
        Field("lost", "BIGINT", "could not be read"),
        Field("misplaced", "BIGINT", "have no usable time (ts = 0, or years away) and are in events only"),
    ),
)

CLASSED_GPU = Table(GPU.name, GPU.help, (*GPU.fields, Field("class", "VARCHAR", "COMPUTE, COMM or COPY")))

VIEWS = (
    SLICES,
    CLASSED_GPU,
    COMPUTING,
    EVENTS,
    INSTANTS,
    COUNTERS,
    LINKS,
    TRACKS,
    STEPS,
    COLLECTIVES,
    SEGMENTS,
    *FURTHER_TABLES,
)
"""The tables of SQL queries; the columns rank and segment come before the columns listed."""

NUMBERED_NAMES = Table(
    "internal.names",
    "The names of slices, numbered; for our own queries only.",
    (
        Field("category", "VARCHAR", ""),
        Field("name", "VARCHAR", ""),
        Field("code", "BIGINT", "place of the name among all names of the run, in alphabetical order"),
        Field("occurrences", "BIGINT", "how many slices have it"),
    ),
)
_OWN_TABLES = {table.name: table for table in (*VIEWS, NUMBERED_NAMES)}
_TABLE_NAMES = re.compile(rf"(?<![.\w])(?:{'|'.join(map(re.escape, _OWN_TABLES))})\b")
_INTERNAL = "CREATE SCHEMA IF NOT EXISTS internal"
"""Of tables that SHOW TABLES does not list."""
SMALL_BYTES = 16 << 20
"""Tables of this size together are read by one thread: starting and waiting for others takes longer."""

ALL_TOOLS = "*"
"""A value of `prefer`: use the files of all tools. For drawing only; sums would count a rank's time twice."""


def open_run(
    paths: Sequence[Path],
    *,
    cache: Path | None = None,
    jobs: int | None = None,
    dask: Place | None = None,
    ranks: Mapping[Path, int] | None = None,
    clocks: ClockMode = "aligned",
    prefer: str = "",
    mix: bool = False,
    comm_patterns: Sequence[str] = (),
    from_events: bool = False,
    watch: Watch | None = None,
    on_read: Callable[[Ingested], None] | None = None,
) -> Run:
    """Read what has changed in `paths` into the store and open it. The command line, notebooks and the viewer use this.

    `ranks` gives the rank of files that do not contain it. Files of different runs are an error, unless `mix` is true:
    then they are opened together, one run after another on the time axis, and are not compared.
    `watch` is called while files are read, `on_read` once afterwards. The other options are those of Options (cache,
    jobs, dask) and Run.
    """
    ingested = ingest(paths, Options(cache=cache, ranks=ranks or {}, jobs=jobs, dask=dask), watch)
    if on_read is not None:
        on_read(ingested)
    run = Run(ingested, comm_patterns, prefer, clocks, from_events)
    if not mix:
        refuse_mixed(run.timelines)
    return run


class Run:
    """The segments of one run, and a DuckDB connection in which they are tables."""

    def __init__(
        self,
        ingested: Ingested,
        comm_patterns: Sequence[str] = (),
        prefer: str = "",
        clocks: ClockMode = "aligned",
        from_events: bool = False,
    ) -> None:
        """`prefer` is the format to use where several tools recorded a rank (model.TIMELINE_FORMATS), or ALL_TOOLS.

        `clocks`: "aligned" corrects the clocks of the ranks by their collectives; "raw" leaves them as recorded.
        `from_events`: results that the store keeps about ranks are neither used nor written.
        """
        self._ingested = ingested
        self._prefer = prefer
        self._clock_mode = clocks
        self.from_events = from_events
        self._own_clocks: Run | None = None
        self._moved_ns = 0
        self.cache = Cache()
        """Answers of analyses about this view; replaced when the view changes."""
        self.problems: tuple[RankscopeError, ...] = ingested.problems
        """Files that could not be read; the others are in the run."""
        self.newly_read = ingested.read
        """The segments that were read when the run was opened."""
        self.store = ingested.store
        self.folder = PlainFolder(ingested.store)
        """The store, as DuckDB is given it."""
        self.segments: list[SegmentEntry] = ingested.index.segments
        self.set_aside = _set_aside(self.segments, prefer)
        """Not in the tables, or the rank's time would count twice; listed in `segments` with used = false."""
        self.used = [entry for entry in self.segments if entry not in self.set_aside]
        """The segments that are in the tables."""
        self._nccl_format = _nccl_format(self.used)
        self.has_traces = any(entry.format in TIMELINE_FORMATS for entry in self.used)
        """Whether a file records all that a rank does; without one, a late rank is known and its cause is not."""
        self.timelines = [entry for entry in self.used if entry.has_times]
        """The segments that are used and have times."""
        self.runs = runs_among(self.timelines)[0]
        """The runs that the files are of: usually one. Only `mix` opens several together."""
        self.start_unix_ns = min((run.begin_ns for run in self.runs), default=0)
        self.comm_patterns = (COLLECTIVE_NAME_PATTERN, *comm_patterns)

    def with_options(self, *, clocks: ClockMode | None = None, prefer: str | None = None) -> Run:
        """The same files opened with other options."""
        return Run(
            self._ingested,
            self.comm_patterns[1:],
            self._prefer if prefer is None else prefer,
            self._clock_mode if clocks is None else clocks,
            self.from_events,
        )

    def only(self, ranks: Collection[int], *, on_its_axis: bool = False) -> Run:
        """The same run with the tables of some ranks only, to compute what does not depend on other ranks.

        `on_its_axis`: its times and its matched collectives are those of this run.
        """
        part = copy(self)
        part._forget()
        vars(part).pop("_used_of", None)
        part.segments, part.set_aside, part.used, part.timelines = (
            [entry for entry in entries if entry.rank in ranks]
            for entries in (self.segments, self.set_aside, self.used, self.timelines)
        )
        part._step_shifts = self._step_shifts
        if on_its_axis:
            part._shifts, part.collectives = self._shifts, self.collectives.of_ranks(ranks)
            part.clocks = self.clocks  # not those of a part: they would replace the ones in the store
        elif len(part.timelines) > len({entry.rank for entry in part.timelines}):
            part._shifts = self._shifts
        else:  # alone, a segment has no distance to others: the clocks need not be known
            part._clock_mode = "raw"
        return part

    def cache_key(self, rank: int) -> list[list[Any]]:
        """All that figures about one rank alone depend on: its segments, their distances in time, their first steps."""
        own = self._used_of.get(rank, [])
        origin = self.origin_ns(rank) if len(own) > 1 else 0
        return [
            [
                entry.segment,
                entry.build,
                self.shift_ns(entry) - origin if len(own) > 1 else 0,
                self._step_shifts.get((rank, entry.segment), 0),
            ]
            for entry in own
        ]

    @cached_property
    def _used_of(self) -> dict[int, list[SegmentEntry]]:
        """By rank."""
        found: dict[int, list[SegmentEntry]] = {}
        for entry in self.used:
            found.setdefault(entry.rank, []).append(entry)
        return found

    def origin_ns(self, rank: int) -> int:
        """From the run's start to the first of the rank's files: times of results that are kept count from it."""
        return self._origins.get(rank, 0)

    @cached_property
    def _origins(self) -> dict[int, int]:
        origins: dict[int, int] = {}
        for entry in self.timelines:
            origins.setdefault(entry.rank, self.shift_ns(entry))
        return origins

    @property
    def keeps_results(self) -> bool:
        """Whether results about ranks may be written to the store: it is opened as it is by default."""
        return not self._prefer and self._clock_mode == "aligned" and can_write(self.store)

    @property
    def clock_mode(self) -> ClockMode:
        return self._clock_mode

    @property
    def ranks(self) -> list[int]:
        return sorted({entry.rank for entry in self.segments})

    def has(self, table: Table) -> bool:
        """Whether any file of the run has rows of this table: some belong to one format only."""
        return bool(self._owners(table))

    @property
    def compared(self) -> list[SegmentEntry]:
        """The timelines without those of NCCL beside traces: a log of the whole job would join separate recordings."""
        return [entry for entry in self.timelines if self._has_collectives(entry)]

    def _has_collectives(self, entry: SegmentEntry) -> bool:
        """False for NCCL's files that repeat what the traces have."""
        return entry.format not in NCCL_FORMATS or entry.format == self._nccl_format

    def _owners(self, table: Table) -> list[SegmentEntry]:
        """The segments with rows of this table. Collectives have one source: NCCL's files repeat those of traces."""
        own = [entry for entry in self.used if entry.files_of(table)]
        if table is not COLLECTIVES:
            return own
        return [entry for entry in own if self._has_collectives(entry)]

    def shift_ns(self, entry: SegmentEntry) -> int:
        """From the run's start to the origin of this segment; 0 for a file without times."""
        return self._shifts.get((entry.rank, entry.segment), 0)

    @cached_property
    def _shifts(self) -> dict[tuple[int, int], int]:
        """By file. A file is shifted as a whole, by the clock offset at its middle, so durations stay as recorded."""
        shifts = {}
        for entry in self.timelines:
            shifts[entry.rank, entry.segment] = self.begin_ns(entry) - round(self._ahead_ns(entry))
        first = min(shifts.values(), default=0)
        return {file: shift - first + self._moved_ns for file, shift in shifts.items()}

    def begin_ns(self, entry: SegmentEntry) -> int:
        """From the run's start to this file by the wall clock of its host."""
        return entry.unix_origin_ns - self._time_zero[entry.rank, entry.segment]

    @cached_property
    def _time_zero(self) -> dict[tuple[int, int], int]:
        """By file, the wall-clock time that is 0 on the time axis.

        Runs that were opened together follow each other without the time between them: a window, and what is computed
        from its length, would otherwise cover months that nobody recorded.
        """
        zero: dict[tuple[int, int], int] = {}
        end = 0
        for run in self.runs:
            begin = run.begin_ns - end
            end = run.end_ns - begin
            for entry in run.entries:
                # A file of another clock is put at the run's start.
                own = entry.unix_origin_ns - run.begin_ns + begin
                zero[entry.rank, entry.segment] = begin if run.shares_clock(entry) else own
        return zero

    def _ahead_ns(self, entry: SegmentEntry) -> float:
        middle = self.begin_ns(entry) + int(entry.manifest["end_ns"]) / 2
        return self.clocks.of(entry.rank).ahead_ns(middle)

    @cached_property
    def clocks(self) -> Clocks:
        """Offset and drift of the ranks' clocks, measured by the ends of collectives; kept in the store."""
        ranks = sorted({entry.rank for entry in self.timelines})
        if self._clock_mode == "raw" or len(ranks) < 2:
            return alignment.wall_clocks(ranks)
        known = alignment.load(self.store, self.timelines)
        if known is None:
            starts = [(entry.rank, self.begin_ns(entry)) for entry in self.timelines]
            self._own_clocks = self._raw()
            known = alignment.measure(self._own_clocks.collectives, ranks, starts)
            alignment.save(known, self.store, self.timelines)
        return known

    def _raw(self) -> Run:
        """The same run with every rank on its own wall clock."""
        raw = copy(self)
        raw._clock_mode, raw._moved_ns = "raw", 0
        raw._forget()
        return raw

    def _forget(self) -> None:
        """Drop what depends on clocks. The cache is replaced, not cleared: a copy of this run may share it."""
        self._own_clocks = None
        self.cache = Cache()
        for made in ("connection", "_undefined", "_confined", "collectives", "clocks", "_shifts", "_origins"):
            vars(self).pop(made, None)

    def move(self, by_ns: int) -> None:
        """Shift all times, to show two runs side by side."""
        self._moved_ns += by_ns
        self._forget()

    @cached_property
    def connection(self) -> duckdb.DuckDBPyConnection:
        """For our own queries. It has the tables that these have named so far (`_execute`)."""
        bytes_used = sum(size for entry in self.used for size, _ in entry.files.values())
        return connect(one_thread=bytes_used <= SMALL_BYTES)

    @cached_property
    def _undefined(self) -> dict[str, Table]:
        """The tables that `connection` does not have yet."""
        return dict(_OWN_TABLES)

    def _execute(self, sql: str, parameters: Sequence[object] = ()) -> duckdb.DuckDBPyConnection:
        self._define_named(sql)
        return self.connection.execute(sql, list(parameters))

    def _define_named(self, sql: str) -> None:
        """Make the tables that a query names: making all of them opens every file of the store."""
        self.define(
            *(self._undefined[name] for name in {*_TABLE_NAMES.findall(sql)} & self._undefined.keys())
        )

    def define(self, *tables: Table) -> None:
        """Make tables for queries of `connection` that do not go through this class."""
        for table in (SEGMENTS, *tables):  # the other views use segments
            if self._undefined.pop(table.name, None):
                for statement in self._definition(table):
                    self.connection.execute(statement)

    def definitions(self) -> Iterator[str]:
        """The statements that make the tables of SQL queries."""
        for table in (SEGMENTS, *TABLES, *FURTHER_TABLES):
            yield from self._definition(table)

    def _definition(self, table: Table) -> Iterator[str]:
        if table is SEGMENTS:
            yield from self._segments_table()
        elif table.name == GPU.name:
            yield from self._classed(self._rows_of(GPU))
        elif table is NUMBERED_NAMES:
            yield _INTERNAL
            yield (
                "CREATE TABLE internal.names AS "
                "SELECT category, name, dense_rank() OVER (ORDER BY name) - 1 AS code, occurrences "
                f"FROM (SELECT category, name, count(*) AS occurrences FROM ({self._rows_of(SLICES)}) GROUP BY ALL)"
            )
        elif table is STEPS:
            # A table, not a view: it has few rows, and most reports read them.
            yield f"CREATE TABLE steps AS {self._rows_of(STEPS)}"
        else:
            yield f"CREATE VIEW {table.name} AS {self._rows_of(table)}"

    @cached_property
    def _confined(self) -> ConfinedSql:
        return ConfinedSql(self.definitions(), self.folder.path)

    @cached_property
    def collectives(self) -> Collectives:
        """The collectives of all ranks, matched across ranks."""
        # Late: imports numpy, which most commands do not need.
        from rankscope.timeline.collectives.loading import (
            keep_collectives,
            kept_collectives,
            matched_collectives,
            shifted,
        )

        shifts = self._shifts
        cache_key = [[e.rank, e.segment, e.build, shifts[e.rank, e.segment]] for e in self.timelines]
        if self._own_clocks is not None:  # matched already, to measure the clocks
            raw = self._own_clocks._shifts
            rows = shifted(self._own_clocks.collectives, {file: shifts[file] - raw[file] for file in shifts})
        elif self._clock_mode == "aligned" and (cached := kept_collectives(self.store, cache_key)):
            return cached
        else:
            rows = matched_collectives(self.own_collectives(), self.compared)
        if self.keeps_results:
            keep_collectives(self.store, cache_key, rows)
        return rows

    def own_collectives(self) -> Collectives:
        """The collectives of each rank without those of the others: they are not matched, and need no clocks."""
        from rankscope.timeline.collectives.loading import load_collectives

        with self._reading():
            self.define(*((COLLECTIVES, TRACKS) if self.has(COLLECTIVES) else (COLLECTIVES,)))
            return load_collectives(self.connection, self.timelines)

    def rows(self, sql: str, parameters: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        with self._reading():
            return self._execute(sql, parameters).fetchall()

    def records(self, sql: str, parameters: Sequence[object] = ()) -> list[dict[str, Any]]:
        with self._reading():
            cursor = self._execute(sql, parameters)
            names = [column[0] for column in cursor.description or ()]
            return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]

    def arrays(self, sql: str, parameters: Sequence[object] = ()) -> dict[str, Any]:
        """Columns as numpy arrays; no column may be null."""
        with self._reading():
            columns: dict[str, Any] = self._execute(sql, parameters).fetchnumpy()
            return columns

    def stream(self, sql: str, at_a_time: int = 20_000) -> Iterator[tuple[Any, ...]]:
        """Rows one by one, never all in memory. It has its own cursor: other queries may run meanwhile."""
        with self._reading():
            self._define_named(sql)
            cursor = self.connection.cursor()
            try:
                result = cursor.execute(sql)
                while rows := result.fetchmany(at_a_time):
                    yield from rows
            finally:
                cursor.close()

    @contextmanager
    def _reading(self) -> Iterator[None]:
        """Explain an error of DuckDB: the tables were whole when the run was opened, so something has changed since."""
        import duckdb

        try:
            yield
        except duckdb.OutOfMemoryException as error:
            raise StoreError(
                "there is not enough memory to answer this",
                why=f"{str(error).partition(chr(10))[0]}.",
                hint="Ask about fewer ranks or steps at a time: --ranks, --steps",
            ) from error
        except duckdb.Error as error:
            for entry in self.used:
                if reason := damage(self.store / entry.folder, entry.files):
                    raise StoreError(
                        f"the store in {self.store} was changed while it was open",
                        why=f"Rank {entry.rank}: {reason}.",
                        hint="Run this again: a damaged store is repaired when it is opened.",
                    ) from error
            raise

    def query(self, sql: str, most_rows: int | None = None) -> Rows:
        """A user's query: one statement that only reads."""
        return self._confined.query(sql, most_rows)

    def export(self, view: Table, where: str, target: Path, options: str, columns: str = "*") -> None:
        """Write one view to a file in one pass."""
        folder = PlainFolder(target.parent)
        written = folder.path / unique_name()
        try:
            with self._reading():
                self._execute(
                    f"COPY (SELECT {columns} FROM {view.name} WHERE {where}) TO {sql_text(written)} ({options})"
                )
            written.replace(target)
        finally:
            written.unlink(missing_ok=True)

    def _segments_table(self) -> Iterator[str]:
        columns = ", ".join(f"{field.name} {field.type}" for field in SEGMENTS.fields)
        yield f"CREATE TABLE segments ({columns})"
        rows = []
        for entry in self.segments:
            manifest = entry.manifest
            values = (
                entry.rank,
                entry.segment,
                sql_text(shown(entry.source)),
                sql_text(entry.format),
                entry not in self.set_aside,
                sql_text(entry.rank_source),
                self.shift_ns(entry),
                round(self._ahead_ns(entry)) if (entry.rank, entry.segment) in self._shifts else 0,
                entry.unix_origin_ns,
                manifest["events"],
                manifest["reading"]["events_lost"],
                manifest["misplaced"],
            )
            rows.append(f"({', '.join(map(str, values))})")
        if rows:
            yield f"INSERT INTO segments VALUES {', '.join(rows)}"

    @cached_property
    def _step_shifts(self) -> dict[tuple[int, int], int]:
        """By file, what is added to its steps. A file without ProfilerStep#N counts its steps from 0: the second cycle
        of a rank continues where the first cycles of all ranks end.
        """
        cycles: dict[int, list[SegmentEntry]] = {}
        for entry in sorted(self.timelines, key=lambda entry: entry.unix_origin_ns):
            if entry.manifest["steps"] and entry.manifest["steps_source"] != "profiler":
                cycles.setdefault(entry.rank, []).append(entry)
        shifts: dict[tuple[int, int], int] = {}
        first = 0
        for together in zip_longest(*cycles.values()):
            found = [entry for entry in together if entry is not None]
            shifts |= {(entry.rank, entry.segment): first for entry in found if first}
            first += max(int(entry.manifest["steps"]) for entry in found)
        return shifts

    def _rows_of(self, table: Table) -> str:
        """A SELECT of a table's rows, times counted from the run's start.

        DuckDB takes rank and segment of several files from the names of the store's own folders: it is given no others.
        """
        owners = self._owners(table)
        paths = [self.folder.path / name for entry in owners for name in entry.files_of(table)]
        if not paths:
            nothing = ", ".join(f"NULL::{f.type} AS {f.name}" for f in (*KEY_FIELDS, *table.fields))
            return f"SELECT {nothing} WHERE false"
        shifts = dict.fromkeys(TIMES if table is not EVENTS else (), "s.shift_ns")
        if len(owners) == 1:
            # What is the same in all rows is a constant: a query is then planned in half the time.
            (one,) = owners
            keys = f"{one.rank}::INTEGER AS rank, {one.segment}::INTEGER AS segment"
            hive, joined = "false", ""
            shifts = dict.fromkeys(shifts, f"{self.shift_ns(one)}::BIGINT")
            later = str(self._step_shifts.get((one.rank, one.segment), ""))
        else:
            keys = "p.rank, p.segment"
            hive = "true, hive_types={'rank': INTEGER, 'segment': INTEGER}"
            joined = "JOIN segments s ON s.rank = p.rank AND s.segment = p.segment"
            cases = " ".join(
                f"WHEN p.rank = {rank} AND p.segment = {segment} THEN {by}"
                for (rank, segment), by in self._step_shifts.items()
            )
            later = f"CASE {cases} ELSE 0 END" if cases else ""
        shifts |= {"step": later} if later else {}
        columns = ", ".join(
            f"p.{name} + {shifts[name]} AS {name}" if name in shifts else f"p.{name}"
            for name in table.columns
        )
        source = f"[{sql_texts(paths)}], hive_partitioning={hive}"
        if table is EVENTS:
            source += ", file_row_number=true"
            columns = f"p.file_row_number AS id, {columns}"
        return f"SELECT {keys}, {columns} FROM read_parquet({source}) p {joined}"

    def _classed(self, rows: str) -> Iterator[str]:
        """Device activity with its class. Names are classified once per connection, not once per query."""
        communicates = " OR ".join(
            f"regexp_matches(name, {sql_text(pattern)})" for pattern in self.comm_patterns
        )
        copies = sql_texts(COPY_CATEGORIES)
        yield _INTERNAL
        yield (
            f"CREATE TABLE internal.classes_of_names AS SELECT name, {communicates} AS communicates "
            f"FROM (SELECT DISTINCT name FROM ({rows}))"
        )
        yield (
            f"CREATE VIEW gpu AS SELECT g.*, CASE WHEN g.category IN ({copies}) THEN 'COPY' "
            "WHEN g.collective IS NOT NULL OR n.communicates THEN 'COMM' ELSE 'COMPUTE' END AS class "
            f"FROM ({rows}) g JOIN internal.classes_of_names n ON n.name = g.name"
        )


def _set_aside(segments: Sequence[SegmentEntry], prefer: str) -> list[SegmentEntry]:
    """Files of ranks whose timeline comes from a file of another format that is preferred."""
    if prefer == ALL_TOOLS:
        return []
    order = sorted(TIMELINE_FORMATS, key=lambda name: name != prefer)
    chosen: dict[int, str] = {}
    for entry in sorted((e for e in segments if e.format in order), key=lambda e: order.index(e.format)):
        chosen.setdefault(entry.rank, entry.format)
    return [entry for entry in segments if entry.format in order and entry.format != chosen[entry.rank]]


def _nccl_format(used: Sequence[SegmentEntry]) -> str:
    """The format of NCCL's own files whose collectives are used: none if there are traces, which have them too."""
    formats = {entry.format for entry in used}
    return (
        "" if formats & {*TIMELINE_FORMATS} else next((name for name in NCCL_FORMATS if name in formats), "")
    )


def describe(view: Table) -> tuple[Field, ...]:
    """The columns of a view as SQL users see them."""
    if view is SEGMENTS:
        return view.fields
    own = (Field("id", "BIGINT", "its place in the file"),) if view is EVENTS else ()
    return (*KEY_FIELDS, *own, *view.fields)
