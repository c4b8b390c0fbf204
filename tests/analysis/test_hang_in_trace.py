"""A hang at the end of a trace: calls of a collective without kernels, and a rank that did not call it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from conftest import kernel_event, kineto_text, slice_event
from rankscope.analysis import REPORTS
from rankscope.analysis.core.scope import Scope
from rankscope.timeline.run import open_run

ALL, PAIR = "[0, 1, 2, 3]", "[0, 1]"


def call(number: int, ran: bool, members: str = ALL) -> list[dict[str, Any]]:
    """An all_reduce as NCCL's calls are recorded; `ran`: with its kernel."""
    begin = 1000 * number
    told: dict[str, Any] = {"Collective name": "allreduce", "Group size": members.count(",") + 1}
    told |= {"Process Group Name": members, "Process Group Ranks": members}
    launch = {"correlation": number, "External id": number}
    events = [
        slice_event("record_param_comms", begin, 100, args={**told, "External id": number}),
        slice_event("cudaLaunchKernelExC", begin + 10, 20, cat="cuda_runtime", args=launch),
    ]
    name = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
    return events + [kernel_event(name, begin + 50, 800, number, **told, **{"External id": number})] * ran


def judged(folder: Path, calls: dict[int, list[list[dict[str, Any]]]], cut: int | None = None) -> list[Any]:
    for rank, of_rank in calls.items():
        info = {"rank": rank, "world_size": len(calls)}
        text = kineto_text([event for events in of_rank for event in events], distributedInfo=info)
        (folder / f"rank-{rank}.json").write_text(text[: -40 if rank == cut else None])
    result = REPORTS["hang"].analyse(open_run([folder]), Scope(), None)
    return [(finding.severity, finding.title, finding.ranks) for finding in result.findings]


RAN = [call(number, True) for number in (1, 2, 3)]
WAITS = [*RAN, call(4, False)]


def test_the_rank_that_did_not_call_what_the_others_wait_in(tmp_path: Path) -> None:
    title = (
        "Rank 2 holds up the job: not joined at the last all_reduce of group [0, 1, 2, 3]; ranks 0-1,3 wait"
    )
    calls = {0: WAITS, 1: [*WAITS, call(5, False)], 2: RAN, 3: WAITS}
    assert judged(tmp_path, calls) == [("critical", title, (2,))]


@pytest.mark.parametrize(
    "calls",
    [
        dict.fromkeys(range(4), RAN),
        dict.fromkeys(range(4), WAITS),  # the recording was stopped at that moment
        {0: WAITS, 1: WAITS, 2: [*RAN, call(4, True)], 3: WAITS},  # it ran: the others lost its kernel
        {0: [*RAN, call(4, False, PAIR)], 1: [*RAN, call(4, False, PAIR)], 2: RAN, 3: RAN},
    ],
    ids=["all ran", "all wait", "kernel lost", "another group"],
)
def test_what_is_no_hang(calls: dict[int, Any], tmp_path: Path) -> None:
    assert judged(tmp_path, calls) == []


@pytest.mark.slow
def test_a_call_that_a_cut_file_may_lack(tmp_path: Path) -> None:
    assert judged(tmp_path, {0: WAITS, 1: WAITS, 2: RAN, 3: WAITS}, cut=2) == []
    assert judged(tmp_path, {0: RAN, 1: RAN, 2: [*WAITS, call(9, False)], 3: RAN}, cut=2) == []
