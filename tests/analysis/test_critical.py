"""The critical path: against brute force, on runs whose path is known, and on real ranks."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from analysis.event_replay import events_of, graph_of_events
from analysis.plain_walk import pieces, plain_walk, random_events
from analysis.random_programs import events_of_program, longest_path, random_program
from conftest import DATA, examples, kernel_event, open_trace, slice_event, write_kineto
from pipeline_traces import PipelinePlan, write_pipeline
from rankscope.analysis import REPORTS
from rankscope.analysis.core.host_spans import latest_around
from rankscope.analysis.core.result import Result, Row
from rankscope.analysis.core.scope import Scope
from rankscope.analysis.graph.events import NONE
from rankscope.analysis.graph.graph import graph_of
from rankscope.timeline.reading import ingest
from rankscope.timeline.run import Run
from rankscope_bench.synthetic import Plan, Straggler, write


def critical(run: Run, **scope: Any) -> Result:
    return REPORTS["critical"].analyse(run, Scope(**scope), None)


def by_class(rows: Sequence[Row]) -> Counter[str]:
    sums: Counter[str] = Counter()
    for row in rows:
        sums[row["class"]] += row["ns"]
    return sums


@pytest.mark.slow
@settings(max_examples=examples(300), deadline=None)
@given(st.integers(0, 2**32 - 1))
def test_the_path_is_the_longest_of_all(seed: int) -> None:
    program = random_program(seed)
    length, parts = longest_path(program)
    events, _ = events_of_program(program)
    graph = graph_of_events(events)
    path = pieces(graph)
    assert path == plain_walk(events)
    assert graph.window == (0, length)
    found: Counter[str] = Counter()
    for piece in path:
        found[piece.kind] += piece.end - piece.start
    assert {kind: ns for kind, ns in found.items() if ns} == parts
    for later, earlier in pairwise(path):
        assert earlier.end == later.start  # pieces meet end to end


@pytest.mark.slow
@settings(max_examples=examples(500), deadline=None)
@given(st.integers(0, 2**32 - 1))
def test_the_path_is_that_of_the_plain_walk(seed: int) -> None:
    events = random_events(seed)
    assert pieces(graph_of_events(events)) == plain_walk(events)


def test_a_circle_ends_the_path() -> None:
    graph = graph_of_events(events_of_program(random_program(1))[0])
    to, origin = np.arange(len(graph.rank)), np.roll(np.arange(len(graph.rank)), 1)
    spent = tuple(np.zeros(len(to), dtype=np.int64) for _ in graph.work.spent)
    circle = replace(
        graph, to=to, origin=origin, work=replace(graph.work, spent=spent), window=(-1, graph.window[1])
    )
    path = pieces(circle)
    assert sum(piece.end - piece.start for piece in path) == circle.window[1] + 1


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(-1, 12)), max_size=20))
def test_the_label_of_a_moment_is_the_slice_around_it_that_started_last(spans: list[tuple[int, int]]) -> None:
    spans = sorted(spans, key=lambda span: span[0])
    start, length = np.array(spans, dtype=np.int64).reshape(-1, 2).T
    moments = np.arange(-2, 35)
    around = [
        max((at for at, (begin, size) in enumerate(spans) if begin <= moment < begin + size), default=NONE)
        for moment in moments.tolist()
    ]
    assert latest_around(start, start + length, np.arange(len(spans)), moments).tolist() == around


def test_labels_of_overlapping_slices_in_n_log_n() -> None:
    """Level by level this takes minutes: each slice overlaps all others."""
    start = np.arange(200_000)
    names = latest_around(start, start + len(start), start, start)
    assert names.tolist() == start.tolist()


def adds_up(run: Run, result: Result, **scope: Any) -> None:
    graph = graph_of(run, Scope(**scope).in_run(run))
    low, high = graph.window
    if not scope:  # of a part of the steps, what was before is known
        assert pieces(graph) == plain_walk(events_of(run, Scope().in_run(run)))
    assert sum(row["ns"] for row in result.rows) == high - low
    assert sum(row["pct"] for row in result.rows) == pytest.approx(100)
    assert all(row["ns"] > 0 for row in result.rows)


EMBEDDING_NS, COPY_NS, DATALOADER_NS, HOST_GAP_NS = 45_000, 60_000, 2_000_000, 350_000


@pytest.mark.slow
@pytest.mark.parametrize(
    ("cause", "kind", "per_step"),
    [
        ("compute", "compute", EMBEDDING_NS),
        ("dataloader", "dataloader", DATALOADER_NS),
        ("host", "host", HOST_GAP_NS),
    ],
)
def test_a_straggler_is_on_the_path_with_all_its_time(
    tmp_path: Path, cause: str, kind: str, per_step: int
) -> None:
    write(
        Plan(ranks=4, events_per_rank=6_000, steps=3, jitter=False, straggler=Straggler(2, cause, 4_000_000)),
        tmp_path,
    )
    run = Run(ingest([tmp_path]))
    result = critical(run)
    adds_up(run, result)
    mine = [row for row in result.rows if row["rank"] == 2 and row["class"] == kind]
    longest = max(mine, key=lambda row: row["ns"])
    assert longest["ns"] >= 3 * (4_000_000 + per_step)
    if cause == "compute":
        assert "gather_kernel" in longest["name"] and longest["ns"] == 3 * (4_000_000 + per_step)
    assert [column.name for column in result.columns] == ["class", "rank", "name", "ns", "pct"]


@pytest.mark.slow
def test_a_pipeline_hangs_on_its_slow_stage(tmp_path: Path) -> None:
    plan = PipelinePlan(stages=3, micro_batches=4, steps=2, slow_stage=1, slow_ns=900_000)
    write_pipeline(plan, tmp_path)
    run = Run(ingest([tmp_path]))
    result = critical(run)
    adds_up(run, result)
    slow = next(row for row in result.rows if row["rank"] == 1 and "coopA_TNT" in row["name"])
    assert slow["class"] == "compute"
    assert slow["ns"] == plan.steps * plan.micro_batches * (plan.forward_ns + plan.slow_ns)
    one = critical(run, steps=(1, 1))
    adds_up(run, one, steps=(1, 1))
    # It begins with rank 2, while the others compute backwards in step 0: events of other steps are on the path too.
    before = 2 * plan.backward_ns - 2_000
    assert by_class(one.rows)["compute"] == by_class(result.rows)["compute"] // 2 + before


@pytest.mark.thorough
def test_clocks_that_disagree_change_nothing_but_microseconds(tmp_path: Path) -> None:
    straggler = Straggler(1, "compute", 3_000_000)
    plan: dict[str, Any] = {"ranks": 3, "events_per_rank": 5_000, "steps": 3, "straggler": straggler}
    write(Plan(**plan), tmp_path / "a")
    write(Plan(**plan, max_offset_ns=20_000), tmp_path / "b")
    for name in ("a", "b"):
        run = Run(ingest([tmp_path / name]))
        result = critical(run)
        adds_up(run, result)
        assert result.rows[0]["rank"] == 1 and result.rows[0]["class"] == "compute"


@pytest.mark.slow
def test_real_ranks(open_real: Callable[[Path], Run]) -> None:
    run = open_real(DATA / "seqpar-gloo4-slow2")
    result = critical(run)
    adds_up(run, result)
    top = result.rows[0]
    assert (top["class"], top["rank"]) == ("compute", 2)
    assert top["ns"] == pytest.approx(76.88e6, rel=1e-3)
    assert result.title.startswith("The critical path: compute ")
    assert any("slack" in note for note in result.notes)
    for name in ("seqpar-gloo4", "ddp-gloo4", "gpt-h200", "seqpar-nccl1-bf16"):
        run = open_real(DATA / name)
        adds_up(run, critical(run))


def test_collectives_on_the_host_of_a_rank_alone_are_communication(tmp_path: Path) -> None:
    shutil.copy(DATA / "ddp-gloo4" / "rank-1.json.gz", tmp_path)
    result = critical(open_trace(tmp_path))
    assert by_class(result.rows)["comm"] == pytest.approx(370.9e6, rel=1e-3)
    assert result.title.startswith("The critical path: comm 84 %") and not result.findings


@pytest.mark.slow
def test_bad_input(tmp_path: Path) -> None:
    lone = open_trace(write_kineto(tmp_path / "k.json", [kernel_event("k", 10, 5), kernel_event("k", 20, 5)]))
    result = critical(lone)
    adds_up(lone, result)
    assert any("no steps" in note for note in result.notes)
    assert any("no launch in the file" in note for note in result.notes)
    for rank in (0, 1):
        name = f"two/rank-{rank}.json"
        write_kineto(tmp_path / name, [kernel_event("k", 10, 5), kernel_event("k", 20, 5 + rank)])
    two = critical(open_trace(tmp_path / "two"))
    assert any("the path stays on one rank" in note for note in two.notes)
    assert {row["rank"] for row in two.rows} == {1}
    empty = open_trace(write_kineto(tmp_path / "e.json", [slice_event("aten::mm", 1, 5)]))
    assert critical(empty).rows == ()
    assert any("there is no path" in note for note in critical(empty).notes)
