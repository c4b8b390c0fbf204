"""Records the ordinary jobs as a user would: `rankscope profile`, default options or `--active 20`.

    python -m rankscope_bench.exam.ordinary_record FOLDER [--steps 3,20] [--repeat 3] [--at-once 3] [--only svd,garbage]

Every recording is a run folder, FOLDER/FAULT-STEPS-NUMBER. The healthy twin of each job is recorded as
often. With `--at-once` several jobs run side by side, each on cores of its
own.
"""

from __future__ import annotations

import os
import queue
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from rankscope_bench.arguments import parsed
from rankscope_bench.exam.ordinary_job import FAULTS, JOBS

Task = TypeVar("Task")
RANKS = 4
DEFAULT_STEPS = 3
"""Steps that rankscope records unless told."""
SKIPPED = 2
"""Steps before the window: rankscope's defaults wait one step and warm up in one."""
HEALTHY = "healthy"
LIMIT_S = 180
_FIRST_PORT = 29500
JOB = Path(__file__).with_name("ordinary_job.py")


def recordings() -> dict[str, list[str]]:
    """The arguments of the job by name: every fault, and the healthy twin of every job."""
    twins = {
        f"{HEALTHY}-{job}": [next(name for name, fault in FAULTS.items() if fault.job == job), "--healthy"]
        for job in JOBS
    }
    return {**{name: [name] for name in FAULTS}, **twins}


def slots(at_once: int) -> list[list[int]]:
    """Cores of the machine for each of so many jobs; threads of one core stay together."""

    def first_sibling(core: int) -> int:
        path = Path(f"/sys/devices/system/cpu/cpu{core}/topology/thread_siblings_list")
        return int(re.split("[,-]", path.read_text())[0]) if path.exists() else core

    cores = sorted(os.sched_getaffinity(0), key=lambda core: (first_sibling(core), core))
    width = len(cores) // at_once
    return [cores[number * width : (number + 1) * width] for number in range(at_once)]


def in_slots(
    at_once: int, tasks: Iterable[Task], run: Callable[[Task, Sequence[int]], str], pins: bool = True
) -> Iterator[str]:
    """What each task says that is run, so many at a time, each with cores of its own where there are enough."""
    free: queue.Queue[list[int]] = queue.Queue()
    for slot in slots(at_once):
        free.put(slot if pins and len(slot) >= RANKS else [])

    def on_cores(task: Task) -> str:
        slot = free.get()
        try:
            return run(task, slot)
        finally:
            free.put(slot)

    with ThreadPoolExecutor(at_once) as pool:
        yield from pool.map(on_cores, tasks)


def record(folder: Path, words: Sequence[str], active: int, slot: Sequence[int]) -> str:
    """Record one job; what went wrong, or nothing."""
    options = ["--active", str(active)] if active != DEFAULT_STEPS else []
    return run_job(folder, options, [*words, "--steps", str(SKIPPED + active + 3)], slot)


def run_job(
    folder: Path, options: Sequence[str], words: Sequence[str], slot: Sequence[int], limit_s: float = LIMIT_S
) -> str:
    """Run one job under `rankscope profile`, started rank by rank as srun does; what went wrong, or nothing.

    A rank has a core of the slot, those between stay idle, and nothing of the job runs on other cores, its
    imports neither.
    """
    cores = slot[:: max(len(slot) // RANKS, 1)][:RANKS]
    if slot:
        os.sched_setaffinity(0, slot)  # of this thread, which the processes inherit
    command = [
        *(sys.executable, "-m", "rankscope", "profile", "-o", str(folder), *options),
        *(sys.executable, str(JOB), *words),
        *(["--cores", ",".join(map(str, cores))] if cores else []),
    ]
    shared = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "WORLD_SIZE": str(RANKS),
        "LOCAL_WORLD_SIZE": str(RANKS),
        "MASTER_ADDR": "localhost",
        "MASTER_PORT": str(_FIRST_PORT + (cores[0] if cores else 0)),
        "TORCHELASTIC_RUN_ID": folder.name,
    }
    log = folder.with_name(folder.name + ".log")
    with log.open("w") as messages:
        processes = [
            subprocess.Popen(
                command,
                env={**shared, "RANK": str(rank), "LOCAL_RANK": str(rank)},
                stdout=messages,
                stderr=messages,
            )
            for rank in range(RANKS)
        ]
    deadline = time.monotonic() + limit_s
    codes: list[int | None] = []
    for process in processes:
        try:
            codes.append(process.wait(max(0.1, deadline - time.monotonic())))
        except subprocess.TimeoutExpired:
            process.kill()
            codes.append(None)
    return "" if codes == [0] * RANKS else f"{folder.name}: exit codes {codes}\n{log.read_text()[-1500:]}"


_OPTIONS = """\
FOLDER  where the recordings go
--steps N,N  recorded steps (default 3,20)
--repeat N  recordings of each (default 3)
--at-once N  jobs side by side (default 1)
--only NAMES  of faults, separated by commas
--no-cores  do not give each rank a core
"""


def main(argv: Sequence[str] | None = None) -> int:
    args = parsed(__doc__, _OPTIONS, argv, folder=Path, steps="3,20", repeat=3, at_once=1, only="")
    args.folder.mkdir(parents=True, exist_ok=True)
    only = [name for name in args.only.split(",") if name]

    def recorded(task: tuple[int, int, str], slot: Sequence[int]) -> str:
        number, active, name = task
        folder = args.folder / f"{name}-{active}-{number}"
        return "" if folder.exists() else record(folder, recordings()[name], active, slot)

    tasks = [
        (number, int(active), name)
        for number in range(args.repeat)
        for active in args.steps.split(",")
        for name in recordings()
        if not only or name in only
    ]
    failed = 0
    for done, trouble in enumerate(in_slots(args.at_once, tasks, recorded, not args.no_cores), start=1):
        if trouble:
            failed += 1
            print(trouble, flush=True)
        if done % 10 == 0:
            print(f"{done} of {len(tasks)} recorded", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
