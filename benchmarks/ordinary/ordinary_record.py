"""Records the ordinary jobs as a user would: `rankscope profile`, default options or `--active 20`.

    python benchmarks/ordinary/ordinary_record.py FOLDER [--steps 3,20] [--repeat 3] [--at-once 3] [--only svd,garbage]

Every recording is a run folder, FOLDER/FAULT-STEPS-NUMBER. The healthy twin of each job is recorded as
often. With `--at-once` several jobs run side by side, each on four cores of
its own.
"""

from __future__ import annotations

import argparse
import os
import queue
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from ordinary_job import FAULTS, JOBS

RANKS = 4
SKIPPED = 2
"""Steps before the window: rankscope's defaults wait one step and warm up in one."""
HEALTHY = "healthy"
LIMIT_S = 180
JOB = Path(__file__).with_name("ordinary_job.py")


def recordings() -> dict[str, list[str]]:
    """The arguments of the job by name: every fault, and the healthy twin of every job."""
    twins = {
        f"{HEALTHY}-{job}": [next(name for name, fault in FAULTS.items() if fault.job == job), "--healthy"]
        for job in JOBS
    }
    return {**{name: [name] for name in FAULTS}, **twins}


def record(folder: Path, name: str, words: Sequence[str], active: int, cores: Sequence[int]) -> str:
    """Record one job; what went wrong, or nothing."""
    steps = SKIPPED + active + 3
    command = [
        *(sys.executable, "-m", "rankscope", "profile", "-o", str(folder)),
        *(["--active", str(active)] if active != 3 else []),
        *(sys.executable, "-m", "torch.distributed.run", f"--nproc-per-node={RANKS}"),
        *("--master-port", str(29500 + cores[0] if cores else 29499)),
        *(str(JOB), *words, "--steps", str(steps)),
        *(["--cores", ",".join(map(str, cores))] if cores else []),
    ]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=LIMIT_S, env=environment, check=False
        )
    except subprocess.TimeoutExpired:
        return f"{name}: not done after {LIMIT_S} s"
    return "" if done.returncode == 0 else f"{name}: exit {done.returncode}\n{done.stderr[-1500:]}"


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--steps", default="3,20", help="recorded steps")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--at-once", type=int, default=1)
    parser.add_argument("--only", default="", help="names, separated by commas")
    parser.add_argument("--no-cores", action="store_true", help="do not give each rank a core")
    args = parser.parse_args(argv)
    args.folder.mkdir(parents=True, exist_ok=True)
    cores = sorted(os.sched_getaffinity(0))
    free: queue.Queue[list[int]] = queue.Queue()
    for number in range(args.at_once):
        mine = cores[number * RANKS : (number + 1) * RANKS]
        free.put([] if args.no_cores or len(mine) < RANKS else mine)
    only = [name for name in args.only.split(",") if name]

    def task(each: tuple[int, int, str]) -> str:
        number, active, name = each
        folder = args.folder / f"{name}-{active}-{number}"
        if folder.exists():
            return ""
        mine = free.get()
        try:
            return record(folder, name, recordings()[name], active, mine)
        finally:
            free.put(mine)

    tasks = [
        (number, int(active), name)
        for number in range(args.repeat)
        for active in args.steps.split(",")
        for name in recordings()
        if not only or name in only
    ]
    failed = 0
    with ThreadPoolExecutor(args.at_once) as pool:
        for done, trouble in enumerate(pool.map(task, tasks), start=1):
            if trouble:
                failed += 1
                print(trouble, flush=True)
            if done % 10 == 0:
                print(f"{done} of {len(tasks)} recorded", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
