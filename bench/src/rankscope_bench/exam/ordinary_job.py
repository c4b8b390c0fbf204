"""An ordinary training job of a few processes over gloo, with a fault that teams have, or without one.

    torchrun --nproc-per-node 4 ordinary_job.py FAULT [--healthy] [--steps 30] [--cores 0,1,2,3]

FAULT is a key of FAULTS or WATCHED; `--healthy` runs the same job without the fault, its twin. Every rank has one
thread and, with `--cores`, one core. `--onset N` plants the fault in step N, and `--habits` adds what ordinary jobs do
all the time: rank 0 evaluates after every 40th step, all ranks save after every 70th, and the lengths of the
samples vary.
"""

from __future__ import annotations

import argparse
import gc
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

WIDTH, LENGTH, BATCH, LAYERS, CLASSES = 224, 64, 4, 1, 128
MICRO_BATCHES = 4


@dataclass(frozen=True)
class Fault:
    """What goes wrong in which job."""

    job: str
    """A key of JOBS."""
    ranks: tuple[int, ...]
    """The ranks to blame; none where nobody is."""
    what: str
    every: int = 1
    """It happens in every so many steps: in step 3, and so many steps after it."""


FAULTS: dict[str, Fault] = {
    "evaluation": Fault("ddp", (0,), "rank 0 evaluates after every fourth step", 4),
    "checkpoint": Fault("ddp", (0,), "rank 0 saves after every fifth step", 5),
    "svd": Fault("ddp", (2,), "rank 2 computes singular values for its log"),
    "garbage": Fault("ddp", (1,), "rank 1 has many objects and collects garbage after every third step", 3),
    "slow-log": Fault("ddp", (0,), "rank 0 writes its log to a slow disk"),
    "gil-thread": Fault("ddp", (3,), "a thread of rank 3 tokenises, and holds the interpreter's lock"),
    "large-batch": Fault("ddp", (1,), "rank 1 has a batch of 6 instead of 4"),
    "uneven-batches": Fault("ddp", (), "the batches of all ranks have 1 to 7 samples"),
    "slow-data": Fault("ddp", (1,), "rank 1 reads its samples from a slow file system"),
    "preprocessing": Fault("ddp", (3,), "rank 3 prepares texts in Python between steps"),
    "compile": Fault("ddp", (3,), "rank 3 compiles again after every fourth step", 4),
    "tiny-buckets": Fault("ddp", (), "every gradient is a bucket of its own"),
    "taken-core": Fault("ddp", (2,), "another process computes on the core of rank 2"),
    "few-cores": Fault("ddp", (), "all ranks have half as many cores"),
    "save-everywhere": Fault("ddp", (), "every rank saves after every fifth step", 5),
    "micro-batch": Fault(
        "accumulation", (2,), "the third of four micro-batches of rank 2 is 8 times as long"
    ),
    "long-micro-batch": Fault("accumulation", (), "the third micro-batch of every rank is 8 times as long"),
    "tensor-parallel": Fault("tensor", (2,), "rank 2 runs its half of each layer five times"),
    "tensor-data": Fault("tensor", (1,), "rank 1 reads its samples from a slow file system"),
    "pipeline": Fault("pipeline", (1,), "stage 1 has five layers, the others one"),
    "pipeline-host": Fault("pipeline", (2,), "stage 2 works in Python after each forward pass"),
    "sharded": Fault("sharded", (1,), "rank 1 tokenises in the loop"),
}
WATCHED: dict[str, Fault] = {
    "leak": Fault("ddp", (1,), "rank 1 keeps 2 MB more after every step"),
    "all-data": Fault("ddp", (), "all ranks read their samples from a slow file system"),
    "slow-network": Fault("ddp", (), "every step sends 24 MB more"),
}
"""Faults that are noticed while a job runs, beside those of FAULTS."""
EVALUATES_EVERY, SAVES_EVERY = 40, 70


