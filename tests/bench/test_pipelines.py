"""Simulated pipelines: the order of passes, bubbles, batches of messages, and the truth of balance."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rankscope.cli import main
from rankscope_bench.synthetic.balance import balance, schedule_bubble_ns
from rankscope_bench.synthetic.cluster import Fault, Job, RankRun, simulate, step_ns
from rankscope_bench.synthetic.cluster_trace import write_job
from rankscope_bench.synthetic.pipeline import Pass, blocks

PASS_NS = 700_000
BARE = Job(
    data=1, stages=4, micro_batches=8, steps=1, layers=2, kernels=1, forward_ns=PASS_NS,
    noise_pct=0, leave_ns=0, send_ns=1, data_wait_ns=0, batch_copy_ns=1,
)  # fmt: skip


def passes(job: Job, stage: int) -> list[Pass]:
    return [single for block in blocks(job, stage) for single in block.passes]


def pipeline_ns(runs: list[RankRun]) -> int:
    """From the first kernel of a pass to the end of the last."""
    works = [work for run in runs for work in run.works if work.part]
    return max(work.end for work in works) - min(work.start for work in works if work.start >= 0)


@st.composite
def pipelines(draw: st.DrawFn) -> Job:
    stages = draw(st.integers(2, 6))
    schedule = draw(st.sampled_from(("gpipe", "1f1b", "interleaved") if stages > 2 else ("gpipe", "1f1b")))
    interleaved = schedule == "interleaved"
    return replace(
        BARE,
        stages=stages,
        schedule=schedule,
        chunks=draw(st.integers(2, 3)) if interleaved else 1,
        micro_batches=stages * draw(st.integers(1, 2)) if interleaved else draw(st.integers(1, 9)),
        layers=6 if interleaved else 1,
        p2p=draw(st.sampled_from(("separate", "batched"))),
        tensor=draw(st.integers(1, 2)),
    )


@pytest.mark.slow
@given(pipelines())
@settings(max_examples=10, deadline=None)
def test_no_schedule_hangs_and_its_bubble_is_the_textbook_one(job: Job) -> None:
    """A stage is idle for (p - 1) passes forward and backward, less the more chunks it has."""
    for stage in range(job.stages):
        listed = passes(job, stage)
        expected = [
            Pass(phase, batch, chunk)
            for phase in ("forward", "backward")
            for batch in range(job.batches)
            for chunk in range(job.chunks)
        ]
        assert sorted(listed) == sorted(expected)
        at = {single: number for number, single in enumerate(listed)}
        assert all(at[single] < at[single._replace(phase="backward")] for single in expected[: len(at) // 2])
    work_ns = 3 * PASS_NS * job.layers
    bubble_ns = (job.stages - 1) * work_ns / job.chunks
    assert schedule_bubble_ns(job, work_ns / 3, 2 * work_ns / 3) == pytest.approx(bubble_ns)
    extra = 0.01 + 0.1 * (job.tensor > 1)  # sums over the tensor-parallel ranks, and gaps between kernels
    assert pipeline_ns(simulate(replace(job, sum_ns=1))) == pytest.approx(
        job.batches * work_ns + bubble_ns, rel=extra
    )


@pytest.mark.parametrize("stages", [2, 4, 7])
def test_1f1b_alternates_and_keeps_few_micro_batches_open(stages: int) -> None:
    job = replace(BARE, stages=stages, schedule="1f1b", micro_batches=2 * stages)
    for stage in range(stages):
        listed = passes(job, stage)
        first_back = next(number for number, single in enumerate(listed) if single.phase == "backward")
        assert first_back == stages - stage
        steady = listed[first_back - 1 : len(listed) - first_back + 1]
        assert all(a.phase != b.phase for a, b in pairwise(steady))
        open_batches = Counter(single.phase for single in listed[: first_back + 2])
        assert open_batches["forward"] - open_batches["backward"] <= stages - stage


def test_a_batch_is_one_kernel_without_arguments_after_its_calls(tmp_path: Path) -> None:
    """As torch records batch_isend_irecv. The last stage of four has one batch between two of its micro-batches."""
    job = replace(BARE, schedule="1f1b", p2p="batched", micro_batches=5)
    write_job(job, tmp_path, balanced=False)
    events = [
        event
        for event in json.loads((tmp_path / "rank-00003-of-00004.pt.trace.json").read_text())["traceEvents"]
        if event["ph"] == "X"
    ]
    kernels = [event for event in events if "SendRecv" in event["name"]]
    calls = [event["args"]["Collective name"] for event in events if event["name"] == "record_param_comms"]
    assert calls == ["recv", *["recv", "send"] * 4, "send"]
    assert len(kernels) == 6 == sum(event["name"] == "nccl:coalesced" for event in events) / 2
    assert not any({"Collective name", "External id"} & set(event["args"]) for event in kernels)
    assert len({event["tid"] for event in kernels}) == 1


def test_a_batch_ends_when_its_last_peer_has_come() -> None:
    job = replace(BARE, schedule="1f1b", p2p="batched", send_ns=50_000, noise_pct=3, seed=5)
    runs = simulate(job)
    starts: dict[object, int] = {}
    batches = [work for run in runs for work in run.works if work.key]
    for work in batches:
        for key in work.transfers:
            starts[key] = max(starts.get(key, 0), work.start)
    assert any(len(work.transfers) > 1 for work in batches)
    for work in batches:
        assert work.end == max(starts[key] for key in work.transfers) + 50_000


def test_separate_messages_of_a_pair_have_a_stream_of_their_own() -> None:
    runs = simulate(replace(BARE, schedule="1f1b"))
    streams = [{(work.peer, work.stream) for work in run.works if work.key} for run in runs]
    assert [len(pairs) for pairs in streams] == [1, 2, 2, 1]
    assert all(len({stream for _, stream in pairs}) == len(pairs) for pairs in streams)


def test_layers_of_uneven_stages() -> None:
    job = replace(BARE, stage_layers=(2, 2, 5, 2))
    assert [job.layers_of(stage) for stage in range(4)] == [2, 2, 5, 2]
    chunks = replace(job, chunks=2, stage_layers=(1, 2, 3, 4, 5, 6, 7, 8))
    assert [chunks.layers_of(1, chunk) for chunk in range(2)] == [2, 6]
    more = replace(BARE, chunks=2, faults=(Fault("stages", (2,), 3 * 8 * PASS_NS),))
    assert [more.layers_on(stage) for stage in range(4)] == [2, 2, 3, 2]


def test_balanced_ranks_take_the_mean_of_their_work() -> None:
    """One of four ranks computes 4 ms longer: without noise a balanced step has 1 ms of it."""
    job = Job(data=4, steps=3, noise_pct=0, leave_ns=0, faults=(Fault("compute", (2,), 4_000_000),))
    truth, healthy_ns = balance(job), step_ns(simulate(job.healthy()))
    assert truth["t_ns"] == pytest.approx(step_ns(simulate(job)), abs=5_000)
    assert truth["t_ns"] == pytest.approx(healthy_ns + 4_000_000, abs=5_000)
    assert truth["ranks_ns"] == pytest.approx(healthy_ns + 1_000_000, abs=5_000)
    assert truth["stages_ns"] == pytest.approx(truth["ranks_ns"], abs=5)
    assert truth["slowdown"] == truth["t_ns"] / truth["all_ns"]


def test_balanced_stages_have_the_bubble_of_the_schedule() -> None:
    """Stage 2 has one and a half times the layers; balanced, all take the mean, and the bubble is the schedule's."""
    job = replace(BARE, schedule="1f1b", stage_layers=(4, 4, 6, 4))
    truth = balance(job)
    other_ns = truth["ranks_ns"] - pipeline_ns(simulate(job))
    assert truth["t_ns"] == pytest.approx(truth["ranks_ns"], rel=1e-4)
    mean_ns = 4.5 * 3 * PASS_NS
    assert truth["stages_ns"] == pytest.approx((8 + 3) * mean_ns + other_ns, rel=0.005)
    assert truth["schedule_bubble_ns"] == pytest.approx(3 * 4 * 3 * PASS_NS, rel=0.01)


