"""How a run is opened: find its files, assign their ranks, compare them with the store, read the rest, publish it.

`ingest` does this in order. A file is read once, several at a time, and each is visible only when it is complete. Where
nothing has changed, nothing but the comparison is done.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import field, replace
from pathlib import Path
from typing import Any

from rankscope.errors import EmptyTraceError, NotATraceError, RankscopeError, StoreError
from rankscope.files import make_private_folder, unique_name
from rankscope.host import available_memory_bytes, usable_cores
from rankscope.model import FORMAT_VERSION
from rankscope.readers import NodeLog, one_file
from rankscope.readers.base import rank_from_name
from rankscope.records import dataclass
from rankscope.store.checksums import damage, read_checked_json
from rankscope.store.discover import (
    Sources,
    find_sources,
    folder_with_traces,
    folders_with_traces,
    readable_traces,
    sidecar_kind,
    traces_elsewhere,
)
from rankscope.store.incoming import (
    PUBLISHING,
    ReadLock,
    clean,
    exclusive,
    has_abandoned,
    incoming_folder,
)
from rankscope.store.index import (
    INDEX_FILE,
    SEGMENT_FILE,
    Index,
    SegmentEntry,
    Store,
    possible_stores,
    refuse_links,
    sidecar_records,
)
from rankscope.store.node_logs import zone_of
from rankscope.store.on_dask.option import LOCAL, DaskCluster
from rankscope.store.rank_assignment import (
    ALONE,
    BESIDE,
    Assignment,
    assign,
    assign_logs,
    assigned_before,
)
from rankscope.store.separate_runs import without_duplicates
from rankscope.store.side_by_side import side_by_side
from rankscope.store.worker import Build, Task
from rankscope.text.run_words import shell_word

Say = Callable[[str], None]

_CHECKED_AT_A_TIME = 4
_LISTED_EVERY_S = 60.0
"""What was read is listed this often, so that a process that is killed loses no more than this."""


@dataclass(frozen=True)
class Options:
    """How to read; every field has a default."""

    output: Path | None = None
    """Write the store into this folder instead of the folder of the traces."""
    cache: Path | None = None
    """Keep stores below this folder, for runs in read-only folders."""
    ranks: Mapping[Path, int] = field(default_factory=dict)
    """Ranks given by the user, by file."""
    jobs: int | None = None
    """Files read at the same time; None: as cores and memory allow."""
    dask: DaskCluster | None = None
    """Read on a Dask cluster; None: in processes of this machine, without Dask."""
    by_size: bool = False
    """Tables are compared with the list by their sizes alone, for whoever does not read them."""


@dataclass(frozen=True)
class IngestProgress:
    """Callbacks that show the progress."""

    begin: Callable[[int, int], None] = lambda files, total_bytes: None
    advance: Callable[[Path, int, str], None] = lambda path, read, doing: None
    end: Callable[[], None] = lambda: None
    say: Say = lambda text: None
    finish: Callable[[int], None] = lambda files: None
    """Called with the number of files read so far."""


@dataclass(frozen=True)
class Ingested:
    """The result of `ingest`."""

    store: Path
    index: Index
    read: tuple[SegmentEntry, ...]
    """Segments read by this call; empty if nothing had changed."""
    problems: tuple[RankscopeError, ...]
    """One error for each file that could not be read."""
    lock: ReadLock | None = None
    """Keeps the tables, also if another process replaces them."""


@dataclass(frozen=True)
class _Plan:
    """What a store is to contain."""

    store: Store
    assignments: list[Assignment]
    """Each file, or part of a file, with its rank."""
    skipped: tuple[RankscopeError, ...]
    logs: Mapping[Path, NodeLog] = field(default_factory=dict)
    """Files about the GPUs of a node. Their ranks follow from the traces, when these have been read."""
    given: Mapping[Path, int] = field(default_factory=dict)
    """The ranks that the user gave."""
    sidecar_files: Mapping[int, tuple[Path, ...]] = field(default_factory=dict)
    """By rank: files that may add to its traces."""
    of_no_rank: tuple[Path, ...] = ()
    """Such files whose names do not tell which of the ranks they belong to."""
    copies: Mapping[Path, Path] = field(default_factory=dict)
    """Files that are not read, since another has the same trace; and that one."""
    as_it_is: bool = False
    """The raw files are elsewhere or gone: nothing is read but what is damaged."""


def ingest(
    paths: Sequence[Path],
    build: Build,
    options: Options | None = None,
    progress: IngestProgress | None = None,
) -> Ingested:
    """Bring the store of these traces up to date and return it. Unchanged files are not read again.

    `build` reads one file. Segments whose tables are damaged are read again from the raw files.
    """
    options, progress = options or Options(), progress or IngestProgress()
    paths = [_with_traces(path.resolve(), progress.say) for path in paths]
    folders = possible_stores(paths, options.output, options.cache, progress.say)
    locks = {folder: ReadLock(folder) for folder in folders}
    plan = _plan(paths, options, folders, progress.say)
    store, lock = plan.store, locks[plan.store.folder]
    update = _Update(plan, build, options, progress, lock)
    update.compare(plan.assignments)
    if not update.wanted:
        update.add_logs()
    is_complete = not update.wanted and len(update.up_to_date) == len(store.segments)
    if is_complete and not (store.listed.recovered and store.can_be_written):
        if store.has_leftovers and store.can_be_written and has_abandoned(store.folder):
            update.clean_up()
        return _ingested(update, Index(store.segments), [], [])
    _tell_what_is_assumed(paths, plan, update.wanted, progress.say)
    with _writing(store.folder), incoming_folder(store.folder) as update.incoming:
        while True:
            update.read()
            update.add_logs()
            update.read()
            index, fresh, problems = update.outcome()
            _tell_what_was_read(index.segments, fresh, progress.say)
            if update.publish(index, fresh):
                return _ingested(update, index, fresh, problems)
            # Another process has changed the store in the meantime. What was read here, and not there, is still used.
            update.plan, update.up_to_date = _plan(paths, options, [store.folder], progress.say), []
            update.compare(update.plan.assignments)


def _ingested(
    update: _Update, index: Index, read: list[SegmentEntry], problems: list[RankscopeError]
) -> Ingested:
    segments, repeated = without_duplicates(index.segments)
    problems = [*update.plan.skipped, *problems, *repeated]
    return Ingested(update.plan.store.folder, Index(segments), tuple(read), tuple(problems), update.lock)


# Which files, with which ranks.


def _with_traces(path: Path, say: Say) -> Path:
    with one_file(path):
        folder = folder_with_traces(path)
    if folder != path:
        say(f"{path} has no traces of its own; those in {folder.name} are read")
    return folder


def _plan(paths: Sequence[Path], options: Options, folders: Sequence[Path], say: Say) -> _Plan:
    """Which files are to be in which of the possible stores, with which ranks."""
    home = paths[0] if paths[0].is_dir() else paths[0].parent
    stores = [Store.load(folder, home) for folder in folders]
    if folders == paths:
        if not stores[0].segments:
            raise _of_another_version(stores[0])
        return _as_it_is(stores[0])
    filled = next((store for store in stores if store.segments and not options.ranks), None)
    if filled is not None and _is_of_files_elsewhere(paths, filled, say):
        return _as_it_is(filled)
    unchanged = {entry.source for store in stores for entry in store.current}
    try:
        sources = find_sources(paths, unchanged, folders[-1])
    except RankscopeError as error:
        if filled is None:
            for store in stores:
                if isinstance(error, NotATraceError) and store.listed.other_format is not None:
                    raise _of_another_version(store) from error
            raise
        # The raw files are gone; what could not be read instead of them is reported.
        gone = isinstance(error, (StoreError, NotATraceError)) and not isinstance(error, EmptyTraceError)
        return _as_it_is(filled, () if gone else (error,))
    store = _choose_store(paths, sources, stores, say)
    given = {path.resolve(): rank for path, rank in options.ranks.items()}
    assignments, logs, unopened = assign(sources.files, given, sources.ranks, store.current, store.outdated)
    skipped = (*sources.skipped, *unopened)
    sidecar_files, of_no_rank = _by_rank(sources.sidecar_files, {each.rank for each in assignments})
    return _Plan(store, assignments, skipped, logs, given, sidecar_files, of_no_rank, sources.copies)


def _as_it_is(store: Store, skipped: tuple[RankscopeError, ...] = ()) -> _Plan:
    listed = store.listed.segments
    store = replace(store, segments=listed, current=listed, outdated=[])
    return _Plan(store, [assigned_before(entry) for entry in listed], skipped, as_it_is=True)


def _of_another_version(store: Store) -> StoreError:
    format = store.listed.other_format
    what = f"It has format {format}, and this version reads format {FORMAT_VERSION}"
    return StoreError(
        f"the store in {store.folder} cannot be used",
        why=f"{what if format is not None else 'It lists no segments'}; there is no trace to make it from.",
        hint="Give the folder of the traces, or open it with the rankscope that wrote it.",
    )


def _is_of_files_elsewhere(paths: Sequence[Path], store: Store, say: Say) -> bool:
    """True for a fetched store, and for one of `ingest -o`: the folder that was given has no raw files of its own."""
    sources = [entry.source for entry in store.segments]
    if len(paths) != 1 or not paths[0].is_dir() or len(store.current) < len(sources):
        return False
    if any(source.is_relative_to(paths[0]) for source in sources):
        return False
    if not any(source.is_absolute() for source in sources):
        return True  # fetched
    if traces_elsewhere(paths[0]).files:
        return False  # the run's own traces, in another folder: they may be newer than the store
    here = [path.name for path in readable_traces(paths[0])]
    if not here:
        return True
    if not {source.name for source in sources}.isdisjoint(here):
        say(
            f"the traces in {paths[0]} have other times than its store lists, as after a copy: they are read again"
        )
        return False
    say(
        f"the store of {paths[0]} was made from other files, such as {sources[0]}: {here[0]} is not read, remove the "
        "store to read it"
    )
    return True


def _choose_store(paths: Sequence[Path], sources: Sources, stores: Sequence[Store], say: Say) -> Store:
    """The default folder if it can be written to or already has every file, else the user's cache."""
    store, *elsewhere = stores
    if store.can_be_written or {entry.source for entry in store.current} >= set(sources.files):
        return store
    if not elsewhere:
        raise StoreError(
            f"cannot write to {store.folder}",
            why="The folder is read-only.",
            hint="Name another one: --cache DIR",
        )
    cached = elsewhere[0].folder
    say(f"{paths[0]} cannot be written to; the store is in {cached} (--cache DIR changes that)")
    return elsewhere[0]


