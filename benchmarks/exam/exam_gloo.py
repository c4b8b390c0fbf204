"""The exam's real cases: processes that train on CPUs over gloo, with a fault in one of them.

    python benchmarks/exam/exam_gloo.py FOLDER

All cases of one world size run in the same processes, one after the other: importing torch takes longer than a case.
Every case is recorded by torch.profiler, eight steps on every rank, in a folder of its own with truth.json: the
culprit, and how long the planted work took, measured where it ran. There is no GPU, so a large copy counts as compute.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

STEPS, WARM_UP = 8, 2
HIDDEN, BATCH, LAYERS = 64, 64, 2
EVERY_STEP_S = 0.012
"""Every rank sleeps so long in a step. More ranks than cores would otherwise slow each other down, which is another
fault than the planted one."""
LIMIT_S = 240


@dataclass(frozen=True)
class RealCase:
    """What is planted in which rank of how many."""

    name: str
    kind: str
    """As in exam_cases.CAUSES, or healthy."""
    plant: str
    """What runs: a key of PLANTS."""
    ranks: int
    culprit: int
    ms: float


def real_cases() -> list[RealCase]:
    kinds = (
        ("compute", "matmul"),
        ("compute", "large copy"),
        ("host", "sleep"),
        ("host", "annotated sleep"),
        ("gc", "collect garbage"),
        ("checkpoint", "checkpoint"),
        ("dataloader", "slow data"),
    )
    found = []
    for ranks in (2, 4):
        for number, (kind, plant) in enumerate(kinds):
            for ms in (8.0, 25.0):
                culprit = (number + round(ms)) % ranks
                name = f"gloo{ranks}-{plant.replace(' ', '-')}-{ms:g}ms"
                found.append(RealCase(name, kind, plant, ranks, culprit, ms))
        healthy = [f"gloo{ranks}-healthy-{number}" for number in range(3)]
        found += [RealCase(name, "healthy", "nothing", ranks, 0, 0.0) for name in healthy]
    return found


def record(folder: Path, say: Callable[[str], None], wanted: Sequence[str] = ()) -> list[Path]:
    """Run all cases below a folder; the folders of the cases."""
    done = []
    for ranks in sorted({case.ranks for case in real_cases()}):
        cases = [
            case
            for case in real_cases()
            if case.ranks == ranks and (not wanted or any(part in case.name for part in wanted))
        ]
        if not cases:
            continue
        say(f"{len(cases)} cases with {ranks} gloo processes")
        store = folder / f"rendezvous-{ranks}"
        folder.mkdir(parents=True, exist_ok=True)
        store.unlink(missing_ok=True)
        names = ",".join(case.name for case in cases)
        words = [
            sys.executable,
            str(Path(__file__).resolve()),
            str(folder),
            "--cases",
            names,
            "--store",
            str(store),
        ]
        with (folder / f"messages-{ranks}.txt").open("w") as messages:  # torch's profiler is chatty
            processes = [
                subprocess.Popen([*words, "--rank", str(rank)], stdout=messages, stderr=messages)
                for rank in range(ranks)
            ]
        deadline = time.monotonic() + LIMIT_S
        for process in processes:
            try:
                process.wait(max(1.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
        store.unlink(missing_ok=True)
        done += [folder / case.name for case in cases if (folder / case.name / "truth.json").exists()]
    return done


# Inside a process.


class _Samples:
    """A data set whose culprit needs longer for a batch."""

    def __init__(self, delay_s: float) -> None:
        self.delay_s = delay_s
        self.spent: list[float] = []

    def __len__(self) -> int:
        return STEPS + WARM_UP

    def __getitem__(self, index: int) -> Any:
        import torch

        started = time.perf_counter()
        if self.delay_s:
            time.sleep(self.delay_s)
        self.spent.append(time.perf_counter() - started)
        return torch.ones(BATCH, HIDDEN)


def _busy(seconds: float) -> None:
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        pass


def _matmuls(seconds: float) -> None:
    import torch

    end = time.perf_counter() + seconds
    a = torch.ones(256, 256)
    while time.perf_counter() < end:
        a = torch.mm(a, a) * 0


def _copies(seconds: float) -> None:
    import torch

    end = time.perf_counter() + seconds
    a, b = torch.ones(1 << 19), torch.empty(1 << 19)
    while time.perf_counter() < end:
        b.copy_(a)


def _annotated_sleep(seconds: float) -> None:
    import torch

    with torch.profiler.record_function("slow_extra"):
        time.sleep(seconds)


PLANTS: dict[str, Callable[[float, int], None]] = {
    "nothing": lambda seconds, step: None,
    "slow data": lambda seconds, step: None,
    "matmul": lambda seconds, step: _matmuls(seconds),
    "large copy": lambda seconds, step: _copies(seconds),
    "sleep": lambda seconds, step: time.sleep(seconds),
    "annotated sleep": lambda seconds, step: _annotated_sleep(seconds),
    "collect garbage": lambda seconds, step: _busy(2 * seconds if step % 2 else 0),
    "checkpoint": lambda seconds, step: time.sleep(3 * seconds if step % 3 == 2 else 0),
}


def _train(case: RealCase, rank: int, folder: Path) -> None:
    import torch
    import torch.distributed as dist

    mine = rank == case.culprit
    torch.manual_seed(0)
    model = torch.nn.Sequential(*(torch.nn.Linear(HIDDEN, HIDDEN) for _ in range(LAYERS)))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    samples = _Samples(case.ms / 1000 if mine and case.plant == "slow data" else 0.0)
    planted: list[float] = []

    def steps() -> Iterator[int]:
        loader = torch.utils.data.DataLoader(samples, batch_size=None)
        for step, batch in enumerate(loader):
            loss = model(batch).square().mean()
            loss.backward()
            time.sleep(EVERY_STEP_S)
            started = time.perf_counter()
            if mine and case.ms:
                PLANTS[case.plant](case.ms / 1000, step)
            planted.append(time.perf_counter() - started)
            for parameter in model.parameters():
                dist.all_reduce(parameter.grad)
            optimizer.step()
            optimizer.zero_grad()
            yield step

    recorded = folder / case.name
    recorded.mkdir(parents=True, exist_ok=True)
    dist.barrier()
    with torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU],
        schedule=torch.profiler.schedule(wait=0, warmup=WARM_UP, active=STEPS, repeat=1),
        on_trace_ready=lambda profiler: profiler.export_chrome_trace(
            str(recorded / f"rank-{rank:05d}-of-{case.ranks:05d}.pt.trace.json.gz")
        ),
    ) as profiler:
        for _ in steps():
            profiler.step()
    if mine:
        spent = samples.spent[WARM_UP:] if case.plant == "slow data" else planted[WARM_UP:]
        cost = 1e9 * sum(spent) / STEPS if case.ms else 0.0
        truth = {"culprits": [rank] if case.ms else [], "cost_ns": cost, "kind": case.kind, "name": case.name}
        (recorded / "truth.json").write_text(json.dumps(truth))


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else "")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--rank", type=int)
    parser.add_argument("--cases", default="")
    parser.add_argument("--store", type=Path)
    args = parser.parse_args(argv)
    if args.rank is None:
        record(args.folder, print)
        return 0
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    names = args.cases.split(",")
    cases = [case for case in real_cases() if case.name in names]
    dist.init_process_group(
        "gloo", init_method=f"file://{args.store.resolve()}", rank=args.rank, world_size=cases[0].ranks
    )
    for case in cases:
        _train(case, args.rank, args.folder)
    dist.barrier()
    dist.destroy_process_group()
    return 0


if __name__ == "__main__":
    sys.exit(main())
