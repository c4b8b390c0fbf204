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
from typing import TYPE_CHECKING, Any

from rankscope.errors import EmptyTraceError, NotATraceError, RankscopeError, StoreError
from rankscope.files import make_private_folder, side_by_side, unique_name
from rankscope.host import available_memory_bytes, usable_cores
from rankscope.model import FORMAT_VERSION
from rankscope.readers import one_file
from rankscope.readers.base import rank_from_name
from rankscope.records import dataclass
from rankscope.store.checksums import damage, read_checked_json
from rankscope.store.discover import Folders, Sources, find_sources, sidecar_kind
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
from rankscope.store.rank_assignment import (
    ALONE,
    BESIDE,
    Assignment,
    assign,
    assign_logs,
    assigned_before,
)
from rankscope.store.separate_runs import without_duplicates
from rankscope.store.worker import Build, Task
from rankscope.text.run_words import shell_word

if TYPE_CHECKING:
    from rankscope.store.on_dask.option import DaskCluster

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


def ingest(
    paths: Sequence[Path],
    build: Build,
    options: Options | None = None,
    progress: IngestProgress | None = None,
) -> Ingested:
    """Bring the store of these traces up to date and return it. Unchanged files are not read again.

    `build` reads one file. Segments whose tables are damaged are read again from the raw files.
    """
    return _Opening(paths, build, options or Options(), progress or IngestProgress()).ingested()


# Which files, with which ranks.


def _of_another_version(store: Store) -> StoreError:
    format = store.listed.other_format
    what = f"It has format {format}, and this version reads format {FORMAT_VERSION}"
    return StoreError(
        f"the store in {store.folder} cannot be used",
        why=f"{what if format is not None else 'It lists no segments'}; there is no trace to make it from.",
        hint="Give the folder of the traces, or open it with the rankscope that wrote it.",
    )


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


