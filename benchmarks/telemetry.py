"""What --watch costs the training thread in each step (the promise: under 20 µs), and its thread each second.

Run: python benchmarks/telemetry.py            (exits 1 when the promise is broken)
     python benchmarks/telemetry.py --gpt 30   (examples/gpt_train.py, with and without in alternating blocks, 30 pairs)
     python benchmarks/telemetry.py --trainer 30    (the same in a Trainer of transformers)

Measured is a step of hooks alone: the DataLoader, backward, a wait for a collective and the optimizer do nothing, so
that the difference between with and without is the telemetry's. CPU time, the fastest of many short rounds. With a GPU
the CUDA events are part of it.
"""

from __future__ import annotations

import argparse
import importlib
import itertools
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
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

ROOT = Path(__file__).parents[1]
# Steps of a block of --gpt and --trainer.
BLOCK = 25
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
    parser.add_argument("--gpt", type=int, metavar="PAIRS", help="pairs of blocks of a real training")
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


def alternating(name: str, pairs: int, train: Callable[[int, Callable[[int], None]], Sequence[float]]) -> int:
    """The mean difference of the pairs, with the interval in which it lies with 95 % probability.

    `train` takes the number of steps and what to call after each, and gives the seconds of each.
    """
    with tempfile.TemporaryDirectory() as folder:
        engines: list[Engine] = []
        cpu_ends: list[float] = []

        def after_step(step: int) -> None:
            """Even blocks run without, odd ones with telemetry."""
            cpu_ends.append(time.thread_time())
            block, place = divmod(step + 1, BLOCK)
            if place == 0 and block % 2 == 1:
                engines.append(engine_in(Path(folder) / f"run-{block}"))
            elif place == 0 and engines:
                engine = engines.pop()
                engine.stop_counting()
                engine.finish(process_ends=False)
                engine.release()

        seconds = train(2 * pairs * BLOCK, after_step)
    cpu_seconds = [end - begin for begin, end in itertools.pairwise([0.0, *cpu_ends])]
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU"
    for clock, steps in ("wall time", seconds), ("CPU time of the training thread", cpu_seconds):
        # The first step of a block has the cost of the change.
        blocks = [
            statistics.median(steps[first + 1 : first + BLOCK]) for first in range(0, len(steps), BLOCK)
        ]
        changes = [on - off for off, on in zip(blocks[::2], blocks[1::2], strict=True)][1:]
        usual = statistics.median(blocks[::2])
        mean, error = statistics.fmean(changes), 2.1 * statistics.stdev(changes) / len(changes) ** 0.5
        low, middle, high = (f"{100 * value / usual:+.2f}" for value in (mean - error, mean, mean + error))
        print(f"{name} step on {device}, {clock}: {usual * 1e3:.2f} ms without --watch")
        print(f"with --watch {middle} % (95 %: {low} to {high} %), {len(changes)} pairs")
    return 0


def train_gpt(steps: int, after_step: Callable[[int], None]) -> Sequence[float]:
    sys.path.insert(0, str(ROOT / "examples"))
    gpt_train = importlib.import_module("gpt_train")
    seconds: list[float] = gpt_train.train(gpt_train.parse_args(["--steps", str(steps)]), after_step)
    return seconds


def train_with_trainer(steps: int, after_step: Callable[[int], None]) -> Sequence[float]:
    sys.path.insert(0, str(ROOT / "tests" / "gpu"))
    ends: list[float] = []

    def ended(step: int) -> None:
        """When the device has done the step's work, too."""
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        ends.append(time.perf_counter())
        after_step(step)

    importlib.import_module("train_frameworks").train_hf(steps, ended)
    return [end - begin for begin, end in itertools.pairwise([ends[0], *ends])]


if __name__ == "__main__":
    sys.exit(main())
