"""Reads raw traces into the store: each file once, several at a time, each visible only when it is complete."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import field, replace
from pathlib import Path

from rankscope.atomic_files import unique_name
from rankscope.errors import EmptyTraceError, NotATraceError, RankscopeError, StoreError
from rankscope.host import available_memory_bytes, usable_cores
from rankscope.private_files import make_private_folder
from rankscope.records import dataclass
from rankscope.store.checksums import damage
from rankscope.store.incoming import clean, exclusive, has_abandoned, incoming_folder, publishing
from rankscope.store.layout import (
    INDEX_FILE,
    Index,
    SegmentEntry,
    Sources,
    can_write,
    default_cache,
    find_sources,
    store_folder,
    traces_elsewhere,
)
from rankscope.store.rank_assignment import ALONE, BESIDE, Assignment, assign, keep, refuse_overlaps
from rankscope.store.side_by_side import side_by_side
from rankscope.store.worker import Task

Say = Callable[[str], None]

_WORKER_BYTES = 400_000_000
"""Memory of a process that reads a file, besides the columns of its events: some blocks of text."""
_CHECKED_AT_A_TIME = 4


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


@dataclass(frozen=True)
class Watch:
    """Callbacks that show the progress."""

    begin: Callable[[int, int], None] = lambda files, total_bytes: None
    advance: Callable[[Path, int, str], None] = lambda path, read, doing: None
    end: Callable[[], None] = lambda: None
    say: Say = lambda text: None


@dataclass(frozen=True)
class Ingested:
    """The result of `ingest`."""

    store: Path
    index: Index
    read: tuple[SegmentEntry, ...]
    """Segments read by this call; empty if nothing had changed."""
    problems: tuple[RankscopeError, ...]
    """One error for each file that could not be read."""


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
    as_it_is: bool = False
    """The raw files are elsewhere or gone: nothing is read but what is damaged."""


def ingest(paths: Sequence[Path], options: Options | None = None, watch: Watch | None = None) -> Ingested:
    """Bring the store of these traces up to date and return it. Unchanged files are not read again.

    Segments whose tables are damaged are read again from the raw files.
    """
    options, watch = options or Options(), watch or Watch()
    paths = [path.resolve() for path in paths]
    plan = _plan(paths, options, watch.say)
    kept, wanted = _split(plan, {}, watch.say)
    changed = wanted or len(kept) != len(plan.index.segments)
    if not changed and not (plan.found.recovered and can_write(plan.store)):
        _clean_up(plan.store)
        return Ingested(plan.store, plan.index, (), plan.skipped)
    _report_assumed_rank(wanted, watch.say)
    with _writing(plan.store), incoming_folder(plan.store) as incoming:
        built: dict[Assignment, _Outcome] = {}
        while True:
            built |= _read(incoming, wanted, options.jobs, watch)
            index, fresh, problems = _outcome(plan, kept, built)
            _report_merged(fresh, watch.say)
            with exclusive(plan.store):
                if Index.load(plan.store) == plan.found:
                    with publishing(incoming):
                        _publish(plan.store, incoming, index, fresh)
                    return Ingested(plan.store, index, tuple(fresh), (*plan.skipped, *problems))
            # Another process has changed the store in the meantime. What was read here is still used.
            plan = _plan(paths, options, watch.say)
            kept, wanted = _split(plan, built, watch.say)


def _plan(paths: Sequence[Path], options: Options, say: Say) -> _Plan:
    """Which files are to be in which store, with which ranks."""
    if len(paths) == 1 and (paths[0] / INDEX_FILE).is_file():
        return _as_it_is(paths[0], Index.load(paths[0]))
    stores = {store: Index.load(store) for store in _possible_stores(paths, options)}
    home = paths[0] if paths[0].is_dir() else paths[0].parent
    indexes = {store: found.moved_to(home) for store, found in stores.items()}
    whole = next((store for store in stores if stores[store].segments and not options.ranks), None)
    if whole is not None and _is_of_files_elsewhere(paths, indexes[whole]):
        return _as_it_is(whole, stores[whole])
    known = {entry.source for index in indexes.values() for entry in index.segments if entry.is_current()}
    try:
        sources = find_sources(paths, known, list(stores)[-1])
    except RankscopeError as error:
        if whole is None:
            raise
        # The raw files are gone; what could not be read instead of them is reported.
        gone = isinstance(error, (StoreError, NotATraceError)) and not isinstance(error, EmptyTraceError)
        return _as_it_is(whole, stores[whole], () if gone else (error,))
    store = _choose_store(paths, sources, indexes, say)
    given = {path.resolve(): rank for path, rank in options.ranks.items()}
    places, unopened = assign(sources.files, given, sources.ranks, indexes[store])
    return _Plan(store, stores[store], indexes[store], places, (*sources.skipped, *unopened))


def _as_it_is(store: Path, index: Index, skipped: tuple[RankscopeError, ...] = ()) -> _Plan:
    return _Plan(store, index, index, [keep(entry) for entry in index.segments], skipped, as_it_is=True)


def _is_of_files_elsewhere(paths: Sequence[Path], index: Index) -> bool:
    """True for a fetched store, and for one of `ingest -o`: the folder that was given has no raw files of its own."""
    if len(paths) != 1 or not paths[0].is_dir():
        return False
    fetched = not any(entry.source.is_absolute() for entry in index.segments)
    if not fetched and traces_elsewhere(paths[0]).files:
        return False  # the run's own traces, in another folder: they may be newer than the store
    inside = any(entry.source.parent == paths[0] for entry in index.segments)
    return not inside and all(entry.is_current() for entry in index.segments)


def _possible_stores(paths: Sequence[Path], options: Options) -> list[Path]:
    """The default place of the store, and the user's cache if that is read-only."""
    store = store_folder(paths, options.output, options.cache)
    if can_write(store) or options.output or options.cache:
        return [store]
    return [store, store_folder(paths, None, default_cache())]


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
        if entry is not None and place not in built:
            checked.append((place, entry))
        elif place not in built:
            wanted.append(place)
    reasons = side_by_side(
        lambda one: damage(plan.store / one[1].folder, one[1].files), checked, _CHECKED_AT_A_TIME
    )
    for (place, entry), reason in zip(checked, reasons, strict=True):
        if not reason:
            kept.append(replace(entry, rank_source=place.rank_source))
            continue
        if not (place.path.is_file() and entry.is_current()):
            raise _lost(plan.store, entry, reason)
        say(f"the store is damaged at rank {place.rank} ({reason}): {place.path.name} is read again")
        wanted.append(place)
    return kept, wanted


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