def test_lengths_are_those_of_a_micro_batch_on_all_its_ranks() -> None:
    job = replace(BARE, data=2, tensor=2, schedule="1f1b", faults=(Fault("lengths", (), 5_000_000),))
    runs = simulate(job)
    taken: dict[tuple[int, Pass], set[int]] = {}
    for rank, run in enumerate(runs):
        for work in run.works:
            if work.part and work.segment.name in ("plain.forward", "plain.backward"):
                taken.setdefault((job.place(rank)[1], work.part), set()).add(work.ns or 0)
    assert all(len(lengths) == 1 for lengths in taken.values())
    assert len({min(lengths) for lengths in taken.values()}) > 20
    backward = taken[1, Pass("backward", 3)].pop()
    assert backward == 2 * taken[1, Pass("forward", 3)].pop()


def test_experts_get_all_tokens_and_compute_as_long() -> None:
    ranks = tuple(range(4))
    job = Job(data=4, steps=4, expert_ns=400_000, faults=(Fault("experts", ranks, 800_000),))
    busiest = set()
    for step in range(4):
        routed = job.routed(0, step)
        assert sum(routed) == pytest.approx(4) and max(routed) == pytest.approx(1 + 800 / (3 * 400 * 4))
        busiest.add(routed.index(max(routed)))
    assert len(busiest) > 1
    steady = replace(job, faults=(Fault("experts", (3,), 2_000_000),))
    assert {steady.routed(0, step).index(max(steady.routed(0, step))) for step in range(4)} == {3}
    sent = [work for run in simulate(steady) for work in run.works if work.segment.name == "plain.all_to_all"]
    assert len({work.nelems for work in sent}) == 2


