"""Why a subject is late: what is planted is what is said, with its figures; and nothing else is."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from analysis.explained import cause, explained
from rankscope.analysis.core.result import Why
from rankscope.analysis.core.scope import Scope
from rankscope.analysis.faults import faults_of
from rankscope.analysis.faults.explain import why
from rankscope.store.ingest import Options
from rankscope.timeline.reading import ingest
from rankscope.timeline.run import Run
from rankscope_bench.synthetic.cluster import Fault, Job, simulate
from rankscope_bench.synthetic.cluster_trace import write_traces

MS = 1_000_000
JOB = Job(data=4, steps=6, layers=2, seed=3)
EXPERTS = replace(JOB, expert_ns=700_000)
GRID = replace(JOB, data=4, tensor=2, ranks_per_node=2)
STAGES = Job(data=2, stages=4, layers=4, micro_batches=4, steps=3, seed=3)
Simulate = Callable[..., Run]


@pytest.fixture
def simulated(tmp_path: Path) -> Simulate:
    def run_of(job: Job, *faults: Fault) -> Run:
        job = replace(job, faults=faults)
        write_traces(job, simulate(job), tmp_path)
        return Run(ingest([tmp_path]))

    return run_of


@pytest.mark.slow
@pytest.mark.parametrize(
    ("job", "fault", "text"),
    [
        (JOB, Fault("compute", (2,), 3 * MS), r"it runs 1 more aten::mm per step \((2\.9\d|3\.0\d) ms\)"),
        (
            JOB,
            Fault("compute", (2,), 3 * MS, every=3),
            r"it runs 1 more aten::mm in each late step \((8\.9\d|9\.0\d) ms\)",
        ),
        (JOB, Fault("throttle", (2,), 3 * MS), r"its GPU is slow: its kernels take 1\.\d\dx as long"),
        (
            JOB,
            Fault("copy", (2,), 3 * MS),
            r"its copies of pinned memory to the GPU take (2\.9\d|3\.0\d) ms longer per step",
        ),
        (
            JOB,
            Fault("dataloader", (2,), 3 * MS),
            r"it waits (2\.9\d|3\.0\d) ms longer per step for its next batch",
        ),
        (
            JOB,
            Fault("host", (2,), 3 * MS),
            r"its host pauses (2\.9\d|3\.0\d) ms per step between aten::mm and aten::copy_",
        ),
        (
            EXPERTS,
            Fault("experts", (2,), 3 * MS),
            r"it gets more tokens: all_to_all sends it 1\.\d\dx the mean of its group",
        ),
        (
            GRID,
            Fault("link", (2, 3), 3 * MS),
            r"all_reduce of ranks 2-3 on \w+ runs at [\d.]+ GB/s instead of [\d.]+ GB/s",
        ),
        (
            replace(STAGES, stage_layers=(4, 4, 8, 4)),
            None,
            r"it has more layers: [12]\.\dx as many kernels as the other stages",
        ),
        (
            JOB,
            Fault("checkpoint", (0, 1, 2, 3), 3 * MS),
            r"each rank's host pauses \d+\.\d ms between aten::mm and aten::copy_",
        ),
    ],
    ids=["more work", "now and then", "slow", "copy", "data", "pause", "tokens", "link", "layers", "step"],
)
def test_the_planted_cause_is_said(simulated: Simulate, job: Job, fault: Fault | None, text: str) -> None:
    run = simulated(job, *([fault] if fault else []))
    _, answer = explained(run)
    assert re.fullmatch(text, answer.text), answer.text
    assert answer.advice and answer.report


def of_each(run: Run) -> dict[int, Why]:
    scope = Scope().in_run(run)
    return {
        each.number: why(run, scope, fault, each)
        for fault in faults_of(run, scope).listed
        for each in fault.subjects
    }


def test_each_of_several_has_its_own(simulated: Simulate) -> None:
    """Two for the same reason are compared with the others, also where all are late."""
    kinds = ("compute", "compute", "host", "dataloader")
    answers = of_each(simulated(JOB, *(Fault(kind, (rank,), 3 * MS) for rank, kind in enumerate(kinds))))
    assert {rank: cause(answer) for rank, answer in answers.items()} == dict(enumerate(kinds))
    assert all(answers[rank].text.startswith("it runs 1 more aten::mm per step (") for rank in (0, 1))


def test_every_figure_in_the_facts_is_of_the_subject(simulated: Simulate) -> None:
    rank, answer = explained(simulated(JOB, Fault("host", (2,), 3 * MS)))
    facts = {fact.quantity: fact for fact in answer.facts}
    assert facts["cause"].row == {"axis": "rank", "subject": "2"}
    assert all(fact.ranks == (rank,) for fact in answer.facts)
    assert facts["explained_ns"].value == pytest.approx(3 * MS, rel=0.05)


def test_real_recordings(dataset: Callable[[str], Path], shared: Path, tmp_path: Path) -> None:
    rank, answer = explained(Run(ingest([dataset("seqpar-gloo4-slow2")])))
    text = r"it runs 10 more aten::matmul per step \(.* ms\), most of it in slow_extra"
    assert rank == 2 and re.fullmatch(text, answer.text), answer.text
    recorded = ingest([shared / "kineto" / "nccl4" / "ddp-host"], Options(cache=tmp_path))
    rank, answer = explained(Run(recorded))
    text = r"its host pauses 3\d\.\d ms per step between aten::randn and aten::linear, asleep"
    assert rank == 2 and re.fullmatch(text, answer.text), answer.text


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("evaluation", "it runs 14 more forward passes in step 4"),
        ("garbage", "garbage collection takes 2\\d\\d ms in step 4"),
        ("compile", "torch.compile takes 3.73 s in step 4"),
        ("gil-thread", "thread tokenizer used 0.7"),
        ("taken-core", "it waits 15.\\d ms per step for a core: other processes use 0.44 of its core 6"),
        ("slow-log", "its host pauses 3\\d.\\d ms per step before waiting for data, asleep"),
        ("preprocessing", "its host pauses 1\\d.\\d ms per step before waiting for data, busy on a CPU"),
        ("svd", "its host spends 1\\d.\\d ms longer in aten::linalg_svdvals per step"),
        ("micro-batch", ".*; most of it in micro-batch 3 of 4$"),
        ("large-batch", "its host takes 1.\\dx as long: its core is slow, or it has more to do"),
    ],
)
def test_ordinary_jobs(dataset: Callable[[str], Path], name: str, text: str) -> None:
    """The first subject of the largest fault."""
    answers = [*of_each(Run(ingest([dataset(f"ordinary/{name}")]))).values()]
    assert re.match(text, answers[0].text), answers[0].text
