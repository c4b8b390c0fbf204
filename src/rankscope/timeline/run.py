"""An open run: its segments, a time axis, and SQL views of the segments on that axis. It does not change."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from functools import cached_property
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from rankscope.errors import StoreError
from rankscope.files import unique_name
from rankscope.model import (
    COLLECTIVE_NAME_PATTERN,
    COLLECTIVES,
    ITERATIONS,
    NCCL_FORMATS,
    TIMELINE_FORMATS,
    TRACKS,
    Table,
)
from rankscope.records import dataclass
from rankscope.sql import sql_text
from rankscope.store.checksums import damage
from rankscope.store.database import PlainFolder
from rankscope.store.index import BY_ROLE, File, Index, SegmentEntry, can_write
from rankscope.store.ingest import Ingested, IngestProgress, Options, ingest
from rankscope.store.separate_runs import RunFiles, mixed_runs, runs_among, stray
from rankscope.text.visible_text import visible
from rankscope.timeline.clocks import (
    ClockMode,
    Clocks,
    TimeAxis,
    load,
    measure,
    save,
    wall_clocks,
)
from rankscope.timeline.reading import read_trace
from rankscope.timeline.sql_views import SqlViews, with_rows

if TYPE_CHECKING:
    import duckdb

    from rankscope.store.on_dask.option import DaskCluster
    from rankscope.timeline.collectives.entries import Collectives
    from rankscope.timeline.confined_sql import ConfinedSql, Rows

T = TypeVar("T")

ALL_TOOLS = "*"
"""A value of `prefer`: use the files of all tools. For drawing only; sums would count a rank's time twice."""


def open_run(
    paths: Sequence[Path],
    *,
    cache: Path | None = None,
    jobs: int | None = None,
    dask: DaskCluster | None = None,
    ranks: Mapping[Path, int] | None = None,
    clocks: ClockMode = "aligned",
    prefer: str = "",
    mix: bool = False,
    comm_patterns: Sequence[str] = (),
    from_events: bool = False,
    by_size: bool = False,
    progress: IngestProgress | None = None,
    on_read: Callable[[Ingested], None] | None = None,
) -> Run:
    """Read what has changed in `paths` into the store and open it. The command line, notebooks and the viewer use this.

    `ranks` gives the rank of files that do not contain it. Files of different runs are an error, unless `mix` is true:
    then they are opened together, one run after another on the time axis, and are not compared.
    `progress` is called while files are read, `on_read` once afterwards. The other options are those of Options (cache,
    jobs, dask, by_size) and Run.
    """
    options = Options(cache=cache, ranks=ranks or {}, jobs=jobs, dask=dask, by_size=by_size)
    ingested = ingest(paths, read_trace, options, progress)
    run = Run(ingested, comm_patterns, prefer, clocks, from_events)
    if not mix:
        run = run.of_one_run()
    if on_read is not None:
        on_read(run.ingested)
    return run


class AnswerCache:
    """Answers that several reports need, about one view of a run.

    The key is a function and its arguments. Of each function only the answer to the latest arguments is kept: this
    bounds the memory of a program that asks about many scopes.
    """

    def __init__(self) -> None:
        self._answers: dict[object, tuple[object, Any]] = {}

    def get(self, function: object, arguments: object, compute: Callable[[], T]) -> T:
        """The kept answer of `function` to `arguments`; `compute` makes it where there is none."""
        latest = self._answers.get(function)
        if latest is None or latest[0] != arguments:
            latest = self._answers[function] = (arguments, compute())
        answer: T = latest[1]
        return answer

    def __len__(self) -> int:
        """The number of kept answers."""
        return len(self._answers)


@dataclass(frozen=True)
class _Part:
    """Of which run a run is a part."""

    whole: Run
    ranks: Collection[int]
    shares_axis: bool
    shares_collectives: bool
    """Else they are matched among these ranks only."""


