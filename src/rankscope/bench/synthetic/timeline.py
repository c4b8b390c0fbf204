"""The times of all events, in whole nanoseconds of true time.

The host runs through a step without waiting for the GPU until its end. The GPU starts each kernel when the previous
one has ended and its launch has arrived. A collective ends for all its ranks together, one transfer after the last
rank has arrived. All ranks are simulated part by part, so every answer is exact before anything is written.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from rankscope.bench.synthetic.plan import Clock, Plan
from rankscope.bench.synthetic.rank_identity import STREAMS
from rankscope.bench.synthetic.template import Integers, Template
from rankscope.bench.synthetic.workload import KERNEL_GAP_NS, Collective, Part, Workload

START_NS = 250_000
"""The first step begins this long after the profiler."""
_LAUNCH_LATENCY_NS = 6_500
_WAKE_NS = 1_500
_SYNC_RETURN_NS = 3_000
_BETWEEN_STEPS_NS = 45_000
_BLOCKS_AT_ONCE = 48
_STEP_NOISE = 0xFFFF_FFFE  # in a seed key: the noise of a step
_LEAVING = 0xFFFF_0000  # in a seed key: how late each rank leaves (group numbers begin at 1)
_ALL_RANKS = 0xFFFF_FFFF  # in a seed key: in place of a rank, for values that all ranks share


class Chunk(NamedTuple):
    """Some blocks of a part: one row per block, times in ns."""

    first_block: int
    host: Integers
    gpu_start: Integers
    gpu_end: Integers


class Tempo(NamedTuple):
    """How a plan changes the speed of a rank in a step."""

    delays: Mapping[str, int]
    """Extra ns by label."""
    work: npt.NDArray[np.float64] | None
    """Factor of each launch's GPU work; None where all are 1."""
    jitter: bool


@dataclass(frozen=True, kw_only=True)
class StepTimes:
    """The times that ranks share, and where each part of a step starts."""

    host: Integers
    """[part, rank]: the host reaches the part."""
    gpu_free: Integers
    """[part, rank]: the compute stream has ended the previous part."""
    gpu_floor: Integers
    """[part, rank]: the earliest start of the part's kernels, which wait for collectives."""
    collective_start: Integers
    """[ordinal, rank]: the rank arrives."""
    collective_end: Integers
    """[ordinal, rank]: the rank's group leaves."""
    transfer: Integers
    """[ordinal, rank]: the shortest time its group could have taken."""
    forward_end: Integers
    """[rank]: the last kernel of the forward pass ends."""
    step_end: Integers
    """[rank]: the host leaves the step."""


def recorded(clock: Clock, true_ns: Integers) -> Integers:
    """True times as the rank's clock records them, in ns."""
    drift = true_ns * clock.drift_ppb // 1_000_000_000 if clock.drift_ppb else 0
    return true_ns + (clock.zero_ns + drift)


