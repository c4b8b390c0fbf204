"""Planted jobs over gloo: the stage or rank at fault is named, and its cost is the difference to the healthy twin."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gloo_traces import GlooJob, Item, Op, Program, Recv, Reduce, Send, pipeline
from rankscope.analysis.across_ranks.layout import layout_of, stage_chains
from rankscope.analysis.core.scope import Scope
from rankscope.analysis.findings import collect
from rankscope.analysis.health.doubts import doubts
from rankscope.timeline.reading import ingest
from rankscope.timeline.run import Run

pytestmark = pytest.mark.usefixtures("without_workers")


@pytest.mark.slow
def test_a_slow_stage_is_named_with_its_cost(tmp_path: Path) -> None:
    """It runs as many ops as the others, so its rank is slow: the twin's is as fast as theirs."""
    twin, job = GlooJob(pipeline([2500] * 4)), GlooJob(pipeline([2500, 10_000, 2500, 2500]))
    run = Run(ingest([job.write(tmp_path)]))
    layout = layout_of(run, Scope())
    assert layout.axes == ("pp",) and [layout.stage(rank) for rank in range(4)] == [0, 1, 2, 3]
    first = collect(run, Scope())[0]
    assert first.ranks == (1,) and first.severity == "critical"
    assert first.subject == "rank 1"
    assert first.cost_ns == pytest.approx(1000 * (job.step_us() - twin.step_us()), rel=0.1)


@pytest.mark.slow
def test_a_slow_rank_of_a_grid_is_named_with_its_cost(tmp_path: Path) -> None:
    """dp 2 x tp 2: rank 2 computes longer before each all_reduce of its tensor group."""

    def job(slow_us: float) -> GlooJob:
        programs: list[Program] = []
        for rank in range(4):
            work = Op(2000 + slow_us * (rank == 2) + 100 * (rank // 2))
            tensor: list[Item] = [work, Reduce(1 + rank // 2)]
            data: list[Item] = [Op(300), Reduce(3 + rank % 2)]
            step = [*tensor * 2, *data * 3]
            programs.append([step] * 6)
        return GlooJob(programs, [(0, 1), (2, 3), (0, 2), (1, 3)])

    twin, faulty = job(0), job(3000)
    run = Run(ingest([faulty.write(tmp_path)]))
    layout = layout_of(run, Scope())
    assert dict(layout.sizes) | {"dp": 2, "tp": 2} == dict(layout.sizes)
    first = collect(run, Scope())[0]
    assert first.ranks == (2,)
    assert first.cost_ns == pytest.approx(1000 * (faulty.step_us() - twin.step_us()), rel=0.2)


def test_waits_for_messages_are_exposed(tmp_path: Path) -> None:
    from rankscope.analysis import REPORTS

    run = Run(ingest([GlooJob(pipeline([1000, 4000], 2, 2), jitter_us=0).write(tmp_path)]))
    rows = REPORTS["breakdown"].analyse(run, Scope(), None).rows
    whole = {row["rank"]: row for row in rows if row["step"] is None}
    # Rank 1 computes 2 * 3 * 4 ms a step; rank 0 waits for it but for its own work.
    assert whole[0]["exposed_wait_ns"] == pytest.approx(2 * (24e6 - 6e6), rel=0.2)
    assert whole[1]["exposed_wait_ns"] < 0.25 * whole[0]["exposed_wait_ns"]


def exchange(ranks: int) -> list[Program]:
    """Every rank sends to the next one in a ring, those with even numbers first."""
    programs: list[Program] = []
    for rank in range(ranks):
        both: list[Item] = [Send((rank + 1) % ranks), Recv((rank - 1) % ranks)]
        programs.append([[Op(500), *(both if rank % 2 == 0 else reversed(both))]] * 3)
    return programs


@pytest.mark.parametrize("ranks", [2, 4])
def test_a_ring_is_no_pipeline(ranks: int, tmp_path: Path) -> None:
    run = Run(ingest([GlooJob(exchange(ranks)).write(tmp_path, captured=True)]))
    assert len(run.collectives.sends) == 3 * ranks
    chains = stage_chains(run.collectives)
    assert chains == (
        [] if ranks > 2 else [(0, 1)]
    )  # of two, one that sends first is a stage before the other


def test_pipelines_side_by_side(tmp_path: Path) -> None:
    """Stages of two pipelines: ranks 0, 2 and 1, 3."""
    stages = pipeline([500, 700], 2, 3)
    programs = [
        [[_moved(item, rank % 2) for item in step] for step in stages[rank // 2]] for rank in range(4)
    ]
    run = Run(ingest([GlooJob(programs).write(tmp_path, captured=True)]))
    assert stage_chains(run.collectives) == [(0, 2), (1, 3)]


def interleaved(stages: int, micro_batches: int) -> list[Program]:
    """Two chunks a stage: the last one sends to the first, and gradients come back."""
    programs: list[Program] = []
    last = 2 * stages - 1
    for stage in range(stages):
        forward: list[Item] = []
        backward: list[Item] = []
        for virtual in (stage, stages + stage):
            for _ in range(micro_batches):
                forward += [] if virtual == 0 else [Recv((stage - 1) % stages)]
                forward += [Op(500), *([] if virtual == last else [Send((stage + 1) % stages)])]
        for virtual in (stages + stage, stage):
            for _ in range(micro_batches):
                backward += [] if virtual == last else [Recv((stage + 1) % stages)]
                backward += [Op(500), *([] if virtual == 0 else [Send((stage - 1) % stages)])]
        programs.append([[*forward, *backward]] * 3)
    return programs


@pytest.mark.parametrize("stages", [3, 4])
def test_interleaved_stages_are_a_ring(stages: int, tmp_path: Path) -> None:
    run = Run(ingest([GlooJob(interleaved(stages, 2)).write(tmp_path, captured=True)]))
    assert stage_chains(run.collectives) == [tuple(range(stages))]
    assert [layout_of(run, Scope()).stage(rank) for rank in range(stages)] == list(range(stages))


def _moved(item: Item, by: int) -> Item:
    if isinstance(item, Send):
        return Send(2 * item.to + by)
    return Recv(2 * item.source + by) if isinstance(item, Recv) else item


def test_who_ended_first_is_said(tmp_path: Path) -> None:
    steps: list[list[Item]] = [[Op(500), Reduce(0)]] * 3
    folder = GlooJob([steps, [*steps[:2], [Op(500), Reduce(0)]]]).write(tmp_path)
    for rank, unix_ns in ((0, 5_000_000), (1, 3_000_000)):
        path = folder / f"rank-{rank:05}.pt.trace.json"
        trace = json.loads(path.read_text())
        trace["rankscope"]["ended"] = {"why": "the script ended in the window", "unix_ns": unix_ns}
        path.write_text(json.dumps(trace))
    texts = [str(doubt) for doubt in doubts(Run(ingest([folder])), Scope())]
    (ended,) = (text for text in texts if "recording cut" in text)
    assert "the script ended in the window" in ended
    assert "rank 1 ended first, after step 4; the last one, rank 0, 2.00 ms later" in ended