@pytest.mark.parametrize("every", [2, 3, 4])
def test_a_periodic_fault_costs_as_much_on_average(every: int) -> None:
    fault = Fault("host", (1,), 500_000, every=every)
    assert sum(fault.in_step(step) for step in range(12)) == 12 * fault.ns
    assert [step for step in range(12) if fault.in_step(step)] == list(range(every - 1, 12, every))


@pytest.mark.slow
def test_the_truth_file_has_the_balanced_times(tmp_path: Path) -> None:
    options = (
        "--data 1 --pipeline 4 --micro-batches 4 --schedule interleaved --p2p batched --steps 2 --layers 2 "
        "--events 300 --fault stages:stage1:1 --fault host:3:1/2"
    )
    assert main(["bench", "cluster", *options.split(), "-o", str(tmp_path / "run")]) == 0
    truth = json.loads((tmp_path / "run" / "truth.json").read_text())
    assert truth["late_stages"] == [1] and truth["late_ranks"] == [3]
    assert truth["job"]["chunks"] == 2 and truth["faults"][1]["every"] == 2
    assert truth["balance"]["t_ns"] == pytest.approx(truth["step_ns"], rel=0.01)
    assert truth["balance"]["all_ns"] < truth["balance"]["stages_ns"] < truth["balance"]["t_ns"]


@pytest.mark.parametrize(
    "options",
    [
        "--pipeline 2 --schedule interleaved",
        "--pipeline 4 --micro-batches 6 --schedule interleaved",
        "--pipeline 4 --schedule 1f1b --chunks 2",
        "--pipeline 4 --stage-layers 1,2,3",
        "--fault experts:1:2",
        "--fault lengths:some:2",
    ],
)
def test_impossible_jobs_exit_2(options: str, tmp_path: Path) -> None:
    assert main(["bench", "cluster", *options.split(), "-o", str(tmp_path / "run")]) == 2
    assert not (tmp_path / "run").exists()