class Run:
    """The segments of one run on a time axis, and a DuckDB connection in which they are tables."""

    def __init__(
        self,
        ingested: Ingested,
        comm_patterns: Sequence[str] = (),
        prefer: str = "",
        clocks: ClockMode = "aligned",
        from_events: bool = False,
        *,
        shifted_by_ns: int = 0,
        part: _Part | None = None,
        folder: PlainFolder | None = None,
    ) -> None:
        """`prefer` is the format to use where several tools recorded a rank (model.TIMELINE_FORMATS), or ALL_TOOLS.

        `clocks`: "aligned" corrects the clocks of the ranks by their collectives; "raw" leaves them as recorded.
        `from_events`: results that the store keeps about ranks are neither used nor written.
        """
        self.ingested, self._prefer, self._part, self._shifted_by_ns = ingested, prefer, part, shifted_by_ns
        self.clock_mode: ClockMode = clocks
        self.from_events = from_events
        self.part_of_large = False
        """It has some files of a run that has so many events that not all are kept as points of its graph."""
        self.comm_patterns = (COLLECTIVE_NAME_PATTERN, *comm_patterns)
        self.cache = AnswerCache()
        """Answers of analyses about this run."""
        self.problems = ingested.problems
        """Files that could not be read; the others are in the run."""
        self.store = ingested.store
        self.folder = folder or PlainFolder(ingested.store)
        """The store, as DuckDB is given it."""
        segments = ingested.index.segments
        self.segments = segments if part is None else [e for e in segments if e.rank in part.ranks]
        self.unused_segments = _unused(self.segments, prefer)
        """Not in the tables, or the rank's time would count twice; listed in `segments` with used = false."""
        unused = {entry.file for entry in self.unused_segments}
        self.used = [entry for entry in self.segments if entry.file not in unused]
        """The segments that are in the tables."""
        self.timelines = [entry for entry in self.used if entry.has_times]
        """The segments that are used and have times."""
        # What depends on all files of a run is that of the whole.
        self._formats: set[str] = (
            {entry.format for entry in self.used} if part is None else part.whole._formats
        )
        self.has_traces = not self._formats.isdisjoint(TIMELINE_FORMATS)
        """Whether a file records all that a rank does; without one, a late rank is known and its cause is not."""
        nccl = [name for name in NCCL_FORMATS if name in self._formats and not self.has_traces]
        self._repeating = {*NCCL_FORMATS} - {*nccl[:1]}
        """Formats of NCCL's own files whose collectives are in the traces too, or in those of another such format."""
        self._runs: tuple[list[RunFiles], str] = (
            runs_among(self.timelines) if part is None else part.whole._runs
        )
        """And how they differ."""
        self.runs = self._runs[0]
        """The runs that the files are of, usually one. Only `mix` opens several together."""
        self.start_unix_ns = min((run.begin_ns for run in self.runs), default=0)

    def _with(self, **changes: Any) -> Run:
        """The same files opened with other arguments."""
        arguments: dict[str, Any] = {
            "ingested": self.ingested,
            "comm_patterns": self.comm_patterns[1:],
            "prefer": self._prefer,
            "clocks": self.clock_mode,
            "from_events": self.from_events,
            "shifted_by_ns": self._shifted_by_ns,
            "part": self._part,
            "folder": self.folder,
        }
        return Run(**{**arguments, **changes})

    def with_options(self, *, clocks: ClockMode | None = None, prefer: str | None = None) -> Run:
        """The same files opened with other options."""
        return self._with(
            clocks=self.clock_mode if clocks is None else clocks,
            prefer=self._prefer if prefer is None else prefer,
            shifted_by_ns=0,
        )

    def shift(self, by_ns: int) -> Run:
        """The same run later on the time axis, to show two runs side by side."""
        return self._with(shifted_by_ns=self._shifted_by_ns + by_ns)

    def only(self, ranks: Collection[int], *, on_its_axis: bool = False) -> Run:
        """The same run with the tables of some ranks only, to compute what does not depend on other ranks.

        `on_its_axis`: its times and its matched collectives are those of this run.
        """
        timelines = [entry.rank for entry in self.timelines if entry.rank in ranks]
        # Alone, a segment has no distance to others: the clocks need not be known.
        needs_clocks = on_its_axis or len(timelines) > len({*timelines})
        mode = self.clock_mode if needs_clocks else "raw"
        return self._with(part=_Part(self, ranks, needs_clocks, on_its_axis), clocks=mode)

    @property
    def whole(self) -> Run:
        """The run that this one is a part of; else itself."""
        return self if self._part is None else self._part.whole.whole

    def of_one_run(self) -> Run:
        """This run without single files of other runs among its own, which are problems. Several runs are an error."""
        if len(self.runs) < 2:
            return self
        most = max(self.runs, key=lambda run: len(run.entries))
        others = [run for run in self.runs if run is not most]
        strays = [entry for run in others for entry in run.entries]
        folders = {entry.source.parent for entry in most.entries}
        among = [entry for entry in strays if entry.source.parent in folders]
        if len(among) < len(strays) or len(strays) > len(others) or len(strays) >= len(most.entries):
            raise mixed_runs(*self._runs)
        problems = (*self.problems, *(stray(run, most.differs(run)) for run in others))
        index = Index([entry for entry in self.ingested.index.segments if entry not in strays])
        return self._with(ingested=replace(self.ingested, index=index, problems=problems))

    @cached_property
    def ranks(self) -> list[int]:
        return sorted({entry.rank for entry in self.segments})

    @cached_property
    def hosts(self) -> dict[int, str]:
        """By rank, the machine it runs on, where that was recorded."""
        return {entry.rank: entry.host for entry in self.timelines if entry.host}

    @cached_property
    def roles(self) -> dict[int, str]:
        """By rank, where several roles have ranks of their own."""
        return {entry.rank: visible(entry.role) for entry in self.segments if entry.rank_source == BY_ROLE}

    def has(self, table: Table) -> bool:
        """Whether any file of the run has rows of this table: some belong to one format only."""
        return bool(with_rows(table, self.used, self._repeating))

    def is_damaged(self) -> bool:
        """Whether a table is not what was written, where the run was opened without reading them."""
        return any(damage(self.store / entry.folder, entry.files) for entry in self.segments)

    @property
    def compared(self) -> list[SegmentEntry]:
        """The timelines without those of NCCL beside traces: a log of the whole job would join separate recordings."""
        return [entry for entry in self.timelines if entry.format not in self._repeating]

    @cached_property
    def keeps_results(self) -> bool:
        """Whether results about ranks may be written to the store: it is opened as it is by default."""
        return not self._prefer and self.clock_mode == "aligned" and can_write(self.store)

    def cache_key(self, rank: int) -> list[list[Any]]:
        """All that figures about one rank alone depend on: its segments, their distances in time, their first steps."""
        entries = self._used_of.get(rank, [])
        origin = self.origin_ns(rank) if len(entries) > 1 else 0
        return [
            [
                entry.segment,
                entry.build,
                self.shift_ns(entry) - origin if len(entries) > 1 else 0,
                self._first_steps.get(entry.file, 0),
            ]
            for entry in entries
        ]

    @cached_property
    def _used_of(self) -> dict[int, list[SegmentEntry]]:
        """By rank."""
        by_rank: dict[int, list[SegmentEntry]] = {}
        for entry in self.used:
            by_rank.setdefault(entry.rank, []).append(entry)
        return by_rank

    # The time axis.

    @cached_property
    def _begins(self) -> dict[File, int]:
        """By file, from the run's start to it by the wall clock of its host.

        Runs that were opened together follow each other without the time between them: a window, and what is computed
        from its length, would otherwise cover months that nobody recorded.
        """
        begins: dict[File, int] = {}
        begin = 0
        for run in self.runs:
            for entry in run.entries:
                # A file of another clock is put at the run's start.
                of_run = 0 if entry.file in run.other_clocks else entry.unix_origin_ns - run.begin_ns
                begins[entry.file] = begin + of_run
            begin += run.end_ns - run.begin_ns
        return begins

    @cached_property
    def _first_steps(self) -> dict[File, int | None]:
        """By file, what is added to its steps. A file without ProfilerStep#N counts its steps from 0: the second cycle
        of a rank continues where the first cycles of all ranks end. None where its steps do not count: they are
        inferred iterations, and other files have none, or have steps.
        """
        if self._part is not None:
            return self._part.whole._first_steps
        cycles: dict[int, list[SegmentEntry]] = {}
        for entry in sorted(self.timelines, key=lambda entry: entry.unix_origin_ns):
            if entry.manifest["steps"] and entry.manifest["steps_source"] != "profiler":
                cycles.setdefault(entry.rank, []).append(entry)
        first_steps: dict[File, int | None] = {}
        first = 0
        for together in zip_longest(*cycles.values()):
            entries = [entry for entry in together if entry is not None]
            first_steps |= {entry.file: first for entry in entries if first}
            first += max(int(entry.manifest["steps"]) for entry in entries)
        traces = [entry for entry in self.timelines if entry.format in TIMELINE_FORMATS]
        inferred = [entry for entry in traces if entry.manifest["steps_source"] == ITERATIONS]
        if len(inferred) < len(traces):
            first_steps |= {entry.file: None for entry in inferred}
        return first_steps

    @cached_property
    def _aligned(self) -> tuple[Clocks, Run | None]:
        """The clocks, and where they are measured now, the run on wall clocks by whose collectives they were."""
        ranks = sorted({entry.rank for entry in self.timelines})
        if self.clock_mode == "raw" or len(ranks) < 2:
            return wall_clocks(ranks), None
        clocks = load(self.store, self.timelines)
        if clocks is not None:
            return clocks, None
        raw = self._with(clocks="raw", shifted_by_ns=0)
        starts = [(entry.rank, self.begin_ns(entry)) for entry in self.timelines]
        hosts = {entry.rank: entry.host for entry in self.timelines if entry.has_wall_clock}
        clocks = measure(raw.collectives, ranks, starts, hosts)
        save(clocks, self.store, self.timelines)
        return clocks, raw

    @cached_property
    def axis(self) -> TimeAxis:
        """Where the files are in time. The clocks are measured when it is asked for, unless they are in the store."""
        if self._part is not None and self._part.shares_axis:
            return self._part.whole.axis  # not measured by a part: it would replace the one in the store
        return TimeAxis(self._aligned[0], self.timelines, self._begins, self._shifted_by_ns)

    @property
    def clocks(self) -> Clocks:
        """Offset and drift of the ranks' clocks, measured by the ends of collectives; kept in the store."""
        return self.axis.clocks

    def shift_ns(self, entry: SegmentEntry) -> int:
        """From the run's start to the origin of this segment; 0 for a file without times."""
        return self.axis.shifts.get(entry.file, 0)

    def begin_ns(self, entry: SegmentEntry) -> int:
        """From the run's start to this file by the wall clock of its host."""
        return self._begins[entry.file]

    def origin_ns(self, rank: int) -> int:
        """From the run's start to the first of the rank's files: times of results that are kept count from it."""
        return self._origins.get(rank, 0)

    @cached_property
    def _origins(self) -> dict[int, int]:
        return {entry.rank: self.shift_ns(entry) for entry in reversed(self.timelines)}

    # Tables.

    @cached_property
    def _views(self) -> SqlViews:
        return SqlViews(
            self.folder.path,
            self.segments,
            self.used,
            self._repeating,
            self.axis,
            self._first_steps,
            self.comm_patterns,
        )

    @property
    def connection(self) -> duckdb.DuckDBPyConnection:
        """For our own queries. It has the tables that these have named so far, and those of `define`."""
        return self._views.connection

    def define(self, *tables: Table) -> None:
        """Make tables for queries of `connection` that do not go through this class."""
        self._views.define(*tables)

    def definitions(self) -> Iterator[str]:
        """The statements that make the tables of users' queries."""
        return self._views.definitions()

    def rows(self, sql: str, parameters: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        with self._reading():
            return self._views.execute(sql, parameters).fetchall()

    def records(self, sql: str, parameters: Sequence[object] = ()) -> list[dict[str, Any]]:
        with self._reading():
            cursor = self._views.execute(sql, parameters)
            names = [column[0] for column in cursor.description or ()]
            return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]

    def arrays(self, sql: str, parameters: Sequence[object] = ()) -> dict[str, Any]:
        """Columns as numpy arrays; no column may be null."""
        with self._reading():
            columns: dict[str, Any] = self._views.execute(sql, parameters).fetchnumpy()
            return columns

    def stream(self, sql: str, at_a_time: int = 20_000) -> Iterator[tuple[Any, ...]]:
        """Rows one by one, never all in memory. It has its own cursor: other queries may run meanwhile."""
        with self._reading(), closing(self._views.execute(sql, own_cursor=True)) as cursor:
            while rows := cursor.fetchmany(at_a_time):
                yield from rows

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

    @cached_property
    def _confined(self) -> ConfinedSql:
        from rankscope.timeline.confined_sql import ConfinedSql  # late: only for users' queries

        return ConfinedSql(self.definitions(), self.folder.path)

    def query(self, sql: str, most_rows: int | None = None) -> Rows:
        """A user's query: one statement that only reads."""
        return self._confined.query(sql, most_rows)

    def export(self, view: Table, where: str, target: Path, options: str, columns: str = "*") -> None:
        """Write one view to a file in one pass."""
        folder = PlainFolder(target.parent)
        written = folder.path / unique_name()
        try:
            with self._reading():
                self._views.execute(
                    f"COPY (SELECT {columns} FROM {view.name} WHERE {where}) TO {sql_text(written)} ({options})"
                )
            written.replace(target)
        finally:
            written.unlink(missing_ok=True)

    # Collectives.

    @cached_property
    def collectives(self) -> Collectives:
        """The collectives of all ranks, matched across ranks."""
        # Late: imports numpy, which most commands do not need.
        from rankscope.timeline.collectives.loading import KEPT, matched_collectives, shifted

        if self._part is not None and self._part.shares_collectives:
            return self._part.whole.collectives.of_ranks(self._part.ranks)
        shifts = self.axis.shifts
        cache_key = [[*e.file, e.build, shifts[e.file]] for e in self.timelines]
        raw = self._aligned[1] if self._part is None else None
        if raw is not None:  # matched already, to measure the clocks
            rows = shifted(raw.collectives, {file: shifts[file] - raw.axis.shifts[file] for file in shifts})
        elif self.clock_mode == "aligned" and (stored := KEPT.load(self.store, cache_key)):
            return stored
        else:
            rows = matched_collectives(self.own_collectives(), self.compared)
        if self.keeps_results and self._part is None:
            KEPT.save(self.store, cache_key, rows)
        return rows

    def own_collectives(self) -> Collectives:
        """The collectives of each rank without those of the others: they are not matched, and need no clocks."""
        from rankscope.timeline.collectives.loading import load_collectives

        with self._reading():
            self.define(*((COLLECTIVES, TRACKS) if self.has(COLLECTIVES) else (COLLECTIVES,)))
            return load_collectives(self.connection, self.timelines)


def _unused(segments: Sequence[SegmentEntry], prefer: str) -> list[SegmentEntry]:
    """Files of ranks whose timeline comes from a file of another format that is preferred."""
    if prefer == ALL_TOOLS:
        return []
    order = sorted(TIMELINE_FORMATS, key=lambda name: name != prefer)
    chosen: dict[int, str] = {}
    for entry in sorted((e for e in segments if e.format in order), key=lambda e: order.index(e.format)):
        chosen.setdefault(entry.rank, entry.format)
    return [entry for entry in segments if entry.format in order and entry.format != chosen[entry.rank]]
