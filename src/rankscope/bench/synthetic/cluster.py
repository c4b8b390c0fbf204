"""A training job on a cluster, simulated event by event, with faults planted in it.

    job = Job(data=4, tensor=2, steps=8, faults=(Fault("compute", ranks=(3,), ns=2_000_000),), seed=1)
    runs = simulate(job)
    write_traces(job, runs, Path("run"))

    write_job(job, Path("run"))  # the same, with one step of each rank in memory at a time

Each rank has a host that works through a program, and a GPU with a compute, a copy and a communication stream. The
host launches work and continues; work starts when its stream is free, its launch has arrived and what it depends on has
ended. A collective ends on all ranks when the last one has arrived, plus the transfer. A send and its receive end
together. The cost of a fault is found by simulating the same job without it: every random number is drawn from the
seed, the rank, the step and the place in the program, so the two runs differ in the fault alone.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from rankscope.bench.synthetic.rank_grid import AXES, RankGrid

COMPUTE, COPY, COMM = "compute", "copy", "comm"

FAULTS = (
    "compute",  # one kernel more, or longer
    "throttle",  # every kernel longer by a share
    "host",  # the host is busy elsewhere while the GPU idles
    "gc",  # as host, at a random place of a random half of the steps
    "contention",  # every call of the host longer
    "checkpoint",  # as host, in every fourth step
    "copy",  # the copy of the batch takes longer
    "dataloader",  # the wait for the batch takes longer
    "link",  # transfers of the groups this rank is in take longer
    "moving",  # another rank computes longer in every step
    "overlap",  # all ranks: the backward pass waits for every bucket of gradients
    "fusion",  # all ranks: as many short kernels besides the usual ones as take the host this long to launch
    "leak",  # `ns` is the number of bytes that stay allocated after each step
)
EVERY_RANK = ("overlap", "fusion")
"""Faults of the program: they have no culprit."""
OF_RANKS = tuple(kind for kind in FAULTS if kind not in (*EVERY_RANK, "moving", "leak"))
"""Faults that make the named ranks late in every step."""


@dataclass(frozen=True)
class Fault:
    """Something that makes ranks slow. `ns` is what it adds to one step of one rank's own work."""

    kind: str
    ranks: tuple[int, ...]
    ns: int
    annotated: bool = False
    """Host faults: inside an annotation that names the cause."""


@dataclass(frozen=True, kw_only=True)
class Job(RankGrid):
    """A job of stages * data * tensor ranks; ranks count tensor first, then data, then stages."""

    data: int = 4
    tensor: int = 1
    stages: int = 1
    steps: int = 8
    layers: int = 4
    micro_batches: int = 2
    forward_ns: int = 700_000
    """Of one layer and micro-batch; the backward pass takes twice as long."""
    kernels: int = 3
    """Kernels a layer's pass is made of."""
    bucket_ns: int = 500_000
    """Transfer of the gradients of one layer over the data-parallel group."""
    sum_ns: int = 120_000
    """Transfer of a layer's activations over the tensor-parallel group."""
    norm_ns: int = 0
    """Transfer of the norm of the gradients over all ranks, at the end of a step; 0: the job has none."""
    send_ns: int = 60_000
    batch_copy_ns: int = 300_000
    data_wait_ns: int = 400_000
    noise_pct: float = 2.0
    """Standard deviation of every duration, of its own length."""
    leave_ns: int = 3_000
    """Ranks leave a collective up to so much apart."""
    spread_pct: float = 0.0
    """Standard deviation between the speeds of the GPUs; the same in every step."""
    hiccup_chance: float = 0.0
    """Of a rank in a step: its host loses HICCUP_NS at the begin of the step."""
    ranks_per_node: int = 8
    offset_ns: int = 0
    """Largest clock offset of a rank."""
    drift_ppb: int = 0
    """Largest clock drift of a rank, in parts per billion."""
    faults: tuple[Fault, ...] = ()
    seed: int = 0

    def healthy(self) -> Job:
        return replace(self, faults=())

    @property
    def passes(self) -> int:
        """How often a rank goes through a layer in a step, forward and backward."""
        return 2 * self.layers * (self.micro_batches if self.stages > 1 else 1)


