"""How cost grows: with the cores for one file, with the jobs for many files, and with the ranks of a run.

Parts of bench.py; `bench.py --scaling --budget SECONDS` measures these alone. What matters most is measured first: when
the time is spent, the rest is left out.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import figures
import peers
import traces
from figures import JSON_LOAD, SCANNER
from rankscope.host import usable_cores
from rankscope.store.derived import ANSWERS, path_of
from traces import RANKSCOPE, WORK

if TYPE_CHECKING:
    from bench import Bench

IMPORTS = "python -c 'import duckdb, numpy'"
SIZES = ("1GB", "100MB")
JSON_LOAD_BYTES = 200_000_000
"""json.load reads smaller ones: it takes longer than all else."""
FILES = 128
RANKS = (1024, 256, 64)
MANY_EVENTS = 200_000
DERIVED_DATA = 320
"""Data-parallel ranks of the run that has derived data only: 10,240 ranks."""
VIEW_FIRST, VIEW_MAP, VIEW_AGAIN = "view, first picture", "view, whole map", "view, whole map again"


def ingest(path: Path, store: Path) -> list[object]:
    return [*RANKSCOPE, "ingest", path, "-o", store, "-q"]


def counts_up_to(most: int) -> list[int]:
    """1, 2, 4 … and `most`; the outermost first."""
    powers = [1 << power for power in range(most.bit_length()) if 1 << power < most]
    return list(dict.fromkeys([most, 1, *powers]))


def cores(bench: Bench) -> None:
    for size in bench.sizes(SIZES):
        trace = traces.stacks(size, bench.options.source)
        traces.into_page_cache([trace.path])
        kind = f"stacks {size}"
        for count in counts_up_to(usable_cores()):
            program = f"{count} {'core' if count == 1 else 'cores'}"
            bench.run_trace(
                program, trace, kind, ingest(trace.path, bench.store), from_nothing=True, cores=count
            )
        bench.part.facts[kind] = {"trace bytes": trace.size, **store_facts(bench.store)}
        if serial := figures.serial_seconds(bench.part, kind):
            bench.note(f"{kind}: {serial:.2f} s are serial, by Amdahl's law from one core and all")
        codes = {SCANNER: peers.SCANNER_CODE}
        if trace.size < JSON_LOAD_BYTES:
            codes[JSON_LOAD] = peers.JSON_CODE
        for program, code in codes.items():
            bench.run_trace(program, trace, kind, [sys.executable, "-c", code, trace.path])
        if bench.options.trace_processor:
            command = peers.trace_processor(bench.options.trace_processor, trace.path)
            bench.run_trace("trace_processor", trace, kind, command)
        else:
            bench.note(peers.NO_TRACE_PROCESSOR)


def jobs(bench: Bench) -> None:
    folder = traces.cluster(FILES)
    files, size = rank_files(folder)
    kind = f"{FILES} files of {traces.events_of_cluster(folder) // FILES:,} events"
    events = traces.events_of_cluster(folder)
    for count in counts_up_to(usable_cores()):
        program = f"{count} {'job' if count == 1 else 'jobs'}"
        command = [*ingest(folder, bench.store), "--jobs", count]
        bench.run(program, kind, command, size=size, events=events, from_nothing=True)
    bench.part.facts[kind] = {"files": len(files)}


def ranks(bench: Bench) -> None:
    for count in RANKS:
        many_ranks(bench, count, 20_000, f"{count:,} ranks")
    folder, kind = traces.cluster(RANKS[0]), f"{RANKS[0]:,} ranks"
    if usable_cores() > 2:
        size = rank_files(folder)[1]
        bench.run("ingest, 2 cores", kind, ingest(folder, bench.store), size=size, from_nothing=True, cores=2)
    derived_ranks(bench)
    many_ranks(bench, RANKS[-1], MANY_EVENTS, f"{RANKS[-1]} ranks of {MANY_EVENTS:,} events")


def many_ranks(bench: Bench, count: int, events: int, kind: str) -> None:
    """What is asked of a run after it was read."""
    if not bench.time_left():
        return
    folder = traces.cluster(count, events)
    size = rank_files(folder)[1]
    store = bench.store
    total = traces.events_of_cluster(folder)
    bench.run("ingest", kind, ingest(folder, store), size=size, events=total, from_nothing=True)
    if not store.is_dir():
        return
    bench.part.facts[kind] = {"ranks": count, "trace bytes": size, **store_facts(store)}
    report = [*RANKSCOPE, "report", store, "-o", WORK / "report.html", "-f", "-q"]
    commands: dict[str, list[object]] = {
        "stats, the first": [*RANKSCOPE, "stats", store],
        "stats, the second": [*RANKSCOPE, "stats", store],
        "stats -r stragglers": [*RANKSCOPE, "stats", store, "-r", "stragglers"],
        "stats -r collectives": [*RANKSCOPE, "stats", store, "-r", "collectives"],
        "report": report,
        IMPORTS: [sys.executable, "-c", "import duckdb, numpy"],
    }
    for program, command in commands.items():
        # What is asked again is answered from the store.
        repeat = 1 if program.startswith("stats") and program != "stats, the second" else None
        bench.run(program, kind, command, size=size, repeat=repeat)
    view(bench, kind, size)


def derived_ranks(bench: Bench) -> None:
    """Of ranks whose results are kept, and nothing else."""
    import many_ranks as derived

    if not bench.time_left():
        return
    kind = f"{derived.TENSOR * derived.PIPELINE * DERIVED_DATA:,} ranks, derived data"
    folder = WORK / "derived-ranks"
    store = folder / f"data-{DERIVED_DATA}"
    if not store.exists():
        shutil.rmtree(folder, ignore_errors=True)
        derived.write_store(derived.small_run(folder / "small"), store, derived.Repeated(DERIVED_DATA))
    path_of(store, ANSWERS).unlink(missing_ok=True)
    size = _bytes(path for path in store.rglob("*") if path.is_file())
    for program, words in {
        "stats, the first": [],
        "stats, the second": [],
        "stats -r stragglers": ["-r", "stragglers"],
    }.items():
        bench.run(program, kind, [*RANKSCOPE, "stats", store, *words], size=size, repeat=1)


def view(bench: Bench, kind: str, size: int) -> None:
    """Of a run that nobody has looked at, then again."""
    from viewer import look

    if bench.time_left():
        first, whole = look(bench.store)
        bench.add(VIEW_FIRST, kind, first, size)
        bench.add(VIEW_MAP, kind, whole, size)
        bench.add(VIEW_AGAIN, kind, look(bench.store)[1], size)


def rank_files(folder: Path) -> tuple[list[Path], int]:
    """Read once, so that they are in the page cache; and their size."""
    files = sorted(folder.glob("rank-*"))
    traces.into_page_cache(files)
    return files, sum(file.stat().st_size for file in files)


def store_facts(store: Path) -> dict[str, float]:
    """What a store is made of; empty where nothing was read."""
    files = [path for path in store.rglob("*") if path.is_file()]
    derived = [path for path in files if "derived" in path.relative_to(store).parts]
    index = [path for path in files if path.parent.name == ".rankscope"]
    return {
        "store files": len(files),
        "store bytes": _bytes(files),
        "derived bytes": _bytes(derived),
        "index bytes": _bytes(index),
    }


def _bytes(files: Iterable[Path]) -> int:
    return sum(file.stat().st_size for file in files)
