"""Reads raw traces into the store: each file once, several at a time, each visible only when it is complete."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from rankscope.errors import RankscopeError, StoreError
from rankscope.host import available_memory_bytes, process_exists, usable_cores
from rankscope.store.layout import (
    Index,
    SegmentEntry,
    Sources,
    can_write,
    default_cache,
    find_sources,
    store_folder,
    traces_elsewhere,
)
from rankscope.store.pool import run_tasks
from rankscope.store.rank_assignment import ALONE, BESIDE, Assignment, assign, refuse_overlaps
from rankscope.store.worker import Task

Say = Callable[[str], None]

_LEAST_MEMORY = 600_000_000
"""Least memory for the DuckDB of a worker."""
_WORKER_OVERHEAD = 900_000_000
"""Memory of a worker besides DuckDB: two blocks of the file and the arrays of a large rank."""
_INCOMING_PREFIX = "incoming-"


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


def ingest(paths: Sequence[Path], options: Options | None = None, watch: Watch | None = None) -> Ingested:
    """Bring the store of these traces up to date and return it. Unchanged files are not read again."""
    options, watch = options or Options(), watch or Watch()
    paths = [path.resolve() for path in paths]
    already = _opened_as_store(paths, options)
    if already is not None:
        return already
    stores = _possible_stores(paths, options)
    known = {entry.source for index in stores.values() for entry in index.segments if entry.is_current()}
    sources = find_sources(paths, known, list(stores)[-1])
    store, index = _choose_store(paths, sources, stores, watch.say)
    given = {path.resolve(): rank for path, rank in options.ranks.items()}
    places, unopened = assign(sources.files, given, sources.ranks, index)
    kept, wanted = _split(places, index)
    skipped = (*sources.skipped, *unopened)
    if not wanted and len(kept) == len(index.segments):
        return Ingested(store, index, (), skipped)
    _report_assumed_rank(wanted, watch.say)
    fresh, problems = _read(store, wanted, options.jobs, watch)
    _report_merged(fresh, watch.say)
    refuse_overlaps([*kept, *fresh])
    if not kept and not fresh:
        raise problems[0]
    index = Index(sorted([*kept, *fresh], key=lambda e: (e.rank, e.segment)))
    index.save(store)
    _remove_unlisted(store, index)
    return Ingested(store, index, tuple(fresh), (*skipped, *problems))


def _opened_as_store(paths: Sequence[Path], options: Options) -> Ingested | None:
    """The store of a run whose raw files are elsewhere or deleted (fetched stores, ingest -o), else None."""
    if len(paths) != 1 or not paths[0].is_dir() or options.ranks:
        return None
    store = (
        paths[0]
        if (paths[0] / "store.json").is_file()
        else store_folder(paths, options.output, options.cache)
    )
    index = Index.load(store)
    fetched = not any(entry.source.is_absolute() for entry in index.segments)
    if not fetched and traces_elsewhere(paths[0]).files:
        return None  # the run's own traces, in another folder: they may be newer than the store
    inside = any(entry.source.parent == paths[0] for entry in index.segments)
    if not index.segments or inside or not all(entry.is_current() for entry in index.segments):
        return None
    return Ingested(store, index, (), ())


def _possible_stores(paths: Sequence[Path], options: Options) -> dict[Path, Index]:
    """The possible stores and their indexes: the default place, and the user's cache if that is read-only."""
    store = store_folder(paths, options.output, options.cache)
    stores = [store]
    if not can_write(store) and not (options.output or options.cache):
        stores.append(store_folder(paths, None, default_cache()))
    return {folder: Index.load(folder) for folder in stores}


def _choose_store(
    paths: Sequence[Path], sources: Sources, stores: dict[Path, Index], say: Say
) -> tuple[Path, Index]:
    """The default place if it can be written to or already has every file, else the user's cache."""
    (store, index), *elsewhere = stores.items()
    current = {entry.source for entry in index.segments if entry.is_current()}
    if can_write(store) or current >= set(sources.files):
        return store, index
    if not elsewhere:
        raise StoreError(
            f"cannot write to {store}", why="The folder is read-only.", hint="Name another one: --cache DIR"
        )
    fallback, found = elsewhere[0]
    say(f"{paths[0]} cannot be written to; the store is in {fallback} (--cache DIR changes that)")
    return fallback, found


