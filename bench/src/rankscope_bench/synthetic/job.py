"""A training job to be simulated, and the faults planted in it."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import NamedTuple

from rankscope_bench.synthetic.rank_grid import RankGrid

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
    "lengths",  # micro-batches differ in length; `ns` is the standard deviation of the compute of a step
    "experts",  # one rank gets more tokens; with several ranks, another one in every step, and the others fewer
    "stages",  # the stage of these ranks has more layers
    "overlap",  # all ranks: the backward pass waits for every bucket of gradients
    "fusion",  # all ranks: as many short kernels besides the usual ones as take the host this long to launch
    "leak",  # `ns` is the number of bytes that stay allocated after each step
)
EVERY_RANK = ("overlap", "fusion")
"""Faults of the program: they have no culprit."""
OF_WORK = ("lengths", "experts", "stages")
"""Faults of how the work is divided."""
OF_RANKS = tuple(kind for kind in FAULTS if kind not in (*EVERY_RANK, *OF_WORK, "moving", "leak"))
"""Faults that make the named ranks late."""
_EVERY = {"gc": 2, "checkpoint": 4}
LAUNCH_NS = 6_000
"""What the host needs for a launch of the plain model."""
_EVENTS_OF_A_WORK = 3  # the op, the launch call and the kernel
_UNIX_START_NS = 1_794_701_458_600_000_000  # when true time is 0
_BASE_TIME_NS = 1_790_857_026_000_000_000
_TOKENS = 4_000_000
_BUS_BYTES_PER_NS = 300  # sizes are chosen for this bandwidth, whatever the job's is


@dataclass(frozen=True)
class Fault:
    """Something that makes ranks slow. `ns` is what it adds to one step of one rank's own work, on average."""

    kind: str
    ranks: tuple[int, ...]
    ns: int
    annotated: bool = False
    """Host faults: inside an annotation that names the cause."""
    every: int = 0
    """Only in every so many-th step, and so much longer there; 0: as usual for its kind."""

    def in_step(self, step: int) -> int:
        """What it adds to a step."""
        every = self.every or _EVERY.get(self.kind, 1)
        return self.ns * every * (step % every == every - 1)


@dataclass(frozen=True)
class Slower:
    """Kernels that take longer (or shorter) than they should, on every rank."""

    kernel: str
    """Part of their name."""
    factor: float
    """1.03 is 3 % slower, 0.5 twice as fast."""


@dataclass(frozen=True, kw_only=True)
class Clock:
    """How a rank's time stamps relate to true time, which is ns from the run's start."""

    offset_ns: int = 0
    """How far it is ahead at true time 0."""
    drift_ppb: int = 0
    """How much it runs fast, in parts per billion."""
    base_time_ns: int = _BASE_TIME_NS
    """The file's baseTimeNanoseconds: unix ns = ts * 1000 + base."""

    @property
    def zero_ns(self) -> int:
        """The time stamp, in ns, of true time 0."""
        return _UNIX_START_NS - self.base_time_ns + self.offset_ns


class Transfer(NamedTuple):
    """What a collective moves, and how long that takes at least."""

    ns: int
    in_nelems: int
    out_nelems: int


