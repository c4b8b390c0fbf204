"""Real training jobs of four ranks with planted faults, recorded with torch.profiler by itself.

    torchrun --nproc-per-node 4 nccl_jobs.py KIND FOLDER [--variants none,host] [--backend gloo]
    python nccl_jobs.py --pack FOLDER OUT

KIND is a key of KINDS; its variants, healthy twins too, are recorded in the same processes. Every variant becomes
FOLDER/KIND/VARIANT with a trace per rank and truth.json. A variant whose truth.json exists is left out: after a
failure, which ends the processes, the same command goes on with the next one.
Over NCCL the ranks share one GPU: each says that it is a host of its own, and MPS lets their kernels run at once
(nccl_record.sh). So kernels fill a quarter of the GPU at most, and more work is more kernels.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import json
import lzma
import os
import sys
import tarfile
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

WORLD, STEPS = 4, int(os.environ.get("STEPS", "6"))
SCALE = float(os.environ.get("SCALE", "1"))
"""What is planted takes so many times as long."""
WARM_UP = 2
"""Steps before the profiler starts; its own warm-up is step 0, the recorded ones are 1 to STEPS."""
LIMIT_S = 45
"""A variant that takes longer has failed; the first may take twice as long."""
HEALTHY = ("none", "none2", "none3")
MOST_ARCHIVES, MOST_BYTES = 4, 15 << 20
"""What comes back from the device machine: 64 MiB in files of 16."""
UNITS = 20
"""So many are timed together."""
OBJECTS = 5000
"""A unit of garbage: so many are looked at."""


@dataclass(frozen=True)
class Plant:
    """Something that some ranks do and the others do not."""

    what: str
    """A key of CAUSES."""
    ranks: tuple[int, ...]
    ms: float = 20.0
    place: str = "middle"
    """Of the step: start, middle (of the forward pass; in a pipeline of its second micro-batch) or end."""
    when: str = "always"
    """Or turn (of the ranks, one a step), third (every third step), once (step 4)."""

    def falls_in(self, step: int, rank: int) -> bool:
        if rank not in self.ranks:
            return False
        if self.when == "turn":
            return step % WORLD == rank
        return {"always": True, "third": step % 3 == 2, "once": step == 4}[self.when]


CAUSES: dict[str, str] = {
    "sleep": "host",
    "garbage": "host",
    "save": "host",
    "work": "compute",
    "layers": "compute",
    "tokens": "compute",
    "data": "data",
    "copy": "copy",
}
ALL = tuple(range(WORLD))
VARIANTS: dict[str, tuple[Plant, ...]] = {
    "none": (),
    "host": (Plant("sleep", (2,)),),
    "turn": (Plant("sleep", ALL, when="turn"),),
    "work": (Plant("work", (2,), 15.0),),
    "none3": (),
    "layers": (Plant("layers", (1,), 0.0),),
    "tokens": (Plant("tokens", (3,), 0.0),),
    "two": (Plant("sleep", (0,)), Plant("work", (3,), 15.0)),
    "data": (Plant("data", (1,), place="start"),),
    "third": (Plant("sleep", (1,), when="third"),),
    "copy": (Plant("copy", (2,), 12.0),),
    "checkpoint": (Plant("save", ALL, 60.0, "end", "once"),),
    "gc": (Plant("garbage", (1,)),),
    "small-work": (Plant("work", (2,), 4.0),),
    "allslow": (
        Plant("sleep", (0,)),
        Plant("work", (1,), 15.0),
        Plant("copy", (2,), 15.0, "end"),
        Plant("data", (3,), place="start"),
    ),
    "none2": (),
}
"""In the order of recording; the most telling come first where time is short."""
VARIANTS = {
    name: tuple(replace(plant, ms=SCALE * plant.ms) for plant in plants) for name, plants in VARIANTS.items()
}


@dataclass(frozen=True)
class Sizes:
    tokens: int
    wide: int
    """Of the frozen encoder, the stages and the experts."""
    width: int
    """Of what is trained and sent."""
    copy: int
    """Numbers of a copy."""


SIZES = {"nccl": Sizes(256, 2048, 768, 1 << 21), "gloo": Sizes(64, 256, 64, 1 << 17)}
MICRO_BATCHES = 6


@dataclass
class Job:
    """What the parts of a job need."""

    rank: int
    device: Any
    sizes: Sizes
    control: Any
    """A group over gloo, for what is not part of the job."""
    plants: tuple[Plant, ...] = ()
    step: int = 0
    passes: int = 0
    """Forward passes of this step that came to the middle."""
    units: dict[str, float] = field(default_factory=dict)
    """Nanoseconds of one unit of planted work."""
    planted: dict[int, dict[str, int]] = field(default_factory=dict)
    """Nanoseconds by step and what."""
    kept: dict[str, Any] = field(default_factory=dict)

    def has(self, what: str) -> bool:
        return any(plant.what == what for plant in self.plants)

    def here(self, place: str) -> None:
        """Do what is planted at this place of this step."""
        for plant in self.plants:
            if (
                plant.place == place
                and plant.ms
                and plant.what != "data"
                and plant.falls_in(self.step, self.rank)
            ):
                began = time.perf_counter_ns()
                self.do(plant.what, plant.ms)
                estimated = plant.what == "work" and self.device.type == "cuda"
                self.planted.setdefault(self.step, {})[plant.what] = (
                    int(self.units["work"] * self.count("work", plant.ms))
                    if estimated
                    else time.perf_counter_ns() - began
                )

    def count(self, what: str, ms: float) -> int:
        return max(1, round(ms * 1e6 / self.units[what]))

    def do(self, what: str, ms: float) -> None:
        import torch

        if what == "sleep":
            time.sleep(ms / 1000)
        elif what == "work":
            with torch.no_grad():
                for _ in range(self.count("work", ms)):
                    torch.nn.functional.linear(self.kept["sample"], self.kept["encoder"][0])
        elif what == "copy":
            for _ in range(self.count("copy", ms)):
                self.kept["there"].copy_(self.kept["here"])
        elif what == "garbage":
            gc.collect()
        elif what == "save":
            with torch.profiler.record_function("save_checkpoint"), tempfile.TemporaryFile() as file:
                until = time.perf_counter() + ms / 1000
                torch.save([self.kept["encoder"][0][0].cpu()], file)
                time.sleep(max(0.0, until - time.perf_counter()))  # a slow file system

    def encode(self, x: Any) -> Any:
        """The frozen part of the model, the same in every kind."""
        import torch

        with torch.no_grad():
            for weight in self.kept["encoder"]:
                x = torch.nn.functional.gelu(torch.nn.functional.linear(x, weight))
        return x

    def prepare(self) -> None:
        """The frozen weights, what planted work needs, and how long a unit of it takes on one rank alone."""
        import torch
        import torch.distributed as dist

        sizes = self.sizes
        self.kept["encoder"] = [
            torch.randn(sizes.wide, sizes.wide, device=self.device) / sizes.wide**0.5 for _ in range(4)
        ]
        self.kept["sample"] = torch.randn(sizes.tokens, sizes.wide, device=self.device)
        self.kept["here"], self.kept["there"] = (
            torch.ones(sizes.copy),
            torch.ones(sizes.copy, device=self.device),
        )
        gc.collect()
        gc.freeze()  # torch has so many objects that they alone take long
        gc.disable()  # no collection by chance
        if self.rank == 0:
            for what in ("work", "copy", "garbage"):
                self.units[what] = 1e6
                self.kept["objects"] = objects(OBJECTS * UNITS)
                self.units[what] = min(self.timed(what) for _ in range(5)) / UNITS
            self.kept["objects"] = []
        units = [self.units]
        dist.broadcast_object_list(units, 0, group=self.control)
        self.units = units[0]

    def timed(self, what: str) -> int:
        began = time.perf_counter_ns()
        self.do(what, float(UNITS))
        wait(self)
        return time.perf_counter_ns() - began

    def begin(self, plants: tuple[Plant, ...]) -> None:
        self.plants, self.planted = plants, {}
        mine = next((plant for plant in plants if plant.what == "garbage" and self.rank in plant.ranks), None)
        self.kept["objects"] = objects(OBJECTS * self.count("garbage", mine.ms)) if mine else []


def objects(count: int) -> list[Any]:
    """What the garbage collector has to look at."""
    return [{"id": number, "tags": [number]} for number in range(count)]


def batches(job: Job) -> Iterator[Any]:
    import torch

    class Samples(torch.utils.data.Dataset):  # type: ignore[misc]
        """Random batches; a slow rank decodes its files."""

        def __len__(self) -> int:
            return 1000

        def __getitem__(self, index: int) -> Any:
            for plant in job.plants:
                if plant.what == "data" and plant.falls_in(job.step, job.rank):
                    began = time.perf_counter_ns()
                    time.sleep(plant.ms / 1000)
                    job.planted.setdefault(job.step, {})["data"] = time.perf_counter_ns() - began
            return torch.ones(job.sizes.tokens, job.sizes.wide)

    return iter(torch.utils.data.DataLoader(Samples(), batch_size=None))


def block_of(width: int, hidden: int) -> Any:
    """Two linear layers around an activation, with a residual."""
    import torch

    class Block(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.up, self.down = torch.nn.Linear(width, hidden), torch.nn.Linear(hidden, width)

        def forward(self, x: Any) -> Any:
            return x + self.down(torch.nn.functional.gelu(self.up(x)))

    return Block()


def model_of(job: Job, blocks: Sequence[Any], only_pass: int | None = None) -> Any:
    """The blocks, and in their middle the place of what is planted."""
    import torch

    class Middle(torch.nn.Module):  # type: ignore[misc]
        def forward(self, x: Any) -> Any:
            if only_pass is None or job.passes == only_pass:
                job.here("middle")
            job.passes += 1
            return x

    half = len(blocks) // 2
    return torch.nn.Sequential(*blocks[:half], Middle(), *blocks[half:]).to(job.device)


Step = Callable[[Any], None]
"""A training step with the next batch."""


def trained(job: Job, model: Any, optimizer: Any, reduce: Callable[[], None] | None = None) -> Step:
    def step(batch: Any) -> None:
        x = job.encode(batch.to(job.device))[:, : job.sizes.width]
        loss = model(x).square().mean()
        loss.backward()
        if reduce:
            reduce()
        job.here("end")
        optimizer.step()
        optimizer.zero_grad()
        float(loss.detach())

    return step


def ddp(job: Job) -> Step:
    import torch

    width = job.sizes.width
    model = model_of(job, [block_of(width, width) for _ in range(4)])
    wrapped = torch.nn.parallel.DistributedDataParallel(model, bucket_cap_mb=8)
    return trained(job, wrapped, torch.optim.AdamW(wrapped.parameters(), lr=1e-6))


def ddp_small(job: Job) -> Step:
    """Every gradient is reduced by itself."""
    import torch
    import torch.distributed as dist

    width = job.sizes.width // 4
    model = model_of(job, [block_of(width, width) for _ in range(15)])

    def reduce() -> None:
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)

    return trained(job, lambda x: model(x[:, :width]), torch.optim.SGD(model.parameters(), lr=1e-6), reduce)


def fsdp2(job: Job) -> Step:
    import torch
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    width = job.sizes.width
    mesh = init_device_mesh(job.device.type, (WORLD,))
    blocks = [block_of(width, width // 2) for _ in range(4)]
    model = model_of(job, blocks)
    for block in blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return trained(job, model, torch.optim.AdamW(model.parameters(), lr=1e-6))


def tensor_parallel(job: Job) -> Step:
    import torch
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    mesh = init_device_mesh(job.device.type, (WORLD,))
    blocks = [block_of(job.sizes.width, 4 * job.sizes.width) for _ in range(4)]
    model = model_of(job, blocks)
    for block in blocks:
        parallelize_module(block, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})
    return trained(job, model, torch.optim.SGD(model.parameters(), lr=1e-6))


def pipelining(job: Job) -> Step:
    import torch
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B

    wide, rows = job.sizes.wide, job.sizes.tokens // 2
    layers = [1, 9, 1, 1] if job.has("layers") else [3] * WORLD  # as many in all
    model = model_of(job, [block_of(wide, wide) for _ in range(layers[job.rank])], only_pass=1)
    inward = torch.zeros(rows, wide, device=job.device, requires_grad=job.rank > 0)
    outward = torch.zeros(rows, wide, device=job.device, requires_grad=True)
    stage = PipelineStage(model, job.rank, WORLD, job.device, input_args=(inward,), output_args=(outward,))
    schedule = Schedule1F1B(stage, MICRO_BATCHES, loss_fn=lambda y, target: (y - target).square().mean())
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    target = torch.zeros(MICRO_BATCHES * rows, wide, device=job.device)

    def step(batch: Any) -> None:
        losses: list[Any] = []
        if job.rank == 0:
            schedule.step(batch[:rows].to(job.device).repeat(MICRO_BATCHES, 1))
        elif job.rank == WORLD - 1:
            schedule.step(target=target, losses=losses)
        else:
            schedule.step()
        job.here("end")
        optimizer.step()
        optimizer.zero_grad()
        wait(job)

    return step


def all_to_all(job: Job) -> Step:
    """Two layers of experts, one on each rank, which works through its tokens in chunks."""
    import torch
    import torch.distributed as dist

    class Exchange(torch.autograd.Function):  # type: ignore[misc]
        @staticmethod
        def forward(context: Any, x: Any, send: list[int], receive: list[int]) -> Any:
            context.send, context.receive = send, receive
            out = x.new_empty(sum(receive), x.shape[1])
            dist.all_to_all_single(out, x.contiguous(), receive, send)
            return out

        @staticmethod
        def backward(context: Any, gradient: Any) -> Any:
            out = gradient.new_empty(sum(context.send), gradient.shape[1])
            dist.all_to_all_single(out, gradient.contiguous(), context.send, context.receive)
            return out, None, None

    wide, width, chunk = job.sizes.wide, job.sizes.wide // 8, job.sizes.tokens // 2
    quarter = chunk // 4
    send = (
        [2 * quarter] * 3 + [10 * quarter] if job.has("tokens") else [4 * quarter] * WORLD
    )  # as many in all
    receive = [send[job.rank]] * WORLD
    nn = torch.nn

    def expert() -> Any:
        return nn.Sequential(
            nn.Linear(width, wide),
            nn.GELU(),
            nn.Linear(wide, wide),
            nn.GELU(),
            nn.Linear(wide, wide),
            nn.GELU(),
            nn.Linear(wide, width),
        ).to(job.device)

    experts = [expert(), expert()]
    dense = model_of(job, [nn.Linear(width, width), nn.Linear(width, width)])
    optimizer = torch.optim.SGD([p for each in (*experts, dense) for p in each.parameters()], lr=1e-6)

    def layer(x: Any, mlp: Any) -> Any:
        mine = Exchange.apply(x, send, receive)
        done = torch.cat([mlp(part) for part in mine.split(chunk)])
        return x + Exchange.apply(done, receive, send)

    def model(x: Any) -> Any:
        rows = x[:, : 2 * width].reshape(-1, width)
        return layer(dense(layer(rows, experts[0])), experts[1])

    def reduce() -> None:
        gradients = [parameter.grad for parameter in dense.parameters()]
        flat = torch.cat([gradient.reshape(-1) for gradient in gradients])
        dist.all_reduce(flat)

    return trained(job, model, optimizer, reduce)


_EVERYWHERE = tuple(name for name in VARIANTS if name not in ("layers", "tokens"))
KINDS: dict[str, tuple[Callable[[Job], Step], tuple[str, ...]]] = {
    "ddp": (ddp, _EVERYWHERE),
    "fsdp2": (fsdp2, _EVERYWHERE),
    "pipelining": (pipelining, (*_EVERYWHERE, "layers")),
    "tp": (tensor_parallel, _EVERYWHERE),
    "all_to_all": (all_to_all, (*_EVERYWHERE, "tokens")),
    "ddp-small": (
        ddp_small,
        ("none", "host", "turn", "work", "data", "checkpoint", "allslow", "none2", "none3"),
    ),
}


def wait(job: Job) -> None:
    if job.device.type == "cuda":
        import torch

        torch.cuda.synchronize()


def truth_of(kind: str, variant: str, attempt: int) -> dict[str, Any]:
    plants = VARIANTS[variant]
    recorded = range(1, STEPS + 1)
    return {
        "kind": kind,
        "variant": variant,
        "attempt": attempt,
        "axis": {"turn": "moves", "checkpoint": "step", "layers": "stage"}.get(
            variant, "rank" if plants else "none"
        ),
        "ranks": sorted({rank for plant in plants for rank in plant.ranks}),
        "causes": {str(rank): CAUSES[plant.what] for plant in plants for rank in plant.ranks},
        "plants": [asdict(plant) for plant in plants],
        "turns": [[rank for rank in ALL if any(p.falls_in(step, rank) for p in plants)] for step in recorded],
        "steps": list(recorded),
        "error": "",
    }


def write(folder: Path, truth: dict[str, Any]) -> None:
    """Whole or not at all: torchrun may end this process, and another rank may write too."""
    path = folder / f"truth.{os.getpid()}"
    path.write_text(json.dumps(truth))
    with contextlib.suppress(FileExistsError):  # what failed first says why
        (folder / "truth.json").hardlink_to(path)
    path.unlink()


def record(job: Job, kind: str, variant: str, folder: Path, attempt: int) -> None:
    import torch
    import torch.distributed as dist

    torch.manual_seed(0)
    job.step = 0
    job.begin(VARIANTS[variant])
    step, data, walls = KINDS[kind][0](job), batches(job), []

    def train() -> None:
        job.passes = 0
        batch = next(data)
        job.here("start")
        step(batch)

    for _ in range(WARM_UP):
        train()
    wait(job)
    dist.barrier(job.control)
    activities = [torch.profiler.ProfilerActivity.CPU]
    if job.device.type == "cuda":
        activities.append(torch.profiler.ProfilerActivity.CUDA)
    trace = folder / f"rank-{job.rank:05d}-of-{WORLD:05d}.pt.trace.json"
    with torch.profiler.profile(
        activities=activities,
        schedule=torch.profiler.schedule(wait=0, warmup=1, active=STEPS, repeat=1),
        on_trace_ready=lambda profiler: profiler.export_chrome_trace(str(trace)),
        record_shapes=True,
    ) as profiler:
        for number in range(STEPS + 1):
            job.step = number
            began = time.perf_counter_ns()
            train()
            walls.append(time.perf_counter_ns() - began)
            profiler.step()
    told: list[Any] = [None] * WORLD
    dist.all_gather_object(told, (walls[1:], job.planted), group=job.control)
    if job.rank == 0:
        planted = [[sum(by_step.get(n, {}).values()) for n in range(1, STEPS + 1)] for _, by_step in told]
        truth = {
            **truth_of(kind, variant, attempt),
            "planted_ns": planted,
            "wall_ns": [wall for wall, _ in told],
            "units_ns": job.units,
        }
        write(folder, truth)
    dist.barrier(job.control)


def pack(folder: Path, out: Path) -> None:
    """Archives of what was recorded, twins first, as many as come back from the device machine.

    In each, a variant is compressed by itself, its ranks together, for they are much alike.
    """
    order = [*HEALTHY, *VARIANTS]
    variants = sorted(
        (path.parent for path in folder.glob("*/*/truth.json")),
        key=lambda path: order.index(path.name.split("-again")[0]),
    )
    with ProcessPoolExecutor() as pool:
        packed = list(pool.map(compressed, variants))
    archives: list[list[Path]] = [[] for _ in range(MOST_ARCHIVES)]
    room = [MOST_BYTES] * MOST_ARCHIVES
    for path in packed:
        size = path.stat().st_size + 4096  # its header
        number = next((number for number, left in enumerate(room) if size <= left), None)
        if number is None:
            print(f"left out: {path.parent.name}/{path.name}, {size} bytes")
            continue
        room[number] -= size
        archives[number].append(path)
    for number, paths in enumerate(filter(None, archives)):
        with tarfile.open(out / f"recorded-{number}.tar", "w") as archive:
            for path in paths:
                archive.add(path, f"{path.parent.name}/{path.name}")
    print(f"{len(packed)} variants, {sum(path.stat().st_size for path in packed) / 2**20:.1f} MiB")


def compressed(variant: Path) -> Path:
    path = variant.with_name(f"{variant.name}.tar.xz")
    filters = [{"id": lzma.FILTER_LZMA2, "preset": 5, "dict_size": 64 << 20}]
    with lzma.open(path, "wb", filters=filters) as stream, tarfile.open(mode="w|", fileobj=stream) as archive:
        archive.add(variant, variant.name)
    return path


def unpack(folder: Path) -> None:
    """What `pack` has made, into FOLDER/KIND/VARIANT."""
    for outer in sorted(folder.glob("recorded-*.tar")):
        with tarfile.open(outer) as archive:
            archive.extractall(folder, filter="data")
    for inner in sorted(folder.glob("*/*.tar.xz")):
        with tarfile.open(inner) as archive:
            archive.extractall(inner.parent, filter="data")
        inner.unlink()


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("kind", nargs="?", choices=KINDS)
    parser.add_argument("folder", type=Path)
    parser.add_argument(
        "--variants", default="", help="names, separated by commas; all of the kind without it"
    )
    parser.add_argument("--backend", choices=SIZES, default="nccl")
    parser.add_argument(
        "--until", type=float, default=float("inf"), help="Unix time after which no variant is begun"
    )
    parser.add_argument("--attempt", type=int, default=1)
    parser.add_argument(
        "--pack", type=Path, metavar="OUT", help="put the kinds of the folder into archives in OUT"
    )
    args = parser.parse_args(argv)
    if args.pack:
        pack(args.folder, args.pack)
        return 0
    if args.kind is None:
        parser.error("which kind?")
    rank = int(os.environ["RANK"])
    os.environ |= {
        "NCCL_HOSTID": f"host{rank}",
        "NCCL_SOCKET_IFNAME": "lo",
        "NCCL_IB_DISABLE": "1",
        "GLOO_SOCKET_IFNAME": "lo",
    }
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    device = torch.device("cuda:0" if args.backend == "nccl" else "cpu")
    if args.backend == "nccl":
        torch.cuda.set_device(device)
        dist.init_process_group("nccl", device_id=device)
    else:
        dist.init_process_group("gloo")
    job = Job(rank, device, SIZES[args.backend], dist.new_group(backend="gloo"))
    wanted = [name for name in args.variants.split(",") if name] or list(KINDS[args.kind][1])
    variants = [name for name in VARIANTS if name in wanted and name in KINDS[args.kind][1]]
    job.prepare()
    first = True
    for variant in variants:
        healthy = variant in HEALTHY
        folder = (
            args.folder
            / args.kind
            / (f"{variant}-again{args.attempt}" if healthy and args.attempt > 1 else variant)
        )
        decided = [not (folder / "truth.json").exists() and (variant == "none2" or time.time() < args.until)]
        dist.broadcast_object_list(decided, 0, group=job.control)
        if not decided[0]:
            continue
        folder.mkdir(parents=True, exist_ok=True)

        def fail(why: str, folder: Path = folder, variant: str = variant) -> None:
            """The other ranks hang in a collective: torchrun ends them when this process ends."""
            truth = {**truth_of(args.kind, variant, args.attempt), "error": f"rank {rank}: {why}"}
            write(folder, truth)
            print(f"{args.kind} {variant} rank {rank}: {why}", flush=True)
            os._exit(3)

        watchdog = threading.Timer(LIMIT_S * (1 + first), fail, [f"took longer than {LIMIT_S} s"])
        watchdog.daemon = True
        watchdog.start()
        began = time.time()
        try:
            if first:
                for _ in range(2):  # the allocator, the libraries and the communicators have started then
                    step, data = KINDS[args.kind][0](job), batches(job)
                    for _ in range(3):
                        job.passes = 0
                        step(next(data))
                dist.barrier(job.control)
            record(job, args.kind, variant, folder, args.attempt)
        except Exception:  # noqa: BLE001 - whatever it is, the next variant is tried
            fail(traceback.format_exc())
        watchdog.cancel()
        first = False
        if rank == 0:
            walls = json.loads((folder / "truth.json").read_text())["wall_ns"]
            mean = sum(map(sum, walls)) / WORLD / STEPS / 1e6
            print(f"{args.kind} {variant}: {mean:.1f} ms a step, {time.time() - began:.1f} s", flush=True)
    dist.barrier(job.control)
    dist.destroy_process_group()
    return 0


if __name__ == "__main__":
    sys.exit(main())
