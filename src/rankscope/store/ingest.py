"""Reads raw traces into the store: each file once, several at a time, each visible only when it is complete."""

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
from rankscope.store.incoming import (
    ReadLock,
    begin_publishing,
    clean,
    end_publishing,
    exclusive,
    has_abandoned,
    incoming_folder,
)
from rankscope.store.layout import (
    INDEX_FILE,
    SEGMENT_FILE,
    Index,
    SegmentEntry,
    Sources,
    can_read,
    can_write,
    default_cache,
    find_sources,
    folder_with_traces,
    readable_traces,
    store_folder,
    traces_elsewhere,
)
from rankscope.store.node_logs import zone_of
from rankscope.store.on_dask.place import LOCAL, Place
from rankscope.store.rank_assignment import (
    ALONE,
    BESIDE,
    Assignment,
    assign,
    assign_logs,
    keep,
    refuse_overlaps,
)
from rankscope.store.side_by_side import side_by_side
from rankscope.store.worker import Build, Outcome, Task

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
    dask: Place | None = None
    """Read on a Dask cluster; None: in processes of this machine, without Dask."""


@dataclass(frozen=True)
class Watch:
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


_Outcome = SegmentEntry | RankscopeError


@dataclass(frozen=True)
class _Plan:
    """What a store is to contain."""

    store: Path
    found: Index
    """As it is on disk."""
    index: Index
    """The same; raw files that were moved together with the run have their new paths."""
    places: list[Assignment]
    skipped: tuple[RankscopeError, ...]
    logs: Mapping[Path, NodeLog] = field(default_factory=dict)
    """Files about the GPUs of a node. Their places follow from the traces, when these have been read."""
    given: Mapping[Path, int] = field(default_factory=dict)
    """The ranks that the user gave."""
    companions: Mapping[int, tuple[Path, ...]] = field(default_factory=dict)
    """By rank: files that may add to its traces."""
    of_no_rank: tuple[Path, ...] = ()
    """Such files whose names do not tell which of the ranks they belong to."""
    copies: Mapping[Path, Path] = field(default_factory=dict)
    """Files that are not read, since another has the same trace; and that one."""
    as_it_is: bool = False
    """The raw files are elsewhere or gone: nothing is read but what is damaged."""


def ingest(
    paths: Sequence[Path], build: Build, options: Options | None = None, watch: Watch | None = None
) -> Ingested:
    """Bring the store of these traces up to date and return it. Unchanged files are not read again.

    `build` reads one file. Segments whose tables are damaged are read again from the raw files.
    """
    options, watch = options or Options(), watch or Watch()
    paths = [_with_traces(path.resolve(), watch.say) for path in paths]
    locks = {store: ReadLock(store) for store in _possible_stores(paths, options, watch.say)}
    plan = _plan(paths, options, list(locks), watch.say)
    lock = locks[plan.store]
    kept, wanted = _split(plan, {}, watch.say)
    if plan.logs and not wanted:
        options = replace(options, dask=None)
        plan, places = _with_logs(plan, kept)
        known, wanted = _split(replace(plan, places=places), {}, watch.say)
        kept += known
    changed = wanted or len(kept) != len(plan.index.segments)
    if not changed and not (plan.found.recovered and can_write(plan.store)):
        _clean_up(plan.store, lock)
        return Ingested(plan.store, plan.index, (), plan.skipped, lock)
    _report_assumed_rank(wanted, watch.say)
    for copy, path in plan.copies.items():
        watch.say(f"{copy.name} is not read: {path.name} beside it is the same trace")
    _report_of_no_rank(plan, watch.say)
    with _writing(plan.store), incoming_folder(plan.store) as incoming:
        update = _Update(plan, build, kept, wanted, incoming, lock)
        while True:
            update.read(options, watch)
            update.read_logs(options, watch)
            index, fresh, problems = update.outcome()
            _report_merged(fresh, watch.say)
            _report_zones(fresh, watch.say)
            _report_unused(fresh, watch.say)
            if update.publish(index, fresh):
                return Ingested(plan.store, index, tuple(fresh), (*update.plan.skipped, *problems), lock)
            # Another process has changed the store in the meantime. What was read here, and not there, is still used.
            update.plan = _plan(paths, options, [plan.store], watch.say)
            update.kept = update.split(update.plan, watch.say)