def _by_rank(
    sidecar_files: Sequence[Path], ranks: set[int]
) -> tuple[dict[int, tuple[Path, ...]], tuple[Path, ...]]:
    """Whose traces these files may add to, and those of no rank. One without a rank in its name belongs to the only
    rank, or to none."""
    by_rank: dict[int, tuple[Path, ...]] = {}
    of_no_rank = []
    for path in sidecar_files:
        named = rank_from_name(path)
        rank = min(ranks) if named is None and len(ranks) == 1 else named
        if rank in ranks:
            by_rank[rank] = (*by_rank.get(rank, ()), path)
        elif named is None:
            of_no_rank.append(path)
    return by_rank, tuple(of_no_rank)


# What of them is in the store, reading the rest, and publishing it.


@dataclass
class _Update:
    """What is done to a store: what it keeps, what is to be read, and what has been read."""

    plan: _Plan
    build: Build
    options: Options
    progress: IngestProgress
    lock: ReadLock
    incoming: Path = Path()
    """The folder that files are read into."""
    up_to_date: list[SegmentEntry] = field(default_factory=list)
    wanted: list[Assignment] = field(default_factory=list)
    built: dict[Assignment, SegmentEntry | RankscopeError] = field(default_factory=dict)

    def compare(self, assignments: Sequence[Assignment]) -> None:
        """Keep the segments of these files that are up to date and undamaged; the other files are wanted.

        A segment that another process has listed is used instead of the one that was read here: it may be open there.
        """
        plan, store = self.plan, self.plan.store.folder
        by_file = {
            (entry.source, entry.part, entry.rank, entry.segment): entry for entry in plan.store.current
        }
        candidates: list[tuple[Assignment, SegmentEntry]] = []
        self.wanted = []
        for each in dict.fromkeys(assignments):
            entry = by_file.get((each.path, each.part, each.rank, each.segment))
            # Its build tells whether it is the one that was read here, and listed already.
            is_other = getattr(self.built.get(each), "build", None) != getattr(entry, "build", None)
            if entry is not None and is_other and _has_same_sidecar_files(plan, entry):
                candidates.append((each, entry))
            elif each not in self.built:
                self.wanted.append(each)
        damages = side_by_side(
            lambda pair: damage(store / pair[1].folder, pair[1].files, by_size=self.options.by_size),
            candidates,
            _CHECKED_AT_A_TIME,
        )
        for (each, entry), reason in zip(candidates, damages, strict=True):
            if not reason:
                self.up_to_date.append(replace(entry, rank_source=each.rank_source))
                self.built.pop(each, None)
            elif each not in self.built:
                if not (each.path.is_file() and entry.is_current()):
                    raise StoreError(
                        f"the store in {store} is damaged at rank {entry.rank}",
                        why=f"In {entry.folder}, {reason}; and the trace that it was made from is not at "
                        f"{entry.source}.",
                        hint="Put the trace back there, or copy or fetch the store again.",
                    )
                self.progress.say(
                    f"the store is damaged at rank {each.rank} ({reason}): {each.path.name} is read again"
                )
                self.wanted.append(each)

    def add_logs(self) -> None:
        """Add the logs of nodes, whose ranks follow from the traces. They are read here: a cluster that read the traces
        is not started again for a little text."""
        plan = self.plan
        if not plan.logs:
            return
        traces = [*self.up_to_date, *(each for each in self.built.values() if isinstance(each, SegmentEntry))]
        logs, problems = assign_logs(plan.logs, plan.given, plan.assignments, traces)
        self.plan = replace(
            plan, assignments=[*plan.assignments, *logs], skipped=(*plan.skipped, *problems), logs={}
        )
        self.options = replace(self.options, dask=None)
        self.compare(logs)

    def read(self) -> None:
        """Read what is wanted. If that is interrupted, what was read is listed, and the next call continues there."""
        listed = time.monotonic()
        try:
            with closing(self._outcomes()) as outcomes:
                for each, outcome in outcomes:
                    self.built[each] = outcome
                    if time.monotonic() - listed > _LISTED_EVERY_S:
                        self._publish_finished()
                        listed = time.monotonic()
        except BaseException:
            with suppress(RankscopeError, OSError):
                self._publish_finished()
            raise
        self.wanted = []

    def _outcomes(self) -> Generator[tuple[Assignment, SegmentEntry | RankscopeError], None, None]:
        """Read files in other processes, or on a cluster, each into its own folder; yields each as it is finished."""
        if not self.wanted:
            return
        # Late: the readers, and Dask, take long to import.
        from rankscope.store.pool import needed_bytes, run_tasks

        progress, dask = self.progress, self.options.dask
        files = [each.path for each in self.wanted]
        cores = usable_cores()
        most = max(1, min(cores, available_memory_bytes() // 2 // max(map(needed_bytes, files))))
        jobs = max(1, min(len(files), self.options.jobs or most))
        # The cores of other machines are shared by the number of their workers.
        threads = max(1, cores // jobs) if dask is None or dask.where == LOCAL else 1
        tasks = {
            each: Task(
                self.build,
                str(each.path),
                str(self.incoming / unique_name()),
                threads,
                each.part,
                each.rank_source,
                tuple(map(str, self.plan.sidecar_files.get(each.rank, ()))),
            )
            for each in self.wanted
        }

        def advance(each: Assignment, read: int, doing: str) -> None:
            progress.advance(each.path, read, doing)

        def entry(each: Assignment, manifest: dict[str, Any]) -> SegmentEntry:
            build = Path(tasks[each].folder).name
            return SegmentEntry(each.rank, each.segment, each.rank_source, manifest, build)

        progress.begin(len(files), sum(path.stat().st_size for path in files if path.is_file()))
        reported: set[Assignment] = set()
        try:
            if dask is None:
                outcomes = run_tasks(tasks, jobs, advance)
            else:
                from rankscope.store.on_dask.tasks import run_on_dask

                outcomes = run_on_dask(tasks, dask, jobs, advance, progress.say)
            for each, outcome in outcomes:
                reported.add(each)
                progress.finish(len(reported))
                yield each, outcome if isinstance(outcome, RankscopeError) else entry(each, outcome)
        except (Exception, KeyboardInterrupt):
            # What was finished without being reported is used too, such as by a cluster whose scheduler was lost.
            for each, task in tasks.items():
                manifest = Path(task.folder) / SEGMENT_FILE
                if each not in reported and manifest.is_file():
                    yield each, entry(each, read_checked_json(manifest))
            raise
        finally:
            progress.end()

    def outcome(self) -> tuple[Index, list[SegmentEntry], list[RankscopeError]]:
        """The new index, the segments in it that were read now, and an error for each file that could not be read."""
        read = [self.built[each] for each in dict.fromkeys(self.plan.assignments) if each in self.built]
        fresh = [outcome for outcome in read if isinstance(outcome, SegmentEntry)]
        problems = [outcome for outcome in read if isinstance(outcome, RankscopeError)]
        if not self.up_to_date and not fresh:
            raise problems[0]
        return Index(sorted([*self.up_to_date, *fresh], key=lambda e: (e.rank, e.segment))), fresh, problems

    def _publish_finished(self) -> None:
        """List what has been read so far. If another process has changed the store, that is left for the end."""
        if any(isinstance(outcome, SegmentEntry) for outcome in self.built.values()):
            index, fresh, _ = self.outcome()
            if self.publish(index, fresh):
                self.plan = replace(self.plan, store=replace(self.plan.store, listed=index))

    def publish(self, index: Index, fresh: list[SegmentEntry]) -> bool:
        """Move complete segments to their folders, list them, and remove what is no longer listed.

        False if another process has changed the store since the plan was made.
        """
        store, incoming = self.plan.store.folder, self.incoming
        with exclusive(store):
            if Index.load(store) != self.plan.store.listed:
                return False
            (incoming / PUBLISHING).touch()
            for entry in fresh:
                if (incoming / entry.build).exists():  # else in its folder already
                    target = store / entry.folder
                    make_private_folder(target.parent.parent)
                    make_private_folder(target.parent)
                    (incoming / entry.build).rename(target)
            index.save(incoming)
            (incoming / INDEX_FILE).replace(store / INDEX_FILE)
            if self._clean(index):
                (incoming / PUBLISHING).unlink()
        return True

    def clean_up(self) -> None:
        """Remove what a process has left that was killed, or whose segments were read when it had replaced them."""
        store = self.plan.store.folder
        refuse_links(store)
        with exclusive(store):
            self._clean(Index.load(store))

    def _clean(self, index: Index) -> bool:
        """Remove what is not listed; False if that waits until nobody reads it. Within `exclusive`, so that the lock
        can be given up meanwhile: nobody else removes anything."""
        self.lock.release()
        try:
            return clean(self.plan.store.folder, {entry.folder for entry in index.segments})
        finally:
            self.lock.take()


def _has_same_sidecar_files(plan: _Plan, entry: SegmentEntry) -> bool:
    """Whether the files that may add to a trace are those that were there when it was read."""
    if plan.as_it_is or entry.format != "kineto":
        return True
    now = {str(path): path.stat() for path in plan.sidecar_files.get(entry.rank, ())}
    then = {file["path"]: (file["bytes"], file["mtime_ns"]) for file in entry.manifest.get("companions", ())}
    return then == {path: (stat.st_size, stat.st_mtime_ns) for path, stat in now.items()}


@contextmanager
def _writing(store: Path) -> Iterator[None]:
    """Make the store's folder; a disk that is full or read-only is reported as such."""
    refuse_links(store)
    try:
        make_private_folder(store)
        yield
    except OSError as error:
        raise StoreError(
            f"cannot write to {store}", why=f"{error.strerror}.", hint="Name another folder: --cache DIR"
        ) from error


# What the user is told.


def _tell_what_is_assumed(paths: Sequence[Path], plan: _Plan, wanted: Sequence[Assignment], say: Say) -> None:
    for each in wanted:
        if each.rank_source == ALONE:
            say(f"{each.path.name} has no rank; it is the only trace, so it is read as rank 0")
        elif each.rank_source == BESIDE:
            say(f"{each.path.name} has no rank; it is read as that of the only rank here, {each.rank}")
    read = {folder for each in plan.assignments for folder in each.path.parents}
    unread = [folder for path in paths for folder in folders_with_traces(path) if folder not in read]
    if unread:
        names = ", ".join(folder.name for folder in unread)
        say(
            f"the traces in {names} are not read, those beside the folders are\n"
            f"  Open them alone: rankscope stats {shell_word(unread[0])}"
        )
    for copy, path in plan.copies.items():
        say(f"{copy.name} is not read: {path.name} beside it is the same trace")
    usable = []
    for path in plan.of_no_rank:
        with suppress(RankscopeError):
            usable += [path] * bool(sidecar_kind(path))
    if usable:
        first, more = usable[0], len(usable) - 1
        say(
            f"{first} is not used{f', nor are {more} more' if more else ''}\n"
            "  The run has several ranks, and its name does not say which it is of.\n"
            "  Name it like the trace of its rank: rank0, rank-0 or rank_0."
        )


def _tell_what_was_read(segments: Sequence[SegmentEntry], fresh: Sequence[SegmentEntry], say: Say) -> None:
    for entry in fresh:
        if count := entry.header.get("mergedProcesses"):
            say(
                f"{entry.source.name} has {count} processes that use CUDA, and nothing tells their ranks: they are "
                f"read as one, rank {entry.rank} (rankscope doctor says more)"
            )
    for name, zone in sorted({(entry.source.name, zone) for entry in fresh if (zone := zone_of(entry))}):
        say(f"{name} has times without a zone; they are read as {zone}, by which they overlap the traces")
    # Why files beside the traces add nothing: in three parts, but no error, since the traces were read.
    tried = {sidecar["path"] for sidecar in sidecar_records(fresh)}
    for sidecar in sidecar_records(segments):
        if sidecar["unused"] and sidecar["path"] in tried:
            say("\n  ".join(sidecar["unused"]))