def _jitter(count: int, *key: int) -> npt.NDArray[np.uint8]:
    """Random bytes that depend only on the key, the same in every numpy version."""
    source = np.random.PCG64(np.random.SeedSequence(key))
    return source.random_raw(-(-count // 8)).view(np.uint8)[:count]


def _play(
    template: Template,
    blocks: int,
    key: tuple[int, ...],
    host_ns: int,
    gpu_free_ns: int,
    gpu_floor_ns: int,
    tempo: Tempo,
) -> Iterator[Chunk]:
    """Simulate some blocks, a bounded number at a time."""
    points, launches = len(template.increments), len(template.gpu_ns)
    for first in range(0, blocks, _BLOCKS_AT_ONCE):
        count = min(_BLOCKS_AT_ONCE, blocks - first)
        jitter = _jitter(count * (points + launches), *key, first).reshape(count, -1)
        if not tempo.jitter:
            jitter = np.zeros_like(jitter)
        steps = _stretched(template.increments, jitter[:, :points], 10)
        work = _stretched(template.gpu_ns, jitter[:, points:], 11)
        if tempo.work is not None:
            work = np.rint(work * tempo.work).astype(np.int64)
        for label, delay in tempo.delays.items():
            if label in template.pauses:
                steps[0, template.pauses[label]] += delay
            if label in template.gpu_labels:
                work[0, template.gpu_labels[label]] += delay
        host = host_ns + np.cumsum(steps).reshape(steps.shape)
        launched = host[:, template.launch_points].ravel() + _LAUNCH_LATENCY_NS
        start = _queue(launched, work.ravel(), gpu_free_ns, gpu_floor_ns).reshape(work.shape)
        end = start + work
        if launches:
            gpu_free_ns, gpu_floor_ns = int(end[-1, -1]), 0
        if template.sync_point >= 0:
            # The sync waits for everything launched before it; the host events that follow are shifted.
            late = gpu_free_ns + _SYNC_RETURN_NS - int(host[0, template.sync_point])
            host[0, template.sync_point :] += max(0, late)
        host_ns = int(host[-1, -1])
        yield Chunk(first, host, start, end)


def _stretched(shortest: Integers, jitter: npt.NDArray[np.uint8], shift: int) -> Integers:
    """Durations with jitter: up to 1/4 longer for shift 10, 1/8 for 11."""
    return shortest + ((shortest * jitter) >> shift)


def _queue(launched: Integers, work: Integers, free_ns: int, floor_ns: int) -> Integers:
    """Start times on a stream: each kernel after the previous one and after its own launch has arrived.

    start[i] = max(start[i-1] + work[i-1] + gap, launched[i]), unrolled into a running maximum.
    """
    if not len(work):
        return work
    before = np.cumsum(work + KERNEL_GAP_NS) - (work + KERNEL_GAP_NS)
    slack = launched - before
    slack[0] = max(slack[0], free_ns + KERNEL_GAP_NS, floor_ns)
    return before + np.maximum.accumulate(slack)


class Timeline:
    """The whole run, simulated once. Any part of any rank can be simulated again from the stored times."""

    def __init__(self, plan: Plan, workload: Workload) -> None:
        self.plan, self.workload = plan, workload
        self.steps: list[StepTimes] = []
        host = np.full(plan.ranks, START_NS, dtype=np.int64)
        for step in range(plan.steps):
            times = _StepPlayer(self, step, host).play()
            self.steps.append(times)
            host = times.step_end + _BETWEEN_STEPS_NS

    def chunks(self, rank: int, step: int, part: int) -> Iterator[Chunk]:
        times = self.steps[step]
        at = (times.host[part, rank], times.gpu_free[part, rank], times.gpu_floor[part, rank])
        yield from self.play(rank, step, part, *map(int, at))

    def play(
        self, rank: int, step: int, index: int, host_ns: int, gpu_free_ns: int, gpu_floor_ns: int
    ) -> Iterator[Chunk]:
        part = self.workload.steps[step][index]
        template = self.workload.templates[part.template]
        key = (self.plan.seed, rank, step, index)
        tempo = self._tempo(template, rank, step)
        return _play(template, part.blocks, key, host_ns, gpu_free_ns, gpu_floor_ns, tempo)

    def _tempo(self, template: Template, rank: int, step: int) -> Tempo:
        plan = self.plan
        straggler = plan.straggler
        delays = {straggler.cause: straggler.ns} if straggler and straggler.rank == rank else {}
        if not (plan.slower or plan.step_noise_pct):
            return Tempo(delays, None, plan.jitter)
        work = np.ones(len(template.gpu_ns))
        for slower in plan.slower:
            work[[slower.kernel.lower() in name.lower() for name in template.gpu_names]] *= slower.factor
        if plan.step_noise_pct:
            noise = _jitter(8, plan.seed, rank, step, _STEP_NOISE).view(np.uint64)[0] / 2.0**64
            work *= 1 + plan.step_noise_pct / 100 * float(noise)
        return Tempo(delays, work, plan.jitter)


class _StepPlayer:
    """Simulates one step on all ranks."""

    def __init__(self, timeline: Timeline, step: int, host: Integers) -> None:
        self.timeline, self.step = timeline, step
        self.parts = timeline.workload.steps[step]
        ranks, ordinals = timeline.plan.ranks, len(timeline.workload.collectives())
        self.host = host.copy()
        self.gpu_free = np.zeros(ranks, dtype=np.int64)
        self.stream_free = {stream: np.zeros(ranks, dtype=np.int64) for stream in STREAMS.values()}
        self.start, self.end, self.transfer = np.zeros((3, ordinals, ranks), dtype=np.int64)
        self.forward_end = np.zeros(ranks, dtype=np.int64)

    def play(self) -> StepTimes:
        shape = (3, len(self.parts), len(self.host))
        hosts, frees, floors = np.zeros(shape, dtype=np.int64)
        for index, part in enumerate(self.parts):
            hosts[index], frees[index] = self.host, self.gpu_free
            if part.waits_for:
                floors[index] = self.end[list(part.waits_for)].max(axis=0) + _WAKE_NS
            launched = self._run(index, part, floors[index])
            if part.collective:
                self._meet(part.collective, launched)
            if part.template == "loss":
                self.forward_end = self.gpu_free.copy()
        return StepTimes(
            host=hosts,
            gpu_free=frees,
            gpu_floor=floors,
            collective_start=self.start,
            collective_end=self.end,
            transfer=self.transfer,
            forward_end=self.forward_end,
            step_end=self.host + 600,
        )

    def _run(self, index: int, part: Part, floors: Integers) -> Integers:
        """Run the part on every rank separately; returns when each launched its collective."""
        launched = np.zeros(len(self.host), dtype=np.int64)
        point = self.timeline.workload.templates[part.template].collective_point
        for rank in range(len(self.host)):
            at = (int(self.host[rank]), int(self.gpu_free[rank]), int(floors[rank]))
            for chunk in self.timeline.play(rank, self.step, index, *at):
                self.host[rank] = chunk.host[-1, -1]
                if chunk.gpu_end.size:
                    self.gpu_free[rank] = chunk.gpu_end[-1, -1]
                if point >= 0:
                    launched[rank] = chunk.host[0, point]
        return launched

    def _meet(self, collective: Collective, launched: Integers) -> None:
        """A rank arrives once its kernel is launched, its gradients are computed and its stream is free."""
        plan, ordinal, ranks = self.timeline.plan, collective.ordinal, len(self.host)
        free = self.stream_free[STREAMS[collective.axis]]
        uneven = _jitter(ranks, plan.seed, _ALL_RANKS, self.step, ordinal, 0).astype(np.int64) * plan.jitter
        arrival = np.maximum(launched + _LAUNCH_LATENCY_NS, self.gpu_free + _WAKE_NS)
        arrival = np.maximum(arrival, free + KERNEL_GAP_NS) + uneven
        self.start[ordinal] = arrival
        for number, group in enumerate(plan.groups(collective.axis)):
            members = list(group.ranks)
            jitter = int(_jitter(1, plan.seed, _ALL_RANKS, self.step, ordinal, 1 + number)[0]) * plan.jitter
            transfer = collective.transfer_ns + (collective.transfer_ns * jitter >> 12)
            self.transfer[ordinal, members] = transfer
            self.end[ordinal, members] = free[members] = arrival[members].max() + transfer
        if plan.leave_noise_ns:
            late = _jitter(ranks, plan.seed, _ALL_RANKS, self.step, ordinal, _LEAVING).astype(np.int64)
            self.end[ordinal] += late * plan.leave_noise_ns >> 8
            free[:] = self.end[ordinal]
