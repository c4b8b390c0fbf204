"""Makes what the store keeps about the ranks of a run of several chunks when they are read, in several processes."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

from rankscope.analysis.core.rollups import (
    Records,
    chunks,
    default_window,
    fits_in_memory,
    is_large,
    make,
    not_kept,
    read_part,
    rollups_of,
    write_part,
)
from rankscope.analysis.core.scope import Scope
from rankscope.analysis.questions import MODULES
from rankscope.errors import RankscopeError
from rankscope.files import temporary_path
from rankscope.host import usable_cores
from rankscope.ranges import as_ranges
from rankscope.store import database
from rankscope.store.derived import FOLDER
from rankscope.store.index import Index, SegmentEntry
from rankscope.store.ingest import Ingested
from rankscope.store.pool import run_calls
from rankscope.store.worker import Call
from rankscope.timeline.run import Run


def keep_rollups(
    run: Run, jobs: int, advance: Callable[[int, int], None], say: Callable[[str], None]
) -> None:
    """Make the rollups of the ranks that have none: they were read when the run was opened, or by an earlier version.

    `advance` is called with the number of ranks that are done and of all.
    """
    if run.from_events or not run.keeps_results or fits_in_memory(run) or not (ranks := not_kept(run)):
        return
    load_modules()
    rollups = rollups_of(run)  # measures the clocks where keys need them, once and not in every process
    common = {
        "store": str(run.store),
        "window": default_window(run),
        "is_large": is_large(run),
        "threads": max(1, usable_cores() // jobs),
    }
    whole = Call(match_ranks, {"store": str(run.store), "segments": run.segments}, "matching the collectives")
    parts_of_ranks = [*chunks(run, ranks, jobs)]
    in_workers = len(parts_of_ranks) > 1
    calls: dict[tuple[int, ...], Call] = {(): whole} if in_workers and run.clock_mode == "aligned" else {}
    calls |= {
        tuple(chunk): Call(
            make_part,
            {**common, "segments": _needed(run, chunk), "ranks": chunk},
            f"the rollups of ranks {as_ranges(chunk)}",
        )
        for chunk in parts_of_ranks
    }

    def parts() -> Iterator[Records]:
        done = 0
        for chunk, outcome in run_calls(calls, jobs):
            if isinstance(outcome, RankscopeError):  # reports read the events of these ranks
                say(f"rankscope: {outcome}")
            elif chunk:
                yield read_part(Path(outcome["folder"]))
                shutil.rmtree(outcome["folder"])
            if chunk:
                done += len(chunk)
                advance(done, len(ranks))

    rollups.add(parts())


def _needed(run: Run, ranks: list[int]) -> list[SegmentEntry]:
    """The files of ranks; of the whole run where what is read of a file depends on others: several of a rank, or of
    several formats."""
    if len(run.segments) > len(run.ranks) or len({entry.format for entry in run.segments}) > 1:
        return run.segments
    return [entry for entry in run.segments if entry.rank in ranks]


def make_part(
    store: str, segments: list[SegmentEntry], ranks: list[int], window: str, is_large: bool, threads: int
) -> dict[str, Any]:
    """In a worker process, with some cores: the rollups of some ranks, in a folder of their own."""
    load_modules()
    run = Run(Ingested(Path(store), Index(segments), (), ()))
    run.part_of_large = is_large
    folder = temporary_path(run.store / FOLDER / "part")
    before, database.most_threads = database.most_threads, threads
    try:
        write_part(make(run, ranks, Scope(), window), folder)
    finally:  # a single part is made in the process that goes on
        database.most_threads = before
    return {"folder": str(folder)}


def match_ranks(store: str, segments: list[SegmentEntry]) -> dict[str, Any]:
    """In a worker process, beside those that look at single ranks: the store keeps clocks and matched collectives."""
    Run(Ingested(Path(store), Index(segments), (), ())).collectives  # noqa: B018  (kept when they are asked for)
    return {}


def load_modules() -> None:
    """All functions whose results are kept. The process that workers are forked from imports them, no other."""
    import duckdb  # noqa: F401

    import rankscope.analysis.across_ranks.heatmap
    import rankscope.analysis.summary  # noqa: F401

    for module in sorted(MODULES):
        import_module(module)
