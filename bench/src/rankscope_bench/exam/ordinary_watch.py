"""Watches the ordinary jobs while they run, and compares the alarms with what was planted in the middle of them.

    python -m rankscope_bench.exam.ordinary_watch FOLDER [--at-once 2] [--steps 300] [--onset 150] [--only svd,garbage]
    python -m rankscope_bench.exam.ordinary_watch FOLDER --long 20000        healthy jobs only, one after another
    python -m rankscope_bench.exam.ordinary_watch FOLDER --judge-again        the recorded ring files, without any job

Every job of four ranks runs under `rankscope profile --watch`, beside `rankscope watch`, and once more as its healthy
twin. A fault counts as named when an alarm says its kind, ranks and cause; all other alarms are false. `steps` is after
how many steps with the fault the judge suspects it, when it is asked after every step; `alarm` after how many seconds
that is an alarm; `live` the same of the `rankscope watch` that ran beside the job.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from rankscope.text.plain_table import plain_table
from rankscope.watch.alarms import (
    COMMUNICATION,
    COMPUTE,
    CONTENTION,
    DATA,
    DATA_LOADING,
    GARBAGE,
    HOST,
    MEMORY,
    OF_MEMORY,
    SLOW_RANK,
    SLOWDOWN,
    SPIKE,
)
from rankscope.watch.judge import STEPS, StepWatcher
from rankscope.watch.rings import RECENT, read_whole, tables
from rankscope.watch.step_table import StepTable
from rankscope_bench.arguments import parsed
from rankscope_bench.exam.ordinary_job import FAULTS, JOBS, WATCHED
from rankscope_bench.exam.ordinary_record import HEALTHY, RANKS, in_slots, run_job

BUSY = (COMPUTE, HOST)
"""Work of the interpreter or of torch: by its CPU time compute, where it also writes or waits host."""
EXPECTED: dict[str, tuple[str, ...]] = {
    "evaluation": (COMPUTE,),
    "checkpoint": BUSY,
    "svd": (COMPUTE,),
    "garbage": (GARBAGE,),
    "slow-log": (HOST,),
    "gil-thread": BUSY,
    "large-batch": (COMPUTE,),
    "slow-data": (DATA_LOADING,),
    "preprocessing": (COMPUTE,),
    "compile": BUSY,
    "taken-core": (CONTENTION,),
    "micro-batch": (COMPUTE,),
    "tensor-parallel": (COMPUTE,),
    "tensor-data": (DATA_LOADING,),
    "pipeline": (COMPUTE,),
    "pipeline-host": (COMPUTE,),
    "sharded": (COMPUTE,),
    "leak": (OF_MEMORY,),
    "all-data": (DATA_LOADING,),
    "slow-network": (COMMUNICATION,),
    "long-micro-batch": (COMPUTE,),
    "few-cores": (CONTENTION,),
    "uneven-batches": BUSY,
    "save-everywhere": BUSY,
}
"""The jobs, and the causes that an alarm may give."""
_LONGEST = ("pipeline", "accumulation", "ddp", "sharded", "tensor")
"""Jobs by the length of their steps."""
_TIMES_STEPS = {"ddp": 4.0, "accumulation": 2.0, "sharded": 1.3}
_TIMES_STEPS_ON_FEW_CORES = {"ddp": 1.5}
"""Of jobs with short steps, so that a fault lasts longer than what confirms it."""
_SETTLE_S = 30.0
_LIMIT_S = 420.0


@dataclass(frozen=True)
class Raised:
    """An alarm: what it says, and when."""

    kind: str
    cause: str
    ranks: tuple[int, ...]
    step: int
    text: str
    unix_ns: int = 0

    def names(self, fault: str) -> bool:
        planted = {**FAULTS, **WATCHED}[fault]
        if planted.ranks:
            kind = MEMORY if fault == "leak" else SLOW_RANK
            return self.kind == kind and self.ranks == planted.ranks and self.cause in EXPECTED[fault]
        kinds = (SLOWDOWN, DATA) if fault == "all-data" else (SLOWDOWN,)
        return self.kind in kinds and not self.ranks and self.cause in EXPECTED[fault]


def watch_beside(folder: Path, output: Path, core: Sequence[int]) -> None:
    """`rankscope watch` from the first ring file on, until the job has ended."""
    deadline = time.monotonic() + _SETTLE_S * 4
    while not any(folder.glob("telemetry/rank-*.ring")):
        if time.monotonic() > deadline:
            return
        time.sleep(0.2)
    if core:
        os.sched_setaffinity(0, core)
    words = ["watch", str(folder), "--format", "json", "--every", "500ms"]
    with output.open("w") as lines, contextlib.suppress(subprocess.TimeoutExpired):
        subprocess.run(
            [sys.executable, "-m", "rankscope", *words], stdout=lines, timeout=_LIMIT_S + _SETTLE_S
        )


def run_watched(folder: Path, words: Sequence[str], slot: Sequence[int], limit_s: float) -> str:
    """One job and its watcher; what went wrong, or nothing."""
    spare = [core for core in slot if core not in slot[:: max(len(slot) // RANKS, 1)][:RANKS]]
    thread = threading.Thread(
        target=watch_beside, args=(folder, folder.with_name(folder.name + ".jsonl"), spare or slot)
    )
    thread.start()
    # On a busy machine the hooks are interrupted, which would count as their cost.
    trouble = run_job(folder, ["--watch", "--watch-budget", "20"], words, slot, limit_s)
    thread.join()
    return trouble


def live_alarms(folder: Path) -> Iterator[Raised]:
    """What `rankscope watch` said."""
    path = folder.with_name(folder.name + ".jsonl")
    for line in path.read_text().splitlines() if path.exists() else ():
        state = json.loads(line)
        for alarm in state["new_alarms"]:
            yield _raised(alarm, state["unix_ns"])


def _raised(alarm: dict[str, Any], unix_ns: int = 0) -> Raised:
    return Raised(alarm["kind"], alarm["cause"], tuple(alarm["ranks"]), alarm["step"], alarm["text"], unix_ns)


def whole_table(folder: Path) -> StepTable | None:
    return max(tables(read_whole(folder)), key=lambda table: len(table.steps), default=None)


@dataclass(frozen=True)
class Outcome:
    """Of a job."""

    name: str
    step_ms: float
    steps: int | None
    """After its onset the fault is suspected; None: never, or nothing was planted."""
    alarm_s: float | None
    live_s: float | None
    false: list[str]
    """Texts of all other alarms."""
    live_false: list[str]
    judged: int
    """Steps."""


def outcome(folder: Path, onset: int, every: int = 1) -> Outcome | None:
    """What was said about a job; None where it did not come to the fault."""
    table = whole_table(folder)
    if table is None or int(table.steps[-1]) < onset:
        print(f"{folder.name}: it has not come to step {onset}")
        return None

    suspected, confirmed = _judged_again(table, every)
    live = list(live_alarms(folder))
    name = folder.name
    healthy = name.startswith(HEALTHY)
    begin = float(np.nanmin(table["end_unix_ns"][table.steps == onset - 1])) if not healthy else 0.0

    def first(alarms: Sequence[Raised]) -> Raised | None:
        return next((each for each in alarms if each.step >= onset and each.names(name)), None)

    def is_false(alarm: Raised) -> bool:
        """A single long step that names the rank at fault is no false alarm, nor does it name the fault."""
        if healthy or alarm.step < onset:
            return True
        planted = {**FAULTS, **WATCHED}[name].ranks
        return not alarm.names(name) and not (alarm.kind == SPIKE and alarm.ranks == planted)

    def after_s(alarm: Raised | None) -> float | None:
        return (alarm.unix_ns - begin) / 1e9 if alarm else None

    named = None if healthy else first(suspected)
    false, live_false = (
        [f"step {each.step}: {each.text}" for each in alarms if is_false(each)]
        for alarms in (confirmed, live)
    )
    return Outcome(
        name,
        float(np.nanmedian(table["step_ns"])) / 1e6,
        named.step - onset + 1 if named else None,
        None if healthy else after_s(first(confirmed)),
        None if healthy else after_s(first(live)),
        false,
        live_false,
        len(table.steps),
    )


def _judged_again(table: StepTable, every: int) -> tuple[list[Raised], list[Raised]]:
    """What is open after each look, suspicions too; and the alarms."""
    watcher = StepWatcher()
    suspected, confirmed = [], []
    for end in range(STEPS, len(table.steps) + 1, every):
        seen = table.rows(slice(max(end - RECENT, 0), end))
        unix_ns = int(np.nanmax(seen["end_unix_ns"][-1]))
        confirmed += [_raised(alarm.to_dict(), unix_ns) for alarm in watcher.look(seen)]
        suspected += [_raised(alarm.to_dict(), unix_ns) for alarm in watcher.book.open]
    return suspected, confirmed


def print_outcomes(outcomes: Sequence[Outcome], within: int = 20) -> None:
    faulty = [each for each in outcomes if not each.name.startswith(HEALTHY)]
    rows = [
        (
            each.name,
            f"{each.step_ms:.0f}",
            "-" if each.steps is None else str(each.steps),
            *("-" if seconds is None else f"{seconds:.1f}" for seconds in (each.alarm_s, each.live_s)),
            str(len(each.false)),
            str(len(each.live_false)),
        )
        for each in outcomes
    ]
    print(plain_table(("job", "step ms", "steps", "alarm s", "live s", "false", "false live"), rows))
    for each in outcomes:
        for text in (*each.false, *(f"live, {text}" for text in each.live_false)):
            print(f"{each.name}: {text}")
    healthy = [each for each in outcomes if each.name.startswith(HEALTHY)]
    named = sum(each.steps is not None and each.steps <= within for each in faulty)
    late = sum(each.steps is not None and each.steps > within for each in faulty)
    if faulty:
        lately = f", {late} later"
        print(f"suspected with rank and cause within {within} steps: {named} of {len(faulty)}{lately}")
        alarms = sorted(each.alarm_s for each in faulty if each.alarm_s is not None)
        print(f"alarms: {len(alarms)}, after {', '.join(f'{seconds:.1f}' for seconds in alarms)} s")
        print(f"alarms of rankscope watch while it ran: {sum(each.live_s is not None for each in faulty)}")
        print(f"false alarms beside the faults: {sum(len(each.false) for each in faulty)}")
    if healthy:
        count, live = (
            sum(len(getattr(each, which)) for each in healthy) for which in ("false", "live_false")
        )
        steps = sum(each.judged for each in healthy)
        print(f"false alarms in {steps:,} healthy steps: {count}, of rankscope watch {live}")


_OPTIONS = """\
FOLDER  where the jobs are recorded
--at-once N  jobs side by side, each on cores of its own (default 2)
--steps N  of the jobs with the longest steps (default 300)
--onset N  the first step with the fault (default 150)
--layers N  of the models: the length of a step (default 1)
--only NAMES  of faults, separated by commas
--part I/N  such as 1/2: every second job
--long N  healthy steps in all, of several models
--judge-again  only read what was recorded
"""


def main(argv: Sequence[str] | None = None) -> int:
    args = parsed(
        __doc__,
        _OPTIONS,
        argv,
        folder=Path,
        at_once=2,
        steps=300,
        onset=150,
        layers=1,
        only="",
        part="1/1",
        long=0,
    )
    args.folder.mkdir(parents=True, exist_ok=True)
    jobs = _long_jobs(args) if args.long else _jobs(args)
    only = [name for name in args.only.split(",") if name]
    part, parts = map(int, args.part.split("/"))
    jobs = {
        name: words
        for number, (name, words) in enumerate(jobs.items())
        if (not only or name.removeprefix(f"{HEALTHY}-") in only) and number % parts == part - 1
    }
    if not args.judge_again:
        _run_all(args, jobs)
    folders = [args.folder / name for name in jobs if (args.folder / name / "telemetry").is_dir()]
    every = 5 if args.long else 1
    onset = 0 if args.long else args.onset
    outcomes = (outcome(folder, onset, every) for folder in folders)
    print_outcomes([each for each in outcomes if each is not None])
    return 0


def _jobs(args: argparse.Namespace) -> dict[str, list[str]]:
    """Every fault, and its healthy twin. With fewer cores than ranks nobody's core can be taken."""
    each = ["--layers", str(args.layers), "--onset", str(args.onset), "--habits"]
    few_cores = len(os.sched_getaffinity(0)) // args.at_once < RANKS
    times = _TIMES_STEPS_ON_FEW_CORES if few_cores else _TIMES_STEPS
    names = [name for name in EXPECTED if not (few_cores and name == "taken-core")]
    jobs = {name: {**FAULTS, **WATCHED}[name].job for name in names}
    longest_first = sorted(jobs.items(), key=lambda item: _LONGEST.index(item[1]))
    steps = {job: str(round(args.steps * times.get(job, 1.0))) for job in _LONGEST}
    faulty = {name: [name, *each, "--steps", steps[job]] for name, job in longest_first}
    return {**faulty, **{f"{HEALTHY}-{name}": [*words, "--healthy"] for name, words in faulty.items()}}


def _long_jobs(args: argparse.Namespace) -> dict[str, list[str]]:
    """Each kind of job; those whose layers can be chosen without one too."""
    kinds = [
        (job, layers) for layers in (0, 1) for job in JOBS if layers or job not in ("pipeline", "tensor")
    ]
    steps = ["--steps", str(-(-args.long // len(kinds))), "--habits", "--healthy"]
    return {
        f"{HEALTHY}-{job}-{layers}": [_fault_of(job), *steps, "--layers", str(layers)]
        for job, layers in kinds
    }


def _fault_of(job: str) -> str:
    return next(name for name, fault in FAULTS.items() if fault.job == job)


def _run_all(args: argparse.Namespace, jobs: dict[str, list[str]]) -> None:
    def watched(job: tuple[str, list[str]], slot: Sequence[int]) -> str:
        return run_watched(args.folder / job[0], job[1], slot, _LIMIT_S)

    began = time.monotonic()
    for name, trouble in zip(jobs, in_slots(args.at_once, jobs.items(), watched), strict=True):
        print(f"{time.monotonic() - began:4.0f} s  {name}  {trouble}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
