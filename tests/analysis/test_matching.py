"""Collectives are the same one on every rank where the plan made them so, with the planted transfer and waits."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from conftest import DATA, kernel_event, open_trace, slice_event, write_kineto
from rankscope.analysis import REPORTS
from rankscope.analysis.core.collective_waits import waits
from rankscope.analysis.core.scope import Scope
from rankscope.collective_kinds import KINDS
from rankscope.store.arrays import NONE
from rankscope.timeline.reading import ingest
from rankscope.timeline.run import Run
from rankscope_bench.synthetic import Plan, Straggler, write

pytestmark = pytest.mark.slow

PLANS = {
    "two ranks": Plan(ranks=2, events_per_rank=4_000, steps=3),
    "straggler": Plan(ranks=4, events_per_rank=4_000, steps=3, straggler=Straggler(2, "compute", 4_000_000)),
    "two process groups": Plan(ranks=8, events_per_rank=6_000, steps=3, tensor_parallel=2),
    "offsets": Plan(ranks=4, events_per_rank=4_000, steps=3, max_offset_ns=5_000_000),
}


@pytest.fixture(scope="module", params=PLANS)
def planted(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Run, Any]:
    folder = tmp_path_factory.mktemp("run")
    truth = write(PLANS[request.param], folder)
    return Run(ingest([folder])), truth


def test_every_collective_is_matched_with_its_transfer_and_waits(planted: tuple[Run, Any]) -> None:
    run, truth = planted
    found = waits(run)
    rows = found.rows
    expected = {(c["group"], c["seq"]): c for c in truth["collectives"]}
    assert rows.unmatched == ()
    assert rows.count == len(expected)
    for number in range(rows.count):
        places = np.flatnonzero(rows.match == number)
        group = rows.groups[rows.group[places[0]]]
        planned = expected.pop((group.name, int(rows.seq[places[0]])))
        assert group.ranks == tuple(planned["ranks"]) == tuple(rows.rank[places])
        assert {KINDS[kind] for kind in rows.kind[places]} == {planned["kind"]}
        assert set(rows.bytes[places]) == {planned["bytes"]}
        assert found.transfer[number] == planned["transfer_ns"]
        assert found.wait[places].tolist() == planned["wait_ns"]
        last = None if found.last[number] == NONE else rows.rank[found.last[number]]
        assert last == planned["last_rank"]
        assert found.whole[number]
        assert found.step[number] == planned["step"]
    assert not expected


def test_a_window_of_steps_keeps_only_its_matches(planted: tuple[Run, Any]) -> None:
    run, truth = planted
    whole, part = waits(run), waits(run, Scope(steps=(3, 3)))
    planned = [c for c in truth["collectives"] if c["step"] == 3]
    assert part.rows.count == len(planned) < whole.rows.count
    assert sorted(part.transfer.tolist()) == sorted(c["transfer_ns"] for c in planned)
    assert int(part.wait.sum()) == sum(sum(c["wait_ns"]) for c in planned)


def test_gloo_on_the_host_is_matched_without_any_metadata(open_real: Callable[[Path], Run]) -> None:
    run = open_real(DATA / "seqpar-gloo4-slow2")
    found = waits(run)
    rows = found.rows
    assert rows.count == 12 and rows.unmatched == ()
    assert np.bincount(rows.match).tolist() == [4] * 12
    # what gloo calls all_reduce was asked for as a reduce_scatter
    assert sorted({KINDS[kind] for kind in rows.kind}) == ["all_gather", "reduce_scatter"]
    assert {group.name for group in rows.groups} == {"0"}
    assert set(rows.bytes) == {512 * 1024 * 2}


def test_two_worker_threads_may_start_in_any_order(open_real: Callable[[Path], Run]) -> None:
    """DDP over gloo: on one rank two buckets start swapped; their size tells which is which."""
    found = waits(open_real(DATA / "ddp-gloo4"))
    assert found.rows.count == 24
    # by order of start alone, two of the waits would be some 70 ms long
    assert found.wait.max() < 20_000_000


def test_one_rank_has_nothing_to_match(tmp_path: Path) -> None:
    write(Plan(ranks=4, events_per_rank=4_000, steps=3, missing=(1, 2, 3)), tmp_path / "run")
    rows = Run(ingest([tmp_path / "run"])).collectives
    assert rows.count == 0
    ((why, count, ranks),) = [(u.why, u.count, u.ranks) for u in rows.unmatched]
    assert (
        "no other rank of their process group has a file" in why and count == len(rows.rank) and ranks == (0,)
    )


def bare(path: Path) -> None:
    """Leave of NCCL's kernels what nsys would have: name and times, no metadata."""
    trace = json.loads(path.read_text())
    del trace["distributedInfo"]
    events = []
    for event in trace["traceEvents"]:
        if event.get("cat") == "kernel" and "Collective name" in event["args"]:
            event["args"] = {key: event["args"][key] for key in ("device", "stream", "correlation")}
        if event.get("cat") not in ("cpu_op", "gpu_user_annotation"):
            events.append(event)
    trace["traceEvents"] = events
    path.write_text(json.dumps(trace))


def test_groups_without_names_are_told_apart_by_stream_and_order(tmp_path: Path) -> None:
    plan = Plan(ranks=2, events_per_rank=4_000, steps=3, straggler=Straggler(1, "compute", 4_000_000))
    truth = write(plan, tmp_path / "run")
    for rank in truth["ranks"]:
        bare(tmp_path / "run" / rank["file"])
    run = Run(ingest([tmp_path / "run"]))
    found = waits(run)
    assert [group.name for group in found.rows.groups] == ["?"]
    assert sorted(found.transfer.tolist()) == sorted(c["transfer_ns"] for c in truth["collectives"])
    result = REPORTS["stragglers"].analyse(run, Scope(), None)
    assert (result.rows[0]["rank"], result.rows[0]["cause"]) == (1, "compute")
    assert any("have no name" in note for note in result.notes)


def test_nvtx_ranges_around_the_launch_tell_the_kind(tmp_path: Path) -> None:
    """nsys: the kernel is called SendRecv, torch's range says all_to_all; NCCL's own does where there is none."""
    host = {"pid": 1, "tid": 1}

    def launch(ts: float, correlation: int) -> dict[str, Any]:
        args = {"correlation": correlation}
        return slice_event("cudaLaunchKernelExC", ts, 1, cat="cuda_runtime", args=args, **host)

    events: list[Any] = [
        slice_event("c10d::alltoall_base_, seq = 3, op_id = 7", 0, 20, cat="user_annotation", **host),
        slice_event("ncclGroupEnd", 2, 10, cat="user_annotation", **host),
        launch(4, 1),
        kernel_event("ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)", 30, 5, 1),
        slice_event("ncclAllGather", 50, 10, cat="user_annotation", **host),
        launch(52, 2),
        kernel_event("ncclDevKernel_Generic(ncclDevKernelArgs)", 70, 5, 2),
        launch(90, 3),
        kernel_event("ncclDevKernel_AllReduce_Sum_f32_RING_LL", 95, 5, 3),
    ]
    run = open_trace(write_kineto(tmp_path / "t.json", events))
    assert run.rows("SELECT kind, dtype FROM collectives ORDER BY start_ns") == [
        ("all_to_all", None),
        ("all_gather", None),
        ("all_reduce", "float32"),
    ]
