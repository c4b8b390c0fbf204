"""A rank of a simulated job: a host that plays recorded segments, and the streams of its GPU.

The host launches work and continues; work starts when its stream is free, its launch has arrived and what it depends on
has ended. Every random number follows from the seed, the rank, the step and the place in the program, so two runs of a
job with and without a fault differ in the fault alone.
"""

from __future__ import annotations

import json
import random
import zlib
from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from rankscope_bench.synthetic.job import Job, StepFaults
from rankscope_bench.synthetic.pipeline import Message, Pass
from rankscope_bench.synthetic.rank_grid import AXES
from rankscope_bench.synthetic.recording import Integers, Segment, recording, segment

COMPUTE, COPY, COMM = 7, 16, 20
"""Streams, as they are numbered in the recording."""
_P2P = 24
"""The stream of batches, and the first of those of pairs: NCCL has a communicator for each pair of ranks."""
GAP_NS, LATENCY_NS, SYNC_NS = 1_000, 4_000, 3_000
"""Between two kernels of a stream; from a launch to the GPU; from the end of the work to the return of a sync."""
_NOISES = 1 << 14

Floats = npt.NDArray[np.float64]


@cache
def measured_noise() -> dict[str, Any]:
    """How durations vary in real jobs; the file says which (benchmarks/blame_noise.py)."""
    return dict(json.loads(Path(__file__).with_name("measured_noise.json").read_text()))


def drawn(quantiles: Sequence[int], chance: float) -> float:
    """The value below which the share `chance` lies."""
    below, share = divmod(chance * (len(quantiles) - 1), 1)
    low, high = quantiles[int(below) : int(below) + 2]
    return low + share * (high - low)


@lru_cache(maxsize=8)
def _noise(seed: int, percent: float | None) -> tuple[Floats, Floats]:
    """Factors around 1, of the host and of the GPU. The place of a duration in the program selects its factor."""
    source = random.Random(f"{seed}/noise")
    if percent is not None:
        factors = 1 + np.array([source.gauss(0, percent / 100) for _ in range(_NOISES)])
        return factors, factors
    tables = (measured_noise()["host_per_10000"], measured_noise()["gpu_per_10000"])
    host, gpu = (
        np.array([drawn(table, source.random()) / 10_000 for _ in range(_NOISES)]) for table in tables
    )
    return host, gpu


class Times(NamedTuple):
    """True ns; one row for each repetition of the segment."""

    host: Integers
    start: Integers
    end: Integers


@dataclass(slots=True, eq=False, kw_only=True)
class Work:
    """Repetitions of a segment: what the host does, and what it launches on one stream of the GPU.

    It holds what its times follow from, not the times: they are computed again where they are needed.
    """

    segment: Segment
    host_ns: int
    """When the host begins."""
    noise: tuple[Floats, Floats]
    """Of the host and of the GPU."""
    noise_at: int
    blocks: int = 1
    layer: int = 0
    upward: int = 1
    """1 or -1: from one repetition to the next, the layer changes by this."""
    on_autograd: bool = False
    pause: int = 0
    """Of the host, within the first repetition."""
    per_launch: int = 0
    """More time of the host for each launch."""
    ns: int | None = None
    """Of each kernel, if not as recorded."""
    extra: int = 0
    """More time of the first kernel."""
    factor: Floats | float = 1.0
    """Of the duration of each kernel."""
    after: tuple[Work, ...] = ()
    launched: Integers | None = None
    """When the launches reach the GPU; until it starts."""
    ready_ns: int = 0
    """The first kernel does not start before."""
    axis: str = ""
    """Of a collective or a point-to-point transfer: which group."""
    peer: int = 0
    key: tuple[object, ...] = ()
    """What the other ranks' part of the same transfer has too."""
    transfers: tuple[tuple[object, ...], ...] = ()
    """The keys of the messages of a batch; of any other transfer its own."""
    open_transfers: int = 0
    """Those to which not all ranks have come."""
    last_arrival: int = -1
    own_stream: int = 0
    """If not that of the recording."""
    nelems: tuple[int, int] = (0, 0)
    """In and out."""
    nbytes: int = 0
    """Allocated, by an allocation."""
    cut: int = 0
    """How many transfers its rank has launched in the step before it."""
    part: Pass | None = None
    """The pass it belongs to."""
    start: int = -1
    end: int = -1

    @property
    def stream(self) -> int:
        return self.own_stream or self.segment.stream

    def _factors(self, noise: Floats, skip: int, count: int) -> Floats:
        first = (self.noise_at + skip * self.blocks) % len(noise)
        last = first + count * self.blocks
        factors = noise[first:last] if last <= len(noise) else noise.take(range(first, last), mode="wrap")
        return factors.reshape(self.blocks, count)

    def host(self) -> Integers:
        increments = self.segment.increments
        took = np.rint(increments * self._factors(self.noise[0], 0, len(increments))).astype(np.int64)
        if self.per_launch:
            took[:, self.segment.launches] += self.per_launch
        took[0, self.segment.longest_gap] += self.pause
        took[0, 0] += self.host_ns
        return took.cumsum().reshape(took.shape)

    def gpu_took(self) -> Integers:
        """How long each kernel takes."""
        shortest = self.segment.gpu_ns if self.ns is None else self.ns
        noise = self._factors(self.noise[1], len(self.segment.increments), len(self.segment.gpu_ns))
        took = np.maximum(np.rint(shortest * (noise * self.factor)), 1).astype(np.int64)
        took[0, :1] += self.extra
        return took

    def gpu(self, launched: Integers) -> tuple[Integers, Integers]:
        """Starts and ends: each kernel after the one before it and after its own launch has arrived."""
        if self.key:
            return np.array([[self.start]]), np.array([[self.end]])
        took = self.gpu_took()
        # start[i] = max(start[i - 1] + took[i - 1] + gap, launched[i]), unrolled into a running maximum
        apart = (took + GAP_NS).ravel()
        before = apart.cumsum() - apart
        slack = launched - before
        slack[:1] = np.maximum(slack[:1], self.ready_ns)
        start = (before + np.maximum.accumulate(slack)).reshape(took.shape)
        return start, start + took

    def times(self) -> Times:
        host = self.host()
        return Times(host, *self.gpu(self._launched(host)))

    def _launched(self, host: Integers) -> Integers:
        return host[:, self.segment.launches].ravel() + LATENCY_NS


