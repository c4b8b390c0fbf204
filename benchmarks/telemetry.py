"""What --watch costs the training thread in each step (the promise: under 20 µs), and its thread each second.

Run: python benchmarks/telemetry.py            (exits 1 when the promise is broken)

Measured is a step of hooks alone: the DataLoader, backward, a wait for a collective and the optimizer do nothing, so
that the difference between with and without is the telemetry's. CPU time, the fastest of many short rounds.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from rankscope.capture.plan import Plan
from rankscope.capture.rank import detect
from rankscope.capture.rank_files import RankFiles
from rankscope.capture.schedule import OnRequest
from rankscope.inapp.engine import Engine
from rankscope.inapp.job_log import JobLog
from rankscope.inapp.telemetry import Telemetry

STEPS = 100
ROUNDS = 200
PROMISE_US = 20.0


class Nothing(torch.optim.SGD):  # type: ignore[misc]
    """An optimizer that does nothing, but is hooked as others are."""

    def step(self, closure: Any = None) -> None:
        pass


def training_step() -> Any:
    """A function that calls everything that is hooked, with as little work in it as torch allows."""
    from torch.utils.data import DataLoader

    optimizer = Nothing([torch.zeros(1, requires_grad=True)], lr=0.1)
    batches = iter(DataLoader(_Endless(), batch_size=None))
    work = torch._C._distributed_c10d
    finished = work.FakeWork()
    torch.autograd.backward = nothing

    def step() -> None:
        next(batches)
        torch.autograd.backward(None)
        work.Work.wait(finished)
        optimizer.step()

    return step


def nothing(*_: Any) -> None:
    pass


class _Endless(torch.utils.data.IterableDataset):  # type: ignore[misc]
    def __iter__(self) -> Any:
        while True:
            yield 0


def microseconds(step: Any) -> float:
    """CPU time of this thread per step, the fastest round: what other threads and processes add is not ours."""
    rounds = []
    for _ in range(ROUNDS):
        began = time.thread_time_ns()
        for _ in range(STEPS):
            step()
        rounds.append(time.thread_time_ns() - began)
    return min(rounds) / STEPS / 1e3


def main() -> int:
    torch.set_num_threads(1)
    step = training_step()
    bare = microseconds(step)
    with tempfile.TemporaryDirectory() as folder:
        plan = Plan(when=OnRequest(), output=folder + "/run", watch=True, hang_after_s=600)
        files = RankFiles(plan, detect(os.environ), os.environ)
        engine = Engine(plan, files, JobLog(0, quiet=True))
        engine.watch_optimizers()
        watched = microseconds(step)
        engine.finish()
        flush = flush_microseconds(files)
        size = (Path(folder) / "run/telemetry/rank-00000.ring").stat().st_size
    print(f"a step that does nothing                    {bare:8.1f} µs")
    print(
        f"--watch adds                                {watched - bare:8.1f} µs   (promise: under {PROMISE_US:g} µs)"
    )
    print(f"its thread, once a second with 10 new steps {flush:8.1f} µs")
    print(f"a rank's file                               {size:8,} bytes, always")
    return 0 if watched - bare < PROMISE_US else 1


def flush_microseconds(files: RankFiles) -> float:
    telemetry = Telemetry(files, JobLog(0, quiet=True), 600, nothing)
    telemetry.clock.off()
    telemetry.make_ring()
    rounds = []
    for _ in range(100):
        for number in range(10):
            telemetry.clock.step_ended(number, profiled=False)
        began = time.thread_time_ns()
        telemetry.look()
        rounds.append(time.thread_time_ns() - began)
    return min(rounds) / 1e3


if __name__ == "__main__":
    sys.exit(main())
