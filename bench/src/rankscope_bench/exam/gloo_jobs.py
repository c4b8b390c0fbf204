"""The exam's real cases: processes that train on CPUs over gloo, with a fault in one of them.

    python -m rankscope_bench.exam.gloo_jobs FOLDER

All cases of one world size run in the same processes, one after the other: importing torch takes longer than a case.
Every case is recorded by torch.profiler, eight steps on every rank, in a folder of its own with truth.json: the
culprit, and how long the planted work took, measured where it ran. Without a GPU a large copy counts as compute. With
`device="cuda"` the processes share the first GPU, still over gloo (rankscope_bench/blame/record.py).
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

STEPS, WARM_UP = 8, 2
SIZES = {"cpu": (64, 64, 2), "cuda": (1024, 512, 4)}
"""Width, batch and layers of the model."""
EVERY_STEP_S = 0.012
"""Every rank sleeps so long in a step. More ranks than cores would otherwise slow each other down, which is another
fault than the planted one."""
LIMIT_S = 440


@dataclass(frozen=True)
class RealCase:
    """What is planted in which rank of how many."""

    name: str
    kind: str
    """As in cases.CAUSES, or healthy."""
    plant: str
    """What runs: see _do; nothing, or slow data in the data set."""
    ranks: int
    culprit: int
    ms: float
    device: str = "cpu"
    memory: bool = False
    """Allocations are recorded."""


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


def record(
    folder: Path, say: Callable[[str], None], wanted: Sequence[str] = (), listed: Sequence[RealCase] = ()
) -> list[Path]:
    """Run the cases (default: those of the exam) below a folder; the folders of the cases."""
    done = []
    chosen = [
        case for case in listed or real_cases() if not wanted or any(part in case.name for part in wanted)
    ]
    for ranks in sorted({case.ranks for case in chosen}):
        cases = [case for case in chosen if case.ranks == ranks]
        say(f"{len(cases)} cases with {ranks} gloo processes")
        store = folder / f"rendezvous-{ranks}"
        folder.mkdir(parents=True, exist_ok=True)
        store.unlink(missing_ok=True)
        described = json.dumps([asdict(case) for case in cases])
        script = [sys.executable, str(Path(__file__).resolve()), str(folder)]
        words = [*script, "--cases", described, "--store", str(store)]
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

    def __init__(self, delay_s: float, shape: tuple[int, int]) -> None:
        self.delay_s, self.shape = delay_s, shape
        self.spent: list[float] = []

    def __len__(self) -> int:
        return STEPS + WARM_UP

    def __getitem__(self, index: int) -> Any:
        import torch

        started = time.perf_counter()
        if self.delay_s:
            time.sleep(self.delay_s)
        self.spent.append(time.perf_counter() - started)
        return torch.ones(self.shape)


def _repeat(seconds: float, work: Callable[[], object] = lambda: None, device: str = "cpu") -> None:
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        work()
        _wait(device)


def _wait(device: str) -> None:
    if device == "cuda":
        import torch

        torch.cuda.synchronize()


_objects: list[Any] = []
"""What the garbage collector has to look at."""
_leaked: list[Any] = []


def _do(plant: str, seconds: float, step: int, device: str) -> None:
    """What the culprit does in a step, for so many seconds on average; of `leak`, a millisecond is a megabyte."""
    import torch

    if plant in ("matmul", "moving matmul"):
        size = 256 if device == "cpu" else 2048
        square = torch.ones(size, size, device=device)
        _repeat(seconds, lambda: torch.mm(square, square), device)
    elif plant == "singular values":
        small = torch.ones(96, 96, device=device)
        _repeat(seconds, lambda: torch.linalg.svdvals(small), device)
    elif plant == "large copy":
        here, there = torch.ones(1 << 19), torch.empty(1 << 19, device=device)
        _repeat(seconds, lambda: there.copy_(here), device)
    elif plant == "sleep":
        time.sleep(seconds)
    elif plant == "annotated sleep":
        with torch.profiler.record_function("slow_extra"):
            time.sleep(seconds)
    elif plant == "tokenise":
        _repeat(seconds)
    elif plant == "leak":
        _leaked.append(torch.ones(int(seconds * 1000 * (1 << 18)), device=device))
    elif plant == "collect garbage" and step % 2:
        _repeat(2 * seconds)
    elif plant == "many objects" and step % 2:
        if not _objects:
            gc.freeze()  # torch has so many that they alone take longer
            _objects.extend({"id": number, "tags": [number]} for number in range(50_000))
        _repeat(2 * seconds, gc.collect)
    elif plant == "checkpoint" and step % 3 == 2:
        time.sleep(3 * seconds)
    elif plant == "save" and step % 3 == 2:
        with tempfile.TemporaryFile() as file:
            file.write(b"0" * (1 << 20))
            os.fsync(file.fileno())
        time.sleep(3 * seconds)  # a disk that needs so long


def _train(case: RealCase, rank: int, folder: Path) -> None:
    import torch
    import torch.distributed as dist

    mine, moves = rank == case.culprit, case.plant == "moving matmul"
    torch.manual_seed(0)
    width, batch_size, layers = SIZES[case.device]
    model = torch.nn.Sequential(*(torch.nn.Linear(width, width) for _ in range(layers))).to(case.device)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    delay_s = case.ms / 1000 if mine and case.plant == "slow data" else 0.0
    samples = _Samples(delay_s, (batch_size, width))
    planted: list[float] = []
    _leaked.clear()

    def steps() -> Iterator[int]:
        loader = torch.utils.data.DataLoader(samples, batch_size=None)
        for step, batch in enumerate(loader):
            loss = model(batch.to(case.device)).square().mean()
            loss.backward()
            time.sleep(EVERY_STEP_S)
            at_fault = mine if not moves else (3 * step + 1) % case.ranks == rank
            if at_fault:
                _wait(case.device)
            started = time.perf_counter()
            if at_fault and case.ms:
                _do(case.plant, case.ms / 1000, step, case.device)
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
        activities=[
            torch.profiler.ProfilerActivity.CPU,
            *([torch.profiler.ProfilerActivity.CUDA] if case.device == "cuda" else []),
        ],
        profile_memory=case.memory,
        schedule=torch.profiler.schedule(wait=0, warmup=WARM_UP, active=STEPS, repeat=1),
        on_trace_ready=lambda profiler: profiler.export_chrome_trace(
            str(recorded / f"rank-{rank:05d}-of-{case.ranks:05d}.pt.trace.json.gz")
        ),
    ) as profiler:
        for _ in steps():
            profiler.step()
    if mine:
        spent = samples.spent[WARM_UP:] if case.plant == "slow data" else planted[WARM_UP:]
        cost = 1e6 * case.ms if moves else 1e9 * sum(spent) / STEPS if case.ms else 0.0
        culprits = [rank] if case.ms and not moves else []
        truth = {"culprits": culprits, "cost_ns": cost, "kind": case.kind, "name": case.name}
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
    cases = [RealCase(**described) for described in json.loads(args.cases)]
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
