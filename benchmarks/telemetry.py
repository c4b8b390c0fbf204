"""What --watch costs the training thread in each step (the promise: under 20 µs), and its thread each second.

Run: python benchmarks/telemetry.py            (exits 1 when the promise is broken)
     python benchmarks/telemetry.py --gpt 300   (examples/gpt_train.py, every second step with telemetry, 300 pairs)
     python benchmarks/telemetry.py --trainer 300    (the same in a Trainer of transformers)

Measured is a step of hooks alone: the DataLoader, backward, a wait for a collective and the optimizer do nothing, so
that the difference between with and without is the telemetry's. CPU time, the fastest of many short rounds. With a GPU
the CUDA events are part of it.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from rankscope.capture.plan import Plan
from rankscope.capture.rank import detect
from rankscope.capture.rank_files import RankFiles
from rankscope.capture.schedule import OnRequest
from rankscope.inapp.engine import Engine
from rankscope.inapp.job_log import JobLog
from rankscope.inapp.telemetry import Telemetry

ROOT = Path(__file__).parents[1]
# Steps of --gpt and --trainer before those that are compared: a multiple of four.
FIRST_STEPS = 20
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


def engine_in(folder: Path) -> Engine:
    """As `rankscope profile --watch` starts it."""
    plan = Plan(when=OnRequest(), output=str(folder), watch=True)
    engine = Engine(plan, RankFiles(plan, detect(os.environ), os.environ), JobLog(0, quiet=True))
    engine.watch_optimizers()
    return engine


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--gpt", type=int, metavar="PAIRS", help="pairs of steps of a real training")
    parser.add_argument("--trainer", type=int, metavar="PAIRS", help="the same in a Trainer of transformers")
    args = parser.parse_args()
    if args.gpt is not None:
        return alternating("GPT", args.gpt, train_gpt)
    return hooks_alone() if args.trainer is None else alternating("Trainer", args.trainer, train_with_trainer)


def hooks_alone() -> int:
    torch.set_num_threads(1)
    step = training_step()
    if torch.cuda.is_available():
        torch.zeros(1, device="cuda")
    bare = microseconds(step)
    with tempfile.TemporaryDirectory() as folder:
        engine = engine_in(Path(folder) / "run")
        watched = microseconds(step)
        engine.finish()
        flush = flush_microseconds(engine.files)
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


def alternating(name: str, pairs: int, train: Callable[[int, Callable[[int], None]], object]) -> int:
    """What telemetry adds to every second step: the median of the pairs' differences, with the interval in which it
    lies with 95 % probability.

    `train` takes the number of steps and what to call after each. The thread of the telemetry runs all the time.
    """
    steps = FIRST_STEPS + 2 * pairs
    wall_s, cpu_s = np.zeros(steps), np.zeros(steps)
    with tempfile.TemporaryDirectory() as folder:
        engine = engine_in(Path(folder) / "run")
        clock = engine._telemetry.clock  # type: ignore[union-attr]
        began = 0.0, 0.0

        def after_step(step: int) -> None:
            nonlocal began
            if torch.cuda.is_available():
                torch.cuda.synchronize()  # the step ends when the device has done its work, too
            wall_s[step], cpu_s[step] = time.perf_counter() - began[0], time.thread_time() - began[1]
            clock.off()
            engine.stop_counting()
            if is_watched(step + 1):
                clock.on()
                engine.count_optimizer_steps()
            began = time.perf_counter(), time.thread_time()

        train(steps, after_step)
        engine.finish(process_ends=False)
        engine.release()
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU"
    numbers = np.arange(FIRST_STEPS, steps)
    watched = is_watched(numbers)
    for measure, seconds in ("wall time", wall_s), ("CPU time of the training thread", cpu_s):
        bare = seconds[numbers[~watched]]
        usual = float(np.median(bare))
        low, middle, high = median_interval(seconds[numbers[watched]] - bare)
        print(f"{name} step on {device}, {measure}: {usual * 1e3:.2f} ms without --watch")
        interval = f"(95 %: {100 * low / usual:+.2f} to {100 * high / usual:+.2f} %)"
        print(f"with --watch {100 * middle / usual:+.2f} % {interval}, {len(bare)} pairs of steps")
    return 0


def is_watched(step: Any) -> Any:
    """Without, with, with, without: what changes slowly is in both."""
    return (step % 4 == 1) | (step % 4 == 2)


def median_interval(values: Any) -> tuple[float, float, float]:
    """The median between the bounds of its 95 % interval, which are two of the values: a step that something else makes
    long counts as one."""
    ordered = np.sort(values)
    half = 0.98 * len(ordered) ** 0.5
    low, high = int(len(ordered) / 2 - half), int(np.ceil(len(ordered) / 2 + half))
    return float(ordered[max(low, 0)]), float(np.median(ordered)), float(ordered[min(high, len(ordered) - 1)])


def train_gpt(steps: int, after_step: Callable[[int], None]) -> None:
    sys.path.insert(0, str(ROOT / "examples"))
    gpt_train = importlib.import_module("gpt_train")
    gpt_train.train(gpt_train.parse_args(["--steps", str(steps)]), after_step)


def train_with_trainer(steps: int, after_step: Callable[[int], None]) -> None:
    sys.path.insert(0, str(ROOT / "tests" / "gpu"))
    importlib.import_module("train_frameworks").train_hf(steps, after_step)


if __name__ == "__main__":
    sys.exit(main())
