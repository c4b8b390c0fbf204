"""Killed while reading: the next ingest gives the store of one that was never disturbed, and nothing is left behind."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

from conftest import DATA
from faults.forked import Child, Ended, load_commands
from faults.outcome import Outcome, Part
from rankscope.store import pool

SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT)
VICTIMS = ("the command", "the command, beside another", "a worker", "a worker, beside another")
BEYOND = 1.2
"""A signal comes within this many times of what reading takes: sometimes it is too late."""
RANKS = 3

TABLES = ("events", "slices", "gpu", "links", "tracks", "steps", "collectives", "instants", "counters")
HASHES = ", ".join(f"(SELECT sum(hash(t)) FROM {table} t)" for table in TABLES)


def trials(count: int, random: Random) -> Iterator[Outcome]:
    load_commands("ingest", "query")
    with tempfile.TemporaryDirectory(prefix="rankscope-faults-") as folder:
        base = Path(folder)
        run = base / "run"
        run.mkdir()
        for rank in range(RANKS):
            shutil.copy2(DATA / "seqpar-gloo4" / f"rank-{rank}-of-4.json.gz", run)
        seconds = {before: _seconds(base, run, before) for before in (_without_workers, _with_workers)}
        expected = _figures(base, run)
        listing = _listing(run)
        kinds = [(victim, number) for victim in VICTIMS for number in SIGNALS]
        for number in range(count):
            # 5 has no common divisor with 12: neighbours differ in victim and in signal.
            victim, killed_by = kinds[number * 5 % len(kinds)]
            shutil.rmtree(run / ".rankscope", ignore_errors=True)
            before = _with_workers if "worker" in victim else _without_workers
            moment = random.uniform(0, BEYOND * seconds[before])
            difference = _trial(base, run, victim, killed_by, before, moment, random)
            if not difference:
                difference = _afterwards(base, run, expected, listing)
            yield Outcome(f"{killed_by.name} to {victim}", f"after {moment:.3f} s", difference)


def _trial(
    base: Path,
    run: Path,
    victim: str,
    killed_by: signal.Signals,
    before: Callable[[], None],
    moment: float,
    random: Random,
) -> str:
    first = Child(["ingest", "-q", str(run)], base, before)
    second = Child(["ingest", "-q", str(run)], base, before) if "another" in victim else None
    time.sleep(moment)
    workers = first.workers()
    target = random.choice(workers) if "worker" in victim and workers else first.pid
    with contextlib.suppress(ProcessLookupError):
        os.kill(target, killed_by)
    ended = first.wait()
    difference = _wrong_end(ended, killed_by, to_front=target == first.pid)
    if second is not None:
        other = second.wait()
        difference = difference or (f"the other one failed: {other.stderr[-500:]}" if other.status else "")
    _wait_for(workers)
    return difference


def _wrong_end(ended: Ended, killed_by: signal.Signals, *, to_front: bool) -> str:
    """It ended by itself before, or as the signal asks, or it lost a worker and says so."""
    if ended.status == 0 or (to_front and ended.status in (-killed_by, 128 + killed_by)):
        return "a traceback" if "Traceback" in ended.stderr else ""
    return ended.unclear()


def _afterwards(base: Path, run: Path, expected: str, listing: list[str]) -> str:
    figures = _figures(base, run)
    if figures != expected:
        return f"other figures: {figures}"
    found = _listing(run)
    return "" if found == listing else f"other files: {sorted(set(found) ^ set(listing))}"


def _figures(base: Path, run: Path) -> str:
    """A hash of every table, after the traces were read where needed."""
    ended = Child(["query", "-q", str(run), f"SELECT {HASHES}"], base).wait()
    return ended.stdout if ended.status == 0 else ended.stderr[-500:]


def _listing(run: Path) -> list[str]:
    """The files of a store, without the names that differ each time; temporary ones would be among them."""
    store = run / ".rankscope"
    found = []
    for path in sorted(store.rglob("*")):
        parts = list(path.relative_to(store).parts)
        if len(parts) > 2 and parts[0].startswith("rank="):
            parts[2] = "NAME"
        found.append("/".join(parts))
    return found


def _seconds(base: Path, run: Path, before: Callable[[], None]) -> float:
    """How long reading takes here and now."""
    shutil.rmtree(run / ".rankscope", ignore_errors=True)
    began = time.monotonic()
    ended = Child(["ingest", "-q", str(run)], base, before).wait()
    assert ended.status == 0, ended.stderr
    return time.monotonic() - began


def _with_workers() -> None:
    pool._SMALL_BYTES = 0


def _without_workers() -> None:
    pool._SMALL_BYTES = 1 << 30


def _wait_for(pids: list[int]) -> None:
    """Workers that have lost their owner end by themselves."""
    deadline = time.monotonic() + 30
    while any(Path(f"/proc/{pid}").exists() for pid in pids) and time.monotonic() < deadline:
        time.sleep(0.02)


INGEST_KILLS = Part("killed while reading", trials, many=204, few=3)
