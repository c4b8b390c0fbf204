"""Pipelines in the viewer: bubbles are a class of their own, ranks stand by stage, messages have both ends."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from rankscope.analysis import REPORTS
from rankscope.analysis.core.intervals import Intervals, intersect, join, length
from rankscope.analysis.core.scope import Scope
from rankscope.timeline.reading import ingest
from rankscope.timeline.run import Run
from rankscope.viewer.answers import Route
from rankscope.viewer.session import ACTIVITIES, Session
from rankscope.viewer.startup import routes_of
from rankscope_bench.synthetic.cluster_trace import write_job
from rankscope_bench.synthetic.job import Job
from rankscope_bench.synthetic.pipeline import blocks
from viewer_server import OVERLAPS, Screen, serve, stop

pytestmark = pytest.mark.slow

JOB = Job(data=2, stages=4, micro_batches=4, schedule="1f1b", layers=1, steps=2)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("pipeline") / "run"
    write_job(JOB, path, balanced=False)
    return path


@pytest.fixture(scope="module")
def session(folder: Path) -> Session:
    return Session(Run(ingest([folder])), "run")


@pytest.fixture(scope="module")
def ask(session: Session) -> dict[str, Route]:
    return routes_of(session)


def test_a_bubble_is_neither_waiting_nor_idle(session: Session) -> None:
    bubbles = {row["rank"]: row for row in REPORTS["bubbles"].analyse(session.run, Scope(), "rank").rows}
    for rank in session.run.ranks:
        activity = session.activity(rank)
        sets: list[Intervals] = [getattr(activity, name) for name in ACTIVITIES]
        assert length(join(*sets)) == sum(map(length, sets)), "they are disjoint"
        steps = session.run.arrays(
            f"SELECT end_ns - time_ns AS start, end_ns AS end FROM steps WHERE rank = {rank}"
        )
        inside = length(intersect(activity.bubble, Intervals(steps["start"], steps["end"])))
        # The first step begins before the first event, where nothing is drawn.
        assert inside == pytest.approx(JOB.steps * bubbles[rank]["bubble_ns"], rel=1e-3)


def test_ranks_stand_by_stage_and_group(session: Session, ask: dict[str, Route]) -> None:
    grid: Any = ask["grid"]({})
    assert grid["title"] == "pp 4 · dp 2" and sorted(grid["ranks"]) == session.run.ranks
    (stages,) = grid["levels"]  # a data group of one rank has no bracket
    for number, bracket in enumerate(stages):
        ranks = grid["ranks"][bracket["from"] : bracket["to"]]
        assert bracket["label"] == f"stage {number}"
        assert [JOB.place(rank) for rank in ranks] == [(number, data, 0) for data in range(JOB.data)]
        assert {grid["stages"][str(rank)] for rank in ranks} == {number}


def test_the_scene_of_a_bubble_is_the_planted_schedule(session: Session, ask: dict[str, Route]) -> None:
    answer: Any = ask["findings"]({})
    (scene,) = (finding["scene"] for finding in answer["findings"] if finding["report"] == "bubbles")
    assert [JOB.place(rank)[0] for rank in scene["peers"]] == [0, 1, 2, 3] and scene["ranks"] == ()
    for stage, rank in enumerate(scene["peers"]):
        passes = sorted(
            (each for each in scene["passes"] if each["rank"] == rank), key=lambda each: each["start_ns"]
        )
        assert [each["label"] for each in passes] == [
            f"{each.phase[0].upper()}{each.batch + 1}"
            for block in blocks(JOB, stage)
            for each in block.passes
        ]
    # Forward to the next stage and back, once for each micro-batch.
    pairs = [
        (scene["peers"].index(each["from"]), scene["peers"].index(each["to"])) for each in scene["messages"]
    ]
    between = [*pairwise(range(JOB.stages))]
    expected = [*between, *((after, before) for before, after in between)] * JOB.micro_batches
    assert sorted(pairs) == sorted(expected)
    assert all(each["start_ns"] <= each["end_ns"] for each in scene["messages"])
    assert [row["stage"] for row in scene["bubbles"]] == [0, 1, 2, 3]
    # Each end of a message tells both.
    rows = session.run.collectives
    for entry in (int(rows.sends[0]), int(rows.recvs[0])):
        key = {"rank": rows.rank[entry], "segment": rows.segment[entry], "id": rows.slice[entry]}
        described: Any = ask["collective"]({name: str(value) for name, value in key.items()})
        (message,) = described["messages"]
        assert (message["from"], message["to"]) == (rows.rank[rows.sends[0]], rows.rank[rows.recvs[0]])


def test_a_pipeline_on_the_screen(folder: Path, session: Session, screen: Screen) -> None:
    viewer = serve(folder)
    page = screen.open(viewer.url).page
    bubble = "window.rankscope.findings.findIndex((finding) => finding.report === 'bubbles')"
    page.evaluate(f"window.rankscope.showFinding({bubble})")
    screen.settle()
    screen.until("window.rankscope.timeline.strips.size > 0")
    assert page.locator("#bubble-key").is_visible() and page.evaluate(OVERLAPS) == []
    texts = page.evaluate("window.rankscope.timeline.labels.boxes.map((box) => box.text)")
    assert {"F1", "F4", "B1", "B4"} <= set(texts)
    # A receive whose other end is far below: it comes up beside it.
    page.evaluate("window.rankscope.home(), window.rankscope.store.set({ open: [0, 1], folds: [] })")
    screen.settle()
    rows = session.run.collectives
    first = int((rows.rank[rows.recvs] == 0).argmax())
    sender, entry = int(rows.rank[rows.sends[first]]), int(rows.recvs[first])
    screen.until(f"!window.rankscope.timeline.inView.has({sender})")
    key = {"rank": 0, "segment": int(rows.segment[entry]), "id": int(rows.slice[entry]), "track": -1}
    times = {"start_ns": int(rows.start[entry]), "dur_ns": int(rows.duration[entry])}
    page.evaluate("(slice) => window.rankscope.goTo(slice)", key | times)
    screen.until("window.rankscope.timeline.peers !== null")
    screen.settle()
    assert page.evaluate("window.rankscope.ranks.slice(0, 2)") == [sender, 0]
    (message,) = page.evaluate("window.rankscope.timeline.peers.messages")
    assert (message["from"], message["to"]) == (sender, 0)
    screen.until(f"[0, {sender}].every((rank) => window.rankscope.timeline.inView.has(rank))")
    stop(viewer)