class Durations(NamedTuple):
    """What a simulation has other than the job says."""

    scales: Mapping[tuple[int, int, int, Pass | None], float]
    """Of the compute, by rank, step, and `cut` and `part` of the work."""
    transfers: Mapping[tuple[str, str], int]
    """By segment and axis."""


@dataclass
class RankRun:
    """What one rank did, in true time."""

    steps: list[tuple[int, int]] = field(default_factory=list)
    works: list[Work] = field(default_factory=list)
    """As the host came to them."""


class Host:
    """What the program of a step can do on one rank."""

    def __init__(self, job: Job, rank: int, durations: Durations | None = None) -> None:
        self.job, self.rank, self.run = job, rank, RankRun()
        self.part: Pass | None = None
        self._durations, self._cut = durations or Durations({}, {}), 0
        self.now = 100_000
        self.step = 0
        self.faults = StepFaults(job, rank, 0)
        self.last: dict[int, Work] = {}
        self.open: list[Work] = []
        self.queues: defaultdict[int, deque[Work]] = defaultdict(deque)
        """Work that has no end yet. A stream does one after the other, so only the first of each can start."""
        self.groups = {axis: job.group_ranks(axis, rank) for axis in (*AXES, "world")}
        self._played: Counter[str] = Counter()
        speed = random.Random(f"{job.seed}/speed/{rank}").gauss(0, job.spread_pct / 100)
        self._gpu_factor = 1 + max(-2 * job.spread_pct / 100, min(speed, 2 * job.spread_pct / 100))
        self._noise = _noise(job.seed, None if job.measured else job.noise_pct)

    def begin_step(self, step: int) -> None:
        job = self.job
        self.step, self.faults = step, StepFaults(job, self.rank, step)
        self._played.clear()
        self._cut = 0
        longer = random.Random(f"{job.seed}/step/{self.rank}/{step}").random() * job.step_noise_pct / 100
        self._factor = (1 + self.faults.kernel_share) * self._gpu_factor * (1 + longer)

    def has(self, name: str) -> bool:
        return f"{self.job.model}.{name}" in recording()

    def noisy(self, ns: int, label: str) -> int:
        return round(ns * float(self._noise[0][self._place(label)]))

    def _place(self, label: str) -> int:
        return zlib.crc32(f"{self.rank}/{self.step}/{label}".encode()) % _NOISES

    def play(self, name: str, after: Iterable[Work] = (), **details: Any) -> Work:
        """Go through a segment of the recording; its work on the GPU starts after `after`. `details`: of Work."""
        events = segment(f"{self.job.model}.{name}")
        self._played[name] += 1
        work = Work(
            segment=events,
            host_ns=self.now,
            noise=self._noise,
            noise_at=self._place(f"{name} {self._played[name]}"),
            per_launch=round(self.faults.per_launch),
            factor=self._factors(events) if events.stream == COMPUTE else 1.0,
            cut=self._cut,
            part=self.part,
            **details,
        )
        if work.key:
            self._cut += 1
            work.ns = self._durations.transfers.get((events.name, work.axis), work.ns)
        elif events.stream == COMPUTE and self._durations.scales:
            scale = self._durations.scales[self.rank, self.step, self._cut, self.part]
            work.factor, work.extra = work.factor * scale, round(work.extra * scale)
        work.on_autograd |= events.on_autograd
        work.transfers = work.transfers or (work.key,)
        work.open_transfers = len(work.transfers)
        host = work.host()
        self.now = int(host[-1, -1])
        self.run.works.append(work)
        if events.stream:
            previous = (self.last[work.stream],) if work.stream in self.last else ()
            work.after, work.launched = (*previous, *after), work._launched(host)
            self.last[work.stream] = work
            self.open.append(work)
            self.queues[work.stream].append(work)
        return work

    def _factors(self, events: Segment) -> Floats | float:
        if not self.job.slower:
            return self._factor
        factors = np.full(len(events.gpu_names), self._factor)
        for slower in self.job.slower:
            factors[[slower.kernel.lower() in name.lower() for name in events.gpu_names]] *= slower.factor
        return factors

    def pause(self, ns: int, annotation: str = "") -> None:
        """The host is busy elsewhere."""
        if ns and annotation:
            self.play(annotation, pause=ns)
        else:
            self.now += ns

    def collective(
        self,
        kind: str,
        axis: str,
        label: str,
        after: Iterable[Work],
        busy_ns: int = 0,
        on_autograd: bool = False,
    ) -> list[Work]:
        """Start a collective of the rank's group; a group of one rank has none."""
        job, group = self.job, self.groups[axis]
        if len(group) == 1:
            return []
        ns, *nelems = job.transfer(kind, axis, len(group), busy_ns)
        if kind == "all_to_all":
            stage, data, _ = job.place(self.rank)
            nelems[1] = round(nelems[1] * job.routed(stage, self.step)[data])
        key = (axis, group[0], self.step, label)
        noise = self._noise[1][zlib.crc32(repr(key).encode()) % _NOISES]
        ns = round(ns * (1 + abs(float(noise) - 1))) + job.link_delay(axis, group, self.step)
        return [
            self.play(kind, after, on_autograd=on_autograd, ns=ns, axis=axis, key=key, nelems=tuple(nelems))
        ]

    def exchange(self, listed: Sequence[Message], after: Iterable[Work] = ()) -> list[Work]:
        """Send to and receive from ranks of the pipeline; all starts after `after`."""
        if not listed:
            return []
        job, (stage, data, tensor) = self.job, self.job.place(self.rank)
        # Forward first on both sides, and one side of each pair sends first: no two wait for each other's receive.
        listed = sorted(listed, key=lambda m: (m.label[0] != "f", (m.kind == "send") == stage % 2))
        peers = [job.rank_at(message.stage, data, tensor) for message in listed]
        pairs = [(min(peer, self.rank), max(peer, self.rank)) for peer in peers]
        took = [job.send_ns + job.link_delay("pp", pair, self.step) for pair in pairs]
        keys = [("pp", pair, self.step, message.label) for pair, message in zip(pairs, listed, strict=True)]
        common: dict[str, Any] = {"axis": "pp", "nelems": (2_000_000, 2_000_000)}
        if job.p2p == "batched":
            for message, peer in zip(listed, peers, strict=True):
                self.play(f"{message.kind}_call", peer=peer, **common)
            batch: dict[str, Any] = {"key": keys[0], "transfers": tuple(keys), "own_stream": _P2P}
            return [self.play("coalesced", after, ns=max(took), **batch, **common)]
        works = []
        for message, peer, ns, key in zip(listed, peers, took, keys, strict=True):
            onwards = (message.stage - stage) % job.stages == 1
            stream = 0 if job.schedule == "gpipe" else _P2P + 4 * (not onwards)
            works.append(
                self.play(message.kind, after, ns=ns, peer=peer, key=key, own_stream=stream, **common)
            )
        return works

    def synchronized(self, sync: Work) -> None:
        """Everything launched has ended: let a sync return."""
        returns = int(sync.host()[0, sync.segment.longest_gap])
        sync.pause = max(0, max(work.end for work in self.open) + SYNC_NS - returns)
        self.now += sync.pause
        self.open.clear()
