"""A training job on a cluster, simulated event by event, with faults planted in it.

    job = Job(data=4, tensor=2, steps=8, faults=(Fault("compute", ranks=(3,), ns=2_000_000),), seed=1)
    runs = simulate(job)
    write_traces(job, runs, Path("run"))

    write_job(job, Path("run"))  # the same, with one step of each rank in memory at a time

rank_grid.py has the layout of the ranks, job.py sizes and faults, schedule.py the program of a step, pipeline.py the
order of its passes, host.py a rank that goes through it. Here the ranks meet: a collective ends on all ranks when the
last one has arrived, plus the transfer; a send and its receive end together; a batch of them ends when the last peer
has come, plus its transfer. The cost of a fault is found by simulating the same job without it, that of imbalance by
simulating it with equal durations (balance.py).
"""

from __future__ import annotations

import random
from collections.abc import Iterator

from rankscope_bench.synthetic.host import COMPUTE, GAP_NS, Durations, Host, RankRun, Work
from rankscope_bench.synthetic.job import Fault, Job
from rankscope_bench.synthetic.schedule import training_step

__all__ = ["COMPUTE", "Fault", "Job", "RankRun", "simulate", "simulated_steps", "step_ns"]

_BETWEEN_NS = 20_000

Arrived = dict[tuple[object, ...], dict[int, Work]]
"""The ranks that have come to each collective, and their part of it."""


def simulate(job: Job, durations: Durations | None = None) -> list[RankRun]:
    """Run the job, and keep what every rank did."""
    runs = [RankRun() for _ in range(job.ranks)]
    for rank, step in simulated_steps(job, durations):
        runs[rank].steps += step.steps
        runs[rank].works += step.works
    return runs


def simulated_steps(job: Job, durations: Durations | None = None) -> Iterator[tuple[int, RankRun]]:
    """Run the job: every host goes on until it waits, every work starts when it can.

    Gives a rank and its next step when all work of that step has ended; nothing of it is kept.
    """
    hosts = [Host(job, rank, durations) for rank in range(job.ranks)]
    programs = {host.rank: _program(host) for host in hosts}
    arrived: Arrived = {}
    awake = set(programs)
    while awake:
        for rank, program in list(programs.items()):
            if rank not in awake:
                continue
            awake.discard(rank)
            _start_works(hosts[rank], arrived, awake)
            if any(hosts[rank].queues.values()):
                continue
            awake.add(rank)
            try:
                finished = next(program)
            except StopIteration:
                del programs[rank]
                awake.discard(rank)
                continue
            if finished is not None:
                yield rank, finished
    if programs:
        raise RuntimeError("the simulated job hangs: a collective lacks a rank")


def _program(host: Host) -> Iterator[RankRun | None]:
    """All steps of a rank. Where it waits for its GPU, it gives the step that has ended since, if any."""
    finished = None
    for step in range(host.job.steps):
        host.begin_step(step)
        for _ in training_step(host):
            yield finished
            finished = None
        finished, host.run = host.run, RankRun()
        host.now += host.noisy(_BETWEEN_NS, "between")
    yield finished


def _start_works(host: Host, arrived: Arrived, awake: set[int]) -> None:
    """Give times to the works of a rank that can have them. `awake`: also the ranks whose works end by that."""
    moved = True
    while moved:
        moved = False
        for queue in host.queues.values():
            while queue:
                work = queue[0]
                if work.start < 0 and all(other.end >= 0 for other in work.after):
                    _start(host, work, arrived, awake)
                    moved = True
                if work.end < 0:
                    break
                queue.popleft()
                moved = True


def _start(host: Host, work: Work, arrived: Arrived, awake: set[int]) -> None:
    """The start of a work whose causes have ended, and its end; a transfer ends when the last rank has arrived."""
    launched = work.launched
    assert launched is not None
    work.ready_ns = max((other.end for other in work.after), default=0) + GAP_NS
    work.after, work.launched = (), None  # not needed again: they would keep all earlier work in memory
    if not work.key:
        start, end = work.gpu(launched)
        work.start, work.end = int(start[0, 0]), int(end[-1, -1])
        return
    work.start = max(work.ready_ns, int(launched[0]))
    for key in work.transfers:
        parts = arrived.setdefault(key, {})
        parts[host.rank] = work
        if len(parts) == (2 if work.axis == "pp" else len(host.groups[work.axis])):
            del arrived[key]
            awake.update(parts)
            _meet(host.job, parts)


def _meet(job: Job, parts: dict[int, Work]) -> None:
    """All ranks have come to a transfer. Those for which it was the last of a batch get their end."""
    last = max(part.start for part in parts.values())
    for member, part in parts.items():
        part.last_arrival = max(part.last_arrival, last)
        part.open_transfers -= 1
        if part.open_transfers == 0:
            part.end = part.last_arrival + (part.ns or 0)
            if job.leave_ns:
                part.end += random.Random(f"{job.seed}/leave/{member}/{part.key}").randrange(job.leave_ns + 1)


def step_ns(runs: list[RankRun]) -> float:
    """The mean time of a step over the whole job, from the first begin to the last end."""
    begin = min(run.steps[0][0] for run in runs)
    end = max(run.steps[-1][1] for run in runs)
    return (end - begin) / len(runs[0].steps)