@dataclass
class _Update:
    """What is done to a store: what it keeps, what is to be read, and what has been read."""

    plan: _Plan
    build: Build
    kept: list[SegmentEntry]
    wanted: list[Assignment]
    incoming: Path
    lock: ReadLock
    built: dict[Assignment, _Outcome] = field(default_factory=dict)

    def split(self, plan: _Plan, say: Say) -> list[SegmentEntry]:
        """What the store keeps of a plan; what is not there, and has not been read, is wanted.

        A segment that another process has listed is used instead of the one that was read here: it may be open there.
        """
        kept, self.wanted = _split(plan, self.built, say)
        for entry in kept:
            self.built.pop(keep(entry), None)
        return kept

    def read(self, options: Options, watch: Watch) -> None:
        """Read what is wanted. If that is interrupted, what was read is listed, and the next call continues there."""
        listed = time.monotonic()
        try:
            with closing(
                _read(self.incoming, self.build, self.wanted, self.plan.companions, options, watch)
            ) as outcomes:
                for place, outcome in outcomes:
                    self.built[place] = outcome
                    if time.monotonic() - listed > _LISTED_EVERY_S:
                        self._publish_finished()
                        listed = time.monotonic()
        except BaseException:
            with suppress(RankscopeError, OSError):
                self._publish_finished()
            raise

    def read_logs(self, options: Options, watch: Watch) -> None:
        """Read the logs of nodes, here: a cluster that read the traces is not started again for a little text."""
        if not self.plan.logs:
            return
        read = [outcome for outcome in self.built.values() if isinstance(outcome, SegmentEntry)]
        self.plan, places = _with_logs(self.plan, [*self.kept, *read])
        self.kept += self.split(replace(self.plan, places=places), watch.say)
        self.read(replace(options, dask=None), watch)

    def outcome(self) -> tuple[Index, list[SegmentEntry], list[RankscopeError]]:
        """The new index, the segments in it that were read now, and an error for each file that could not be read."""
        read = [self.built[place] for place in dict.fromkeys(self.plan.places) if place in self.built]
        fresh = [outcome for outcome in read if isinstance(outcome, SegmentEntry)]
        problems = [outcome for outcome in read if isinstance(outcome, RankscopeError)]
        refuse_overlaps([*self.kept, *fresh])
        if not self.kept and not fresh:
            raise problems[0]
        return Index(sorted([*self.kept, *fresh], key=lambda e: (e.rank, e.segment))), fresh, problems

    def publish(self, index: Index, fresh: list[SegmentEntry]) -> bool:
        """List these segments; False if another process has changed the store since the plan was made."""
        store = self.plan.store
        with exclusive(store):
            if Index.load(store) != self.plan.found:
                return False
            begin_publishing(self.incoming)
            _publish(store, self.incoming, index, fresh)
            if _clean(store, index, self.lock):
                end_publishing(self.incoming)
        return True

    def _publish_finished(self) -> None:
        """List what has been read so far. If another process has changed the store, that is left for the end."""
        if any(isinstance(outcome, SegmentEntry) for outcome in self.built.values()):
            index, fresh, _ = self.outcome()
            if self.publish(index, fresh):
                self.plan = replace(self.plan, found=index)


def _plan(paths: Sequence[Path], options: Options, possible: Sequence[Path], say: Say) -> _Plan:
    """Which files are to be in which of the possible stores, with which ranks."""
    stores = {store: Index.load(store) for store in possible}
    if list(stores) == list(paths):
        (index,) = stores.values()
        if not index.segments:
            raise _of_another_version(paths[0], index.other_format)
        return _as_it_is(paths[0], index)
    home = paths[0] if paths[0].is_dir() else paths[0].parent
    indexes = {store: found.moved_to(home) for store, found in stores.items()}
    whole = next((store for store in stores if stores[store].segments and not options.ranks), None)
    if whole is not None and _is_of_files_elsewhere(paths, indexes[whole], say):
        return _as_it_is(whole, stores[whole])
    known = {entry.source for index in indexes.values() for entry in index.segments if entry.is_current()}
    try:
        sources = find_sources(paths, known, list(stores)[-1])
    except RankscopeError as error:
        if whole is None:
            for store, index in stores.items():
                if isinstance(error, NotATraceError) and index.other_format is not None:
                    raise _of_another_version(store, index.other_format) from error
            raise
        # The raw files are gone; what could not be read instead of them is reported.
        gone = isinstance(error, (StoreError, NotATraceError)) and not isinstance(error, EmptyTraceError)
        return _as_it_is(whole, stores[whole], () if gone else (error,))
    store = _choose_store(paths, sources, indexes, say)
    given = {path.resolve(): rank for path, rank in options.ranks.items()}
    places, logs, unopened = assign(sources.files, given, sources.ranks, indexes[store])
    skipped = (*sources.skipped, *unopened)
    companions = _by_rank(sources.companions, {place.rank for place in places})
    assigned = {path for paths in companions.values() for path in paths}
    of_no_rank = tuple(
        path for path in sources.companions if path not in assigned and rank_from_name(path) is None
    )
    return _Plan(
        store,
        stores[store],
        indexes[store],
        places,
        skipped,
        logs,
        given,
        companions,
        of_no_rank,
        sources.copies,
    )


