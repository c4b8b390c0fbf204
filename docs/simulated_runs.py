"""Small runs with a planted fault, for the pages that show something which no run of tests/data has.

Each function writes the run that its page names. Figures are the same every time; times of day too, but for `watched`,
which is a job that runs now.
"""

from __future__ import annotations

import json
import pickle
import sys
import time
from collections.abc import Callable
from pathlib import Path

sys.path.append(str(Path(__file__).parent.parent / "tests"))
sys.path.append(str(Path(__file__).parent.parent / "benchmarks"))
import simulated_telemetry as telemetry
from flight_dumps import dump, op
from gpu_logs import Sample, query_csv, write
from rankscope.cli import main as rankscope
from rankscope.watch.alarms import HOST, SLOW_RANK
from rankscope_bench.synthetic.cluster import Fault, Job, simulate
from rankscope_bench.synthetic.cluster_trace import write_traces

STARTED_UNIX_NS = 1_794_701_458_600_000_000
"""When simulated jobs begin."""
STACK = """\
# 2026-11-15T00:11:28Z process {pid}: no step for 30 s
Thread 0x00007f0000000003 (most recent call first):
  File {innermost}
  File "/home/me/train.py", line 90 in <module>
"""
ALL_REDUCE = """"/x/site-packages/torch/distributed/distributed_c10d.py", line 3013 in all_reduce
  File "/home/me/train.py", line 41 in train_step"""
LOCK = '"/home/me/data.py", line 7 in read_lock'


def slow_clock(folder: Path) -> None:
    """GPU 2 of four is too hot: 1,350 MHz instead of 1,755, and its kernels take 1.3 times as long."""
    job = Job(data=4, steps=6, seed=3)
    hot = Fault("throttle", (2,), round(0.3 * job.layers * 3 * job.forward_ns))
    runs = simulate(Job(data=4, steps=6, seed=3, faults=(hot,)))
    write_traces(job, runs, folder)
    end = STARTED_UNIX_NS + max(run.steps[-1][1] for run in runs)
    samples = [
        Sample(moment, gpu, 1350, celsius=80, reasons=0x20 * (number % 3 > 0))
        if gpu == 2
        else Sample(moment, gpu)
        for number, moment in enumerate(range(STARTED_UNIX_NS - 20_000_000, end + 20_000_000, 4_000_000))
        for gpu in range(4)
    ]
    write(folder / "smi.csv", query_csv(samples))


def uneven_stages(folder: Path) -> None:
    """1F1B, two stages of two ranks, the second with twice the layers."""
    job = Job(stages=2, data=2, steps=4, stage_layers=(2, 4), schedule="1f1b", micro_batches=4)
    write_traces(job, simulate(job), folder)


def four_culprits(folder: Path) -> None:
    """Every rank of four has a fault of its own."""
    causes = (("compute", 0), ("compute", 1), ("host", 2), ("dataloader", 3))
    job = Job(data=4, steps=6, faults=tuple(Fault(cause, (rank,), 6_000_000) for cause, rank in causes))
    write_traces(job, simulate(job), folder)


def slow_copies(folder: Path) -> None:
    """The copies of rank 2 of four take 2 ms longer in each step."""
    job = Job(data=4, steps=4, faults=(Fault("copy", (2,), 2_000_000),))
    write_traces(job, simulate(job), folder)


def slow_link(folder: Path) -> None:
    """dp 2, tp 2: what rank 1 sends and receives takes 2 ms longer in each step."""
    job = Job(data=2, tensor=2, steps=4, faults=(Fault("link", (1,), 2_000_000),))
    write_traces(job, simulate(job), folder)


def gpipe(folder: Path) -> None:
    """GPipe with four stages and four micro-batches, dp 2, tp 2."""
    job = Job(stages=4, data=2, tensor=2, steps=3, layers=2, micro_batches=4)
    write_traces(job, simulate(job), folder)


def one_slow_host(folder: Path, ended_unix_ns: int = STARTED_UNIX_NS, phase: str = "ended") -> None:
    """Telemetry of eight ranks. Rank 3 sleeps 12 ms in each step from step 81 on."""
    job = telemetry.Job(8, steps=304, step_ns=50e6)
    table = telemetry.telemetry(job, telemetry.Fault(SLOW_RANK, HOST, (3,), 80, 0.3))
    phases = ["training" if rank == 3 and phase != "ended" else phase for rank in range(job.ranks)]
    telemetry.write_rings(folder, job, table, phases=phases, ended_unix_ns=ended_unix_ns)


def watched(folder: Path) -> None:
    """The same job, which has just made its last step."""
    one_slow_host(folder, time.time_ns(), "collective")


def hung(folder: Path) -> None:
    """Rank 2 of four waits for a lock, the others in all_reduce; telemetry, stacks and dumps of the flight recorder."""
    job = telemetry.Job(4, steps=19)
    table, phases = telemetry.telemetry(job), ("collective", "collective", "training", "collective")
    ended, group = STARTED_UNIX_NS, {"process_group": ("0", "default_pg")}
    telemetry.write_rings(
        folder, job, table, phases=phases, ended_unix_ns=ended, alive_unix_ns=ended + 700 * 10**9
    )
    for rank in range(job.ranks):
        stack = STACK.format(pid=1000 + rank, innermost=LOCK if rank == 2 else ALL_REDUCE)
        (folder / "telemetry" / f"stacks-rank-{rank:05d}.txt").write_text(stack)
        calls = [op("0", number, state="completed", **group) for number in (39, 40)]
        content = dump([*calls, *[op("0", 41, **group)] * (rank != 2)], {"0": [0, 1, 2, 3]})
        content["pg_config"]["0"]["desc"] = "default_pg"
        (folder / "telemetry" / f"flight-rank-{rank:05d}.json").write_text(json.dumps(content))


def slower_gelu(folder: Path, *planted: str) -> None:
    """One rank, 8 steps; with `planted`, GELU takes 4 % longer."""
    options = ["--ranks", "1", "--events", "20000", "--steps", "8", "--step-noise", "0.2"]
    rankscope(["bench", "synthetic", *options, *planted, "-o", str(folder)])


def not_a_snapshot(path: Path) -> None:
    """A pickle that would run a command."""

    class Command:
        def __reduce__(self) -> tuple[Callable[[str], int], tuple[str]]:
            import os

            return os.system, ("true",)

    path.write_bytes(pickle.dumps({"segments": [Command()], "device_traces": []}))


def wrapper_script(path: Path) -> None:
    """A script that starts nsys on the first rank of each node."""
    path.write_text(
        """\
#!/bin/bash
RANKCUTOFF=7
DIR="reports_$(date +%F_%H%M%S)"
if [ $PMI_LOCAL_RANK -eq 0 ] && [ $PMI_RANK -le $RANKCUTOFF ]; then
  nsys profile -o $DIR/report_$PMI_RANK --stats=true --show-output=true "$@"
else
  "$@"
fi
"""
    )


SIMULATED: dict[str, Callable[[Path], None]] = {
    "slow-clock": slow_clock,
    "uneven-stages": uneven_stages,
    "four-culprits": four_culprits,
    "slow-copies": slow_copies,
    "slow-link": slow_link,
    "gpipe": gpipe,
    "one-slow-host": one_slow_host,
    "watched": watched,
    "hung": hung,
    "base": slower_gelu,
    "new": lambda folder: slower_gelu(folder, "--slower", "gelu=1.04", "--seed", "1"),
    "rank-1.pickle": not_a_snapshot,
    "nsys_wrapper.sh": wrapper_script,
}
"""The names that pages use for them."""