@dataclass(frozen=True, kw_only=True)
class Job(RankGrid):
    """A job of stages * data * tensor ranks; ranks count tensor first, then data, then stages."""

    data: int = 4
    tensor: int = 1
    stages: int = 1
    model: str = "plain"
    """What a layer is made of: "plain" are some equal kernels, "gpt" is the recorded layer."""
    steps: int = 8
    layers: int = 4
    most_buckets: int | None = None
    """Collectives of a pass through the layers at most; None: one for each layer."""
    stage_layers: tuple[int, ...] = ()
    """Uneven pipelines: layers of each stage, or of each chunk as the model goes through them; empty: `layers` each."""
    schedule: str = "gpipe"
    """Of a pipeline: gpipe, 1f1b or interleaved (pipeline.py)."""
    chunks: int = 1
    """Virtual stages of each stage, of the interleaved schedule."""
    p2p: str = "separate"
    """separate: a kernel for each send and recv; batched: one for those that go together, as batch_isend_irecv."""
    micro_batches: int = 2
    """Of a step; the plain model has them in pipelines only."""
    sharded: bool = False
    """The weights are sharded over the data-parallel group (or the activations over the tensor-parallel one): forward
    gathers them, backward scatters their gradients."""
    forward_ns: int = 700_000
    """Of one layer and micro-batch in the plain model; the backward pass takes twice as long."""
    kernels: int = 3
    """Kernels a layer's pass is made of in the plain model."""
    expert_ns: int = 0
    """Mixture of experts: forward compute of a layer and micro-batch on tokens of all ranks of the data-parallel group,
    which an all_to_all has brought; 0: no experts."""
    bucket_ns: int = 500_000
    """Transfer of the gradients of one layer over the data-parallel group."""
    sum_ns: int = 120_000
    """Transfer of a layer's activations over the tensor-parallel group."""
    norm_ns: int = 0
    """Transfer of the norm of the gradients over all ranks, at the end of a step; 0: the job has none."""
    send_ns: int = 60_000
    latency_ns: int = 0
    """Of a collective in the gpt model, before its first byte moves."""
    bus_gb_s: float = 0.0
    """busbw of collectives in the gpt model; 0: no transfer time."""
    batch_copy_ns: int | None = 300_000
    """None: as in the recording."""
    data_wait_ns: int = 400_000
    noise_pct: float = 2.0
    """Standard deviation of every duration, of its own length."""
    measured: bool = False
    """Durations vary and hosts pause as in recorded jobs (host.measured_noise), not as said here."""
    step_noise_pct: float = 0.0
    """In every step of every rank, all kernels are longer by 0 to this much."""
    leave_ns: int = 3_000
    """Ranks leave a collective up to so much apart."""
    spread_pct: float = 0.0
    """Standard deviation between the speeds of the GPUs; the same in every step."""
    hiccup_chance: float = 0.0
    """Of a rank in a step: its host loses HICCUP_NS at the begin of the step."""
    ranks_per_node: int = 8
    node_clocks: bool = False
    """The ranks of a node share a clock, and all files have the same base time, as torch writes them."""
    records_memory: bool = False
    """Allocations are in the trace, as they are where a leak is planted."""
    offset_ns: int = 0
    """Largest clock offset of a rank; one rank has it, and rank 0 has none."""
    drift_ppb: int = 0
    """Largest clock drift of a rank, in parts per billion; one rank has it, and rank 0 has none."""
    slower: tuple[Slower, ...] = ()
    filler: tuple[int, ...] = ()
    """By step: short ops without work on the GPU, to reach a number of events."""
    faults: tuple[Fault, ...] = ()
    seed: int = 0

    def healthy(self) -> Job:
        return replace(self, faults=())

    @property
    def batches(self) -> int:
        return self.micro_batches if self.stages > 1 or self.model != "plain" else 1

    @property
    def passes(self) -> int:
        """How often a rank goes through a layer in a step, forward and backward."""
        return 2 * self.layers * self.batches

    def layers_of(self, stage: int, chunk: int = 0) -> int:
        """The layers of a stage's chunk."""
        if len(self.stage_layers) == self.stages * self.chunks:
            return self.stage_layers[chunk * self.stages + stage]
        layers = self.stage_layers[stage] if self.stage_layers else self.layers
        pass_ns = 3 * self.forward_ns * self.batches
        for fault in self.faults:
            if fault.kind == "stages" and self.place(fault.ranks[0])[0] == stage:
                layers += max(1, round(fault.ns / pass_ns))
        return layers // self.chunks + (chunk < layers % self.chunks)

    def layers_on(self, stage: int) -> int:
        """The layers of all chunks of a stage."""
        return sum(self.layers_of(stage, chunk) for chunk in range(self.chunks))

    def buckets(self, layers: int) -> tuple[int, ...]:
        """How many of so many layers there are between two collectives."""
        count = min(layers, self.most_buckets or layers)
        return tuple(layers // count + (i < layers % count) for i in range(count))

    @property
    def data_axis(self) -> str:
        """The group that gradients are reduced over."""
        return "world" if self.sharded and self.tensor == self.stages == 1 else "dp"

    def transfer(self, kind: str, axis: str, ranks: int, busy_ns: int) -> Transfer:
        """Of a collective; in the gpt model as large as hides some of it behind so much work."""
        if kind == "all_to_all":
            return Transfer(self.sum_ns, _TOKENS, _TOKENS)
        if self.model == "plain":
            ns = {"dp": self.bucket_ns, "tp": self.sum_ns, "world": self.norm_ns}[axis]
            elements = {"dp": 32_000_000, "tp": 4_000_000, "world": 2}[axis]
            return Transfer(ns, elements, elements)
        traffic = (2 if kind == "all_reduce" else 1) * (
            ranks - 1
        )  # nccl-tests' busbw factor, times the ranks
        share = 1 if kind == "all_reduce" else ranks
        element_bytes = 4 if kind == "all_reduce" else 2
        elements = busy_ns * _BUS_BYTES_PER_NS * ranks // (traffic * element_bytes * share)
        elements = min(max(elements // 1024 * 1024, 1024), 2**28)
        nbytes = elements * share * element_bytes
        ns = self.latency_ns + (int(nbytes * traffic // (ranks * self.bus_gb_s)) if self.bus_gb_s else 0)
        return Transfer(
            ns,
            elements * (share if kind == "reduce_scatter" else 1),
            elements * (share if kind == "all_gather" else 1),
        )

    @cached_property
    def clocks(self) -> Sequence[Clock]:
        """By rank. Files have different base times, as of ranks that start at different times: ts alone is not
        comparable across files. With `node_clocks` it is, but for the offset of the node."""
        pairs = zip(self._spread(self.offset_ns, "clock"), self._spread(self.drift_ppb, "drift"), strict=True)
        return [
            Clock(
                offset_ns=offset,
                drift_ppb=drift,
                base_time_ns=_BASE_TIME_NS + (0 if self.node_clocks else rank * 1_000_000_000),
            )
            for rank, (offset, drift) in enumerate(pairs)
        ]

    def _spread(self, largest: int, what: str) -> Sequence[int]:
        shared_by = self.ranks_per_node if self.node_clocks else 1
        clocks = -(-self.ranks // shared_by)
        values = [0] + [
            random.Random(f"{self.seed}/{what}/{clock}").randint(-largest, largest)
            for clock in range(1, clocks)
        ]
        if clocks > 1:
            peak = max(range(1, clocks), key=lambda clock: abs(values[clock]))
            values[peak] = largest if values[peak] >= 0 else -largest
        return [values[rank // shared_by] for rank in range(self.ranks)]

    def length(self, step: int, batch: int, data: int) -> float:
        """Of a micro-batch, over the mean length."""
        compute_ns = 3 * self.forward_ns * self.layers * self.batches
        factor = 1.0
        for number, fault in enumerate(self.faults):
            if fault.kind == "lengths":
                chance = random.Random(f"{self.seed}/fault {number}/{step}/{batch}/{data}")
                # Independent micro-batches even out in a step: their sum has the wanted deviation.
                factor += chance.gauss(0, fault.ns / compute_ns * self.batches**0.5)
        return max(factor, 0.2)

    @lru_cache(maxsize=256)  # noqa: B019 - jobs are few
    def routed(self, stage: int, step: int) -> tuple[float, ...]:
        """The tokens that the experts of each data-parallel rank get, over the mean."""
        expert_ns = 3 * self.expert_ns * self.layers_on(stage) * self.batches
        shares = [1.0] * self.data
        for number, fault in enumerate(self.faults):
            if fault.kind == "experts":
                if len(fault.ranks) > 1:
                    chance = random.Random(f"{self.seed}/fault {number}/{stage}/{step}")
                    weights = [chance.gauss(0, 1) for _ in shares]
                    mean = sum(weights) / self.data
                    peak = max(weights) - mean
                else:
                    of_stage, data, _ = self.place(fault.ranks[0])
                    weights = [float(of_stage == stage and rank == data) for rank in range(self.data)]
                    mean, peak = 0.0, 1.0
                excess = fault.in_step(step) / expert_ns
                shares = [
                    max(a + excess * (b - mean) / peak, 0.1) for a, b in zip(shares, weights, strict=True)
                ]
        return tuple(shares)

    def link_delay(self, axis: str, group: tuple[int, ...], step: int) -> int:
        """What slow links add to one transfer of a group; nothing to a few bytes over all ranks."""
        slow_links = [fault for fault in self.faults if fault.kind == "link"]
        if axis == "world" or not slow_links:
            return 0
        transfers = {"dp": self.layers, "tp": self.passes, "pp": 2 * self.batches * self.chunks}[axis]
        return sum(fault.in_step(step) // transfers for fault in slow_links if set(fault.ranks) & set(group))


def kernels_for(job: Job, events: int) -> int:
    """Kernels a pass of the plain model, such that each rank has at least so many events."""
    works = -(-events // (job.steps * _EVENTS_OF_A_WORK))
    return max(1, -(-works // job.passes) - (job.tensor > 1))


class StepFaults:
    """What the faults of a job add to one step of one rank."""

    def __init__(self, job: Job, rank: int, step: int) -> None:
        self.extra_kernel = self.copy = self.dataloader = self.host = self.checkpoint = 0
        self.gc_before = self.gc_after = 0
        self.kernel_share = self.per_launch = 0.0
        self.short_kernels = self.leaked_bytes = 0
        self.annotated = self.no_overlap = False
        self.watches_memory = job.records_memory or any(fault.kind == "leak" for fault in job.faults)
        for number, fault in enumerate(job.faults):
            chance = random.Random(f"{job.seed}/fault {number}/{step}")
            hit = (
                fault.ranks[chance.randrange(len(fault.ranks))] == rank
                if fault.kind == "moving"
                else rank in fault.ranks or fault.kind in EVERY_RANK
            )
            if hit:
                self._add(job, fault, fault.in_step(step), rank, chance)

    def _add(self, job: Job, fault: Fault, ns: int, rank: int, chance: random.Random) -> None:
        self.annotated |= fault.annotated
        if fault.kind in ("compute", "moving"):
            self.extra_kernel += ns
        elif fault.kind == "throttle":
            layers = job.layers_on(job.place(rank)[0])
            self.kernel_share += ns / (layers * 3 * job.forward_ns * job.batches)
        elif fault.kind == "gc":
            late = chance.random() < 0.5
            self.gc_after += ns * late
            self.gc_before += ns * (not late)
        elif fault.kind == "contention":
            self.per_launch += ns / ((job.layers * (2 * job.kernels + 1) + 3) * job.batches)
        elif fault.kind == "overlap":
            self.no_overlap = True
        elif fault.kind == "fusion":
            self.short_kernels += round(ns / job.passes / (1.25 * LAUNCH_NS))
        elif fault.kind == "leak":
            self.leaked_bytes += ns
        elif fault.kind in ("host", "checkpoint", "copy", "dataloader"):
            setattr(self, fault.kind, getattr(self, fault.kind) + ns)