def _with_logs(plan: _Plan, entries: Sequence[SegmentEntry]) -> tuple[_Plan, list[Assignment]]:
    """The plan with the places of the nodes' logs, which follow from the traces; and these places."""
    places, problems = assign_logs(plan.logs, plan.given, plan.places, entries)
    skipped = (*plan.skipped, *problems)
    return replace(plan, places=[*plan.places, *places], skipped=skipped, logs={}), places


def _by_rank(companions: Sequence[Path], ranks: set[int]) -> dict[int, tuple[Path, ...]]:
    """Whose traces these files may add to. One without a rank in its name belongs to the only rank, or to none."""
    found: dict[int, list[Path]] = {}
    for path in companions:
        named = rank_from_name(path)
        rank = min(ranks) if named is None and len(ranks) == 1 else named
        if rank in ranks:
            found.setdefault(rank, []).append(path)
    return {rank: tuple(paths) for rank, paths in found.items()}


def _with_traces(path: Path, say: Say) -> Path:
    with one_file(path):
        found = folder_with_traces(path)
    if found != path:
        say(f"{path} has no traces of its own; those in {found.name} are read")
    return found


def _as_it_is(store: Path, index: Index, skipped: tuple[RankscopeError, ...] = ()) -> _Plan:
    return _Plan(store, index, index, [keep(entry) for entry in index.segments], skipped, as_it_is=True)


def _of_another_version(store: Path, format: int | None) -> StoreError:
    what = f"It has format {format}, and this version reads format {FORMAT_VERSION}"
    return StoreError(
        f"the store in {store} cannot be used",
        why=f"{what if format is not None else 'It lists no segments'}; there is no trace to make it from.",
        hint="Give the folder of the traces, or open it with the rankscope that wrote it.",
    )


def _is_of_files_elsewhere(paths: Sequence[Path], index: Index, say: Say) -> bool:
    """True for a fetched store, and for one of `ingest -o`: the folder that was given has no raw files of its own."""
    if len(paths) != 1 or not paths[0].is_dir():
        return False
    fetched = not any(entry.source.is_absolute() for entry in index.segments)
    if not fetched and traces_elsewhere(paths[0]).files:
        return False  # the run's own traces, in another folder: they may be newer than the store
    inside = any(entry.source.is_relative_to(paths[0]) for entry in index.segments)
    if inside or not all(entry.is_current() for entry in index.segments):
        return False
    here = [] if fetched else [path.name for path in readable_traces(paths[0])]
    if here:
        source = index.segments[0].source
        copied = not {entry.source.name for entry in index.segments}.isdisjoint(here)
        say(
            f"the store of {paths[0]} was made from other files, such as {source}: "
            + (
                "the traces here are read"
                if copied
                else f"{here[0]} is not read, remove the store to read it"
            )
        )
        return not copied
    return True


def _possible_stores(paths: Sequence[Path], options: Options, say: Say) -> list[Path]:
    """The given store, or the default place of one, and the user's cache if that is read-only.

    A store that another user has closed counts as absent.
    """
    if len(paths) == 1 and (paths[0] / INDEX_FILE).is_file():
        return list(paths)
    store = store_folder(paths, options.output, options.cache)
    if can_write(store) or options.output or options.cache:
        return [store]
    cached = store_folder(paths, None, default_cache())
    if can_read(store):
        return [store, cached]
    say(f"{store} is closed to you; the store is in {cached} (--cache DIR changes that)")
    return [cached]


def _choose_store(paths: Sequence[Path], sources: Sources, stores: dict[Path, Index], say: Say) -> Path:
    """The default place if it can be written to or already has every file, else the user's cache."""
    store, *elsewhere = stores
    current = {entry.source for entry in stores[store].segments if entry.is_current()}
    if can_write(store) or current >= set(sources.files):
        return store
    if not elsewhere:
        raise StoreError(
            f"cannot write to {store}", why="The folder is read-only.", hint="Name another one: --cache DIR"
        )
    say(f"{paths[0]} cannot be written to; the store is in {elsewhere[0]} (--cache DIR changes that)")
    return elsewhere[0]