def _report_merged(fresh: list[SegmentEntry], say: Say) -> None:
    for entry in fresh:
        if count := entry.manifest["header"].get("mergedProcesses"):
            say(
                f"{entry.source.name} has {count} processes that use CUDA, and nothing tells their ranks: they are "
                f"read as one, rank {entry.rank} (rankscope doctor says more)"
            )


def _read(
    incoming: Path, wanted: list[Assignment], jobs: int | None, watch: Watch
) -> dict[Assignment, _Outcome]:
    """Read files in worker processes, each into a folder of its own."""
    from rankscope.store.pool import run_tasks  # late: the readers take long to import

    if not wanted:
        return {}
    jobs, threads = _share_machine([place.path for place in wanted], jobs)
    tasks = {}
    for place in wanted:
        folder = incoming / unique_name()
        make_private_folder(folder)
        tasks[place] = Task(str(place.path), str(folder), threads, place.part, place.rank_source)
    outcomes: dict[Assignment, _Outcome] = {}
    watch.begin(len(wanted), sum(place.path.stat().st_size for place in wanted if place.path.is_file()))
    try:
        for place, outcome in run_tasks(
            tasks, jobs, lambda place, read, doing: watch.advance(place.path, read, doing)
        ):
            if isinstance(outcome, RankscopeError):
                outcomes[place] = outcome
            else:
                build = Path(tasks[place].folder).name
                outcomes[place] = SegmentEntry(place.rank, place.segment, place.rank_source, outcome, build)
    finally:
        watch.end()
    return outcomes


def _outcome(
    plan: _Plan, kept: list[SegmentEntry], built: Mapping[Assignment, _Outcome]
) -> tuple[Index, list[SegmentEntry], list[RankscopeError]]:
    """The new index, the segments in it that were read now, and an error for each file that could not be read."""
    read = [built[place] for place in dict.fromkeys(plan.places) if place in built]
    fresh = [outcome for outcome in read if isinstance(outcome, SegmentEntry)]
    problems = [outcome for outcome in read if isinstance(outcome, RankscopeError)]
    refuse_overlaps([*kept, *fresh])
    if not kept and not fresh:
        raise problems[0]
    return Index(sorted([*kept, *fresh], key=lambda e: (e.rank, e.segment))), fresh, problems


def _share_machine(files: Sequence[Path], jobs: int | None) -> tuple[int, int]:
    """The number of files at a time, and threads for each."""
    from rankscope.store.pool import text_bytes

    cores = usable_cores()
    needed = _WORKER_BYTES + max((text_bytes(path) for path in files if path.is_file()), default=0) // 2
    most = max(1, min(cores, available_memory_bytes() // 2 // needed))
    jobs = max(1, min(len(files), jobs or most))
    return jobs, max(1, cores // jobs)


def _publish(store: Path, incoming: Path, index: Index, fresh: list[SegmentEntry]) -> None:
    """Move complete segments to their places, list them, and remove what is no longer listed."""
    for entry in fresh:
        target = store / entry.folder
        make_private_folder(target.parent.parent)
        make_private_folder(target.parent)
        (incoming / entry.build).rename(target)
    index.save(incoming)
    (incoming / INDEX_FILE).replace(store / INDEX_FILE)
    clean(store, {entry.folder for entry in index.segments})


def _clean_up(store: Path) -> None:
    """Remove what a killed process has left after it listed its segments."""
    if can_write(store) and has_abandoned(store):
        with exclusive(store):
            clean(store, {entry.folder for entry in Index.load(store).segments})


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