_EVENTS_OF_A_WORK = 3
"""The op, the launch call and the kernel."""


def kernels_for(job: Job, events: int) -> int:
    """Kernels a pass, such that each rank has at least so many events."""
    works = -(-events // (job.steps * _EVENTS_OF_A_WORK))
    return max(1, -(-works // job.passes) - (job.tensor > 1))


LAUNCH_NS, LATENCY_NS, SYNC_NS, BETWEEN_NS = 6_000, 4_000, 3_000, 20_000
HICCUP_NS = 300_000
SHORT_KERNEL_NS = 1_500
MODEL_BYTES, ACTIVATION_BYTES = 2 << 30, 1 << 30


@dataclass(slots=True)
class Work:
    """Something a GPU does."""

    name: str
    stream: str
    ns: int
    launched: int
    after: tuple[Work, ...]
    axis: str = ""
    """Of a collective or a point-to-point transfer: which group."""
    peer: int = -1
    key: tuple[object, ...] = ()
    """What the other ranks' part of the same transfer has too."""
    size: int = 0
    start: int = -1
    end: int = -1


class HostSpan(NamedTuple):
    """Something the host does: an op, a runtime call, an annotation."""

    name: str
    category: str
    start: int
    end: int
    work: Work | None = None


@dataclass
class RankRun:
    """What one rank did, in true time."""

    steps: list[tuple[int, int]] = field(default_factory=list)
    spans: list[HostSpan] = field(default_factory=list)
    works: list[Work] = field(default_factory=list)
    memory: list[tuple[int, int]] = field(default_factory=list)
    """(time, bytes) of allocations and, negative, of what is freed; only in jobs that leak."""

    def extend(self, later: RankRun) -> None:
        self.steps += later.steps
        self.spans += later.spans
        self.works += later.works
        self.memory += later.memory


class _Rank:
    """A host that works through its program until it has to wait for its GPU."""

    def __init__(self, job: Job, rank: int) -> None:
        self.job, self.rank, self.run = job, rank, RankRun()
        self.now = 100_000
        self.last: dict[str, Work] = {}
        self.open: list[Work] = []
        self.queues: dict[str, deque[Work]] = {stream: deque() for stream in (COMPUTE, COPY, COMM)}
        """Work that has no end yet. A stream does one after the other, so only the first of each can start."""
        self.groups = {axis: job.group_ranks(axis, rank) for axis in (*AXES, "world")}
        self.finished: list[RankRun] = []
        """Steps whose work has ended."""
        self.program = self._program()
        self.slow_host = 0.0
        speed = random.Random(f"{job.seed}/speed/{rank}").gauss(0, job.spread_pct / 100)
        self.gpu_factor = 1 + max(-2 * job.spread_pct / 100, min(speed, 2 * job.spread_pct / 100))

    def advance(self) -> bool:
        """Run the host on; False when its program is over."""
        return next(self.program, None) is not None

    # One step of training, as the host goes through it. A bare `yield` waits until all launched work has ended.

    def _program(self) -> Iterator[bool]:
        for step in range(self.job.steps):
            self.random = random.Random(f"{self.job.seed}/{self.rank}/{step}")
            self.extra_random = random.Random(f"{self.job.seed}/{self.rank}/{step}/extra")
            start = self.now
            yield from self._step(step)
            self.run.steps.append((start, self.now))
            self.finished.append(self.run)
            self.run = RankRun()
            self.now += self._noisy(BETWEEN_NS)

    def _step(self, step: int) -> Iterator[bool]:
        job, faults = self.job, _Faults(self.job, self.rank, step)
        self.slow_host, self.slow_kernels = faults.per_launch, faults.kernel_share
        self.short_kernels = faults.short_kernels
        self._allocate(faults.watches_memory, ACTIVATION_BYTES + MODEL_BYTES * (step == 0))
        if random.Random(f"{job.seed}/hiccup/{self.rank}/{step}").random() < job.hiccup_chance:
            self.now += HICCUP_NS
        waited = self._noisy(job.data_wait_ns) + faults.dataloader
        self._span("enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__", "user_annotation", waited)
        self._pause(faults.checkpoint, "save_checkpoint" if faults.annotated else "")
        self._pause(faults.host, "extra_work" if faults.annotated else "")
        copy = self._launch(
            "Memcpy HtoD (Pinned -> Device)", COPY, self._noisy(job.batch_copy_ns) + faults.copy
        )
        self._pause(faults.gc_before, "")
        stage, data, tensor = job.place(self.rank)
        before = job.rank_at(stage - 1, data, tensor) if stage else -1
        following = job.rank_at(stage + 1, data, tensor) if stage + 1 < job.stages else -1
        batches = job.micro_batches if job.stages > 1 else 1
        needed: list[Work] = [copy]
        for batch in range(batches):
            if before >= 0:
                needed = [self._transfer("recv", before, step, "forward", batch)]
            for layer in range(job.layers):
                needed = self._layer("forward", job.forward_ns, needed, step, layer, batch)
            if following >= 0:
                self._transfer("send", following, step, "forward", batch, needed)
        if faults.extra_kernel:
            needed = [self._extra("void extra_kernel<float>(float*)", faults.extra_kernel, needed)]
        gradients: list[Work] = []
        for batch in range(batches):
            if following >= 0:
                needed = [self._transfer("recv", following, step, "backward", batch)]
            for layer in reversed(range(job.layers)):
                needed = self._layer("backward", 2 * job.forward_ns, needed, step, layer, batch)
                if job.data > 1 and batch + 1 == batches:
                    gradients.append(self._collective("dp", job.bucket_ns, step, f"bucket {layer}", needed))
                    if faults.no_overlap:
                        needed = [gradients[-1]]
            if before >= 0:
                self._transfer("send", before, step, "backward", batch, needed)
        self._pause(faults.gc_after, "")
        if job.norm_ns:
            gradients.append(self._collective("world", job.norm_ns, step, "norm", [*gradients, *needed]))
        for number in range(2):
            needed = [
                self._launch(
                    f"multi_tensor_apply_kernel_{number}", COMPUTE, self._noisy(90_000), [*gradients, *needed]
                )
            ]
        self._span("Optimizer.step#AdamW.step", "user_annotation", self._noisy(12_000))
        self._allocate(faults.watches_memory, faults.leaked_bytes - ACTIVATION_BYTES)
        start = self.now
        yield True  # until everything that was launched has ended
        self.now = max(self.now, max(work.end for work in self.open)) + SYNC_NS
        self.run.spans.append(HostSpan("cudaStreamSynchronize", "cuda_runtime", start, self.now))
        self.open.clear()

    def _layer(
        self, phase: str, ns: int, needed: list[Work], step: int, layer: int, batch: int
    ) -> list[Work]:
        for number in range(self.job.kernels):
            name = f"nvjet_sm90_{phase}_{number}_128x256_TNT"
            needed = [self._launch(name, COMPUTE, self._noisy(ns // self.job.kernels), needed)]
        for _ in range(self.short_kernels):
            needed = [self._extra("void elementwise_kernel<128, 4>(int)", SHORT_KERNEL_NS, needed)]
        if self.job.tensor > 1:
            needed = [self._collective("tp", self.job.sum_ns, step, f"{phase} {layer} {batch}", needed)]
        return needed

    # What the host can do.

    def _noisy(self, ns: int) -> int:
        return max(1, round(ns * (1 + self.random.gauss(0, self.job.noise_pct / 100))))

    def _span(self, name: str, category: str, ns: int) -> None:
        self.run.spans.append(HostSpan(name, category, self.now, self.now + ns))
        self.now += ns

    def _allocate(self, watched: bool, change: int) -> None:
        if watched:
            self.run.memory.append((self.now, change))

    def _extra(self, name: str, ns: int, after: list[Work]) -> Work:
        """Launch a kernel that the healthy job does not have: it must not shift the random numbers of the others."""
        usual, self.random = self.random, self.extra_random
        work = self._launch(name, COMPUTE, ns, after)
        self.random = usual
        return work

    def _pause(self, ns: int, annotation: str) -> None:
        if ns and annotation:
            self._span(annotation, "user_annotation", ns)
        else:
            self.now += ns

    def _launch(
        self, name: str, stream: str, ns: int, after: list[Work] | None = None, **more: object
    ) -> Work:
        cost = self._noisy(LAUNCH_NS) + round(self.slow_host)
        launched = self.now + cost // 3
        if stream == COMPUTE:
            ns = round(ns * (1 + self.slow_kernels) * self.gpu_factor)
        previous = (self.last[stream],) if stream in self.last else ()
        work = Work(name, stream, ns, launched, (*previous, *(after or ())), **more)  # type: ignore[arg-type]
        op = {COMPUTE: "aten::mm", COPY: "aten::copy_", COMM: "record_param_comms"}[stream]
        self.run.spans.append(HostSpan(op, "cpu_op", self.now, self.now + cost, work))
        call = "cudaMemcpyAsync" if stream == COPY else "cudaLaunchKernel"
        self.run.spans.append(HostSpan(call, "cuda_runtime", launched, launched + cost // 2, work))
        self.now += cost + cost // 4
        self.last[stream] = work
        self.run.works.append(work)
        self.open.append(work)
        self.queues[stream].append(work)
        return work

    def _collective(self, axis: str, ns: int, step: int, label: str, after: list[Work]) -> Work:
        group = self.groups[axis]
        shared = random.Random(f"{self.job.seed}/{axis}/{group[0]}/{step}/{label}")
        ns = max(1, round(ns * (1 + shared.gauss(0, self.job.noise_pct / 100))))
        ns += _link_delay(self.job, axis, group)
        name = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
        size = {"dp": 64_000_000, "tp": 8_000_000, "world": 4}[axis]
        return self._launch(name, COMM, ns, after, axis=axis, key=(axis, group[0], step, label), size=size)

    def _transfer(
        self, what: str, peer: int, step: int, phase: str, batch: int, after: list[Work] | None = None
    ) -> Work:
        pair = (min(peer, self.rank), max(peer, self.rank))
        name = "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)"
        key = ("pp", pair, step, phase, batch)
        ns = self.job.send_ns + _link_delay(self.job, "pp", pair)
        return self._launch(name, COMM, ns, after, axis=what, peer=peer, key=key, size=4_000_000)


class _Faults:
    """What the faults of a job add to one step of one rank."""

    def __init__(self, job: Job, rank: int, step: int) -> None:
        self.extra_kernel = self.copy = self.dataloader = self.host = self.checkpoint = 0
        self.gc_before = self.gc_after = 0
        self.kernel_share = self.per_launch = 0.0
        self.short_kernels = self.leaked_bytes = 0
        self.annotated = self.no_overlap = False
        self.watches_memory = any(fault.kind == "leak" for fault in job.faults)
        for number, fault in enumerate(job.faults):
            chance = random.Random(f"{job.seed}/fault {number}/{step}")
            hit = (
                fault.ranks[chance.randrange(len(fault.ranks))] == rank
                if fault.kind == "moving"
                else rank in fault.ranks or fault.kind in EVERY_RANK
            )
            if hit:
                self._add(job, fault, step, chance)

    def _add(self, job: Job, fault: Fault, step: int, chance: random.Random) -> None:
        self.annotated |= fault.annotated
        if fault.kind in ("compute", "moving"):
            self.extra_kernel += fault.ns
        elif fault.kind == "throttle":
            own = job.layers * 3 * job.forward_ns * (job.micro_batches if job.stages > 1 else 1)
            self.kernel_share += fault.ns / own
        elif fault.kind == "gc":
            if step % 2:
                late = chance.random() < 0.5
                self.gc_after += 2 * fault.ns * late
                self.gc_before += 2 * fault.ns * (not late)
        elif fault.kind == "contention":
            launches = (job.layers * (2 * job.kernels + 1) + 3) * (job.micro_batches if job.stages > 1 else 1)
            self.per_launch += fault.ns / launches
        elif fault.kind == "checkpoint":
            self.checkpoint += 4 * fault.ns * (step % 4 == 3)
        elif fault.kind == "overlap":
            self.no_overlap = True
        elif fault.kind == "fusion":
            self.short_kernels += round(fault.ns / job.passes / (1.25 * LAUNCH_NS))
        elif fault.kind == "leak":
            self.leaked_bytes += fault.ns
        elif fault.kind in ("host", "copy", "dataloader"):
            setattr(self, fault.kind, getattr(self, fault.kind) + fault.ns)


def _link_delay(job: Job, axis: str, group: tuple[int, ...]) -> int:
    """What slow links add to one transfer of a group; nothing to a few bytes over all ranks."""
    if axis == "world":
        return 0
    batches = job.micro_batches if job.stages > 1 else 1
    transfers = {"dp": job.layers, "tp": 2 * job.layers * batches, "pp": 2 * batches}[axis]
    return sum(
        fault.ns // transfers
        for fault in job.faults
        if fault.kind == "link" and set(fault.ranks) & set(group)
    )


def simulate(job: Job) -> list[RankRun]:
    """Run the job, and keep what every rank did."""
    runs = [RankRun() for _ in range(job.ranks)]
    for rank, step in simulated_steps(job):
        runs[rank].extend(step)
    return runs


def simulated_steps(job: Job) -> Iterator[tuple[int, RankRun]]:
    """Run the job: every host goes on until it waits, every work starts when it can.

    Gives a rank and its next step when all work of that step has ended; nothing of it is kept.
    """
    ranks = [_Rank(job, rank) for rank in range(job.ranks)]
    arrived: dict[tuple[object, ...], dict[int, Work]] = {}
    running = {rank.rank for rank in ranks if rank.advance()}
    while running:
        progress = False
        for number in list(running):
            rank = ranks[number]
            progress |= _place(job, rank, arrived)
            if not any(rank.queues.values()):
                progress = True
                if not rank.advance():
                    running.discard(number)
                for step in rank.finished:
                    yield number, step
                rank.finished.clear()
        if not progress:
            raise RuntimeError("the simulated job hangs: a collective lacks a rank")


def _place(job: Job, rank: _Rank, arrived: dict[tuple[object, ...], dict[int, Work]]) -> bool:
    """Give times to the works of a rank that can have them; True when there was one."""
    progress = False
    moved = True
    while moved:
        moved = False
        for queue in rank.queues.values():
            while queue:
                work = queue[0]
                if work.start < 0 and all(other.end >= 0 for other in work.after):
                    _start(job, rank, work, arrived)
                    moved = True
                if work.end < 0:
                    break
                queue.popleft()
                moved = True
        progress |= moved
    return progress


def _start(job: Job, rank: _Rank, work: Work, arrived: dict[tuple[object, ...], dict[int, Work]]) -> None:
    """The start of a work whose causes have ended, and its end; a transfer ends when the last rank has arrived."""
    ready = max((other.end for other in work.after), default=0)
    work.after = ()  # not needed again: it would keep all earlier work in memory
    work.start = max(ready + 1_000, work.launched + LATENCY_NS)
    if not work.key:
        work.end = work.start + work.ns
        return
    parts = arrived.setdefault(work.key, {})
    parts[rank.rank] = work
    if len(parts) == (2 if work.peer >= 0 else len(rank.groups[work.axis])):
        del arrived[work.key]
        last = max(part.start for part in parts.values()) + max(part.ns for part in parts.values())
        for member, part in parts.items():
            chance = random.Random(f"{job.seed}/leave/{member}/{work.key}")
            part.end = last + chance.randrange(job.leave_ns + 1)


def step_ns(runs: list[RankRun]) -> float:
    """The mean time of a step over the whole job, from the first begin to the last end."""
    begin = min(run.steps[0][0] for run in runs)
    end = max(run.steps[-1][1] for run in runs)
    return (end - begin) / len(runs[0].steps)