def _split(
    plan: _Plan, built: Mapping[Assignment, _Outcome], say: Say
) -> tuple[list[SegmentEntry], list[Assignment]]:
    """The segments that are up to date and undamaged, and the files that must be read."""
    known = {
        (entry.source, entry.part, entry.rank, entry.segment): entry
        for entry in plan.index.segments
        if plan.as_it_is or entry.is_current()
    }
    kept: list[SegmentEntry] = []
    wanted: list[Assignment] = []
    checked: list[tuple[Assignment, SegmentEntry]] = []
    for place in dict.fromkeys(plan.places):
        entry = known.get((place.path, place.part, place.rank, place.segment))
        # Its build tells whether it is the one that was read here, and listed already.
        is_other = getattr(built.get(place), "build", None) != getattr(entry, "build", None)
        if entry is not None and is_other and _has_same_companions(plan, entry):
            checked.append((place, entry))
        elif place not in built:
            wanted.append(place)
    reasons = side_by_side(
        lambda one: damage(plan.store / one[1].folder, one[1].files), checked, _CHECKED_AT_A_TIME
    )
    for (place, entry), reason in zip(checked, reasons, strict=True):
        if not reason:
            kept.append(replace(entry, rank_source=place.rank_source))
        if not reason or place in built:
            continue
        if not (place.path.is_file() and entry.is_current()):
            raise _lost(plan.store, entry, reason)
        say(f"the store is damaged at rank {place.rank} ({reason}): {place.path.name} is read again")
        wanted.append(place)
    return kept, wanted


def _has_same_companions(plan: _Plan, entry: SegmentEntry) -> bool:
    """Whether the files that may add to a trace are those that were there when it was read."""
    if plan.as_it_is or entry.format != "kineto":
        return True
    now = {str(path): path.stat() for path in plan.companions.get(entry.rank, ())}
    then = {one["path"]: (one["bytes"], one["mtime_ns"]) for one in entry.manifest.get("companions", ())}
    return then == {path: (stat.st_size, stat.st_mtime_ns) for path, stat in now.items()}


def _lost(store: Path, entry: SegmentEntry, reason: str) -> StoreError:
    return StoreError(
        f"the store in {store} is damaged at rank {entry.rank}",
        why=f"In {entry.folder}, {reason}; and the trace that it was made from is not at {entry.source}.",
        hint="Put the trace back there, or copy or fetch the store again.",
    )


def _report_assumed_rank(wanted: list[Assignment], say: Say) -> None:
    for place in wanted:
        if place.rank_source == ALONE:
            say(f"{place.path.name} has no rank; it is the only trace, so it is read as rank 0")
        elif place.rank_source == BESIDE:
            say(f"{place.path.name} has no rank; it is read as that of the only rank here, {place.rank}")


def _report_of_no_rank(plan: _Plan, say: Say) -> None:
    if not plan.of_no_rank:
        return
    from rankscope.store.sidecar_kinds import kind_of  # late: few runs have such files

    found = []
    for path in plan.of_no_rank:
        with suppress(RankscopeError):
            found += [path] * bool(kind_of(path))
    if found:
        first, more = found[0], len(found) - 1
        say(
            f"{first} is not used{f', nor are {more} more' if more else ''}\n"
            "  The run has several ranks, and its name does not say which it is of.\n"
            "  Name it like the trace of its rank: rank0, rank-0 or rank_0."
        )


def _report_merged(fresh: list[SegmentEntry], say: Say) -> None:
    for entry in fresh:
        if count := entry.manifest["header"].get("mergedProcesses"):
            say(
                f"{entry.source.name} has {count} processes that use CUDA, and nothing tells their ranks: they are "
                f"read as one, rank {entry.rank} (rankscope doctor says more)"
            )


def _report_zones(fresh: list[SegmentEntry], say: Say) -> None:
    for name, zone in sorted({(entry.source.name, zone) for entry in fresh if (zone := zone_of(entry))}):
        say(f"{name} has times without a zone; they are read as {zone}, by which they overlap the traces")


def _report_unused(fresh: list[SegmentEntry], say: Say) -> None:
    """Why files beside the traces add nothing: in three parts, but no error, since the traces were read."""
    for entry in fresh:
        for one in entry.manifest.get("companions", ()):
            if one["unused"]:
                say("\n  ".join(one["unused"]))