class _Opening:
    """A store that is brought up to date: what it is to contain, what it has of that, and what is read."""

    def __init__(
        self, paths: Sequence[Path], build: Build, options: Options, progress: IngestProgress
    ) -> None:
        self.build, self.options, self.progress, self.say = build, options, progress, progress.say
        self.folders = Folders()
        self.paths = [self._meant(path.resolve()) for path in paths]
        self.given = {path.resolve(): rank for path, rank in options.ranks.items()}
        """The ranks that the user gave."""
        self.incoming = Path()
        """The folder that files are read into."""
        self.up_to_date: list[SegmentEntry] = []
        self.wanted: list[Assignment] = []
        self.built: dict[Assignment, SegmentEntry | RankscopeError] = {}
        folders = possible_stores(self.paths, options.output, options.cache, self.say)
        locks = {folder: ReadLock(folder) for folder in folders}
        self._plan(folders)
        self.lock = locks[self.store.folder]

    def ingested(self) -> Ingested:
        self.compare(self.assignments)
        if not self.wanted:
            self.add_logs()
        store = self.store
        is_complete = not self.wanted and len(self.up_to_date) == len(store.segments)
        if is_complete and not (store.listed.recovered and store.can_be_written):
            if store.has_leftovers and store.can_be_written and has_abandoned(store.folder):
                self.clean_up()
            return self._result(Index(store.segments), [], [])
        self._tell_what_is_assumed()
        with _writing(store.folder), incoming_folder(store.folder) as self.incoming:
            while True:
                self.read()
                self.add_logs()
                self.read()
                index, fresh, problems = self.outcome()
                _tell_what_was_read(index.segments, fresh, self.say)
                if self.publish(index, fresh):
                    return self._result(index, fresh, problems)
                # Another process has changed the store. What was read here, and not there, is still used.
                self.folders = Folders()
                self._plan([store.folder])
                self.up_to_date = []
                self.compare(self.assignments)

    def _meant(self, path: Path) -> Path:
        with one_file(path):
            folder = self.folders.meant(path)
        if folder != path:
            self.say(f"{path} has no traces of its own; those in {folder.name} are read")
        return folder

    def _result(self, index: Index, read: list[SegmentEntry], problems: list[RankscopeError]) -> Ingested:
        segments, repeated = without_duplicates(index.segments)
        problems = [*self.skipped, *problems, *repeated]
        return Ingested(self.store.folder, Index(segments), tuple(read), tuple(problems), self.lock)

    def _plan(self, folders: Sequence[Path]) -> None:
        """Which files are to be in which of the possible stores, with which ranks."""
        paths = self.paths
        home = paths[0] if paths[0].is_dir() else paths[0].parent
        stores = [Store.load(folder, home) for folder in folders]
        if folders == paths:
            if not stores[0].segments:
                raise _of_another_version(stores[0])
            self._use_as_it_is(stores[0])
            return
        filled = next((store for store in stores if store.segments and not self.given), None)
        if filled is not None and self._is_of_files_elsewhere(filled):
            self._use_as_it_is(filled)
            return
        unchanged = {entry.source for store in stores for entry in store.current}
        try:
            sources = find_sources(paths, unchanged, folders[-1], self.folders)
        except RankscopeError as error:
            if filled is None:
                for store in stores:
                    if isinstance(error, NotATraceError) and store.listed.other_format is not None:
                        raise _of_another_version(store) from error
                raise
            # The raw files are gone; what could not be read instead of them is reported.
            gone = isinstance(error, (StoreError, NotATraceError)) and not isinstance(error, EmptyTraceError)
            self._use_as_it_is(filled, () if gone else (error,))
            return
        self.as_it_is = False
        self.store = self._choose_store(sources, stores)
        self.assignments, self.logs, unopened = assign(
            sources.files, self.given, sources.ranks, self.store.current, self.store.outdated
        )
        self.skipped, self.copies = (*sources.skipped, *unopened), sources.copies
        ranks = {each.rank for each in self.assignments}
        self.sidecar_files, self.of_no_rank = _by_rank(sources.sidecar_files, ranks)

    def _is_of_files_elsewhere(self, store: Store) -> bool:
        """True for a fetched store, and for one of `ingest -o`: the folder given has no raw files of its own."""
        sources = [entry.source for entry in store.segments]
        folder = self.paths[0]
        if len(self.paths) != 1 or not folder.is_dir() or len(store.current) < len(sources):
            return False
        if any(source.is_relative_to(folder) for source in sources):
            return False
        if not any(source.is_absolute() for source in sources):
            return True  # fetched
        if self.folders.elsewhere(folder)[0]:
            return False  # the run's own traces, in another folder: they may be newer than the store
        here = [path.name for path in self.folders.readable(folder)]
        if not here:
            return True
        if not {source.name for source in sources}.isdisjoint(here):
            self.say(
                f"the traces in {folder} have other times than its store lists, as after a copy: they are read again"
            )
            return False
        self.say(
            f"the store of {folder} was made from other files, such as {sources[0]}: {here[0]} is not read, remove the "
            "store to read it"
        )
        return True

    def _use_as_it_is(self, store: Store, skipped: tuple[RankscopeError, ...] = ()) -> None:
        """The raw files are elsewhere or gone: nothing is read but what is damaged."""
        listed = store.listed.segments
        self.as_it_is, self.skipped = True, skipped
        self.store = replace(store, segments=listed, current=listed, outdated=[])
        self.assignments = [assigned_before(entry) for entry in listed]
        self.logs, self.copies, self.sidecar_files, self.of_no_rank = {}, {}, {}, ()

    def _choose_store(self, sources: Sources, stores: Sequence[Store]) -> Store:
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
        self.say(f"{self.paths[0]} cannot be written to; the store is in {cached} (--cache DIR changes that)")
        return elsewhere[0]

    def compare(self, assignments: Sequence[Assignment]) -> None:
        """Keep the segments of these files that are up to date and undamaged; the other files are wanted.

        A segment that another process has listed is used instead of the one that was read here: it may be open there.
        """
        store = self.store.folder
        by_file = {
            (entry.source, entry.part, entry.rank, entry.segment): entry for entry in self.store.current
        }
        candidates: list[tuple[Assignment, SegmentEntry]] = []
        self.wanted = []
        for each in dict.fromkeys(assignments):
            entry = by_file.get((each.path, each.part, each.rank, each.segment))
            # Its build tells whether it is the one that was read here, and listed already.
            is_other = getattr(self.built.get(each), "build", None) != getattr(entry, "build", None)
            if entry is not None and is_other and self._has_same_sidecar_files(entry):
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
                self.say(
                    f"the store is damaged at rank {each.rank} ({reason}): {each.path.name} is read again"
                )
                self.wanted.append(each)

    def add_logs(self) -> None:
        """Add the logs of nodes, whose ranks follow from the traces. They are read here: a cluster that read the traces
        is not started again for a little text."""
        if not self.logs:
            return
        traces = [*self.up_to_date, *(each for each in self.built.values() if isinstance(each, SegmentEntry))]
        logs, problems = assign_logs(self.logs, self.given, self.assignments, traces)
        self.assignments, self.skipped, self.logs = [*self.assignments, *logs], (*self.skipped, *problems), {}
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
        threads = max(1, cores // jobs) if dask is None or dask.is_local else 1
        tasks = {
            each: Task(
                self.build,
                str(each.path),
                str(self.incoming / unique_name()),
                threads,
                each.part,
                each.rank_source,
                tuple(map(str, self.sidecar_files.get(each.rank, ()))),
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
        read = [self.built[each] for each in dict.fromkeys(self.assignments) if each in self.built]
        fresh = [outcome for outcome in read if isinstance(outcome, SegmentEntry)]
        problems = [outcome for outcome in read if isinstance(outcome, RankscopeError)]
        if not self.up_to_date and not fresh:
            raise problems[0]
        return Index(sorted([*self.up_to_date, *fresh], key=lambda entry: entry.file)), fresh, problems

    def _publish_finished(self) -> None:
        """List what has been read so far. If another process has changed the store, that is left for the end."""
        if any(isinstance(outcome, SegmentEntry) for outcome in self.built.values()):
            index, fresh, _ = self.outcome()
            if self.publish(index, fresh):
                self.store = replace(self.store, listed=index)

    def publish(self, index: Index, fresh: list[SegmentEntry]) -> bool:
        """Move complete segments to their folders, list them, and remove what is no longer listed.

        False if another process has changed the store since the plan was made.
        """
        store, incoming = self.store.folder, self.incoming
        with exclusive(store):
            if Index.load(store) != self.store.listed:
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
        store = self.store.folder
        refuse_links(store)
        with exclusive(store):
            self._clean(Index.load(store))

    def _clean(self, index: Index) -> bool:
        """Remove what is not listed; False if that waits until nobody reads it. Within `exclusive`, so that the lock
        can be given up meanwhile: nobody else removes anything."""
        self.lock.release()
        try:
            return clean(self.store.folder, {entry.folder for entry in index.segments})
        finally:
            self.lock.take()

    def _has_same_sidecar_files(self, entry: SegmentEntry) -> bool:
        """Whether the files that may add to a trace are those that were there when it was read."""
        if self.as_it_is or entry.format != "kineto":
            return True
        now = {str(path): path.stat() for path in self.sidecar_files.get(entry.rank, ())}
        then = {
            file["path"]: (file["bytes"], file["mtime_ns"]) for file in entry.manifest.get("companions", ())
        }
        return then == {path: (stat.st_size, stat.st_mtime_ns) for path, stat in now.items()}

    def _tell_what_is_assumed(self) -> None:
        for each in self.wanted:
            if each.rank_source == ALONE:
                self.say(f"{each.path.name} has no rank; it is the only trace, so it is read as rank 0")
            elif each.rank_source == BESIDE:
                self.say(
                    f"{each.path.name} has no rank; it is read as that of the only rank here, {each.rank}"
                )
        read = {folder for each in self.assignments for folder in each.path.parents}
        unread = [
            folder for path in self.paths for folder in self.folders.with_traces(path) if folder not in read
        ]
        if unread:
            names = ", ".join(folder.name for folder in unread)
            self.say(
                f"the traces in {names} are not read, those beside the folders are\n"
                f"  Open them alone: rankscope stats {shell_word(unread[0])}"
            )
        for copy, path in self.copies.items():
            self.say(f"{copy.name} is not read: {path.name} beside it is the same trace")
        usable = []
        for path in self.of_no_rank:
            with suppress(RankscopeError):
                usable += [path] * bool(sidecar_kind(path))
        if usable:
            first, more = usable[0], len(usable) - 1
            self.say(
                f"{first} is not used{f', nor are {more} more' if more else ''}\n"
                "  The run has several ranks, and its name does not say which it is of.\n"
                "  Name it like the trace of its rank: rank0, rank-0 or rank_0."
            )


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


def _tell_what_was_read(segments: Sequence[SegmentEntry], fresh: Sequence[SegmentEntry], say: Say) -> None:
    for entry in fresh:
        if count := entry.header.get("mergedProcesses"):
            say(
                f"{entry.source.name} has {count} processes that use CUDA, and nothing tells their ranks: they are "
                f"read as one, rank {entry.rank} (rankscope doctor says more)"
            )
    for name, zone in sorted({(entry.source.name, entry.log_zone) for entry in fresh if entry.log_zone}):
        say(f"{name} has times without a zone; they are read as {zone}, by which they overlap the traces")
    # Why files beside the traces add nothing: in three parts, but no error, since the traces were read.
    tried = {sidecar["path"] for sidecar in sidecar_records(fresh)}
    for sidecar in sidecar_records(segments):
        if sidecar["unused"] and sidecar["path"] in tried:
            say("\n  ".join(sidecar["unused"]))
