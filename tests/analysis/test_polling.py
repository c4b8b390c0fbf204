"""A host that asks again and again whether others have arrived waits for them: that is no work of its own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from conftest import kernel_event, slice_event, write_kineto
from gloo_traces import GlooJob, Idle, Item, Op, Reduce
from rankscope.analysis.core.scope import Scope
from rankscope.analysis.faults import Faults, faults_of
from rankscope.analysis.graph.events import PATH_CLASSES
from rankscope.analysis.graph.graph import graph_of
from rankscope.timeline.reading import ingest
from rankscope.timeline.run import Run

pytestmark = pytest.mark.usefixtures("without_workers")
STEPS, LATE_US, ROUND_US = 6, 8_000.0, 20.0


def ask(folder: Path) -> Faults:
    run = Run(ingest([folder]))
    return faults_of(run, Scope().in_run(run))


def check(answer: Faults) -> None:
    """Rank 1 alone is named, with what it costs."""
    (fault,) = answer.listed
    assert [each.number for each in fault.subjects] == [1]
    assert fault.cost_ns == pytest.approx(1000 * LATE_US, rel=0.05)


def calls(waiting: str, begin: float, end: float) -> Iterator[dict[str, Any]]:
    """What the host calls until the device has ended."""
    if waiting == "cudaStreamSynchronize":
        yield slice_event(waiting, begin, end - begin, cat="cuda_runtime")
        return
    while begin < end + ROUND_US:
        yield slice_event(waiting, begin, 2.0, cat="cuda_runtime")
        begin += ROUND_US


def write_rank(folder: Path, rank: int, waiting: str) -> None:
    """A kernel, an all_reduce for which the host waits, and more work of the host: the same on all ranks, but rank 1's
    host is late."""
    about: dict[str, Any] = {
        "Collective name": "allreduce", "Process Group Name": "0", "Process Group Ranks": "[0, 1, 2, 3]",
        "In msg nelems": 1000, "dtype": "Float", "Group size": 4,
    }  # fmt: skip
    events, begin = list[dict[str, Any]](), 1000.0
    for step in range(STEPS):
        launch = begin + 300 + LATE_US * (rank == 1)
        computed, end = launch + 410, begin + 300 + LATE_US + 462
        for number, at in ((2 * step + 1, launch), (2 * step + 2, launch + 20)):
            events.append(
                slice_event("cudaLaunchKernel", at, 5, cat="cuda_runtime", args={"correlation": number})
            )
        name = "ncclDevKernel_AllReduce_Sum_f32_RING_LL"
        events += [
            kernel_event("gemm", launch + 10, 400.0, 2 * step + 1),
            kernel_event(name, computed + 2, end - computed - 2, 2 * step + 2, **about),
            *calls(waiting, launch + 40, end),
        ]
        now = end + 2 * ROUND_US + 500
        events.append(slice_event(f"ProfilerStep#{step}", begin, now - begin, cat="user_annotation"))
        begin = now
    # A library's thread asks all the time.
    events += [{**each, "tid": 9} for each in calls("cudaEventQuery", 1000.0, begin)]
    header = {"distributedInfo": {"backend": "nccl", "rank": rank, "world_size": 4}}
    write_kineto(folder / f"rank{rank}.json", events, **header)


@pytest.mark.parametrize("waiting", ["cudaStreamSynchronize", "cudaEventQuery"])
def test_asking_the_device_is_waiting_for_it(tmp_path: Path, waiting: str) -> None:
    for rank in range(4):
        write_rank(tmp_path, rank, waiting)
    check(ask(tmp_path))


def polled(op_names: tuple[str, ...], rounds_us: float = ROUND_US) -> GlooJob:
    """Rank 1's host pauses before an all_reduce; the others run these ops until it has come."""
    programs = []
    for rank in range(3):
        late: list[Item] = [Idle(LATE_US)] if rank == 1 else []
        programs.append([[Op(800), *late, Reduce(0), Op(600, "aten::sum")]] * STEPS)
    job = GlooJob(programs)
    for played in job.ranks:
        waits = [each for each in played.events if each["name"] == "gloo:all_reduce"]
        for wait in waits:
            now, number = wait["ts"] + 10, 0
            while now + rounds_us < wait["ts"] + wait["dur"]:
                played.events.append(
                    slice_event(op_names[number % len(op_names)], now, rounds_us - 2, pid=1000, tid=1000)
                )
                now, number = now + rounds_us, number + 1
    return job


@pytest.mark.parametrize("names", [(), ("aten::ones",), ("aten::ones", "aten::sum")])
def test_ops_until_a_collective_has_ended_are_no_work(tmp_path: Path, names: tuple[str, ...]) -> None:
    job = polled(names) if names else polled(("aten::ones",), rounds_us=1e9)
    check(ask(job.write(tmp_path)))


def test_different_ops_beside_a_collective_are_work(tmp_path: Path) -> None:
    """As a backward pass beside its all_reduce: no loop of few ops."""
    names = tuple(f"aten::op{number}" for number in range(7))
    run = Run(ingest([polled(names).write(tmp_path)]))
    graph = graph_of(run, Scope().in_run(run))
    host = graph.work.spent[PATH_CLASSES.index("host")]
    assert host.sum() > 0.8 * STEPS * 2 * 1000 * LATE_US