@dataclass
class Job:
    """What the parts of a job need."""

    rank: int
    ranks: int
    fault: str
    """Empty in the healthy twin."""
    cores: list[int]
    layers: int = LAYERS
    onset: int = 0
    habits: bool = False
    step: int = 0

    def has(self, fault: str, step: int | None = None) -> bool:
        """Whether this rank is at fault so, in this step."""
        planted = {**FAULTS, **WATCHED}.get(self.fault)
        if planted is None or self.fault != fault or self.step < self.onset:
            return False
        mine = not planted.ranks or self.rank in planted.ranks
        return mine and (step is None or (step - 3) % planted.every == 0)


class Block(nn.Module):  # type: ignore[misc]
    """A layer of a transformer."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(WIDTH, 4, batch_first=True)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        self.first, self.second = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)

    def forward(self, x: Any) -> Any:
        y = self.first(x)
        x = x + self.attention(y, y, y, need_weights=False)[0]
        return x + self.down(torch.nn.functional.gelu(self.up(self.second(x))))


class Samples(torch.utils.data.Dataset):  # type: ignore[misc]
    """Random sequences; a slow rank decodes its files."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.order = torch.Generator().manual_seed(job.rank)

    def __len__(self) -> int:
        return 1_000_000

    def __getitem__(self, index: int) -> Any:
        if any(map(self.job.has, ("slow-data", "tensor-data", "all-data"))):
            time.sleep(0.004)  # a remote file system
        return torch.randn(LENGTH, WIDTH, generator=self.order)


def batches(job: Job, size: int = BATCH) -> Iterator[Any]:
    return iter(torch.utils.data.DataLoader(Samples(job), batch_size=size))


def model_of(layers: int) -> nn.Module:
    return nn.Sequential(*(Block() for _ in range(layers)), nn.Linear(WIDTH, CLASSES))


def spin(milliseconds: float) -> None:
    """Work of the interpreter."""
    end = time.perf_counter() + milliseconds / 1000
    words: dict[str, int] = {}
    while time.perf_counter() < end:
        for number in range(200):
            words[str(number)] = words.get(str(number), 0) + 1