def _split(places: list[Assignment], index: Index) -> tuple[list[SegmentEntry], list[Assignment]]:
    """The segments that are up to date, and the files that must be read."""
    known = {
        (entry.source, entry.part, entry.rank, entry.segment): entry
        for entry in index.segments
        if entry.is_current()
    }
    keys = {(place.path, place.part, place.rank, place.segment): place for place in places}
    kept = [replace(known[key], rank_source=place.rank_source) for key, place in keys.items() if key in known]
    return kept, [place for key, place in keys.items() if key not in known]


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
    store: Path, wanted: list[Assignment], jobs: int | None, watch: Watch
) -> tuple[list[SegmentEntry], list[RankscopeError]]:
    """Read files in worker processes. Each segment is moved into place as soon as it is complete."""
    try:
        store.mkdir(parents=True, exist_ok=True)
        _remove_stale(store)
        incoming = Path(tempfile.mkdtemp(prefix=f"{_INCOMING_PREFIX}{os.getpid()}-", dir=store))
    except OSError as error:
        raise StoreError(
            f"cannot write to {store}", why=f"{error.strerror}.", hint="Name another folder: --cache DIR"
        ) from error
    jobs, threads, memory = _share_machine(len(wanted), jobs)
    tasks = {}
    for number, place in enumerate(wanted):
        folder = incoming / str(number)
        folder.mkdir()
        tasks[place] = Task(str(place.path), str(folder), threads, memory, place.part)
    fresh: list[SegmentEntry] = []
    problems: list[RankscopeError] = []
    watch.begin(len(wanted), sum(place.path.stat().st_size for place in wanted))
    try:
        for place, outcome in run_tasks(
            tasks, jobs, lambda place, read, doing: watch.advance(place.path, read, doing)
        ):
            if isinstance(outcome, RankscopeError):
                problems.append(outcome)
                continue
            entry = SegmentEntry(place.rank, place.segment, place.rank_source, outcome)
            _move_into_place(Path(tasks[place].folder), store / entry.folder)
            fresh.append(entry)
    finally:
        watch.end()
        shutil.rmtree(incoming, ignore_errors=True)
    return fresh, problems


def _share_machine(files: int, jobs: int | None) -> tuple[int, int, int]:
    """The number of files at a time, and threads and DuckDB memory (bytes) for each."""
    cores = usable_cores()
    budget = available_memory_bytes() // 2
    most = max(1, min(cores, budget // (_LEAST_MEMORY + _WORKER_OVERHEAD)))
    jobs = max(1, min(files, jobs or most))
    memory = min(max(_LEAST_MEMORY, budget // jobs - _WORKER_OVERHEAD), 4_000_000_000)
    return jobs, max(1, cores // jobs), memory


def _move_into_place(built: Path, target: Path) -> None:
    """Move a complete segment to its place in the store; an older one is removed first."""
    target.parent.mkdir(parents=True, exist_ok=True)
    if target.exists():
        shutil.rmtree(target)
    built.rename(target)


def _remove_stale(store: Path) -> None:
    """Remove the folders left by a process that was killed; keep those of running processes."""
    for folder in store.glob(f"{_INCOMING_PREFIX}*"):
        pid = folder.name.removeprefix(_INCOMING_PREFIX).partition("-")[0]
        if not (pid.isdigit() and process_exists(int(pid)) and int(pid) != os.getpid()):
            shutil.rmtree(folder, ignore_errors=True)


def _remove_unlisted(store: Path, index: Index) -> None:
    """Remove the segments of files that are no longer part of the run."""
    listed = {entry.folder for entry in index.segments}
    for folder in store.glob("rank=*/segment=*"):
        if str(folder.relative_to(store)) not in listed:
            shutil.rmtree(folder, ignore_errors=True)