def _read(
    incoming: Path,
    build: Build,
    wanted: list[Assignment],
    companions: Mapping[int, tuple[Path, ...]],
    options: Options,
    watch: Watch,
) -> Generator[tuple[Assignment, _Outcome], None, None]:
    """Read files in other processes, each into a folder of its own; yields each as it is finished."""
    if not wanted:
        return
    files = [place.path for place in wanted]
    jobs, threads = _share_machine(files, options.jobs)
    if options.dask is not None and options.dask.where != LOCAL:
        threads = 1  # the cores of other machines are shared by the number of their workers
    tasks = {
        place: Task(
            build,
            str(place.path),
            str(incoming / unique_name()),
            threads,
            place.part,
            place.rank_source,
            tuple(map(str, companions.get(place.rank, ()))),
        )
        for place in wanted
    }
    watch.begin(len(wanted), sum(path.stat().st_size for path in files if path.is_file()))
    reported: set[Assignment] = set()
    try:
        for place, outcome in _outcomes(tasks, jobs, options.dask, watch):
            reported.add(place)
            watch.finish(len(reported))
            yield (
                place,
                outcome if isinstance(outcome, RankscopeError) else _entry(place, tasks[place], outcome),
            )
    except (Exception, KeyboardInterrupt):
        # Whatever has been finished without being reported is used too, such as by a cluster whose scheduler was lost.
        for place, task in tasks.items():
            manifest = Path(task.folder) / SEGMENT_FILE
            if place not in reported and manifest.is_file():
                yield place, _entry(place, task, read_checked_json(manifest))
        raise
    finally:
        watch.end()


def _entry(place: Assignment, task: Task, manifest: dict[str, Any]) -> SegmentEntry:
    return SegmentEntry(place.rank, place.segment, place.rank_source, manifest, Path(task.folder).name)


def _outcomes(
    tasks: Mapping[Assignment, Task], jobs: int, dask: Place | None, watch: Watch
) -> Iterator[tuple[Assignment, Outcome]]:
    """The manifest or the error of each task as it finishes, wherever it runs."""

    def advance(place: Assignment, read: int, doing: str) -> None:
        watch.advance(place.path, read, doing)

    # late: the readers, and Dask, take long to import
    if dask is None:
        from rankscope.store.pool import run_tasks

        return run_tasks(tasks, jobs, advance)
    from rankscope.store.on_dask.tasks import run_on_dask

    return run_on_dask(tasks, dask, jobs, advance, watch.say)


def _share_machine(files: Sequence[Path], jobs: int | None) -> tuple[int, int]:
    """The number of files at a time, and threads for each."""
    from rankscope.store.pool import needed_bytes

    cores = usable_cores()
    needed = max(map(needed_bytes, files))
    most = max(1, min(cores, available_memory_bytes() // 2 // needed))
    jobs = max(1, min(len(files), jobs or most))
    return jobs, max(1, cores // jobs)


def _publish(store: Path, incoming: Path, index: Index, fresh: list[SegmentEntry]) -> None:
    """Move complete segments to their places, and list them."""
    for entry in fresh:
        if not (incoming / entry.build).exists():
            continue  # in its place already
        target = store / entry.folder
        make_private_folder(target.parent.parent)
        make_private_folder(target.parent)
        (incoming / entry.build).rename(target)
    index.save(incoming)
    (incoming / INDEX_FILE).replace(store / INDEX_FILE)


def _clean(store: Path, index: Index, lock: ReadLock) -> bool:
    """Remove what is no longer listed; False if that waits until nobody reads it. Within `exclusive`, so that the lock
    can be given up meanwhile: nobody else removes anything."""
    lock.release()
    try:
        return clean(store, {entry.folder for entry in index.segments})
    finally:
        lock.take()


def _clean_up(store: Path, lock: ReadLock) -> None:
    """Remove what a process has left that was killed, or whose segments were read when it had replaced them."""
    if can_write(store) and has_abandoned(store):
        with exclusive(store):
            _clean(store, Index.load(store), lock)


@contextmanager
def _writing(store: Path) -> Iterator[None]:
    """Make the store's folder; a disk that is full or read-only is reported as such."""
    try:
        make_private_folder(store)
        yield
    except OSError as error:
        raise StoreError(
            f"cannot write to {store}", why=f"{error.strerror}.", hint="Name another folder: --cache DIR"
        ) from error