class Extras:
    """What is around the step in ordinary scripts: evaluation, checkpoints, logging, statistics."""

    def __init__(self, job: Job, model: nn.Module) -> None:
        self.job, self.model = job, model
        self.folder = Path(tempfile.mkdtemp(prefix="ordinary-job-"))
        self.objects: list[Any] = []
        self.log: Any = None
        self.busy: Any = None
        self.begun = False
        self.begin()

    def begin(self) -> None:
        """What a fault needs, once there is one."""
        job = self.job
        if self.begun or job.step < job.onset:
            return
        self.begun = True
        if job.has("garbage"):
            self.objects = [{"id": number, "tags": [number]} for number in range(400_000)]
        if job.has("slow-log"):
            reader = "import os, time\nwhile os.read(0, 4096): time.sleep(0.004)"  # a disk with 1 MB a second
            self.log = subprocess.Popen([sys.executable, "-c", reader], stdin=subprocess.PIPE, bufsize=0)
        if job.has("gil-thread"):
            threading.Thread(target=spin, args=(1e9,), name="tokenizer", daemon=True).start()
        if job.has("taken-core") and job.cores:
            busy = "while True: pass"
            self.busy = subprocess.Popen([sys.executable, "-c", busy])
            os.sched_setaffinity(self.busy.pid, {job.cores[job.rank]})
        if job.has("few-cores"):
            cores = job.cores or sorted(os.sched_getaffinity(0))
            os.sched_setaffinity(0, cores[: len(cores) // 2])

    def after(self, step: int) -> None:
        """After the optimizer of a step."""
        job = self.job
        self.begin()
        evaluates = job.habits and job.rank == 0 and step % EVALUATES_EVERY == EVALUATES_EVERY - 1
        if job.has("evaluation", step) or evaluates:
            with torch.no_grad():
                for _ in range(14):
                    self.model(torch.randn(BATCH, LENGTH, WIDTH))
        if job.has("leak"):
            self.objects.append(torch.ones(500_000))
        saves = job.habits and step % SAVES_EVERY == SAVES_EVERY - 1
        if job.has("checkpoint", step) or job.has("save-everywhere", step) or saves:
            self.save(step)
        if job.has("svd"):
            for parameter in [*self.model.parameters()][:1]:
                torch.linalg.svdvals(torch.randn(320, 320) + parameter.sum() * 0)
        if job.has("garbage", step):
            gc.collect()
        if job.has("slow-log"):
            self.log.stdin.write(b"step %d loss 0.1\n" % step * 3500)
        if job.has("preprocessing"):
            spin(15)
        if job.has("compile", step):
            torch._dynamo.reset()
            torch.compile(torch.nn.functional.gelu, backend="eager")(torch.ones(8))

    def save(self, step: int) -> None:
        path = self.folder / f"step-{step}.pt"
        with path.open("wb") as file:
            for _ in range(8):  # the optimizer's state too
                torch.save(self.model.state_dict(), file)
            file.flush()
            os.fsync(file.fileno())
        path.unlink()

    def end(self) -> None:
        for process in (self.log, self.busy):
            if process is not None:
                process.kill()


def data_parallel(job: Job) -> Iterator[Callable[[int], None]]:
    model = model_of(job.layers)
    small = {"bucket_cap_mb": 0.001} if job.has("tiny-buckets") else {}
    wrapped = nn.parallel.DistributedDataParallel(model, **small)
    optimizer = torch.optim.SGD(wrapped.parameters(), lr=1e-6, momentum=0.9)
    data = batches(job, BATCH)
    extras = Extras(job, model)
    lengths = torch.Generator().manual_seed(job.rank + 1)

    def step(number: int) -> None:
        x = next(data)
        if job.has("large-batch"):
            x = torch.cat([x, x[:2]])
        if job.has("uneven-batches"):
            size = 1 + 3 * int(torch.randint(0, 3, (1,), generator=lengths))
            x = x.repeat(2, 1, 1)[:size]
        if job.habits:
            x = x[:, : LENGTH - int(torch.randint(0, LENGTH // 8, (1,), generator=lengths))]
        wrapped(x).square().mean().backward()
        if job.has("slow-network"):
            for _ in range(3):
                dist.all_reduce(torch.ones(2_000_000))
        optimizer.step()
        optimizer.zero_grad()
        extras.after(number)

    yield step
    extras.end()


def accumulation(job: Job) -> Iterator[Callable[[int], None]]:
    model = model_of(job.layers)
    wrapped = nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.SGD(wrapped.parameters(), lr=1e-6, momentum=0.9)
    data = batches(job, BATCH // 2)

    def step(number: int) -> None:
        for micro in range(MICRO_BATCHES):
            x = next(data)
            if micro == 2 and (job.has("micro-batch") or job.has("long-micro-batch")):
                x = x.repeat(8, 1, 1)
            if micro < MICRO_BATCHES - 1:
                with wrapped.no_sync():
                    wrapped(x).square().mean().backward()
            else:
                wrapped(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    yield step


class _Reduced(torch.autograd.Function):  # type: ignore[misc]
    """The sum over a group in forward, nothing in backward."""

    @staticmethod
    def forward(context: Any, x: Any, group: Any) -> Any:
        dist.all_reduce(x, group=group)
        return x

    @staticmethod
    def backward(context: Any, gradient: Any) -> Any:
        return gradient, None


def tensor_parallel(job: Job) -> Iterator[Callable[[int], None]]:
    """Two ranks share a layer, two such pairs share the gradients."""
    tensor_groups = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    data_groups = [dist.new_group([0, 2]), dist.new_group([1, 3])]
    tensor, data_group = tensor_groups[job.rank // 2], data_groups[job.rank % 2]
    layers = nn.ModuleList(
        nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH)) for _ in range(3)
    )
    optimizer = torch.optim.SGD(layers.parameters(), lr=1e-6, momentum=0.9)
    data = batches(job)

    def step(number: int) -> None:
        x = next(data)
        for layer in layers:
            y = layer(x)
            if job.has("tensor-parallel"):
                y = y + sum(layer(x) for _ in range(4)) * 0
            x = x + _Reduced.apply(y, tensor)
        x.square().mean().backward()
        for parameter in layers.parameters():
            dist.all_reduce(parameter.grad, group=data_group)
        optimizer.step()
        optimizer.zero_grad()

    yield step


def pipeline(job: Job) -> Iterator[Callable[[int], None]]:
    """Four stages, eight layers, four micro-batches: all forwards, then all backwards."""
    layers = job.layers if job.onset else 2
    if job.fault == "pipeline" and not job.onset:  # as many in all
        layers = 5 if job.has("pipeline") else 1
    stage = nn.Sequential(*(Block() for _ in range(layers)))
    optimizer = torch.optim.SGD(stage.parameters(), lr=1e-6, momentum=0.9)
    data = batches(job)
    first, last = job.rank == 0, job.rank == job.ranks - 1

    def step(number: int) -> None:
        kept = []
        for _ in range(MICRO_BATCHES):
            if first:
                x = next(data)
            else:
                x = torch.empty(BATCH, LENGTH, WIDTH)
                dist.recv(x, job.rank - 1)
                x.requires_grad_()
            y = stage(x)
            if job.onset and job.has("pipeline"):
                stage(x)
            if job.has("pipeline-host"):
                spin(10)
            if not last:
                dist.send(y.detach(), job.rank + 1)
            kept.append((x, y))
        for x, y in kept:
            if last:
                y.square().mean().backward()
            else:
                gradient = torch.empty_like(y)
                dist.recv(gradient, job.rank + 1)
                y.backward(gradient)
            if not first:
                dist.send(x.grad, job.rank - 1)
        optimizer.step()
        optimizer.zero_grad()

    yield step


def sharded(job: Job) -> Iterator[Callable[[int], None]]:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    model = model_of(job.layers)
    mesh = init_device_mesh("cpu", (job.ranks,))
    for block in [*model.children()][:-1]:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6, momentum=0.9)
    data = batches(job)

    def step(number: int) -> None:
        x = next(data)
        if job.has("sharded"):
            spin(15)  # tokenises in the loop
        model(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    yield step


JOBS: dict[str, Callable[[Job], Iterator[Callable[[int], None]]]] = {
    "ddp": data_parallel,
    "accumulation": accumulation,
    "tensor": tensor_parallel,
    "pipeline": pipeline,
    "sharded": sharded,
}


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("fault", choices=[*FAULTS, *WATCHED])
    parser.add_argument("--healthy", action="store_true", help="the same job without the fault")
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--cores", default="", help="one core for each rank, such as 0,1,2,3")
    parser.add_argument("--layers", type=int, default=LAYERS)
    parser.add_argument("--onset", type=int, default=0, help="the first step with the fault")
    parser.add_argument("--habits", action="store_true", help="evaluations, checkpoints, lengths that vary")
    args = parser.parse_args(argv)
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    cores = [int(core) for core in args.cores.split(",") if core]
    if cores:
        os.sched_setaffinity(0, {cores[rank]})
    torch.manual_seed(0)
    fault = "" if args.healthy else args.fault
    job = Job(rank, ranks, fault, cores, args.layers, args.onset, args.habits)
    parts = JOBS[{**FAULTS, **WATCHED}[args.fault].job](job)
    step = next(parts)
    dist.barrier()
    for number in range(args.steps):
        job.step = number
        step(number)
    next(parts, None)
    dist.barrier()
    dist.destroy_process_group()
    return 0


if __name__ == "__main__":
    sys.exit(main())
